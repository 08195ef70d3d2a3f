"""What the pairs of a kernel say of its speed: which of them count, and the verdict with their factor. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from engine.evaluation import timing
from engine.evaluation.disturbance import as_quiet_as_the_quietest, undisturbed
from engine.evaluation.kernelbench import with_speedup
from engine.evaluation.timing import Pairs
from engine.verdict import Verdict


def counted(kind: str, pairs: Pairs) -> Pairs:
    """Those of a judgement that count: on a GPU all, on a CPU the undisturbed ones."""
    return undisturbed(pairs) if kind == "cpu" else pairs


def timed(verdict: Verdict, kind: str, *sittings: Pairs) -> Verdict:
    """``verdict`` with what its pairs say, those of each sitting by themselves."""
    every, each = Pairs.pooled(sittings), [counted(kind, pairs) for pairs in sittings]
    counting = as_quiet_as_the_quietest(each) if kind == "cpu" else each
    middle, low, high = timing.over_sittings(counting, each)
    pairs = Pairs.pooled(counting)
    kernel, reference = timing.summarize(pairs.kernel_ms), timing.summarize(pairs.reference_ms)
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
        floor_share=verdict.floor_ms / kernel.median_ms if verdict.floor_ms else None,
        kernelbench=with_speedup(verdict.kernelbench, every),
    )
