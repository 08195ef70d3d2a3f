"""The detail pane's text for a problem that no proposer supports: the reason and the remedies."""

from __future__ import annotations

from textual.strip import Strip

from engine.session.state.session_state import ProblemState
from tui.monitor.panes.detail.text import heading, wrapped
from tui.monitor.theme.palette import Palette


def unwritten_lines(problem: ProblemState, palette: Palette, width: int) -> list[Strip]:
    """Return the reason and the remedies, wrapped. Config tables keep their line breaks."""
    lines = wrapped(f"No proposer of this session can write a kernel for {problem.id}.", palette.bold, width)
    lines += wrapped(problem.cannot_write or "", palette.warn, width)
    lines += heading("What you can do", palette)
    for remedy in problem.remedies:
        lines += [*wrapped(remedy, palette.text, width)]
    return lines
