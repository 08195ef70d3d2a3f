"""Draw the README's animation from a recorded session.

    pip install pillow
    python docs/animate.py sessions/headline-h200 docs/search.webp

The script replays the session without a terminal.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from PIL import Image
from terminal_image import draw_screen

from engine.session.store import SessionPaths
from tui.monitor.replay import ReplayApp, ReplaySource
from tui.monitor.settings import Settings

COLUMNS, LINES = 110, 30
FRAMES = 16
FRAME_MS, LAST_FRAME_MS = 700, 4000


async def pictures(session: Path) -> list[Image.Image]:
    source = ReplaySource(SessionPaths.at(session), speed=1.0)
    app = ReplayApp(source, settings=Settings(notify="off"), ascii_only=False)
    drawn = []
    async with app.run_test(size=(COLUMNS, LINES)) as pilot:
        await pilot.press("space")
        start, span = source.clock.now(), source.clock.span_s
        for frame in range(FRAMES + 1):
            source.clock.seek(start + span * frame / FRAMES)
            await pilot.pause(1.2)
            drawn.append(draw_screen(app.screen._compositor.render_strips(), COLUMNS, LINES))
    return drawn


def main() -> None:
    session, target = map(Path, sys.argv[1:])
    first, *rest = asyncio.run(pictures(session))
    durations = [FRAME_MS] * len(rest) + [LAST_FRAME_MS]
    first.save(target, save_all=True, append_images=rest, duration=durations, loop=0, lossless=True, method=6)


if __name__ == "__main__":
    main()
