"""How many judgements make a verdict: again where something may have disturbed one, several for a thorough one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from engine.evaluation import timing
from engine.evaluation.clock import BETWEEN, MISREPORT
from engine.evaluation.judging import SLOWS, Judgement
from engine.evaluation.opened import OpenedProblem
from engine.evaluation.speed import timed
from engine.evaluation.timing import Pairs
from engine.events import Stage
from engine.verdict import BuildReport, Verdict

_AGAIN_AFTER_S = (0.0, 1.0, 3.0)
"""When a kernel of which nothing could be said is judged again, and again: a machine is not busy all the time. Where
it was not, there is nothing to wait for; nor where a kernel was found out, beside an empty one at the same moment."""
_ACCUSATIONS = 3
"""A kernel that another program may have made suspect is accused when it was found out so many times."""
_SLOW_S = 20.0
"""Who lies in judgements that take so long is accused at once: in calls that long no other program makes a clock look
wrong, and nobody is to hold the device for minutes."""
_POLL_S = 0.05
_SUSPICIOUS_SHARE = 1.02


def judge(
    opened: OpenedProblem,
    library: Path,
    build: BuildReport,
    on_stage: Callable[[Stage], None],
    cancelled: Callable[[], bool],
) -> Verdict:
    """Judge one kernel; each time in a runner of its own, on fresh data.

    A thorough verdict is several whole judgements, whose pairs are pooled: two processes with the same code differ by
    about a percent in where their memory and threads come to lie. Its interval covers what they said.
    """
    sittings: list[Pairs] = []
    for _ in range(timing.sittings(opened.settings.thorough)):
        verdict, pairs = _judge_fairly(opened, library, build, on_stage, cancelled)
        if not verdict.correct:
            return verdict
        sittings.append(pairs)
    return timed(verdict, opened.settings.kind, *sittings)


def _judge_fairly(
    opened: OpenedProblem,
    library: Path,
    build: BuildReport,
    on_stage: Callable[[Stage], None],
    cancelled: Callable[[], bool],
) -> tuple[Verdict, Pairs]:
    """A kernel below the floor, or whose clock disagrees with ours, is judged again, up to twice: another program on
    the machine can do that to an honest one for some seconds. One of which nothing could be said, up to three times.
    """
    suspected = 0
    started = time.monotonic()
    for wait_s in (*_AGAIN_AFTER_S, None):
        judgement = Judgement(opened, on_stage, cancelled)
        verdict = judgement.judge(library, build)
        below_floor = verdict.floor_share is not None and verdict.floor_share > _SUSPICIOUS_SHARE
        suspect = below_floor or verdict.pattern in (MISREPORT, BETWEEN, SLOWS)
        suspected += suspect
        if wait_s is None or suspected == _ACCUSATIONS or not (suspect or verdict.status == "error"):
            break
        if verdict.status == "cheating" and time.monotonic() - started > _SLOW_S:
            break
        until = time.monotonic() + (0.0 if verdict.status == "cheating" else wait_s)
        while judgement.disturbed and time.monotonic() < until and not cancelled():
            time.sleep(_POLL_S)
    if below_floor:
        verdict = replace(verdict, flags=(*verdict.flags, "faster than the floor, each time it was judged"))
    return verdict, judgement.pairs
