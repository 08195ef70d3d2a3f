"""Tab Kernel: the source with line numbers, highlighted as CUDA, C++ or Python."""

from __future__ import annotations

from textual.strip import Strip

from engine.problem.spec import Form
from tui.highlight import spans_of, strip_of
from tui.palette import Palette
from tui.sanitize import clean_lines
from tui.widgets.lines import line


def kernel_lines(source: str, form: Form, palette: Palette, *, plain: bool = False) -> list[Strip]:
    """``plain`` skips the highlighting: for the first paint while the cursor is moving."""
    if plain:
        return [
            line((f"{number:>4} ", palette.dim), (text, palette.text))
            for number, text in enumerate(clean_lines(source), 1)
        ]
    return [
        strip_of(spans, palette, (f"{number:>4} ", palette.dim))
        for number, spans in enumerate(spans_of(source, form), 1)
    ]
