"""A problem whose search has ended says what to do next, and no longer counts toward the rounds to come."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from engine.session.records import events as ev
from engine.session.records.problem_end import NO_FIRST_KERNEL, NO_IDEA, rounds_complete
from engine.session.state.session_state import fold
from tests.engine.test_state import problem_added, proposed, recorded, verdict, written
from tests.tui.conftest import monitor_of
from tui.text.narration import end_words
from tui.text.story import fold_with_story
from tui.view.over_time.progress import shares_done
from tui.view.source import Limits

SEED = "seed a kernel (a) or an idea (i) while the search runs, or start a new session with a language model"


def ended(reason: str, speedup: float | None = None) -> list[ev.Recorded]:
    """Return the events of a problem that ended after round 0. ``speedup``: the speedup of its only kernel, if any."""
    kernel = (
        proposed("i1", 0, None),
        written("v1", "i1", 0, None),
        ev.VerdictGiven(variant="v1", verdict=verdict(speedup)),
    )
    return recorded(
        problem_added("softmax"),
        ev.RoundStarted(problem="softmax", round=0, parents=()),
        *(kernel if speedup is not None else ()),
        ev.RoundFinished(problem="softmax", round=0, selected=(), dropped=()),
        ev.ProblemFinished(problem="softmax", reason=reason),
    )


@pytest.mark.parametrize(
    ("reason", "speedup", "words"),
    [
        (NO_IDEA, 0.89, f"{NO_IDEA}; the best is slower than PyTorch (0.89x); {SEED}"),
        (NO_FIRST_KERNEL, None, f"{NO_FIRST_KERNEL}; {SEED}"),
        (NO_IDEA, 1.2, NO_IDEA),
        (rounds_complete(4), 0.89, "all 4 rounds are complete"),
    ],
)
def test_the_log_says_what_to_do_after_a_search_that_did_not_beat_pytorch(
    reason: str, speedup: float | None, words: str
) -> None:
    state, story = fold_with_story(ended(reason, speedup))
    assert story.lines[-1].text == f"softmax: finished, {words}"
    assert end_words(state, "softmax", reason) == words.replace(" (a)", "").replace(" (i)", "")


def test_the_share_of_rounds_is_that_of_the_problems_still_searched() -> None:
    state = fold(ended(rounds_complete(0)))
    assert shares_done(state, Limits(rounds=3), 1.0) == {"rounds": 1.0}
    more = (
        problem_added("gelu"),
        ev.RoundStarted(problem="gelu", round=0, parents=()),
        ev.RoundFinished(problem="gelu", round=0, selected=(), dropped=()),
    )
    for number, event in enumerate(more, state.seq + 1):
        state.apply(ev.Recorded(number, 1.0, event))
    assert shares_done(state, Limits(rounds=3), 1.0) == {"rounds": 0.25}, "only gelu goes on"
    state.apply(ev.Recorded(state.seq + 1, 1.0, ev.BudgetChanged(rounds=7)))
    assert state.problems["softmax"].finished is None
    assert shares_done(state, Limits(rounds=7), 1.0) == {"rounds": 0.125}, "one of eight rounds in both problems"


async def test_a_kernel_seeded_after_the_end_shows_as_work_and_then_why_no_round_follows(engine: Any) -> None:
    idea = replace(proposed("i900", 2, None), proposer=ev.BY_HAND)
    kernel = replace(written("v900", "i900", 2, None), proposer=ev.BY_HAND)
    engine.record(ev.ProblemFinished(problem="softmax", reason=NO_IDEA), idea, kernel)
    async with monitor_of(engine.paths, (160, 50)) as monitor:
        await monitor.until_shown("v900")
        assert "finished · " not in monitor.text()
        engine.record(ev.VerdictGiven(variant="v900", verdict=verdict(0.5)))
        await monitor.until_shown("finished · ")
        assert monitor.app.monitor_screen.tree_view.select("v900")
        monitor.app.monitor_screen.detail.turn("Why")
        await monitor.until_shown("The search of the problem has ended: ")
