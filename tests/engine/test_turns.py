"""Problems take turns: each gets its minutes, and those that it does not need go to the others."""

from __future__ import annotations

import pytest

from engine.search.turns import NextTurn, next_turn, unclaimed_minutes
from engine.session.records.events import (
    AnyEvent,
    BaselineMeasured,
    BudgetChanged,
    CannotWrite,
    EngineStarted,
    NodePruned,
    ProblemRefused,
    Recorded,
    RoundStarted,
    TurnEnd,
    TurnEnded,
    TurnStarted,
    VariantStage,
    VerdictGiven,
)
from engine.session.records.verdict import Baseline
from engine.session.state.session_state import SessionState, fold
from tests.engine.test_state import problem_added, proposed, verdict, written


def turn(problem: str, minutes: float, reason: TurnEnd) -> tuple[TurnStarted, TurnEnded]:
    return TurnStarted(problem=problem, minutes=minutes), TurnEnded(problem=problem, reason=reason)


def after(*timed: tuple[float, AnyEvent]) -> SessionState:
    """Return the state after events, each at a time in seconds. Problems a, b and c exist, and the engine runs."""
    engine = EngineStarted(pid=1, host="h", version="1", resumed=False, devices=(), sandbox="")
    first: list[tuple[float, AnyEvent]] = [(0.0, engine), *((0.0, problem_added(name)) for name in "abc")]
    return fold(Recorded(seq, at, event) for seq, (at, event) in enumerate([*first, *timed], 1))


def test_every_problem_gets_its_minutes_before_any_gets_more() -> None:
    assert next_turn(after(), 5.0) == NextTurn("a", 5.0)
    start, end = turn("a", 5.0, "time")
    assert next_turn(after((0, start), (300, end)), 5.0) == NextTurn("b", 5.0)
    assert next_turn(after((0, NodePruned(node="a"))), 5.0) == NextTurn("b", 5.0)
    assert next_turn(after((0, CannotWrite(problem="a", reason="no template"))), 5.0) == NextTurn("b", 5.0)


def test_an_open_turn_continues_after_the_engine_died() -> None:
    again = EngineStarted(pid=2, host="h", version="1", resumed=True, devices=(), sandbox="", before=60.0)
    started = TurnStarted(problem="a", minutes=5.0)
    events = ((0, started), (50, problem_added("d")), (1000, again))
    state = after(*events)
    assert next_turn(state, 5.0) == NextTurn("a", 5.0)
    assert state.problem_seconds("a", 1010.0) == 60.0, "neither the time without an engine nor its start counts"
    state = after(*events, (1010, started))
    assert state.problem_seconds("a", 1015.0) == 65.0 and state.problems["a"].turns == 1


@pytest.mark.parametrize(
    "work",
    [
        RoundStarted(problem="a", round=1, parents=()),
        BaselineMeasured(problem="a", baseline=Baseline("compile", failure="crashed")),
        VariantStage(variant="v1", stage="building"),
        VerdictGiven(variant="v1", verdict=verdict(2.0)),
    ],
    ids=["round", "baseline", "stage", "verdict"],
)
def test_a_turn_that_an_older_engine_continued_counts_from_its_first_work(work: AnyEvent) -> None:
    """Older engines did not record the turn again."""
    again = EngineStarted(pid=2, host="h", version="1", resumed=True, devices=(), sandbox="", before=60.0)
    events = (
        (0, TurnStarted(problem="a", minutes=5.0)),
        (0, RoundStarted(problem="a", round=0, parents=())),
        (0, proposed("i1", 0, None, "a")),
        (50, written("v1", "i1", 0, None, "a")),
        (1000, again),
        (1005, VariantStage(variant="v1", stage="queued")),
        (1006, RoundStarted(problem="b", round=0, parents=())),
    )
    assert after(*events).problem_seconds("a", 1010.0) == 60.0, "nothing of this is work on the problem"
    assert after(*events, (1010, work)).problem_seconds("a", 1015.0) == 65.0


def test_turns_that_took_too_long_are_paid_from_minutes_left_over_first_and_then_from_later_turns() -> None:
    (a, a_end), (b, b_end) = turn("a", 1, "near_sol"), turn("b", 1, "time")
    state = after((0, a), (30, a_end), (30, b), (120, b_end))
    assert next_turn(state, 1.0) == NextTurn("c", 1.0), "a left half a minute to b"
    assert unclaimed_minutes(after((0, a), (30, a_end), (30, b)), 1.0) == 0.5
    state = after((0, a), (72, a_end))
    assert next_turn(state, 1.0) == NextTurn("b", 0.9), "b and c share the 108 seconds that are left"
    assert unclaimed_minutes(state, 1.0) == 0.0
    assert next_turn(after((0, a), (900, a_end)), 1.0) == NextTurn("b", 0.5), "no first turn is shorter"


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


def test_a_problem_without_rounds_left_gets_another_turn_only_if_a_person_adds_rounds() -> None:
    ends = [(60.0 * number, one) for number, name in enumerate("abc") for one in turn(name, 5, "done")]
    started = [(0.0, RoundStarted(problem=name, round=1, parents=())) for name in "abc"]
    assert next_turn(after(*started, *ends), 5.0) is None
    assert next_turn(after(*started, *ends, (180, BudgetChanged(rounds=1))), 5.0) is None
    more = after(*started, *ends, (180, BudgetChanged(rounds=2)))
    assert next_turn(more, 5.0) == NextTurn("a", 5.0)
    assert next_turn(more, 5.0, closed={"a"}) == NextTurn("b", 7.5), "a has no further idea"
