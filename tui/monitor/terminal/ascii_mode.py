"""Draw widgets' borders, scrollbars and ellipses in ASCII."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_TWINS = str.maketrans(
    {
        **dict.fromkeys("…", "~"),
        **dict.fromkeys("╭╮╰╯┌┐└┘", "+"),
        **dict.fromkeys("─━–—", "-"),
        **dict.fromkeys("│┃", "|"),
        **dict.fromkeys("▁▂▃▄▅▆▇°", " "),  # A scrollbar's thumb needs no end characters, since its color shows it.
        "·": ".",
        "×": "x",
    }
)
"""ASCII replacements, each one cell wide like the character that it replaces."""


class PlainCharacters(LineFilter):
    """Replace ellipses, borders and scrollbars in every widget. Other characters are unchanged."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isascii() else Segment(segment.text.translate(_TWINS), segment.style)
            for segment in segments
        ]
