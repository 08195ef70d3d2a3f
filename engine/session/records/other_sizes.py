"""Results of a best kernel at sizes other than the searched sizes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from engine.session.records.speedup_text import WIDE, marked, relative_width, speedup
from engine.session.records.verdict import UNJUDGED, Status

NOT_FOR_THIS_SIZE = "not for this size"
"""Prefix of the ``static_assert`` message in a kernel that supports only certain sizes: "not for this size:
needs ...".
"""


class AtSizes(Struct, frozen=True, omit_defaults=True):
    """A kernel's result at one set of other sizes. Only results of correct kernels have times and speedups.

    ``label`` describes the sizes ("smaller", "odd", "larger") or is "". ``shapes`` gives the input shapes as text.
    ``uncertain``: the speedup is uncertain, possibly for a reason other than its interval.
    """

    label: str
    sizes: dict[str, int]
    shapes: str
    status: Status
    reason: str = ""
    kernel_ms: float | None = None
    eager_ms: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    uncertain: bool = field(default=False, name="unsure")

    @property
    def eager_ms_for_tables(self) -> float | None:
        """The kernel's time, multiplied by the speedup; without a speedup, the measured time of eager."""
        if self.kernel_ms is None or self.speedup is None:
            return self.eager_ms
        return self.kernel_ms * self.speedup

    @property
    def speedup_words(self) -> str:
        """Speedup over eager as text."""
        is_wide = relative_width(self.speedup, self.speedup_low, self.speedup_high) > WIDE
        return marked(speedup(self.speedup), self.uncertain or is_wide)

    @property
    def unfit(self) -> bool:
        """Whether the kernel rejects these sizes at build time, which is not a failure."""
        return self.status == "build_error" and self.reason.startswith(NOT_FOR_THIS_SIZE)

    @property
    def outcome(self) -> str:
        """The status of the result as text."""
        return NOT_FOR_THIS_SIZE if self.unfit else self.status.replace("_", " ")


def only_searched_sizes(results: Sequence[AtSizes]) -> bool:
    """Return whether the judge found the kernel correct only at the searched sizes."""
    judged = [one for one in results if one.status not in UNJUDGED]
    return bool(judged) and all(one.speedup is None for one in judged)


def sizes_in_words(results: Sequence[AtSizes]) -> str:
    """Summarize correctness and speedup at other sizes in one sentence; "" without results."""
    judged = [one for one in results if one.status not in UNJUDGED]
    right = [one for one in judged if one.status == "correct" and one.speedup is not None]
    failed = [f"{one.outcome} at {one.shapes}" for one in judged if one not in right]
    untried = [f"not judged at {one.shapes}" for one in results if one not in judged]
    if not judged:
        return "; ".join(untried)
    by_speedup = [one.speedup_words for one in sorted(right, key=lambda one: one.speedup or 0.0)]
    slower = [f"{one.speedup_words} at {one.shapes}" for one in right if one.speedup is not None and one.speedup <= 1.0]
    if only_searched_sizes(results):
        words = ["correct only at the searched sizes"]
    else:
        where = (
            ("the other size" if len(judged) == 1 else f"all {len(judged)} other sizes")
            if len(right) == len(judged)
            else f"{len(right)} of {len(judged)} other sizes"
        )
        span = by_speedup[0] + (f" to {by_speedup[-1]}" if len(by_speedup) > 1 else "")
        words = [f"correct at {where}, {span} over eager"]
        if slower:
            words.append("slower than eager at some sizes: " + ", ".join(slower))
    return "; ".join([*words, *failed, *untried])
