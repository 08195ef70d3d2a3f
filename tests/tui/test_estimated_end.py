"""The estimated end in the status line: one format, and no change without news."""

from __future__ import annotations

import re

import pytest

from engine.session.store import SessionPaths, SessionReader
from tests.tui.conftest import NOW
from tui.monitor.panes.status import status_line
from tui.monitor.theme.palette import monochrome
from tui.view.model import Model
from tui.view.over_time.history import fold_all
from tui.view.over_time.progress import SteadyEnd, progress_of
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
