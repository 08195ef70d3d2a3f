"""Diff tab: the kernel's changes relative to its parent, the best kernel or a marked kernel."""

from __future__ import annotations

from textual.strip import Strip

from tui.monitor.panes.lines import line
from tui.monitor.theme.palette import Palette
from tui.source_text.changes import MAX_LINES, changes_between


def diff_lines(old: str, new: str, old_name: str, new_name: str, palette: Palette) -> list[Strip]:
    """Return a unified diff of two sources, limited to the first ``MAX_LINES`` lines of each."""
    if old == new:
        return [line((f"{new_name} is identical to {old_name}", palette.dim))]
    changes = changes_between(old, new)
    if changes.hidden:
        where = f"only beyond line {MAX_LINES:,}" if changes.cut else "only in the hidden part of long lines"
        return [line((f"{new_name} differs from {old_name} {where}", palette.warn))]
    styles = {"+": palette.added, "-": palette.removed, "@": palette.title}
    head = line(
        (f"{old_name} -> {new_name}  ", palette.bold),
        (f"+{changes.added} ", palette.added),
        (f"-{changes.removed}", palette.removed),
    )
    cut = f"The diff covers only the first {MAX_LINES:,} lines of each kernel."
    note = [line((cut, palette.warn))] if changes.cut else []
    return [head, *note, *(line((text, styles.get(text[:1], palette.text))) for text in changes.lines)]
