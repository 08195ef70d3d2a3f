"""The speedup over ``torch.compile``. All functions are pure.

The judge times ``torch.compile`` alone, often minutes before or after a kernel. On a CPU, the machine's speed may
change between the two measurements, which would distort the quotient of their times. There, the verdicts nearest to the
measurement of ``torch.compile`` show how fast eager was at that time. A kernel's pairs show how much faster than eager
the kernel is. On a GPU, the speedup is the quotient, because other programs on the host hardly change the two times.
"""

from __future__ import annotations

from bisect import bisect
from statistics import median

from engine.session.records.verdict import Verdict
from engine.session.state.nodes import ProblemState

NEAREST = 3
"""Number of verdicts for the median of eager's time: a median, because other programs can disturb a single verdict."""


def over_compile(problem: ProblemState, verdict: Verdict | None) -> float | None:
    """Return a kernel's speedup over ``torch.compile``, or None if ``torch.compile`` has not been timed.

    On a CPU, this is the speedup over eager, divided by the speedup of ``torch.compile`` over eager. On a GPU, it is
    ``torch.compile``'s time / the kernel's time.
    """
    compiled = problem.baselines.get("compile")
    if verdict is None or not verdict.correct or compiled is None or compiled.timing is None:
        return None
    if verdict.kernel is None or not verdict.kernel.median_ms:
        return None
    eager_ms = eager_beside_compile_ms(problem)
    if verdict.speedup is None or verdict.reference is None or eager_ms is None:
        return compiled.timing.median_ms / verdict.kernel.median_ms
    return verdict.speedup * compiled.timing.median_ms / eager_ms


def eager_beside_compile_ms(problem: ProblemState) -> float | None:
    """Return eager's time in the verdicts nearest to the measurement of ``torch.compile``; None on a GPU, or without
    verdicts.
    """
    at, times = problem.compiled_at, problem.eager_times
    place = bisect(times, (at, 0.0))
    around = sorted(times[max(0, place - NEAREST) : place + NEAREST], key=lambda one: abs(one[0] - at))
    return median(ms for _, ms in around[:NEAREST]) if around else None
