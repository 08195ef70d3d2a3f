"""Format verdicts and baselines for display."""

from __future__ import annotations

from engine.session.records.speedup_text import WIDE, marked, relative_width, speedup
from engine.session.records.verdict import BUSY, Baseline, KernelBenchVerdict, Verdict, precision_in_words


def speedup_words(verdict: Verdict | None) -> str:
    """Format a verdict's speedup: ``1.57x``; ``~1.57x`` if uncertain; ``-`` if missing."""
    if verdict is None:
        return speedup(None)
    return marked(speedup(verdict.speedup), is_uncertain(verdict))


def is_uncertain(verdict: Verdict | None) -> bool:
    """Return whether the speedup is uncertain: its 95% interval is wide, other programs disturbed the timing, or a slow
    host measured it.
    """
    if verdict is None or verdict.speedup is None:
        return False
    return counts_by_low_end(verdict) or verdict.others > BUSY


def counts_by_low_end(verdict: Verdict) -> bool:
    """Return whether the ranking uses the low end of the speedup's interval: the 95% interval is wide, or a slow host
    measured the speedup. The load of other programs has no effect here, because it differs from one verdict to the
    next.
    """
    return verdict.speedup is not None and (verdict.slow_host is not None or interval_width(verdict) > WIDE)


def interval_width(verdict: Verdict) -> float:
    """Return the 95% interval's width relative to the speedup; 0 without an interval."""
    return relative_width(verdict.speedup, verdict.speedup_low, verdict.speedup_high)


def counted_pairs(verdict: Verdict) -> str:
    """Format the number of timing pairs: ``700``; ``480 of 700`` if other programs disturbed the rest; "" without
    pairs.
    """
    among = f" of {verdict.pairs + verdict.disturbed_pairs}" if verdict.disturbed_pairs else ""
    return f"{verdict.pairs}{among}" if verdict.pairs else ""


def precision_words(verdict: Verdict) -> str:
    """Format the precision class and the error; "" if not measured."""
    if not verdict.precision or verdict.fp64_error is None:
        return ""
    return precision_in_words(verdict.precision, verdict.fp64_error, verdict.eager_fp64_error or 0.0)


def kernelbench_outcome(theirs: KernelBenchVerdict) -> str:
    """Format the status and speedup under KernelBench's rules: ``correct, 2.31x``."""
    known = theirs.status == "correct" and theirs.speedup is not None
    return f"{theirs.status}, {speedup(theirs.speedup)}" if known else theirs.status


def kernelbench_words(theirs: KernelBenchVerdict) -> str:
    """Format the outcome under KernelBench's rules, with the reason."""
    return f"{kernelbench_outcome(theirs)} ({theirs.reason})" if theirs.reason else kernelbench_outcome(theirs)


def is_disturbed(baseline: Baseline) -> bool:
    """Return whether other programs used enough of the CPU to distort the baseline's time."""
    return baseline.timing is not None and baseline.others > BUSY


def is_comparison_uncertain(verdict: Verdict, baseline: Baseline, eager: Baseline | None) -> bool:
    """Return whether the speedup over ``baseline`` is uncertain.

    The judge times baselines alone, and kernels in pairs with eager. A change in the machine's speed does not matter if
    the judge also timed eager right after the baseline.
    """
    slowed = baseline.eager_ms is None and eager_change(verdict, eager) > WIDE
    return is_uncertain(verdict) or is_disturbed(baseline) or slowed


def eager_change(verdict: Verdict, eager: Baseline | None) -> float:
    """Return the relative difference between eager's time in the verdict's pairs and the eager baseline's time.

    The result is 0 if either time is unknown. If the times differ, the machine was faster during one of the
    measurements.
    """
    alone, paired = eager.timing if eager is not None else None, verdict.reference
    if alone is None or paired is None:
        return 0.0
    return max(alone.median_ms, paired.median_ms) / min(alone.median_ms, paired.median_ms) - 1.0


def disturbance(baseline: Baseline) -> str:
    """Return a remark on a disturbed baseline; "" if the baseline was undisturbed."""
    return f"timed while other programs used {baseline.others:.0%} of the CPU" if is_disturbed(baseline) else ""
