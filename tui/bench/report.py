"""Compute a benchmark's figures from a stored session. The same session always yields the same report."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from engine.config.tolerance import tolerance_in, tolerance_words
from engine.config.toml_table import toml_table
from engine.session.records.events import NodePruned, NodeRestored, Recorded, RunoffFinished, VerdictGiven
from engine.session.records.verdict import UNJUDGED, Baseline, Timing, Verdict
from engine.session.records.verdict_text import is_comparison_uncertain, is_uncertain
from engine.session.state.over_compile import share_of_eager
from engine.session.state.session_state import Outcome, ProblemState, SessionState
from engine.session.store import SessionPaths, SessionReader
from tui.text.narration import turn_end_words
from tui.view.results import without_compile

MARKS = (0.0, 1.0, 1.5, 2.0)
"""Values of p in ``fast_p``, the share of problems whose best kernel is correct and has a speedup interval entirely
above p."""
CURVE_POINTS = 24
"""Number of intervals on the curve's time axis."""


class Over(Struct, frozen=True):
    """The comparison of a problem's best kernel with a baseline.

    ``ms`` is the baseline's time at the speed that the machine had when the judge timed the kernel: the kernel's time,
    multiplied by ``speedup``. If the baseline was not timed, ``failure`` says why. ``low`` to ``high`` is an
    interval around ``speedup``. For eager, the interval is the verdict's 95% interval. For any other baseline, the
    interval runs from (baseline p10 / kernel p90) to (baseline p90 / kernel p10). If the judge timed eager right after
    that baseline, all three fields are instead the values over eager, times (baseline's time / eager's time).
    ``uncertain`` is true if the speedup is uncertain.
    """

    ms: float | None = None
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    failure: str = ""
    uncertain: bool = False


class BenchRow(Struct, frozen=True, kw_only=True):
    """A problem's figures. Times are in milliseconds.

    ``over`` maps each baseline's name (``eager``, ``compile`` or another name from the session) to the comparison with
    that baseline. ``kernelbench`` is the best kernel's status under KernelBench's own rules, or "" if the kernel was
    not judged by these rules. ``kernelbench_speedup`` is the kernel's speedup under the same rules. ``minutes`` is the
    engine time of the problem's turns, or None in a session without turns. ``dollars`` is None if a price is unknown.
    ``note`` says why there is no correct kernel, or why the search of the problem ended.
    """

    problem: str
    path: str
    status: Outcome
    kernel: str | None = None
    language: str = ""
    proposer: str = ""
    ms: float | None = None
    over: dict[str, Over] = {}
    sol_share: float | None = None
    kernelbench: str = ""
    kernelbench_speedup: float | None = None
    minutes: float | None = None
    dollars: float | None = 0.0
    rounds: int = 0
    verdicts: int = 0
    note: str = ""

    @property
    def correct(self) -> bool:
        return self.status == "solved"


class Total(Struct, frozen=True, kw_only=True):
    """Summary of all problems' speedups over one baseline.

    ``fast`` maps each threshold p to the number of problems whose whole speedup interval is above p. For p = 0, it is
    the number of problems with a correct kernel. ``compared`` is the number of problems with a correct kernel and a
    baseline time. ``geomean`` and ``median`` cover these problems. ``geomean_all`` also includes every other problem,
    with a speedup of 1. ``uncertain`` is true if one of the speedups is uncertain.
    """

    fast: dict[str, int]
    compared: int
    geomean: float | None
    geomean_all: float | None
    median: float | None
    uncertain: bool = False


class Point(Struct, frozen=True):
    """The benchmark's progress after ``minutes`` per problem.

    ``geomean`` is the geometric mean of the speedups over eager; problems without a correct kernel count as 1.
    ``fast_1`` is the number of problems whose whole speedup interval is above 1.
    """

    minutes: float
    geomean: float
    fast_1: int


class Report(Struct, frozen=True, kw_only=True):
    """A benchmark's results. ``created`` is in Unix seconds.

    ``minutes_per_problem`` comes from the config. In a session without turns, it is None. ``kernelbench`` summarizes
    the best kernels' speedups over eager under KernelBench's own rules, which do not define an interval.
    ``kernelbench_judged`` is the number of best kernels judged under these rules. The time axis of ``curve`` is each
    problem's own engine time, in minutes. In a session without turns, the axis is the session's engine time divided by
    the number of problems.
    """

    session: str
    state: str
    created: float
    version: str
    devices: tuple[str, ...]
    tolerance: str
    minutes_per_problem: float | None
    minutes: float
    dollars: float | None
    problems: tuple[BenchRow, ...]
    count: int
    correct: int
    totals: dict[str, Total]
    kernelbench: Total
    kernelbench_judged: int
    curve: tuple[Point, ...]


def read_report(paths: SessionPaths) -> Report:
    """Compute the report of a stored session. Raises SessionError."""
    with SessionReader(paths) as reader:
        state, steps = _folded(reader.read())
        config = reader.text(state.config) if state.config else ""
    return replace(_report(state, steps, config), session=paths.name)


def report_of(events: Iterable[Recorded], config: str) -> Report:
    """Compute the report from a session's events and its frozen configuration (TOML)."""
    return _report(*_folded(events), config)


class _Step(Struct, frozen=True):
    """A problem's best kernel after an event that may change it. ``speedup`` is 1 if the problem has no correct kernel.

    The event came after ``problem_s`` seconds of the problem's own engine time, and after ``session_s`` seconds of the
    session's engine time.
    """

    problem: str
    problem_s: float
    session_s: float
    speedup: float
    low: float


def _folded(events: Iterable[Recorded]) -> tuple[SessionState, list[_Step]]:
    """Apply the events. Return the state, and a step for each event that may change a problem's best kernel."""
    state, steps = SessionState(), list[_Step]()

    def note(one: Recorded) -> None:
        event = one.event
        if isinstance(event, VerdictGiven):
            variant = state.variants.get(event.variant)
            names = [variant.problem] if variant is not None else []
        else:
            names = [event.problem] if isinstance(event, RunoffFinished) else list(state.problems)
        for name in names:
            verdict = _best_verdict(state, name)
            speedup, low = (verdict.speedup or 1.0, verdict.speedup_low or 0.0) if verdict is not None else (1.0, 0.0)
            elapsed_s = state.elapsed_s(one.time)
            steps.append(_Step(name, state.problem_seconds(name, one.time), elapsed_s, speedup, low))

    state.apply_all(events, dict.fromkeys((VerdictGiven, RunoffFinished, NodePruned, NodeRestored), note))
    return state, steps


def _best_verdict(state: SessionState, problem: str) -> Verdict | None:
    found = state.problems.get(problem)
    if found is None or found.best is None or state.is_pruned(problem):
        return None
    return state.variants[found.best].verdict


def _report(state: SessionState, steps: Sequence[_Step], text: str) -> Report:
    config = toml_table(text)
    now = state.time
    budget, evaluation = config.get("budget", {}), config.get("evaluation", {})
    share = budget.get("minutes_per_problem")
    compiles = evaluation.get("torch_compile", True) is True
    turns = share is not None
    rows = [_row(state, one, now, turns, compiles) for one in state.problems.values() if one.id not in state.refused]
    rows += [_refused(state, name, now, turns) for name in state.refused]
    rows.sort(key=lambda row: _natural(row.path))
    baselines = dict.fromkeys(("eager", *(name for row in rows for name in row.over)))
    seconds = state.elapsed_s(now)
    engine = state.engine
    return Report(
        session=state.name,
        state=(engine.stopped or "unfinished") if engine is not None else "new",
        created=state.created_at,
        version=engine.version if engine is not None else state.version,
        devices=tuple(dict.fromkeys(device.name for device in state.devices.values())),
        tolerance=tolerance_words(tolerance_in(text)),
        minutes_per_problem=float(share) if isinstance(share, int | float) else None,
        minutes=seconds / 60,
        dollars=None if state.spending.total.unpriced else state.spending.total.dollars,
        problems=tuple(rows),
        count=len(rows),
        correct=sum(row.correct for row in rows),
        totals={name: total_of(rows, name) for name in baselines},
        kernelbench=_kernelbench(rows),
        kernelbench_judged=sum(row.kernelbench in ("correct", "wrong") for row in rows),
        curve=tuple(_curve(steps, [row.problem for row in rows], turns)),
    )


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key that orders ``2_a`` before ``10_b``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def _row(state: SessionState, problem: ProblemState, now: float, turns: bool, compiles: bool) -> BenchRow:
    outcome = state.outcome(problem.id)
    best = state.variants[problem.best] if problem.best is not None and outcome == "solved" else None
    verdict = best.verdict if best is not None else None
    theirs = verdict.kernelbench if verdict is not None else None
    over = {"eager": _over_eager(problem, verdict)}
    if compiles or "compile" in problem.baselines:
        too_slow = _is_compile_too_slow(state, problem)
        reason = without_compile(problem, measured=True, pending=False)
        over["compile"] = Over(failure="too few minutes to time torch.compile" if too_slow else reason)
    over |= {name: _over(problem, one, verdict) for name, one in problem.baselines.items() if name != "eager"}
    return BenchRow(
        problem=problem.id,
        path=problem.spec.path,
        status=outcome,
        kernel=best.id if best is not None else None,
        language=best.language if best is not None else "",
        proposer=best.proposer if best is not None else "",
        ms=best.kernel_ms if best is not None else None,
        over=over,
        sol_share=verdict.sol_share if verdict is not None else None,
        kernelbench=theirs.status if theirs is not None else "",
        kernelbench_speedup=theirs.speedup if theirs is not None else None,
        minutes=state.problem_seconds(problem.id, now) / 60 if turns else None,
        dollars=_dollars(state, problem.id),
        rounds=problem.rounds[-1].number if problem.rounds and problem.variants else 0,
        verdicts=sum(one.was_judged for one in state.variants_of(problem.id)),
        note=_note(state, problem),
    )


def _is_compile_too_slow(state: SessionState, problem: ProblemState) -> bool:
    """Return whether ``torch.compile`` was not timed because the problem's turns were too short.

    A turn that found a correct kernel skips torch.compile only if time runs out. In an unfinished search, a later turn
    may still time torch.compile.
    """
    measured = problem.turn_end not in (None, "refused", "pruned", "not_opened")
    return "compile" not in problem.baselines and measured and state.finished and state.outcome(problem.id) == "solved"


def _refused(state: SessionState, name: str, now: float, turns: bool) -> BenchRow:
    refusal = state.refused[name]
    minutes = state.problem_seconds(name, now) / 60 if turns else None
    return BenchRow(
        problem=name, path=refusal.path, status="refused", minutes=minutes, note=f"refused: {refusal.reason}"
    )


def _dollars(state: SessionState, problem: str) -> float | None:
    spend = state.spending.problem.get(problem)
    if spend is None:
        return 0.0
    return None if spend.unpriced else spend.dollars


def _note(state: SessionState, problem: ProblemState) -> str:
    """Return why the problem has no correct kernel, or why the search of the problem ended."""
    if state.is_pruned(problem.id):
        return "pruned by the user"
    why = turn_end_words(state, problem.id, problem.turn_end) if problem.turn_end is not None else ""
    ended = problem.finished or why
    if problem.degenerate:
        ended = "; ".join(filter(None, [f"degenerate: {problem.degenerate} pass every check", ended]))
    if problem.best is not None:
        return ended
    if problem.cannot_write is not None:
        return f"no proposer can write a kernel: {problem.cannot_write}"
    judged = [one.verdict for one in state.variants_of(problem.id) if one.verdict is not None and one.was_judged]
    if not judged:
        return f"no kernel was judged: {ended or 'the problem has not had its turn yet'}"
    counts = Counter(verdict.status for verdict in judged)
    last = {verdict.status: verdict.reason for verdict in judged}
    told = [f"{number} {status.replace('_', ' ')} ({last[status]})" for status, number in counts.most_common()]
    return "; ".join(filter(None, [f"no correct kernel: {', '.join(told)}", ended]))


def _over_eager(problem: ProblemState, verdict: Verdict | None) -> Over:
    eager = problem.baselines.get("eager")
    known = eager.timing.median_ms if eager is not None and eager.timing is not None else None
    if verdict is None:
        return Over(known, failure="" if known is not None else "not measured")
    ms = verdict.reference.median_ms if verdict.reference is not None else known
    if verdict.kernel is not None and verdict.speedup is not None:
        ms = verdict.kernel.median_ms * verdict.speedup
    return Over(ms, verdict.speedup, verdict.speedup_low, verdict.speedup_high, uncertain=is_uncertain(verdict))


def _over(problem: ProblemState, baseline: Baseline, verdict: Verdict | None) -> Over:
    timing: Timing | None = baseline.timing
    if timing is None:
        return Over(failure=baseline.failure or "no time")
    kernel = verdict.kernel if verdict is not None and verdict.status not in UNJUDGED else None
    if verdict is None or kernel is None or min(kernel.median_ms, kernel.p10_ms, kernel.p90_ms) <= 0:
        return Over(timing.median_ms)
    uncertain = is_comparison_uncertain(verdict, baseline, problem.baselines.get("eager"))
    speedups = (verdict.speedup_low, verdict.speedup, verdict.speedup_high)
    shares = [share_of_eager(baseline, ms) for ms in (timing.p10_ms, timing.median_ms, timing.p90_ms)]
    beside = [one * share for one, share in zip(speedups, shares, strict=True) if one is not None and share is not None]
    if len(beside) == len(shares):
        low, speedup, high = beside
    else:
        speedup = timing.median_ms / kernel.median_ms
        low, high = timing.p10_ms / kernel.p90_ms, timing.p90_ms / kernel.p10_ms
    return Over(kernel.median_ms * speedup, speedup, low, high, uncertain=uncertain)


def total_of(rows: Sequence[BenchRow], baseline: str) -> Total:
    """Summarize the problems' speedups over one baseline."""
    found = [row.over[baseline] for row in rows if row.correct and baseline in row.over]
    speedups = [one.speedup for one in found if one.speedup]
    lows = [one.low for one in found if one.low is not None]
    uncertain = any(one.uncertain for one in found if one.speedup)
    return _total(sum(row.correct for row in rows), speedups, lows, len(rows), uncertain=uncertain)


def _kernelbench(rows: Sequence[BenchRow]) -> Total:
    correct = [row.kernelbench_speedup for row in rows if row.kernelbench == "correct"]
    speedups = [one for one in correct if one]
    return _total(len(correct), speedups, speedups, len(rows))


def _total(
    correct: int, speedups: Sequence[float], lows: Sequence[float], count: int, *, uncertain: bool = False
) -> Total:
    """Summarize ``speedups``. ``lows`` are the figures to compare with the thresholds. ``count`` is the number of
    problems.
    """
    fast = {f"{mark:g}": sum(low > mark for low in lows) for mark in MARKS if mark}
    return Total(
        fast={"0": correct, **fast},
        compared=len(speedups),
        geomean=statistics.geometric_mean(speedups) if speedups else None,
        geomean_all=statistics.geometric_mean([*speedups, *[1.0] * (count - len(speedups))]) if count else None,
        median=statistics.median(speedups) if speedups else None,
        uncertain=uncertain,
    )


def _curve(steps: Sequence[_Step], problems: Sequence[str], turns: bool) -> list[Point]:
    """Return the benchmark's progress over time, in minutes per problem."""
    if not steps or not problems:
        return []
    minutes = [(one.problem_s if turns else one.session_s / len(problems)) / 60 for one in steps]
    last, points = max(minutes), []
    for at in (last * number / CURVE_POINTS for number in range(CURVE_POINTS + 1)):
        now = {one.problem: one for one, when in zip(steps, minutes, strict=True) if when <= at * (1 + 1e-9)}
        speedups = [now[name].speedup if name in now else 1.0 for name in problems]
        fast = sum(name in now and now[name].low > 1 for name in problems)
        points.append(Point(at, statistics.geometric_mean(speedups), fast))
    return points
