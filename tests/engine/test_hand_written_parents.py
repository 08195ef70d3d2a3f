"""A hand-written kernel that no proposer can develop neither blocks other kernels nor costs a round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.config.schema import parse_config
from engine.devices.hardware import cpu_fact
from engine.evaluation.local_evaluator import LocalEvaluator
from engine.problem.c_header import derive_header
from engine.proposers.playbook import Playbook
from engine.search.context import Context
from engine.search.ids import Ids
from engine.search.kernel_sources import Sources
from engine.search.problem_search import ProblemSearch
from engine.session.journal import Journal
from engine.session.records.events import (
    BY_HAND,
    AnyEvent,
    BudgetChanged,
    IdeaProposed,
    NodePruned,
    ProblemAdded,
    RoundStarted,
    VariantWritten,
    VerdictGiven,
)
from engine.session.records.verdict import Timing, Verdict
from engine.session.state.session_state import SessionState, fold
from engine.session.store import EngineLock, EventWriter, SessionReader, create_session
from tests.engine.proposers.playbook.cpp_harness import make_problem
from tui.text.story import fold_with_story

CONFIG = """\
problems = ["softmax.py"]
[search]
rounds = 2
ideas = 2
variants = 1
parents = 2
runoff = 1
[evaluation]
device = "cpu"
"""
MS = {BY_HAND: 1.0}
"""Kernel time in milliseconds by author. Kernels of other authors are slower."""


def verdict(ms: float) -> Verdict:
    return Verdict(status="correct", speedup=10.0 / ms, kernel=Timing(ms, ms, ms, 9))


async def search_with(
    directory: Path, *by_hand: str, pruned: Sequence[str] = (), late: str = ""
) -> tuple[SessionState, list[str]]:
    """Run a search to its end with correct kernels only, some seeded into its first round. Returns its log too.

    ``late``: a kernel to seed after the last round, before another round is allowed.
    """
    directory.mkdir()
    config = parse_config(CONFIG, directory / "config.toml")
    spec = make_problem(directory, "return torch.softmax(x, dim=-1)", {"x": (64, 3000)}).spec
    paths = create_session(directory, "demo", CONFIG, "config.toml", 0)
    lock, writer = EngineLock(paths), EventWriter(paths)
    with SessionReader(paths) as reader:
        state = fold(reader.read())
        journal = Journal(writer, state)
        sources = Sources(writer, reader, state)
        evaluator = LocalEvaluator(config.evaluation, directory / "scratch")
        proposers = [(Playbook(), 1.0)]
        context = Context(config, paths, state, journal, evaluator, proposers, sources, Ids(state), cpu_fact())
        search = ProblemSearch(context, spec.id)

        def judge(event: AnyEvent) -> None:
            if isinstance(event, VariantWritten):
                ms = MS.get(event.proposer, 2.0 + len(state.variants))
                journal.post(VerdictGiven(variant=event.variant, verdict=verdict(ms)))
                for idea in pruned:
                    journal.post(NodePruned(node=idea))
            search.wake()

        journal.listen(judge)
        await journal.record(
            ProblemAdded(problem=spec, language="cpp", header=derive_header(spec, "cpp")),
            RoundStarted(problem=spec.id, round=0, parents=()),
        )

        async def seed_kernel(text: str, round_number: int) -> None:
            idea, claim = context.ids.idea(), sources.claim(spec.id, text, context.ids.variant)
            seed = IdeaProposed(
                idea=idea,
                problem=spec.id,
                round=round_number,
                parent=None,
                category="other",
                text=text,
                proposer=BY_HAND,
            )
            kernel = VariantWritten(
                variant=claim.variant,
                idea=idea,
                problem=spec.id,
                round=round_number,
                parent=None,
                language="cpp",
                source=claim.digest,
                proposer=BY_HAND,
            )
            await journal.record(seed, kernel)

        for text in by_hand:
            await seed_kernel(text, 0)
        await search.run()
        if late:
            await seed_kernel(late, 2)
            await search.run()
            await journal.record(BudgetChanged(rounds=3))
            assert state.problems[spec.id].finished is None, "its kernels may run before the next round starts"
            await search.run()
        writer.flush(5)
        _, story = fold_with_story(reader.read())
    writer.close()
    lock.release()
    return state, [line.text for line in story.lines]


async def test_kernels_by_hand_that_nobody_can_develop_cost_no_round(tmp_path: Path) -> None:
    state, _ = await search_with(tmp_path / "demo", "// one", "// two")
    (problem,) = state.problems.values()
    assert problem.best in ("v1", "v2"), "the seeded ones are the fastest"
    assert [round_.number for round_ in problem.rounds] == [0, 1, 2]
    assert all(len(round_.variants) >= 1 for round_ in problem.rounds)
    selected_because = [[one.variant for one in round_.parents] for round_ in problem.rounds]
    assert selected_because[1] == ["v3"], "the one kernel of the playbook's"
    assert len(selected_because[2]) == 2 and not {"v1", "v2"} & set(selected_because[2])
    assert problem.rounds[1].parents[0].why.startswith("the fastest with untried ideas: ")
    reasons = {one.variant: one.why for one in problem.rounds[0].dropped}
    assert reasons["v1"] == "no proposer has a new idea for this kernel (1 ms, 10.00x over eager)"


async def test_when_only_such_kernels_are_left_the_search_ends_without_an_empty_round(tmp_path: Path) -> None:
    state, log = await search_with(tmp_path / "demo", "// one", pruned=("i2", "i3", "i4"))
    (problem,) = state.problems.values()
    assert [round_.number for round_ in problem.rounds] == [0]
    assert problem.finished == "no proposer has a new idea for any correct kernel"
    assert "no kernel selected" in log[-2] and log[-1].endswith(f"finished, {problem.finished}")


async def test_a_kernel_seeded_after_the_last_round_takes_part_in_the_next_selection(tmp_path: Path) -> None:
    state, log = await search_with(tmp_path / "demo", late="// late")
    (problem,) = state.problems.values()
    (late,) = (one for one in state.variants.values() if one.proposer == BY_HAND)
    assert problem.best == late.id and [round_.number for round_ in problem.rounds] == [0, 1, 2, 3]
    assert late.dropped == "no proposer has a new idea for this kernel (1 ms, 10.00x over eager)"
    assert log[-1].endswith("finished, all 3 rounds are complete")
