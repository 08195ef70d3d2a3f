"""Problems take turns: each gets its minutes, one problem at a time, and a killed search continues its turn."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.daemon.launch import log_tail, start_engine
from engine.search.turns import NextTurn, next_turn
from engine.session.records.events import (
    BaselineMeasured,
    CannotWrite,
    EngineStarted,
    EngineStopped,
    NodePruned,
    ProblemRefused,
    Recorded,
    TurnEnd,
    TurnEnded,
    TurnStarted,
    VerdictGiven,
)
from engine.session.state.session_state import SessionState, fold
from engine.session.store import SessionPaths, SessionReader, create_session, engine_liveness
from tests.engine.test_state import problem_added, recorded

PROBLEM = """\
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {formula}

def get_inputs():
    return [torch.randn(64, 500)]

def get_init_inputs():
    return []
"""
FORMULAS = {"softmax": "torch.softmax(x, dim=1)", "chain": "torch.tanh(x * 2.0) * x", "raises": "x.no_such_method()"}
CONFIG = """\
problems = [{problems}]
[search]
rounds = {rounds}
ideas = 1
variants = 1
runoff = 0
[budget]
minutes_per_problem = {minutes}
[evaluation]
device = "cpu"
trials = 3
max_pairs = 8
torch_compile = false
"""


def turn(problem: str, minutes: float, reason: TurnEnd) -> tuple[TurnStarted, TurnEnded]:
    return TurnStarted(problem=problem, minutes=minutes), TurnEnded(problem=problem, reason=reason)


def after(*timed: tuple[float, object]) -> SessionState:
    """Return the state after events, each at a time in seconds. Problems a, b and c exist, and the engine runs."""
    engine = EngineStarted(pid=1, host="h", version="1", resumed=False, devices=(), sandbox="")
    first = [(0.0, engine), *((0.0, problem_added(name)) for name in "abc")]
    return fold(Recorded(seq, at, event) for seq, (at, event) in enumerate([*first, *timed], 1))  # type: ignore[arg-type]


def test_every_problem_gets_its_minutes_before_any_gets_more() -> None:
    assert next_turn(after(), 5.0) == NextTurn("a", 5.0)
    start, end = turn("a", 5.0, "time")
    assert next_turn(after((0, start), (300, end)), 5.0) == NextTurn("b", 5.0)
    assert next_turn(after((0, NodePruned(node="a"))), 5.0) == NextTurn("b", 5.0)
    assert next_turn(after((0, CannotWrite(problem="a", reason="no template"))), 5.0) == NextTurn("b", 5.0)


def test_an_open_turn_continues_after_the_engine_died() -> None:
    again = EngineStarted(pid=2, host="h", version="1", resumed=True, devices=(), sandbox="", before=60.0)
    state = after((0, TurnStarted(problem="a", minutes=5.0)), (50, problem_added("d")), (1000, again))
    assert next_turn(state, 5.0) == NextTurn("a", 5.0)
    assert state.problem_seconds("a", 1010.0) == 70.0, "the time without an engine does not count"


def test_minutes_that_a_problem_does_not_need_go_to_those_with_headroom() -> None:
    (a, a_end), (b, b_end), (c, c_end) = turn("a", 5, "near_sol"), turn("b", 5, "time"), turn("c", 5, "no_gain")
    events = ((0, a), (60, a_end), (60, b), (360, b_end), (360, c), (420, c_end))
    state = after(*events)
    assert next_turn(state, 5.0) == NextTurn("b", 8.0), "15 minutes, of which 7 are used"
    (more, more_end) = turn("b", 4.0, "done")
    state = after(*events, (420, more), (480, more_end))
    assert next_turn(state, 5.0) == NextTurn("c", 7.0)
    (more, more_end) = turn("c", 7.0, "no_gain")
    state = after(*events, (420, turn("b", 1, "time")[0]), (480, b_end), (480, more), (870, more_end))
    assert next_turn(state, 5.0) is None, "less than a minute is left"
    refused = ProblemRefused(problem="x", path="x.py", reason="raises")
    assert next_turn(after(*events, (420, refused)), 5.0) == NextTurn("b", 13.0)


@pytest.fixture(autouse=True)
def _nothing_goes_on(tmp_path: Path) -> Iterator[None]:
    """Kill a search that a failed test left behind, since it would block the device."""
    yield
    for database in tmp_path.rglob("session.db"):
        if (pid := engine_liveness(SessionPaths.at(database.parent)).pid) is not None:
            os.kill(pid, signal.SIGKILL)


def follow(paths: SessionPaths, until: Callable[[SessionState], bool]) -> list[Recorded]:
    deadline = time.monotonic() + 120
    with SessionReader(paths) as reader:
        while not until(fold(events := list(reader.read()))):
            assert time.monotonic() < deadline, log_tail(paths, 50)
            time.sleep(0.05)
    return events


def test_problems_take_turns_and_a_killed_search_continues_its_turn(tmp_path: Path) -> None:
    for name, formula in FORMULAS.items():
        (tmp_path / f"{name}.py").write_text(PROBLEM.format(formula=formula))
    named = ", ".join(f'"{tmp_path / name}.py"' for name in ("raises", "softmax", "chain"))
    text = CONFIG.format(problems=named, rounds=1, minutes=1)
    paths = create_session(tmp_path, "demo", text, "config.toml", 0)
    start_engine(paths, unattended=True)
    follow(paths, lambda state: state.turn is not None and state.turn.problem == "chain")
    pid = engine_liveness(paths).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while engine_liveness(paths).running:
        time.sleep(0.05)
    start_engine(paths, unattended=True)
    events = follow(paths, lambda state: state.starts == 2 and state.engine is not None and bool(state.engine.stopped))
    state = fold(events)
    assert isinstance(events[-1].event, EngineStopped)
    assert state.finished, log_tail(paths, 50)
    turns = [one.event for one in events if isinstance(one.event, TurnStarted | TurnEnded)]
    assert turns == [*turn("softmax", 1.0, "done"), *turn("chain", 1.0, "done")]
    assert set(state.refused) == {"raises"}
    places = [one.seq for one in events if isinstance(one.event, TurnStarted)]
    opened = [one.seq for one in events if isinstance(one.event, BaselineMeasured)]
    assert places[0] < opened[0] < places[1] < opened[1], "a problem is opened in its turn"
    for recorded_ in events:
        if isinstance(recorded_.event, VerdictGiven):
            problem = state.variants[recorded_.event.variant].problem
            assert (problem == "chain") == (recorded_.seq > places[1])
    assert all(problem.best is not None and problem.turn_seconds > 0 for problem in state.problems.values())
    assert not state.in_flight()
