"""Tab Kernel: the source with line numbers, highlighted as CUDA, C++ or Python."""

from __future__ import annotations

from textual.strip import Strip

from engine.problem.spec import Form
from tui.highlight import spans_of, strip_of
from tui.palette import Palette
from tui.sanitize import clean_lines


def kernel_lines(source: str, form: Form, palette: Palette, whole: str = "") -> list[Strip]:
    """``whole``: what shows all of a source that is too long, as for ``clean_lines``."""
    return [
        strip_of(spans, palette, (f"{number:>4} ", palette.dim))
        for number, spans in enumerate(spans_of("\n".join(clean_lines(source, whole=whole)), form), 1)
    ]
