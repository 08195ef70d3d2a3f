"""Draw the manual's pictures of the monitor at three sizes from a recorded session.

    pip install pillow
    python docs/screens.py sessions/by-hand docs

The script replays the session up to ``MOMENT`` without a terminal, and writes ``monitor-COLUMNSxLINES.webp`` files.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from terminal_image import draw_screen

from engine.session.store import SessionPaths
from tui.monitor.replay import ReplayApp, ReplaySource
from tui.monitor.settings import Settings

MOMENT = 0.8
"""Share of the recording that precedes the pictures."""
NODE = "v34"
"""The selected kernel: the best of conv2d_relu_maxpool."""
SCREENS = (("80x24", ""), ("80x24-charts", "8"), ("120x40", "[["), ("200x60", ""))
"""The name of each picture, with the keys that the script presses first."""
KEY_NAMES = {"[": "left_square_bracket"}
SETTLE_S = 1.5


async def picture(session: Path, name: str, keys: str, folder: Path) -> None:
    columns, lines = (int(number) for number in name.partition("-")[0].split("x"))
    source = ReplaySource(SessionPaths.at(session), speed=1.0)
    app = ReplayApp(source, settings=Settings(notify="off"), ascii_only=False)
    async with app.run_test(size=(columns, lines)) as pilot:
        await pilot.press("space")
        source.clock.seek(source.clock.now() + source.clock.span_s * MOMENT)
        await pilot.pause(SETTLE_S)
        app.monitor_screen.tree_view.select(NODE)
        for key in keys:
            await pilot.press(KEY_NAMES.get(key, key))
        await pilot.pause(6.0)  # until the notice about the paused replay is gone
        drawn = draw_screen(app.screen._compositor.render_strips(), columns, lines)
    drawn.save(folder / f"monitor-{name}.webp", lossless=True, method=6)


def main() -> None:
    session, folder = map(Path, sys.argv[1:])
    for name, keys in SCREENS:
        asyncio.run(picture(session, name, keys, folder))


if __name__ == "__main__":
    main()
