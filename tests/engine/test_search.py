"""The events that a search records are ordered and complete, and a search can be resumed after any event."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from engine.daemon.launch import log_tail, start_engine
from engine.exit_codes import ExitCode
from engine.session.budget import SHORT_RESERVE_SHARE, elapsed_s
from engine.session.records.events import (
    BY_HAND,
    RESERVED,
    BaselineMeasured,
    BudgetChanged,
    ProblemAdded,
    Recorded,
    RoundFinished,
    RoundStarted,
    RunoffFinished,
    SizesChecked,
    VerdictGiven,
)
from engine.session.records.requests import ChangeBudget, SeedKernel
from engine.session.state.session_state import SessionState, VariantState, fold
from engine.session.store import SessionPaths, SessionReader, create_session, engine_liveness, send_request
from tests.engine.proposers import canned
from tests.made_once import made_once
from tests.patience import PATIENCE_S
from tui.view.results import results_of

PROBLEM = """\
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {formula}

def get_inputs():
    return [torch.randn(200, 1000)]

def get_init_inputs():
    return []
"""
FORMULAS = {
    "softmax": "torch.softmax(x, dim=1)",
    "chain": "torch.tanh(x * 2.0 + 1.0) * x",
    "raises": "x.no_such_method()",
}

CONFIG = """\
problems = [{problems}]
[search]
rounds = {rounds}
ideas = {ideas}
variants = {ideas}
runoff = {runoff}
[budget]
minutes = {minutes}
[evaluation]
device = "cpu"
trials = 3
max_pairs = 8
torch_compile = false
other_sizes = {other_sizes}
"""


def new_session(
    directory: Path,
    *problems: str,
    rounds: int,
    minutes: float = 5.0,
    ideas: int = 2,
    runoff: int = 0,
    sizes: bool = True,
) -> SessionPaths:
    """``ideas`` per round with as many variants each. ``sizes``: whether best kernels are judged at other sizes."""
    for name in problems:
        (directory / f"{name}.py").write_text(PROBLEM.format(formula=FORMULAS[name]))
    text = CONFIG.format(
        problems=", ".join(f'"{directory / name}.py"' for name in problems),
        rounds=rounds,
        minutes=minutes,
        ideas=ideas,
        runoff=runoff,
        other_sizes="true" if sizes else "false",
    )
    return create_session(directory, "demo", text, "config.toml", 0)


def wait_for_end(paths: SessionPaths) -> None:
    """Wait for the end of the search, as long as new events arrive."""
    deadline, count = time.monotonic() + PATIENCE_S, 0
    while engine_liveness(paths).running:
        if time.monotonic() > deadline:
            events = events_of(paths)
            if len(events) == count:
                raise AssertionError(f"{log_tail(paths, 50)}\nlast events: {events[-5:]}")
            deadline, count = time.monotonic() + PATIENCE_S, len(events)
        time.sleep(0.1)


def events_of(paths: SessionPaths) -> list[Recorded]:
    with SessionReader(paths) as reader:
        return list(reader.read())


def kill(paths: SessionPaths) -> None:
    pid = engine_liveness(paths).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for_end(paths)


@pytest.fixture(autouse=True)
def _nothing_goes_on(tmp_path: Path) -> Iterator[None]:
    """Kill a search that a failed test left behind, since it would block the device."""
    yield
    for database in tmp_path.rglob("session.db"):
        if engine_liveness(paths := SessionPaths.at(database.parent)).running:
            kill(paths)


Finished = tuple[SessionPaths, list[Recorded], SessionState]


@pytest.fixture(scope="module")
def search() -> Finished:
    """Run a search of three problems, two of them searchable. Tests only read the result."""

    def run(directory: Path) -> None:
        paths = new_session(directory, "softmax", "raises", "chain", rounds=1, minutes=30.0, runoff=4)
        start_engine(paths)
        wait_for_end(paths)

    paths = SessionPaths.at(made_once("search", run) / "demo")
    events = events_of(paths)
    return paths, events, fold(events)


def test_it_comes_to_its_end(search: Finished) -> None:
    paths, _, state = search
    assert state.finished, log_tail(paths, 50)
    assert set(state.problems) == {"softmax", "chain"}
    assert all(problem.finished for problem in state.problems.values())
    assert not state.in_flight()


def test_what_cannot_be_searched_is_refused_with_the_reason_and_the_rest_goes_on(search: Finished) -> None:
    _, _, state = search
    assert set(state.refused) == {"raises"}
    assert "no_such_method" in state.refused["raises"].reason


def test_every_winner_is_judged_at_other_sizes_when_all_rounds_are_done(search: Finished) -> None:
    paths, events, state = search
    last_round = max(one.seq for one in events if isinstance(one.event, RoundFinished))
    checked = [one for one in events if isinstance(one.event, SizesChecked)]
    assert {one.event.problem for one in checked if isinstance(one.event, SizesChecked)} == {"softmax", "chain"}
    assert all(one.seq > last_round for one in checked)
    for row in results_of(state, paths.directory, 0.0).problems:
        if row.best is not None:
            found = state.variants[row.best].at_sizes
            assert found is not None
            assert [(one.label, one.sizes) for one in found.results] == [
                ("smaller", {"200": 96, "1000": 496}),
                ("odd", {"200": 179, "1000": 893}),
                ("larger", {"200": 280, "1000": 1416}),
            ]
            assert all(one.status not in ("error", "cancelled") for one in found.results)
            assert row.sizes.startswith("correct ")


def test_every_round_is_closed_only_when_all_of_it_is_judged(search: Finished) -> None:
    _, events, _ = search
    for place, recorded in enumerate(events):
        if isinstance(recorded.event, RoundFinished):
            then = fold(events[:place])
            round_ = next(r for r in then.problems[recorded.event.problem].rounds if r.number == recorded.event.round)
            assert round_.variants
            assert all(then.variants[name].verdict is not None for name in round_.variants)


def test_parents_were_judged_correct_before_they_became_parents(search: Finished) -> None:
    _, events, _ = search
    later_rounds = 0
    for place, recorded in enumerate(events):
        if isinstance(recorded.event, RoundStarted) and recorded.event.round > 0:
            later_rounds += 1
            then = fold(events[:place])
            assert recorded.event.parents
            assert all(then.variants[parent.variant].correct for parent in recorded.event.parents)
    assert later_rounds >= 2


def test_every_kernel_of_a_round_is_selected_or_dropped_with_a_reason(search: Finished) -> None:
    _, _, state = search
    for problem in state.problems.values():
        for round_ in problem.rounds:
            said = {one.variant: one.why for one in (*round_.selected, *round_.dropped)}
            assert set(round_.variants) <= set(said)
            assert all(said.values())


def test_ideas_and_kernels_have_consecutive_ids_and_no_source_twice(search: Finished) -> None:
    _, _, state = search
    assert list(state.ideas) == [f"i{n}" for n in range(1, len(state.ideas) + 1)]
    assert list(state.variants) == [f"v{n}" for n in range(1, len(state.variants) + 1)]
    sources = [(variant.problem, variant.source) for variant in state.variants.values()]
    assert len(sources) == len(set(sources))


def test_problems_are_searched_side_by_side(search: Finished) -> None:
    _, events, _ = search
    begun = {one.event.problem: one.seq for one in reversed(events) if isinstance(one.event, RoundStarted)}
    ended = {one.event.problem: one.seq for one in events if isinstance(one.event, RoundFinished)}
    assert all(begun[one] < ended[other] for one in begun for other in ended)


def test_the_eager_baseline_comes_before_any_verdict_and_leaders_meet_in_a_runoff(search: Finished) -> None:
    _, events, _ = search
    first = {kind: next(one.seq for one in events if isinstance(one.event, kind))
             for kind in (ProblemAdded, BaselineMeasured, VerdictGiven, RunoffFinished)}  # fmt: skip
    assert sorted(first, key=first.__getitem__) == [ProblemAdded, BaselineMeasured, VerdictGiven, RunoffFinished]


def test_nobody_takes_the_place_of_the_best_without_a_runoff_that_has_both(search: Finished) -> None:
    _, events, _ = search
    state, met = SessionState(), 0
    for recorded in events:
        event = recorded.event
        if isinstance(event, RunoffFinished):
            best = state.problems[event.problem].best
            assert best in {standing.variant for standing in event.standings}
            met += 1
        state.apply(recorded)
    assert met


def test_the_best_kernel_of_each_problem_is_a_file(search: Finished) -> None:
    paths, _, state = search
    with SessionReader(paths) as reader:
        for problem in state.problems.values():
            assert problem.best is not None
            source = reader.text(state.variants[problem.best].source)
            assert paths.best(problem.id, ".cpp").read_text() == source


def run_until(paths: SessionPaths, met: Callable[[SessionState], bool]) -> SessionState:
    """Return the first state of a running search that ``met`` accepts."""
    deadline = time.monotonic() + PATIENCE_S
    while not met(state := fold(events_of(paths))):
        assert time.monotonic() < deadline and engine_liveness(paths).running, log_tail(paths, 50)
        time.sleep(0.05)
    return state


def all_have_a_best(state: SessionState) -> bool:
    return bool(state.problems) and all(problem.best is not None for problem in state.problems.values())


def test_when_the_minutes_are_spent_it_ends_in_order_and_more_minutes_go_on(tmp_path: Path) -> None:
    paths = new_session(tmp_path, "softmax", "chain", rounds=500, minutes=30.0, runoff=4)
    start_engine(paths)
    # The time to the first verdicts depends on the machine, so set the budget after them. The remaining two seconds
    # then end during judging.
    begun = run_until(paths, all_have_a_best)
    minutes = (elapsed_s(begun, time.time()) + 2.0) / (1.0 - SHORT_RESERVE_SHARE) / 60.0
    send_request(paths, ChangeBudget(minutes=minutes), "test")
    wait_for_end(paths)
    spent = fold(events_of(paths))
    assert spent.engine is not None
    assert spent.engine.stopped == "budget", log_tail(paths, 50)
    assert spent.search_seconds >= minutes * 60 * (0.95 - SHORT_RESERVE_SHARE)
    assert any(line.text.startswith(RESERVED) for _, line in spent.log), log_tail(paths, 50)
    assert all(variant.stage == "queued" for variant in spent.in_flight())
    send_request(paths, ChangeBudget(minutes=minutes + 30.0), "test")
    start_engine(paths)
    run_until(paths, lambda state: state.verdicts > spent.verdicts)
    kill(paths)


def test_kernels_in_evaluation_when_the_time_ends_get_a_verdict(tmp_path: Path) -> None:
    paths = new_session(tmp_path, "softmax", rounds=500, minutes=30.0, sizes=False)
    start_engine(paths)
    run_until(paths, all_have_a_best)
    again = 'for (int n = 0; n < 60; ++n) { asm volatile("" ::: "memory"); for (long long r'
    slow = canned.good("slow").replace("for (long long r", again).replace("return 0;", "} return 0;")
    send_request(paths, SeedKernel(problem="softmax", language="cpp", source=slow, text="slow"), "test")

    def slow_ones(state: SessionState) -> list[VariantState]:
        return [one for one in state.variants.values() if one.proposer == BY_HAND]

    run_until(paths, lambda state: any(one.stage == "checking" for one in slow_ones(state)))
    begun = fold(events_of(paths))
    send_request(paths, ChangeBudget(minutes=elapsed_s(begun, time.time()) / 60.0), "test")
    wait_for_end(paths)
    events = events_of(paths)
    ended = fold(events)
    (seeded,) = slow_ones(ended)
    over = next(one.seq for one in events if isinstance(one.event, BudgetChanged))
    given = [one.seq for one in events if isinstance(one.event, VerdictGiven) and one.event.variant == seeded.id]
    assert ended.engine is not None and ended.engine.stopped == "budget", log_tail(paths, 50)
    assert len(given) == 1 and given[0] > over and seeded.correct, log_tail(paths, 50)
    assert all(variant.stage == "queued" for variant in ended.in_flight()), "the others wait for a resume"


def test_a_search_whose_time_ends_before_its_problems_are_open_comes_to_its_end(tmp_path: Path) -> None:
    paths = new_session(tmp_path, "softmax", "chain", rounds=500, minutes=30.0)
    start_engine(paths)
    run_until(
        paths,
        lambda state: all_have_a_best(state) and len({variant.problem for variant in state.in_flight()}) == 2,
    )
    kill(paths)
    killed = fold(events_of(paths))
    send_request(paths, ChangeBudget(minutes=elapsed_s(killed, killed.time) / 60.0 + 0.001), "test")
    start_engine(paths)
    wait_for_end(paths)
    ended = fold(events_of(paths))
    assert ended.engine is not None and ended.engine.stopped == "budget", log_tail(paths, 50)
    assert {variant.id for variant in killed.in_flight()} <= set(ended.variants)


def test_a_problem_whose_judge_is_killed_while_it_opens_fails_in_words_and_is_opened_by_a_resume(
    tmp_path: Path,
) -> None:
    paths = new_session(tmp_path, "softmax", "chain", rounds=1, ideas=1, sizes=False)
    engine = psutil.Process(start_engine(paths))
    deadline = time.monotonic() + PATIENCE_S
    killed: set[int] = set()
    while len(killed) < 2:  # it is restarted once
        assert time.monotonic() < deadline, log_tail(paths, 50)
        time.sleep(0.02)
        for child in engine.children() if fold(events_of(paths)).problems else ():
            with contextlib.suppress(psutil.ZombieProcess):
                if child.pid not in killed and "engine.evaluation.judge.start" in child.cmdline():
                    child.kill()
                    killed.add(child.pid)
    wait_for_end(paths)
    state = fold(events_of(paths))
    ended = engine_liveness(paths)
    assert ended.exit_code == ExitCode.NOT_OPENED, log_tail(paths, 50)
    assert "could not open softmax: the judge for" in ended.message and "was killed by SIGKILL" in ended.message
    assert f"To try again: kernel-tui resume {paths.directory}" in ended.message
    assert not state.finished and not state.refused and state.problems["chain"].finished
    assert state.problems["chain"].best is not None and state.problems["softmax"].best is None

    send_request(paths, ChangeBudget(rounds=2), "test")
    start_engine(paths)
    wait_for_end(paths)
    state = fold(events_of(paths))
    assert state.finished and state.problems["softmax"].best is not None, log_tail(paths, 50)
    sols = {
        (one.problem, one.verdict.sol_ms)
        for one in state.variants.values()
        if one.verdict is not None and one.verdict.correct
    }
    assert len(sols) == 2, "a resume uses the SOLs that the session records"
