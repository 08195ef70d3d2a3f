"""Draw a terminal's screen as an image: cells of DejaVu Sans Mono. Needs Pillow."""

from __future__ import annotations

from collections.abc import Iterable

from PIL import Image, ImageDraw, ImageFont
from rich.color import Color, ColorTriplet
from rich.segment import Segment
from rich.style import Style

REGULAR, BOLD = "DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf"
"""Files that Pillow finds in the system's font directories."""
OTHER = "DejaVuSans.ttf"
"""A font with the braille patterns of charts."""
SIZE = 13
BRAILLE = range(0x2800, 0x2900)
DARK = (ColorTriplet(18, 18, 18), ColorTriplet(224, 224, 224))
LIGHT = (ColorTriplet(250, 250, 250), ColorTriplet(30, 30, 30))
"""Background and foreground of the terminal."""


def triplet(color: Color | None, default: ColorTriplet) -> ColorTriplet:
    return default if color is None or color.is_default else color.get_truecolor()


def draw_screen(
    lines: Iterable[Iterable[Segment]], columns: int, rows: int, colors: tuple[ColorTriplet, ColorTriplet] = DARK
) -> Image.Image:
    """Draw ``rows`` lines of segments, such as Textual's strips, in a terminal of ``columns`` cells."""
    background, foreground = colors
    regular, bold = (ImageFont.truetype(font, SIZE) for font in (REGULAR, BOLD))
    width, height = round(regular.getlength("M")), SIZE + 4
    picture = Image.new("RGB", (columns * width, rows * height), tuple(background))
    pen = ImageDraw.Draw(picture)
    for line, segments in enumerate(lines):
        column = 0
        for segment in segments:
            style = segment.style or Style()
            ink, paper = triplet(style.color, foreground), triplet(style.bgcolor, background)
            if style.reverse:
                ink, paper = paper, ink
            if style.dim:
                ink = ColorTriplet(*((a + b) // 2 for a, b in zip(ink, paper, strict=True)))
            for character in segment.text:
                x, y = column * width, line * height
                pen.rectangle((x, y, x + width - 1, y + height - 1), fill=tuple(paper))
                if ord(character) in BRAILLE:
                    _braille(pen, ord(character) - 0x2800, (x, y), (width, height), tuple(ink))
                else:
                    pen.text((x, y + 1), character, font=bold if style.bold else regular, fill=tuple(ink))
                column += 1
    return picture


def _braille(
    pen: ImageDraw.ImageDraw, dots: int, at: tuple[int, int], cell: tuple[int, int], ink: tuple[int, ...]
) -> None:
    """Draw a braille pattern as terminals do, with its dots spread over the whole cell."""
    places = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
    for bit, (across, down) in enumerate(places):
        if dots >> bit & 1:
            x = at[0] + round((across + 0.5) * cell[0] / 2) - 1
            y = at[1] + round((down + 0.5) * cell[1] / 4) - 1
            pen.rectangle((x, y, x + 1, y + 1), fill=ink)
