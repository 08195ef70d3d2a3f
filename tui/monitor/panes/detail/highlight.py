"""Draw colored spans of source text."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from tui.monitor.theme.palette import Palette


def strip_of(spans: tuple[tuple[str, str], ...], palette: Palette, gutter: tuple[str, Style] | None = None) -> Strip:
    head = [Segment(*gutter)] if gutter is not None else []
    return Strip([*head, *(Segment(text, palette.named(style)) for text, style in spans)])
