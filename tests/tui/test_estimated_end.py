"""The estimated end in the status line: one format, and no change without news."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.store import SessionPaths, SessionReader
from tests.engine.test_state import problem_added
from tests.tui.conftest import NOW
from tui.monitor.panes.status.status_line import status_line
from tui.monitor.theme.palette import monochrome
from tui.view.model import Model
from tui.view.over_time.history import fold_all
from tui.view.over_time.progress import Progress, SteadyEnd, progress_of
from tui.view.source import Limits, Link, SessionSource


class Clock:
    """The time of a monitor, which the test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def searching(paths: SessionPaths, clock: Clock, limits: Limits) -> Model:
    """Return the model of a search that is in its third round."""
    model = Model(SessionSource(paths, read_only=True, clock=clock))
    with SessionReader(paths) as reader:
        model.state, model.story, model.history = fold_all(reader.read())
    model.source.limits = limits
    model.opened, model.link = True, Link("live", pid=1)
    return model


def progress_at(seconds: float, limits: Limits, *events: tuple[float, ev.AnyEvent]) -> Progress:
    """Return the progress of a search at a time after its start, in seconds, with the ``events`` at their times."""
    start = ev.EngineStarted(pid=1, host="", version="", resumed=False, devices=(), sandbox="")
    paths = SessionPaths(Path("none"))
    model = Model(SessionSource(paths, read_only=True, clock=lambda: NOW + seconds), opened=True)
    noted = [Recorded(seq, NOW + at, event) for seq, (at, event) in enumerate([(0.0, start), *events], 1)]
    model.state, model.story, model.history = fold_all(noted)
    model.source.limits, model.link = limits, Link("live", pid=1)
    progress = progress_of(model)
    assert progress is not None
    return progress


def rounds_of(problem: str, number: int, until_s: float) -> list[tuple[float, ev.AnyEvent]]:
    """Return a problem's events: ``number`` rounds of equal length, the last of which ends at ``until_s``."""
    events: list[tuple[float, ev.AnyEvent]] = [(0.0, problem_added(problem))]
    for one in range(number):
        end = ev.RoundFinished(problem=problem, round=one, selected=(), dropped=())
        events.append((until_s * one / number, ev.RoundStarted(problem=problem, round=one, parents=())))
        events.append((until_s * (one + 1) / number, end))
    return sorted(events, key=lambda event: event[0])


@pytest.mark.parametrize(("seconds", "left_s"), [(50, 30), (79, 1), (200, 600), (3500, 100)])
def test_an_estimate_that_has_passed_gives_way_to_the_rate_until_now_and_the_time_limit(
    seconds: float, left_s: float
) -> None:
    progress = progress_at(seconds, Limits(rounds=3, minutes=60.0), *rounds_of("softmax", 1, 20.0))
    assert progress.left_s == pytest.approx(left_s)
    assert progress.is_exact == (seconds == 3500)


def test_only_the_problems_still_searched_have_rounds_left_and_all_rounds_count_for_the_rate() -> None:
    events = rounds_of("softmax", 11, 100.0)
    others = [(0.0, problem_added(name)) for name in ("gelu", "relu", "silu", "tanh")]
    prunes = [(120.0, ev.NodePruned(node=event.problem.id)) for _, event in others]
    assert progress_at(120.0, Limits(rounds=19), *events, *others).left_s == pytest.approx(100 * 100 / 11 - 120)
    assert progress_at(120.0, Limits(rounds=19), *events, *others, *prunes).left_s == pytest.approx(2000 / 11 - 120)
    both = sorted([*rounds_of("gelu", 10, 100.0), *rounds_of("relu", 5, 100.0)], key=lambda event: event[0])
    end = (100.0, ev.ProblemFinished(problem="gelu", reason=""))
    for known in (both, [*both, end]):
        assert progress_at(110.0, Limits(rounds=9), *known).left_s == pytest.approx(100 * 20 / 15 - 110)


def test_the_end_stays_the_same_until_another_round_ends(session: SessionPaths) -> None:
    clock = Clock()
    model = searching(session, clock, Limits(rounds=9))
    ends = []
    for clock.now in (NOW, NOW + 10, NOW + 60):
        progress = progress_of(model)
        assert progress is not None and progress.left_s is not None
        ends.append(clock.now + progress.left_s)
    assert ends == pytest.approx([ends[0]] * 3)


def test_small_changes_of_the_estimate_do_not_move_the_end() -> None:
    end = SteadyEnd()
    assert [end.at(now, left_s) for now, left_s in ((0, 3600), (10, 3300), (20, 3900))] == [3600, 3600, 3600]
    assert end.at(30, 4100) == 4130, "more than a tenth of the time left"
    assert [end.at(4000, 100), end.at(4000, 65), end.at(4000, 200)] == [4130, 4065, 4200], "more than a minute"
    assert end.at(4201, 20) == 4221, "the end shown has passed"
    assert end.at(4001, 210, is_exact=True) == 4211, "the time limit is no estimate"


def test_a_new_time_limit_moves_the_end(session: SessionPaths) -> None:
    model, end = searching(session, Clock(), Limits(minutes=600.0)), SteadyEnd()
    shown = []
    for model.state.minutes in (600.0, 630.0):
        text = status_line(model, monochrome(), 300, ascii_only=False, end=end).text
        shown += re.findall(r"ends ~(\d\d):(\d\d)", text)
    (hour, minute), (later_hour, later_minute) = ([int(part) for part in one] for one in shown)
    assert (later_hour * 60 + later_minute - hour * 60 - minute) % 1440 == 30


@pytest.mark.parametrize(("minutes", "days"), [(5.0, ""), (60 * 24.0, " +1d"), (60 * 24 * 30.0, " +30d")])
def test_the_end_is_a_time_of_day_however_far_away_it_is(session: SessionPaths, minutes: float, days: str) -> None:
    model = searching(session, Clock(), Limits(minutes=minutes))
    text = status_line(model, monochrome(), 300, ascii_only=False).text
    assert re.search(rf"  ends ~\d\d:\d\d{re.escape(days)}  ", text), text


def test_the_parts_after_the_clock_stay_in_place_while_the_clock_gets_another_digit(session: SessionPaths) -> None:
    clock = Clock()
    model = searching(session, clock, Limits(minutes=20.0))
    places = set()
    for clock.now in (NOW, NOW + 600):
        text = status_line(model, monochrome(), 300, ascii_only=False).text
        assert re.search(r" \d+:\d\d/20:00  \d+% of time", text), text
        places.add(text.index("ends ~"))
    assert len(places) == 1
