"""The changed lines between two sources, as a unified diff."""

from __future__ import annotations

from difflib import unified_diff
from itertools import islice

from msgspec import Struct

from tui.text.sanitize import clean_lines

MAX_LINES = 5_000
"""Maximum number of lines compared per source."""
CONTEXT = 3


class Changes(Struct, frozen=True):
    """A diff. ``lines`` begin with ``+``, ``-``, ``@`` or a space.

    ``cut`` is true if the diff covers only the first ``MAX_LINES`` lines. ``hidden`` is true if the sources differ, but
    not in these lines.
    """

    lines: tuple[str, ...]
    cut: bool = False
    hidden: bool = False

    @property
    def added(self) -> int:
        return sum(one.startswith("+") for one in self.lines)

    @property
    def removed(self) -> int:
        return sum(one.startswith("-") for one in self.lines)


def changes_between(old: str, new: str) -> Changes:
    """Compare the first ``MAX_LINES`` lines of two sources. The resulting lines are safe to show."""
    before, after = (clean_lines(text, most=MAX_LINES) for text in (old, new))
    cut = any(len(lines) > MAX_LINES for lines in (before, after))
    del before[MAX_LINES:], after[MAX_LINES:]
    body = islice(unified_diff(before, after, lineterm="", n=CONTEXT), 2, None)
    return Changes(tuple(body), cut, old != new and before == after)
