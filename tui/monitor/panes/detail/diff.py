"""Tab Diff: the kernel's changes relative to its parent, the best kernel or a marked kernel."""

from __future__ import annotations

from difflib import unified_diff
from itertools import islice

from textual.strip import Strip

from tui.monitor.panes.lines import line
from tui.monitor.theme.palette import Palette
from tui.text.sanitize import clean_lines

MAX_LINES = 5_000
CONTEXT = 3


def diff_lines(old: str, new: str, old_name: str, new_name: str, palette: Palette) -> list[Strip]:
    """Return a unified diff of the first ``MAX_LINES`` lines."""
    if old == new:
        return [line((f"{new_name} is identical to {old_name}", palette.dim))]
    before, after = (clean_lines(text, most=MAX_LINES) for text in (old, new))
    cut = any(len(lines) > MAX_LINES for lines in (before, after))
    del before[MAX_LINES:], after[MAX_LINES:]
    if before == after:
        where = f"only beyond line {MAX_LINES:,}" if cut else "only in the hidden part of long lines"
        return [line((f"{new_name} differs from {old_name} {where}", palette.warn))]
    styles = {"+": palette.added, "-": palette.removed, "@": palette.title}
    body = list(islice(unified_diff(before, after, lineterm="", n=CONTEXT), 2, None))
    added = sum(text.startswith("+") for text in body)
    removed = sum(text.startswith("-") for text in body)
    head = line(
        (f"{old_name} -> {new_name}  ", palette.bold), (f"+{added} ", palette.added), (f"-{removed}", palette.removed)
    )
    note = [line((f"The diff covers only the first {MAX_LINES:,} lines of each kernel.", palette.warn))] if cut else []
    return [head, *note, *(line((text, styles.get(text[:1], palette.text))) for text in body)]
