"""The rounds of a problem, with proposers that take as long as the test needs. All kernels are correct."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.synthetic_session import CPU
from engine.config.roles import Role
from engine.config.schema import parse_config
from engine.evaluation.local_evaluator import LocalEvaluator
from engine.proposers.protocol import ALL_ROLES, Board, CatalogueEntry, IdeaDraft, Kernel, Spent, Task, VariantDraft
from engine.search.context import Context
from engine.search.ids import Ids
from engine.search.kernel_sources import Sources
from engine.search.problem_search import ProblemSearch
from engine.search.request_handling import Steering
from engine.session.journal import Journal
from engine.session.records import events as ev
from engine.session.records.problem_end import NO_IDEA
from engine.session.records.requests import SeedKernel
from engine.session.state.session_state import SessionState, fold
from engine.session.store import EventWriter, SentRequest, SessionReader, create_session
from tests.engine.test_coordinator import until
from tests.engine.test_state import problem_added, verdict
from tui.text.narration import undecided_words

CONFIG = """\
problems = ["a.py"]
[search]
rounds = 2
ideas = 3
variants = 1
fixes = 0
runoff = 0
"""


class Author:
    """A proposer that lists its requests in ``asked``, and answers while ``answers`` is set. ``error`` replaces the
    answer to one request. A generator (``reads_prose=False``) has ideas only for the reference, and so has a model with
    ``is_dry``.
    """

    awaited = 0
    busy = False

    def __init__(self, name: str = "m", roles: frozenset[Role] = ALL_ROLES, *, reads_prose: bool = True) -> None:
        self.name, self.roles, self.reads_prose = name, roles, reads_prose
        self.asked: list[str] = []
        self.canceled: list[str] = []
        self.error: BaseException | None = None
        self.is_dry = not reads_prose
        self.answers = asyncio.Event()
        self.answers.set()

    def refusal(self, task: Task) -> str | None:
        return None

    def catalogue(self, task: Task) -> tuple[CatalogueEntry, ...]:
        return () if self.reads_prose else (CatalogueEntry("tiles", "memory", "use tiles"),)

    def parents(self, problem: str, round_number: int) -> tuple[ev.Selected, ...] | None:
        return None

    async def ideas(self, task: Task, parent: Kernel | None, board: Board, count: int, seed: int) -> list[IdeaDraft]:
        name = parent.variant if parent is not None else "reference"
        await self._answer(f"ideas for {name}")
        has_ideas = not self.is_dry or parent is None
        return [IdeaDraft("memory", _words(f"{self.name} {name} {n}")) for n in range(count) if has_ideas]

    async def variants(
        self, task: Task, idea: IdeaDraft, parent: Kernel | None, board: Board, numbers: Sequence[int], seed: int
    ) -> AsyncIterator[VariantDraft]:
        await self._answer(f"kernel for {idea.idea}")
        yield VariantDraft(f"// {idea.idea}", "cpp")

    async def fix(
        self, task: Task, idea: IdeaDraft, failed: Kernel, board: Board, turn: int, seed: int
    ) -> VariantDraft | None:
        return None

    async def close(self) -> None:
        return

    async def _answer(self, request: str) -> None:
        self.asked.append(request)
        try:
            await self.answers.wait()
        except asyncio.CancelledError:
            self.canceled.append(request)
            raise
        error, self.error = self.error, None
        if error is not None:
            raise error


def _words(seed: str) -> str:
    """Return a sentence that shares no words with another seed's sentence."""
    digits = hashlib.sha256(seed.encode()).hexdigest().translate(str.maketrans("0123456789", "ghijklmnop"))
    return " ".join(digits[start : start + 6] for start in range(0, 48, 6))


class Running:
    """A search of the problem ``a``, which is in round 0."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.search = ProblemSearch(context, "a")
        context.journal.listen(self._judge)

    @property
    def state(self) -> SessionState:
        return self.context.state

    def _judge(self, event: ev.AnyEvent) -> None:
        if isinstance(event, ev.VariantWritten):
            judged = ev.VerdictGiven(variant=event.variant, verdict=verdict(2.0 + len(self.state.variants)))
            self.context.journal.post(judged)
        self.search.wake()


SearchOf = Callable[..., Running]


@pytest.fixture
async def search_of(tmp_path: Path) -> AsyncIterator[SearchOf]:
    """Return a function that makes the search by proposers with these weights."""
    paths = create_session(tmp_path, "s", CONFIG, "config.toml", 0)
    writer = EventWriter(paths)

    def make(*proposers: tuple[Author, float]) -> Running:
        begun = (problem_added("a"), ev.RoundStarted(problem="a", round=0, parents=()))
        state = fold(ev.Recorded(seq, 0.0, event) for seq, event in enumerate(begun, 1))
        config, sources = parse_config(CONFIG, tmp_path / "config.toml"), Sources(writer, reader, state)
        evaluator = LocalEvaluator(config.evaluation, tmp_path / "scratch")
        journal = Journal(writer, state)
        return Running(Context(config, paths, state, journal, evaluator, proposers, sources, Ids(state), CPU))

    with SessionReader(paths) as reader:
        yield make
    writer.close()


@pytest.mark.parametrize("reason", ["budget", "prune"])
async def test_a_request_that_the_search_canceled_is_repeated_when_the_search_continues(
    search_of: SearchOf, reason: str
) -> None:
    model = Author()
    model.answers.clear()
    running = search_of((model, 1.0))
    search, context = running.search, running.context
    context.state.stop_planned = True
    rounds = asyncio.ensure_future(search.run())
    await until(lambda: bool(model.asked))
    if reason == "budget":
        context.ending = "budget"
        search.wake()
    else:
        await context.journal.record(ev.NodePruned(node="a"))
    await rounds
    assert model.canceled == ["ideas for reference"]
    context.ending = None
    await context.journal.record(ev.NodeRestored(node="a"))
    model.answers.set()
    await search.run()
    assert model.asked[:2] == ["ideas for reference", "ideas for reference"]
    assert len(running.state.problems["a"].rounds[0].ideas) == 3


async def test_a_request_that_fails_with_a_stray_cancellation_is_not_repeated_without_end(search_of: SearchOf) -> None:
    model = Author()
    model.error = asyncio.CancelledError()
    running = search_of((model, 1.0))
    running.context.state.stop_planned = True
    await running.search.run()
    assert model.asked == ["ideas for reference"]


async def test_a_prune_cancels_the_requests_for_its_branch_and_a_restore_repeats_them(search_of: SearchOf) -> None:
    model = Author()
    running = search_of((model, 1.0))
    journal, state = running.context.journal, running.state
    running.context.state.stop_planned = True

    def heard(event: ev.AnyEvent) -> None:
        if isinstance(event, ev.IdeaProposed):
            model.answers.clear()

    journal.listen(heard)
    rounds = asyncio.ensure_future(running.search.run())
    await until(lambda: len(model.asked) == 4)
    await journal.record(ev.NodePruned(node="i2"))
    await until(lambda: bool(model.canceled))
    await journal.record(ev.NodeRestored(node="i2"))
    await until(lambda: len(model.asked) == 5)
    assert model.canceled == ["kernel for i2"] == model.asked[4:]
    await journal.record(ev.NodePruned(node="i3"))
    await until(lambda: len(model.canceled) == 2)
    model.answers.set()
    await rounds
    assert model.canceled == ["kernel for i2", "kernel for i3"]
    assert {variant.idea for variant in state.variants.values()} == {"i1", "i2"}


async def test_a_model_without_a_model_to_write_its_kernels_is_not_asked_for_ideas(search_of: SearchOf) -> None:
    thinker, coder = Author("thinker", frozenset(("ideas",))), Author("coder", frozenset(("code",)))
    playbook = Author("playbook", reads_prose=False)
    coder.error = Spent("the limit of 1 call for coder is reached", "model")
    running = search_of((thinker, 1.0), (coder, 1.0), (playbook, 1.0))
    await running.search.run()
    assert thinker.asked == ["ideas for reference"]
    problem = running.state.problems["a"]
    assert problem.finished == "no proposer has a new idea for any correct kernel" and len(problem.rounds) == 1


async def test_a_limit_that_a_model_reaches_after_its_request_adds_no_ideas_to_the_round(search_of: SearchOf) -> None:
    first, second = Author("first"), Author("second")
    first.answers.clear()
    running = search_of((first, 1.0), (second, 0.1))
    running.context.state.stop_planned = True
    rounds = asyncio.ensure_future(running.search.run())
    await until(lambda: bool(first.asked))
    await running.context.forbid("the limit of 1 call for first is reached", first)
    running.search.wake()
    await asyncio.sleep(0)
    first.answers.set()
    await rounds
    assert len(running.state.problems["a"].rounds[0].ideas) == 3
    assert second.asked == ["kernel for i1", "kernel for i2", "kernel for i3"]


async def seeded_after_the_end(running: Running) -> tuple[str, str]:
    """Search to the end, then seed a kernel and search on. Return the kernel's name and the engine's answer."""
    answers: list[str] = []
    journal = running.context.journal
    journal.listen(lambda event: answers.append(event.message) if isinstance(event, ev.CommandHandled) else None)
    await running.search.run()
    steering = Steering(running.context, lambda names: None, lambda names: None)
    await steering.handle(SentRequest(1, 0.0, "a person", SeedKernel(problem="a", source="// mine", language="cpp")))
    await running.search.run()
    (seed,) = (one.id for one in running.state.variants.values() if one.proposer == ev.BY_HAND)
    return seed, answers[-1]


async def test_more_rounds_build_on_a_kernel_that_was_seeded_after_the_last_round(search_of: SearchOf) -> None:
    running = search_of((Author(), 1.0))
    seed, answer = await seeded_after_the_end(running)
    kernel, problem = running.state.variants[seed], running.state.problems["a"]
    assert "The problem's rounds are complete. To add rounds, press M" in answer and "--rounds N" in answer
    assert undecided_words(running.state, kernel).startswith("The problem's rounds are complete")
    decided: list[bool] = []
    running.context.journal.listen(
        lambda event: decided.append(not kernel.is_undecided) if isinstance(event, ev.RoundStarted) else None
    )
    await running.context.journal.record(ev.BudgetChanged(rounds=3))
    await running.search.run()
    assert decided == [True] and seed in [one.variant for one in problem.rounds[3].parents]
    assert any(running.state.ideas[name].parent == seed for name in problem.rounds[3].ideas)


async def test_a_kernel_that_no_proposer_can_develop_says_so_after_the_end(search_of: SearchOf) -> None:
    running = search_of((Author("playbook", reads_prose=False), 1.0))
    seed, answer = await seeded_after_the_end(running)
    assert "No proposer in this session can develop a kernel that it did not write" in answer
    assert running.state.problems["a"].finished == NO_IDEA
    assert NO_IDEA in undecided_words(running.state, running.state.variants[seed])


async def test_a_seeded_kernel_reopens_a_problem_whose_model_had_no_more_ideas(search_of: SearchOf) -> None:
    model = Author()
    model.is_dry = True
    running = search_of((model, 1.0))
    await running.context.journal.record(ev.BudgetChanged(rounds=20))
    await running.search.run()
    problem = running.state.problems["a"]
    ended_after = problem.rounds[-1].number
    assert problem.finished == NO_IDEA and ended_after < 20
    model.is_dry = False
    seed, answer = await seeded_after_the_end(running)
    assert "If the kernel is correct, a new round can build on it" in answer
    assert [one.variant for one in problem.rounds[ended_after + 1].parents] == [seed]
