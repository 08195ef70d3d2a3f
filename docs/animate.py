"""Draw the README's animation from a recorded session.

    pip install pillow
    python docs/animate.py sessions/by-hand docs/search.webp

It replays the session without a terminal and draws each screen as cells of DejaVu Sans Mono.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from rich.color import Color, ColorTriplet
from rich.style import Style
from textual.strip import Strip

from engine.session.store import SessionPaths
from tui.monitor.replay import ReplayApp, ReplaySource
from tui.monitor.settings import Settings

COLUMNS, LINES = 110, 30
FRAMES = 16
FRAME_MS, LAST_FRAME_MS = 700, 4000
REGULAR, BOLD = "DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf"
"""Files that Pillow finds in the system's font directories."""
SIZE = 13
BACKGROUND, FOREGROUND = ColorTriplet(18, 18, 18), ColorTriplet(224, 224, 224)


def triplet(color: Color | None, default: ColorTriplet) -> ColorTriplet:
    return default if color is None or color.is_default else color.get_truecolor()


def draw(strips: list[Strip]) -> Image.Image:
    """Draw a screen as an image."""
    regular, bold = (ImageFont.truetype(font, SIZE) for font in (REGULAR, BOLD))
    width, height = round(regular.getlength("M")), SIZE + 4
    picture = Image.new("RGB", (COLUMNS * width, LINES * height), tuple(BACKGROUND))
    pen = ImageDraw.Draw(picture)
    for line, strip in enumerate(strips):
        column = 0
        for segment in strip:
            style = segment.style or Style()
            ink, paper = triplet(style.color, FOREGROUND), triplet(style.bgcolor, BACKGROUND)
            if style.reverse:
                ink, paper = paper, ink
            if style.dim:
                ink = ColorTriplet(*((a + b) // 2 for a, b in zip(ink, paper, strict=True)))
            for character in segment.text:
                x, y = column * width, line * height
                pen.rectangle((x, y, x + width - 1, y + height - 1), fill=tuple(paper))
                pen.text((x, y + 1), character, font=bold if style.bold else regular, fill=tuple(ink))
                column += 1
    return picture


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
            drawn.append(draw(app.screen._compositor.render_strips()))
    return drawn


def main() -> None:
    session, target = map(Path, sys.argv[1:])
    first, *rest = asyncio.run(pictures(session))
    durations = [FRAME_MS] * len(rest) + [LAST_FRAME_MS]
    first.save(target, save_all=True, append_images=rest, duration=durations, loop=0, lossless=True, method=6)


if __name__ == "__main__":
    main()
