"""Kernel tab: the source with line numbers, highlighted as CUDA, C++ or Python."""

from __future__ import annotations

from textual.strip import Strip

from engine.problem.spec import Language
from tui.monitor.panes.detail.highlight import strip_of
from tui.monitor.theme.palette import Palette
from tui.source_text.highlight import spans_of
from tui.text.sanitize import clean_lines


def kernel_lines(source: str, language: Language, palette: Palette, whole: str = "") -> list[Strip]:
    """Return a kernel's highlighted source. ``whole`` says where to find a source that is too long to show."""
    return [
        strip_of(spans, palette, (f"{number:>4} ", palette.dim))
        for number, spans in enumerate(spans_of("\n".join(clean_lines(source, whole=whole)), language), 1)
    ]
