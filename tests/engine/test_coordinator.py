"""A search whose kernels a person prunes and whose end a person delays. An evaluator without devices takes as long as
the test needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.synthetic_session import CPU
from engine.config.schema import parse_config
from engine.devices.fact import DeviceFact
from engine.evaluation.evaluator import Opened
from engine.problem.spec import Language, ProblemSpec
from engine.search import coordinator
from engine.search.context import Context
from engine.search.coordinator import NobodyToAsk, Search
from engine.search.ids import Ids
from engine.search.kernel_sources import Sources
from engine.search.request_handling import Steering
from engine.session.journal import Journal
from engine.session.records import events as ev
from engine.session.records.requests import CancelStop, Pause, Restore, Resume, Stop
from engine.session.records.verdict import Baseline, Stage, Timing, Verdict
from engine.session.state.session_state import fold
from engine.session.store import EventWriter, RequestInbox, SessionReader, create_session, send_request
from engine.session.store.reader import SentRequest
from engine.system import clock
from tests.engine.test_state import problem_added, proposed, verdict, written
from tests.patience import TRIES

CONFIG = """\
problems = ["a.py", "b.py"]
[search]
rounds = 1
runoff = 0
[evaluation]
device = "cpu"
other_sizes = false
"""
BEGAN_S = 30.0
"""Time since the search began, in seconds."""

ContextOf = Callable[[], Context]


class Judge:
    """Finds all kernels correct. ``judged`` lists their sources. Measurements of ``torch.compile`` end while
    ``compiles`` is set. ``did`` lists builds, opened problems and judged kernels.
    """

    width = 1

    def __init__(self) -> None:
        self.judged: list[str] = []
        self.compiling: list[str] = []
        self.did: list[str] = []
        self.compiles = asyncio.Event()

    async def measure_device(self, device: DeviceFact) -> DeviceFact:
        return device

    def begin_build(self, problem: ProblemSpec, header: str, language: Language, source: str) -> None:
        self.did.append(f"build {source}")

    async def open(self, problem: ProblemSpec, header: str, sol_ms: float | None = None) -> Opened:
        self.did.append(f"open {problem.id}")
        return Opened(Baseline("eager", Timing(1.0, 1.0, 1.0, 9)), None)

    async def compile_baseline(self, problem: ProblemSpec) -> Baseline:
        self.compiling.append(problem.id)
        await self.compiles.wait()
        return Baseline("compile", Timing(1.0, 1.0, 1.0, 9))

    async def evaluate(self, problem: ProblemSpec, language: Language, source: str, *_: object) -> Verdict:
        self.judged.append(source)
        self.did.append(f"judge {source}")
        return verdict(2.0)

    async def evict(self) -> None:
        return


@pytest.fixture
async def context_of(tmp_path: Path) -> AsyncIterator[ContextOf]:
    """Return a function that makes the context of a search whose problem ``a`` has a kernel without a verdict."""
    paths = create_session(tmp_path, "s", CONFIG, "config.toml", 0)
    writer = EventWriter(paths)

    def make() -> Context:
        events: list[ev.AnyEvent] = [
            ev.EngineStarted(pid=1, host="h", version="1", resumed=False, devices=(CPU,), sandbox=""),
            problem_added("a"),
            problem_added("b"),
            ev.RoundStarted(problem="a", round=0, parents=()),
            ev.RoundStarted(problem="b", round=0, parents=()),
            proposed("i1", 0, None, "a"),
            replace(written("v1", "i1", 0, None, "a"), source=writer.put_blob("// v1")),
        ]
        state = fold(ev.Recorded(seq, clock.now() - BEGAN_S, event) for seq, event in enumerate(events, 1))
        config, sources, judge = parse_config(CONFIG, tmp_path / "config.toml"), Sources(writer, reader, state), Judge()
        journal = Journal(writer, state)
        return Context(config, paths, state, journal, judge, (), sources, Ids(state), CPU)  # type: ignore[arg-type]

    with SessionReader(paths) as reader:
        yield make
    writer.close()


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(TRIES):
        if holds():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not happen")


async def test_a_kernel_that_arrives_after_its_idea_was_pruned_is_judged_only_if_the_idea_is_restored(
    context_of: ContextOf,
) -> None:
    context = context_of()
    judge, state, journal = context.evaluator, context.state, context.journal
    assert isinstance(judge, Judge)
    judge.compiles.set()
    search = asyncio.ensure_future(Search(context).run(RequestInbox(context.paths)))
    await until(lambda: state.variants["v1"].verdict is not None)
    late = replace(written("v2", "i1", 0, None, "a"), source=journal.put_blob("// v2"))
    await journal.record(ev.NodePruned(node="i1"), late)
    await until(lambda: state.variants["v2"].verdict is not None)
    assert judge.judged == ["// v1"] and not state.variants["v2"].was_judged
    send_request(context.paths, Restore(node="i1"), "a person")
    await until(lambda: state.variants["v2"].correct)
    context.ending = "stopped"
    assert await search == "stopped"


async def test_a_pause_during_the_last_measurements_delays_them(context_of: ContextOf) -> None:
    context = context_of()
    judge, state, journal = context.evaluator, context.state, context.journal
    assert isinstance(judge, Judge)
    search = asyncio.ensure_future(Search(context).run(RequestInbox(context.paths)))
    await until(lambda: bool(judge.compiling))
    await journal.record(ev.BudgetChanged(minutes=BEGAN_S / 60))
    await until(lambda: context.ending == "budget")
    await journal.record(ev.SearchPaused())
    judge.compiles.set()
    await until(lambda: "compile" in state.problems["a"].baselines)
    await asyncio.wait({search}, timeout=1.0)
    assert judge.compiling == ["a"]
    await journal.record(ev.SearchResumed())
    assert await search == "budget"
    assert judge.compiling == ["a", "b"]


async def test_a_stop_after_the_rounds_does_not_wait_for_torch_compile(context_of: ContextOf) -> None:
    context, device = context_of(), asyncio.Lock()

    class OneAtATime(Judge):
        """Measures ``torch.compile`` or a kernel, not both at the same time."""

        async def compile_baseline(self, problem: ProblemSpec) -> Baseline:
            async with device:
                return await super().compile_baseline(problem)

        async def evaluate(self, problem: ProblemSpec, language: Language, source: str, *more: object) -> Verdict:
            async with device:
                return await super().evaluate(problem, language, source, *more)

    context.evaluator = judge = OneAtATime()  # type: ignore[assignment]
    state, journal = context.state, context.journal
    search = asyncio.ensure_future(Search(context).run(RequestInbox(context.paths)))
    await until(lambda: bool(judge.compiling))
    await journal.record(replace(written("v2", "i1", 0, None, "a"), source=journal.put_blob("// v2")))
    send_request(context.paths, Stop(after_round=True), "a person")
    await until(lambda: state.variants["v2"].correct)
    assert state.stop_planned
    assert await search == "stopped"
    assert judge.compiling == ["a"] and "compile" not in state.problems["a"].baselines
    assert "stopped the search" in state.problems["a"].compile_skipped


async def test_a_stop_after_the_rounds_waits_for_the_end_of_a_pause_and_says_so(context_of: ContextOf) -> None:
    context = context_of()
    context.evaluator = judge = Judge()  # type: ignore[assignment]
    judge.compiles.set()
    search = asyncio.ensure_future(Search(context).run(RequestInbox(context.paths)))
    await until(lambda: bool(context.state.ideas))
    send_request(context.paths, Pause(), "a person")
    await until(lambda: context.state.paused)
    stop = send_request(context.paths, Stop(after_round=True), "a person")
    await until(lambda: stop in context.state.handled)
    assert "after the pause" in context.state.handled[stop].message
    await asyncio.wait({search}, timeout=1.0)
    assert not search.done()
    send_request(context.paths, Resume(), "a person")
    assert await search == "stopped"


async def test_a_pause_says_which_evaluations_finish_and_which_kernels_stay_queued(context_of: ContextOf) -> None:
    context = context_of()
    state, journal = context.state, context.journal
    steering = Steering(context, lambda _: None, lambda _: None)
    await journal.record(*(written(name, "i1", 0, None, "a") for name in ("v2", "v3", "v4")))
    stages: tuple[tuple[str, Stage], ...] = (("v1", "timing"), ("v2", "waiting"), ("v3", "waiting"))
    await journal.record(*(ev.VariantStage(variant=name, stage=stage) for name, stage in stages))
    await steering.handle(SentRequest(1, 0.0, "a person", Pause()))
    said = "paused: no new evaluations start; 1 running and 2 waiting evaluations will finish; "
    assert state.handled[1].message == f"{said}1 queued kernel stays queued until you unpause"


async def test_a_canceled_stop_lets_the_search_go_on(context_of: ContextOf) -> None:
    context = context_of()
    judge, state, journal = context.evaluator, context.state, context.journal
    assert isinstance(judge, Judge)
    search = asyncio.ensure_future(Search(context).run(RequestInbox(context.paths)))
    await until(lambda: bool(judge.compiling))
    await journal.record(ev.SearchPaused())
    await journal.record(replace(written("v2", "i1", 0, None, "a"), source=journal.put_blob("// v2")))
    send_request(context.paths, Stop(after_round=True), "a person")
    await until(lambda: bool(state.problems["a"].compile_skipped))
    cancel = send_request(context.paths, CancelStop(), "a person")
    await until(lambda: cancel in state.handled)
    assert not state.stop_planned and state.problems["a"].compile_skipped == ""
    judge.compiles.set()
    send_request(context.paths, Resume(), "a person")
    await until(lambda: state.variants["v2"].correct and "compile" in state.problems["a"].baselines)
    assert not search.done()
    context.ending = "stopped"
    assert await search == "stopped"


PRUNED = (ev.NodePruned(node="a"), ev.NodePruned(node="b"))
FINISHED = (
    ev.VerdictGiven(variant="v1", verdict=verdict(2.0)),
    *(ev.RoundFinished(problem=name, round=0, selected=(), dropped=()) for name in "ab"),
    *(ev.ProblemFinished(problem=name, reason="no idea") for name in "ab"),
)


@pytest.mark.parametrize(
    ("events", "step"),
    [
        pytest.param((*PRUNED, ev.SearchPaused()), "done", id="pruned, paused"),
        pytest.param((*FINISHED, ev.SearchPaused()), "done", id="finished, paused"),
        pytest.param(FINISHED, "problem", id="reopening"),
    ],
)
async def test_a_stop_while_no_round_is_running_is_immediate(
    context_of: ContextOf, events: tuple[ev.AnyEvent, ...], step: ev.Startup
) -> None:
    """The request arrives in the ``step`` of the resume."""
    context = context_of()

    class Opens(Judge):
        async def open(self, problem: ProblemSpec, header: str, sol_ms: float | None = None) -> Opened:
            if step == "problem":
                await asyncio.Event().wait()
            return await super().open(problem, header, sol_ms)

    def startup() -> ev.Startup | None:
        engine = context.state.engine
        return engine.startup.step if engine is not None and engine.startup is not None else None

    context.evaluator = Opens()  # type: ignore[assignment]
    await context.journal.record(*events)
    search = asyncio.ensure_future(Search(context).run(RequestInbox(context.paths)))
    await until(lambda: startup() == step)
    stop = send_request(context.paths, Stop(after_round=True), "a person")
    await until(search.done)
    assert search.result() == "stopped"
    assert context.state.handled[stop].message == "no round is running, so the search is stopping"
    assert not context.state.stop_planned, "there is no stop to cancel"


async def test_with_turns_a_stop_during_the_last_measurements_of_a_turn_is_immediate(context_of: ContextOf) -> None:
    context = context_of()
    context.config = parse_config(f"{CONFIG}[budget]\nminutes_per_problem = 60\n", context.config.path)

    class NearSol(Judge):
        async def evaluate(self, problem: ProblemSpec, language: Language, source: str, *more: object) -> Verdict:
            return replace(await super().evaluate(problem, language, source), sol_share=1.0)

    context.evaluator = judge = NearSol()  # type: ignore[assignment]
    search = asyncio.ensure_future(Search(context).run(RequestInbox(context.paths)))
    await until(lambda: bool(judge.compiling))
    send_request(context.paths, Stop(after_round=True), "a person")
    await until(search.done)
    assert search.result() == "stopped"
    assert context.state.turn is not None, "a resume continues the turn"


async def test_with_turns_a_planned_stop_does_not_hide_that_all_models_failed(context_of: ContextOf) -> None:
    context = context_of()
    context.config = parse_config(f"{CONFIG}[budget]\nminutes_per_problem = 60\n", context.config.path)
    context.spent, context.helpless, context.state.stop_planned = "the key is invalid", True, True
    with pytest.raises(NobodyToAsk):
        await Search(context).run(RequestInbox(context.paths))


async def test_with_turns_a_stop_after_the_rounds_keeps_torch_compile_of_a_turn_that_ends(
    context_of: ContextOf,
) -> None:
    """A resume does not continue this turn, so the search must measure the baseline before it stops."""
    context, judges = context_of(), asyncio.Event()
    context.config = parse_config(f"{CONFIG}[budget]\nminutes_per_problem = 60\n", context.config.path)

    class NearSol(Judge):
        async def evaluate(self, problem: ProblemSpec, language: Language, source: str, *more: object) -> Verdict:
            self.judged.append(source)
            await judges.wait()
            return replace(verdict(2.0), sol_share=1.0)

    context.evaluator = judge = NearSol()  # type: ignore[assignment]
    state = context.state
    search = asyncio.ensure_future(Search(context).run(RequestInbox(context.paths)))
    await until(lambda: bool(judge.judged))
    send_request(context.paths, Stop(after_round=True), "a person")
    await until(lambda: context.last_rounds)
    (answer,) = state.handled.values()
    assert answer.ok and "torch.compile" not in answer.message, "no resume would measure it"
    judges.set()
    await until(lambda: bool(judge.compiling))
    await asyncio.wait({search}, timeout=1.0)
    judge.compiles.set()
    assert await search == "stopped"
    assert judge.compiling == ["a"] and "compile" in state.problems["a"].baselines
    assert state.problems["a"].turn_end == "near_sol"


async def resumed_with_waiting_kernels(context: Context) -> None:
    """Time eager for both problems. Let ``v2`` of problem ``b`` wait for its verdict, besides ``v1`` of ``a``."""
    eager = Baseline("eager", Timing(1.0, 1.0, 1.0, 9))
    await context.journal.record(*(ev.BaselineMeasured(problem=name, baseline=eager) for name in ("a", "b")))
    v2 = replace(written("v2", "i2", 0, None, "b"), source=context.journal.put_blob("// v2"))
    await context.journal.record(proposed("i2", 0, None, "b"), v2)


async def test_a_resumed_search_judges_waiting_kernels_before_it_opens_the_other_problems(
    context_of: ContextOf,
) -> None:
    context, built = context_of(), asyncio.Event()

    class Builds(Judge):
        """Judges a kernel after its build, which ends while ``built`` is set."""

        async def evaluate(self, problem: ProblemSpec, language: Language, source: str, *more: Any) -> Verdict:
            on_stage = more[0]
            on_stage("building")
            await built.wait()
            on_stage("checking")
            return await super().evaluate(problem, language, source, *more)

    context.evaluator = judge = Builds()  # type: ignore[assignment]
    state = context.state
    judge.compiles.set()
    await resumed_with_waiting_kernels(context)
    await context.journal.record(ev.VerdictGiven(variant="v1", verdict=verdict(2.0)))
    search = asyncio.ensure_future(Search(context).run(RequestInbox(context.paths)))
    await until(lambda: state.variants["v2"].stage == "building")
    await asyncio.wait({search}, timeout=0.5)
    assert judge.did == ["build // v2", "open b"], "opening a would delay the build"
    built.set()
    await until(lambda: "open a" in judge.did)
    assert judge.did[:4] == ["build // v2", "open b", "judge // v2", "open a"]
    await until(lambda: state.engine is not None and state.engine.startup == ev.StartupStep(step="done"))
    context.ending = "stopped"
    assert await search == "stopped"


async def test_a_resumed_search_judges_waiting_kernels_before_it_times_torch_compile(
    context_of: ContextOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second problem opens slowly, so the device is idle for longer than ``IDLE_S`` in the meantime."""
    monkeypatch.setattr(coordinator, "IDLE_S", 0.2)
    context, opens = context_of(), asyncio.Event()

    class OpensSlowly(Judge):
        async def open(self, problem: ProblemSpec, header: str, sol_ms: float | None = None) -> Opened:
            if problem.id == "b":
                await opens.wait()
            return await super().open(problem, header, sol_ms)

        async def compile_baseline(self, problem: ProblemSpec) -> Baseline:
            self.did.append(f"compile {problem.id}")
            return await super().compile_baseline(problem)

    context.evaluator = judge = OpensSlowly()  # type: ignore[assignment]
    judge.compiles.set()
    await resumed_with_waiting_kernels(context)
    search = asyncio.ensure_future(Search(context).run(RequestInbox(context.paths)))
    await until(lambda: context.state.variants["v1"].correct)
    await asyncio.wait({search}, timeout=1.0)
    opens.set()
    await until(lambda: "compile a" in judge.did)
    assert judge.did.index("judge // v2") < judge.did.index("compile a")
    context.ending = "stopped"
    assert await search == "stopped"
