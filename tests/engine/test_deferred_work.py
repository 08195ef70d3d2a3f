"""Deferred work and the end of a turn keep the turn's minutes. An evaluator without devices takes as long as the test
needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.synthetic_session import CPU
from engine.config.schema import parse_config
from engine.devices.fact import DeviceFact
from engine.evaluation.evaluator import EvaluationError, Opened
from engine.problem.spec import ProblemSpec
from engine.search.context import Context
from engine.search.deferred_work import COMPILE_GUESS_S, RESERVES_SHARE, Owed, TurnLimit
from engine.search.ids import Ids
from engine.search.kernel_sources import Sources
from engine.search.problem_loader import Opening
from engine.search.problem_search import ProblemSearch
from engine.search.turns import Turns
from engine.session.journal import Journal
from engine.session.records import events as ev
from engine.session.records.model_calls import CallSite
from engine.session.records.verdict import Baseline, Timing, Verdict
from engine.session.state.session_state import fold
from engine.session.store import EventWriter, SessionReader, create_session
from engine.system import clock
from tests.engine.test_state import problem_added, proposed, verdict, written

CONFIG = """\
problems = ["a.py"]
[budget]
minutes_per_problem = 1
[evaluation]
other_sizes = false
"""
CLEANUP_S = 0.5
"""Time that the evaluator needs to end its processes, in seconds."""

ContextOf = Callable[..., Context]


class PatientEvaluator:
    """Measures ``torch.compile`` without end. ``ended`` counts the measurements whose processes have ended."""

    ended = 0

    async def measure_device(self, device: DeviceFact) -> DeviceFact:
        return device

    def begin_build(self, *_: object) -> None:
        return

    async def open(self, problem: ProblemSpec, header: str, sol_ms: float | None = None) -> Opened:
        return Opened(Baseline("eager", Timing(1.0, 1.0, 1.0, 9)), None)

    async def compile_baseline(self, problem: ProblemSpec) -> Baseline:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(CLEANUP_S)
            self.ended += 1
        raise AssertionError("it never comes to its end by itself")

    async def evaluate(self, *_: object) -> Verdict:
        raise EvaluationError("there is no judge")

    async def evict(self) -> None:
        return


@pytest.fixture
async def context_of(tmp_path: Path) -> AsyncIterator[ContextOf]:
    """Return a function that makes the context of a search whose problem ``a`` has a correct kernel and an open turn.
    ``ago_s``: when the turn began, in seconds.
    """
    paths = create_session(tmp_path, "s", CONFIG, "config.toml", 0)
    writer = EventWriter(paths)

    def make(*more: ev.AnyEvent, minutes: float = 1.0, ago_s: float = 0.0) -> Context:
        engine = ev.EngineStarted(pid=1, host="h", version="1", resumed=False, devices=(CPU,), sandbox="")
        eager = Baseline("eager", Timing(1.0, 1.0, 1.0, 9))
        events: list[ev.AnyEvent] = [
            engine,
            problem_added("a"),
            ev.TurnStarted(problem="a", minutes=minutes),
            ev.BaselineMeasured(problem="a", baseline=eager),
            ev.RoundStarted(problem="a", round=0, parents=()),
            proposed("i1", 0, None, "a"),
            replace(written("v1", "i1", 0, None, "a"), source=writer.put_blob("// a kernel")),
            ev.VerdictGiven(variant="v1", verdict=verdict(2.0)),
            *more,
        ]
        began = clock.now() - ago_s
        state = fold(ev.Recorded(seq, began, event) for seq, event in enumerate(events, 1))
        sources = Sources(writer, reader, state)
        config = parse_config(CONFIG, tmp_path / "config.toml")
        return Context(
            config,
            paths,
            state,
            Journal(writer, state),
            PatientEvaluator(),  # type: ignore[arg-type]
            (),
            sources,
            Ids(state),
            CPU,
        )

    with SessionReader(paths) as reader:
        yield make
    writer.close()


def owed_of(context: Context) -> Owed:
    return Owed(context, {"a": ProblemSearch(context, "a")}, asyncio.ensure_future)


async def test_a_job_that_is_cut_off_ends_its_processes_and_is_reported_once(context_of: ContextOf) -> None:
    context = context_of()
    owed = owed_of(context)
    owed.limit(TurnLimit(1000.0, 0.0, searched=True))
    owed.start_any()
    await asyncio.sleep(0)
    owed.limit(TurnLimit(0.0, 0.0, searched=True))
    while owed.busy:
        owed.end_late()
        await asyncio.sleep(CLEANUP_S / 10)
    assert isinstance(context.evaluator, PatientEvaluator) and context.evaluator.ended == 1
    owed.start_any()
    assert not owed.busy
    await context.journal.record(ev.LogLine(level="info", text="last"))
    texts = [line.text for _, line in context.state.log]
    assert len(texts) == 2 and "torch.compile on a" in texts[0], texts
    assert context.state.problems["a"].compile_skipped == "the problem's time is used up"


async def test_the_repeat_of_a_disturbed_torch_compile_uses_no_spare_seconds(context_of: ContextOf) -> None:
    disturbed = ev.BaselineMeasured(
        problem="a", baseline=Baseline("compile", Timing(1.0, 1.0, 1.0, 9), others=0.4), seconds=1.0
    )
    owed, spare_s = owed_of(context_of(disturbed)), 1000.0
    owed.limit(TurnLimit(1000.0, spare_s, searched=True))
    owed.start_any()
    await asyncio.sleep(0)
    assert owed.busy
    owed.limit(TurnLimit(0.0, spare_s, searched=True))
    owed.end_late()
    await asyncio.sleep(2 * CLEANUP_S)
    assert not owed.busy


async def test_a_long_torch_compile_does_not_use_up_the_search(context_of: ContextOf) -> None:
    """The first one is expected to take ``COMPILE_GUESS_S``."""
    owed, spare_s = owed_of(context_of()), 100.0
    owed.limit(TurnLimit(1.5 * COMPILE_GUESS_S, spare_s))
    owed.start_baseline()
    assert not owed.busy, "it would take more than half of the turn from the search"
    owed.limit(TurnLimit(1.5 * COMPILE_GUESS_S, spare_s, searched=True))
    owed.start_any()
    assert owed.busy, "now it uses what is left"


async def test_a_short_turn_still_searches(context_of: ContextOf) -> None:
    owed = owed_of(context_of())
    owed.limit(TurnLimit(2 * COMPILE_GUESS_S, 0.0))
    assert owed.compile_reserve_s == COMPILE_GUESS_S
    assert COMPILE_GUESS_S < owed.turn_reserve_s <= RESERVES_SHARE * 2 * COMPILE_GUESS_S


@pytest.mark.parametrize(
    ("paired_ms", "after_compile_ms", "again"),
    [(1.0, None, False), (1.3, None, True), (0.75, None, True), (1.3, 1.3, False), (1.6, 1.05, True)],
)
async def test_a_best_that_was_timed_on_a_machine_of_another_speed_is_judged_again(
    context_of: ContextOf, paired_ms: float, after_compile_ms: float | None, again: bool
) -> None:
    """Eager alone takes 1 ms in its baseline, and ``after_compile_ms`` right after ``torch.compile``."""
    paired = Timing(paired_ms, paired_ms, paired_ms, 9)
    sure = replace(verdict(2.1), speedup_low=2.0, speedup_high=2.2, reference=paired)
    compiled = Baseline("compile", Timing(1.0, 1.0, 1.0, 9), eager_ms=after_compile_ms)
    context = context_of(
        ev.BaselineMeasured(problem="a", baseline=compiled, seconds=1.0),
        ev.VerdictGiven(variant="v1", verdict=sure),
    )
    await context.journal.record(ev.LogLine(level="info", text="the kernel's source is stored"))
    owed = owed_of(context)
    owed.limit(TurnLimit(1000.0, 0.0, searched=True))
    owed.start_any()
    assert owed.busy == again
    await asyncio.sleep(CLEANUP_S / 10)
    await context.journal.record(ev.LogLine(level="info", text="last"))
    said = [line.text for _, line in context.state.log if "evaluated the best kernel v1 again" in line.text]
    assert ["the machine was faster or slower" in text for text in said] == [True] * again


class Kernels:
    """Rounds whose kernels are always in progress. ``seen``: the order of what the turn does."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.seen: list[str] = []

    def begin(self, problem: str) -> None:
        self._note("search")

    def is_at_rest(self, problem: str) -> bool:
        self._note("no calls" if self._context.spent_on(problem) else "search")
        return False

    async def halt(self, problem: str, limit_s: float) -> None:
        self._note("halt")

    def forget(self, problem: str) -> None:
        self._note("forget")

    def _note(self, what: str) -> None:
        if self.seen[-1:] != [what]:
            self.seen.append(what)


async def test_kernels_are_judged_after_the_last_model_call_of_a_turn(context_of: ContextOf) -> None:
    site = CallSite("b", 0, "ideas", "")
    call = ev.ModelCallStarted(
        call="c1", attempt=1, provider="openai", model="m", site=site, prompt="p", tokens=1, dollars=None
    )
    context = context_of(call, minutes=0.15, ago_s=3.0)
    replied = ev.ModelReplied(
        call="c1",
        attempt=1,
        answered="m",
        prompt="p",
        reply="r",
        finish="stop",
        seconds=3.0,
        usage=None,
        dollars=None,
    )
    await context.journal.record(replied)
    host = Kernels(context)
    turns = Turns(context, Opening(context), Owed(context, {}, asyncio.ensure_future), host)
    context.state.stop_planned = True  # The search ends after this turn.
    await turns.run(0.15)
    assert host.seen == ["search", "no calls", "halt", "forget"]
    assert context.state.problems["a"].turn_end == "time"


@pytest.mark.parametrize(("minutes", "first"), [(10.0, "judging v1 again"), (1.0, "timing torch.compile on a")])
async def test_near_the_end_of_the_budget_torch_compile_comes_before_second_verdicts(
    context_of: ContextOf, minutes: float, first: str
) -> None:
    unsure = replace(verdict(2.0), speedup_low=1.0, speedup_high=3.0)
    context = context_of(ev.VerdictGiven(variant="v1", verdict=unsure), ago_s=60.0)
    context.state.minutes, context.ending = minutes, "budget"
    owed = owed_of(context)
    owed.start_any()
    await asyncio.sleep(CLEANUP_S / 10)
    await context.journal.record(ev.LogLine(level="info", text="last"))
    assert context.state.log[0][1].text == f"{ev.RESERVED}{first}"
    while owed.busy:
        owed.cancel_compile("the test ends")
        await asyncio.sleep(CLEANUP_S / 10)


async def test_after_the_budget_the_log_names_each_missing_torch_compile(context_of: ContextOf) -> None:
    context = context_of(ago_s=60.0)
    context.state.minutes = 0.5
    owed = owed_of(context)
    for _ in range(2):
        owed.log_skipped_baselines()
    await context.journal.record(ev.LogLine(level="info", text="last"))
    await context.journal.record(ev.StopPlanned(), ev.StopCanceled())
    owed.log_skipped_baselines()
    await context.journal.record(ev.LogLine(level="info", text="last"))
    assert len(context.state.log) == 3, "each baseline once"
    assert "takes about 20 s; the budget has 0 s left for it" in context.state.problems["a"].compile_skipped
    await context.journal.record(ev.BudgetChanged(minutes=0.6))
    assert not context.state.problems["a"].compile_skipped
    owed.log_skipped_baselines()
    await context.journal.record(ev.LogLine(level="info", text="last"))
    assert "the budget has 0 s left for it" in context.state.problems["a"].compile_skipped, "the new one is used up too"


async def test_without_turns_a_torch_compile_is_cut_off_and_no_other_begins_beyond_the_budget(
    context_of: ContextOf,
) -> None:
    context = context_of(ago_s=60.0)
    context.state.minutes = 10.0
    owed = owed_of(context)
    owed.start_any()
    await asyncio.sleep(0)
    while owed.busy:
        owed.cancel_compile("the time budget is used up")
        await asyncio.sleep(CLEANUP_S / 10)
    context.state.minutes = 0.001
    owed.start_any()
    assert not owed.busy
    await context.journal.record(ev.LogLine(level="info", text="last"))
    texts = [line.text for _, line in context.state.log]
    assert len(texts) == 2 and "stopped timing torch.compile on a" in texts[0], texts
    assert context.state.problems["a"].compile_skipped == "the time budget is used up"
    await context.journal.record(ev.BudgetChanged(minutes=20.0))
    assert not context.state.problems["a"].compile_skipped, "the new limit may leave time"
