"""Judge a kernel with one evaluation or, for a thorough verdict, with several. The judge repeats evaluations with
implausible results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from engine.evaluation.judge.checks import SLOWS
from engine.evaluation.judge.evaluation_run import EvaluationRun
from engine.evaluation.judge.problem_context import ProblemContext
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.timing.clocks import MISREPORT
from engine.evaluation.timing.speedup import timed
from engine.evaluation.timing.statistics import Pairs, is_undecided, timing_processes
from engine.session.records.verdict import BuildReport, Stage, Verdict

_CLOCK = POLICY.clock


def judge(
    context: ProblemContext,
    library: Path,
    build: BuildReport,
    on_stage: Callable[[Stage], None],
    cancelled: Callable[[], bool],
) -> Verdict:
    """Return the verdict on one kernel. Each evaluation uses a new process and fresh data.

    For a thorough verdict, the judge pools pairs from several processes, and the interval covers every process's
    result.
    """
    each: list[Pairs] = []
    flags: dict[str, None] = {}
    others = 0.0
    for _ in range(timing_processes(context.settings.thorough)):
        verdict, pairs = _evaluate(context, library, build, on_stage, cancelled)
        if not verdict.correct:
            return verdict
        each.append(pairs)
        flags |= dict.fromkeys(verdict.flags)
        others = max(others, verdict.others)
    return _marked(timed(replace(verdict, flags=tuple(flags), others=others), context.settings.kind, *each))


def _evaluate(
    context: ProblemContext,
    library: Path,
    build: BuildReport,
    on_stage: Callable[[Stage], None],
    cancelled: Callable[[], bool],
) -> tuple[Verdict, Pairs]:
    """Evaluate once. If the evaluation fails or its result is implausible, evaluate again and use the second result."""

    def once() -> tuple[EvaluationRun, Verdict]:
        run = EvaluationRun(context, library, on_stage, cancelled)
        return run, run.evaluate(build)

    run, verdict = once()
    failed = verdict.status == "error" and not cancelled()
    if failed or _is_odd(verdict, context):
        if failed:
            time.sleep(_CLOCK.retry_s)
        run, verdict = once()
    if verdict.correct and _is_odd(verdict, context):
        remark = f"{verdict.sol_share or 0.0:.0%} of SOL in two evaluations"
        verdict = replace(verdict, flags=(*verdict.flags, remark))
    return verdict, run.pairs


def _is_odd(verdict: Verdict, context: ProblemContext) -> bool:
    """Return whether the kernel is clearly faster than SOL, or a check found false times or a slowed reference."""
    below_sol = verdict.sol_share is not None and verdict.sol_share > _CLOCK.suspicious_sol[context.settings.kind]
    return below_sol or verdict.pattern in (MISREPORT, SLOWS)


def _marked(verdict: Verdict) -> Verdict:
    """Return ``verdict``, with a remark if the interval is too wide to show whether the kernel is faster."""
    low, high = verdict.speedup_low or 0.0, verdict.speedup_high or 0.0
    if not is_undecided(low, high):
        return verdict
    remark = f"uncertain: {low:.2f}x to {high:.2f}x; the machine was too busy, so judge the kernel again later"
    return replace(verdict, flags=(*verdict.flags, remark))
