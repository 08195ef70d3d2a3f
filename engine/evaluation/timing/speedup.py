"""Convert pairs to a speedup with its interval. All functions are pure."""

from __future__ import annotations

from msgspec.structs import replace

from engine.evaluation.correctness.kernelbench import with_speedup
from engine.evaluation.timing import statistics
from engine.evaluation.timing.noise_rejection import undisturbed
from engine.evaluation.timing.statistics import Pairs
from engine.session.records.verdict import Verdict


def counted(kind: str, pairs: Pairs) -> Pairs:
    """Return the pairs of one process that count toward the speedup: all pairs on a GPU, or the undisturbed pairs on a
    CPU.
    """
    return undisturbed(pairs)[0] if kind == "cpu" else pairs


def timed(verdict: Verdict, kind: str, *processes: Pairs) -> Verdict:
    """Return ``verdict`` with times and speedup from the pairs of each process."""
    every, each = Pairs.pooled(processes), [counted(kind, pairs) for pairs in processes]
    counting = undisturbed(*processes) if kind == "cpu" else each
    middle, low, high = statistics.over_processes(counting, each)
    pairs = Pairs.pooled(counting)
    kernel, reference = statistics.summarize(pairs.kernel_ms), statistics.summarize(pairs.reference_ms)
    return replace(
        verdict,
        status="correct",
        speedup=middle,
        speedup_low=low,
        speedup_high=high,
        pairs=len(pairs.kernel_ms),
        disturbed_pairs=len(every.kernel_ms) - len(pairs.kernel_ms),
        kernel=kernel,
        reference=reference,
        sol_share=verdict.sol_ms / kernel.median_ms if verdict.sol_ms else None,
        kernelbench=with_speedup(verdict.kernelbench, every),
    )
