"""The speedup over ``torch.compile``. All functions are pure.

The judge times ``torch.compile`` alone, often minutes before or after a kernel. On a CPU, the machine's speed may
change between the two measurements, which would distort the ratio of the two times. On a CPU, the judge therefore
times eager again right after ``torch.compile``, and this module compares the two speedups over eager. On a GPU, the
speedup is the ratio of the two times, because other programs on the host hardly change these times.
"""

from __future__ import annotations

from engine.session.records.verdict import Baseline, Verdict
from engine.session.state.nodes import ProblemState, VariantState


def over_compile(problem: ProblemState, verdict: Verdict | None) -> float | None:
    """Return a correct kernel's speedup over ``torch.compile``, or None if the judge has not timed ``torch.compile``.

    On a CPU, this is the speedup over eager, divided by the speedup of ``torch.compile`` over eager. It is
    ``torch.compile``'s time / the kernel's time on a GPU, and in sessions without eager's time after ``torch.compile``.
    """
    compiled = problem.baselines.get("compile")
    if verdict is None or not verdict.correct or compiled is None or compiled.timing is None:
        return None
    if verdict.kernel is None or not verdict.kernel.median_ms:
        return None
    if (share := share_of_eager(compiled, compiled.timing.median_ms)) is None or verdict.speedup is None:
        return compiled.timing.median_ms / verdict.kernel.median_ms
    return verdict.speedup * share


def compile_ms(problem: ProblemState, best: VariantState | None) -> float | None:
    """Return ``torch.compile``'s time for tables, or None if the judge has not timed ``torch.compile``.

    On a CPU, this is the time at the speed that the machine had when the judge timed the best kernel: eager's time, as
    tables show it, multiplied by ``torch.compile``'s time / eager's time right after it. Divided by the kernel's time,
    it is ``over_compile``. On a GPU, without a correct kernel, and in sessions without eager's time after
    ``torch.compile``, it is the measured time.
    """
    compiled = problem.baselines.get("compile")
    if compiled is None or compiled.timing is None:
        return None
    measured_ms = compiled.timing.median_ms
    share = share_of_eager(compiled, measured_ms)
    if share is None or best is None or best.speedup is None or best.kernel_ms is None:
        return measured_ms
    return best.kernel_ms * best.speedup * share


def share_of_eager(compiled: Baseline, ms: float) -> float | None:
    """Return ``torch.compile``'s time ``ms`` / eager's time right after it, or None if eager's time is unknown."""
    return ms / compiled.eager_ms if compiled.eager_ms else None
