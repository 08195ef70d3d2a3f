"""ASCII mode's last step: what the screen's own furniture draws with other characters is drawn with ASCII ones."""

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
        **dict.fromkeys("▁▂▃▄▅▆▇°", " "),  # the ends of a scrollbar's thumb, which is told by its colour
        "·": ".",
        "×": "x",
    }
)
"""Each of one cell, as wide as what it stands for."""


class PlainCharacters(LineFilter):
    """Replaces ellipses, borders and scrollbars in every widget. A character without a twin stays as it is."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isascii() else Segment(segment.text.translate(_TWINS), segment.style)
            for segment in segments
        ]
