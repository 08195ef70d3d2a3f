"""The state's indexes agree with a simple scan of the events."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from msgspec.structs import replace

from engine.daemon.service import _ended
from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.search.proposing.proposer_context import candidates_of
from engine.search.strategies import greedy
from engine.search.strategies.runoff_choice import runoff_leaders, with_doubts
from engine.session.records import events as ev
from engine.session.records.events import Recorded, Selected
from engine.session.records.model_calls import CallSite
from engine.session.records.skipped_compile import STOP_PLANNED, skipped_compile, stopped_work, timing_compile
from engine.session.records.verdict import Standing, Timing, Verdict
from engine.session.state.comparable import figures_of
from engine.session.state.session_state import SessionState, fold
from engine.session.state.spend import MANUAL
from engine.session.store import SessionDamaged
from tui.compare.change import change_from, change_words
from tui.text.certainty import correction_words, round_speedup_words
from tui.text.runoff_text import last_runoff, lost_runoff, why_new_best
from tui.view.activity import kernels_at_work


def verdict(speedup: float | None) -> Verdict:
    if speedup is None:
        return Verdict(status="wrong", reason="differs")
    return Verdict(status="correct", speedup=speedup, kernel=Timing(1 / speedup, 1 / speedup, 1 / speedup, 9))


def problem_added(name: str) -> ev.ProblemAdded:
    spec = ProblemSpec(id=name, name=name, path=f"{name}.py", source="", tensors=())
    return ev.ProblemAdded(problem=spec, language="cpp", header="")


def written(variant: str, idea: str, number: int, parent: str | None, problem: str = "softmax") -> ev.VariantWritten:
    return ev.VariantWritten(
        variant=variant,
        idea=idea,
        problem=problem,
        round=number,
        parent=parent,
        language="cpp",
        source="digest",
        proposer="playbook",
    )


def proposed(idea: str, number: int, parent: str | None, problem: str = "softmax") -> ev.IdeaProposed:
    return ev.IdeaProposed(
        idea=idea, problem=problem, round=number, parent=parent, category="memory", text="", proposer="playbook"
    )


def recorded(*events: ev.AnyEvent) -> list[Recorded]:
    return [Recorded(seq, 1000.0 + seq, event) for seq, event in enumerate(events, 1)]


def small_search() -> list[Recorded]:
    """i1 -> v1 (2.0x), v2 (wrong); i2 under v1 -> v3 (3.0x), v4 (in flight)."""
    return recorded(
        ev.SessionCreated(name="s", version="0", config="", seed=1),
        problem_added("softmax"),
        ev.RoundStarted(problem="softmax", round=0, parents=()),
        proposed("i1", 0, None),
        written("v1", "i1", 0, None),
        written("v2", "i1", 0, None),
        ev.VerdictGiven(variant="v1", verdict=verdict(2.0)),
        ev.VerdictGiven(variant="v2", verdict=verdict(None)),
        ev.RoundFinished(problem="softmax", round=0, selected=(Selected("v1", "fastest"),), dropped=()),
        ev.RoundStarted(problem="softmax", round=1, parents=(Selected("v1", "fastest"),)),
        proposed("i2", 1, "v1"),
        written("v3", "i2", 1, "v1"),
        written("v4", "i2", 1, "v1"),
        ev.VariantStage(variant="v4", stage="timing"),
        ev.VerdictGiven(variant="v3", verdict=verdict(3.0)),
    )


def after(events: list[Recorded], *more: ev.AnyEvent) -> SessionState:
    state = fold(events)
    for number, event in enumerate(more, state.seq + 1):
        state.apply(Recorded(number, 2000.0 + number, event))
    return state


def test_a_branch_is_everything_below() -> None:
    state = fold(small_search())
    assert state.branch("v1") == {"v1", "i2", "v3", "v4"}
    assert state.branch("softmax") == {"i1", "v1", "v2", "i2", "v3", "v4"}
    assert state.branch("nobody") == set()


def test_best_of_each_round_and_what_is_in_flight() -> None:
    state = fold(small_search())
    assert state.best_of_round("softmax", 0) == 2.0
    assert state.best_of_round("softmax", 1) == 3.0
    assert state.best_of_round("softmax", 2) is None
    assert [variant.id for variant in state.in_flight()] == ["v4"]


def test_pruning_the_best_branch_makes_the_next_one_best_and_restoring_brings_it_back() -> None:
    events = small_search()
    assert fold(events).problems["softmax"].best == "v3"
    pruned = after(events, ev.NodePruned(node="i2"))
    assert pruned.problems["softmax"].best == "v1"
    assert [variant.id for variant in pruned.leaders("softmax")] == ["v1"]
    assert after(events, ev.NodePruned(node="i2"), ev.NodeRestored(node="i2")).problems["softmax"].best == "v3"


def test_the_winner_of_the_runoff_is_the_best_again_when_it_is_restored() -> None:
    standings = (Standing("v1", 1.0, 1.0, 1.0, 1.0, tied=True), Standing("v3", 1.1, 1.1, 1.0, 1.2, tied=False))
    won = ev.RunoffFinished(problem="softmax", round=1, standings=standings)
    runoff = [*small_search(), Recorded(100, 2000.0, won)]
    assert fold(runoff).problems["softmax"].best == "v1"  # v3 has the faster verdict, but lost that runoff
    lead_at = fold(runoff).problems["softmax"].lead_at
    assert lead_at == runoff[-1].time, "it is the best since then, not since its verdict"
    pruned = [*runoff, Recorded(101, 2001.0, ev.NodePruned(node="v1"))]
    assert fold(pruned).problems["softmax"].best != "v1"
    assert fold([*pruned, Recorded(102, 2002.0, ev.NodeRestored(node="v1"))]).problems["softmax"].best == "v1"


def test_a_best_kernel_that_ties_has_no_lead_until_a_runoff_separates_it() -> None:
    def given(variant: str, speedup: float | None) -> ev.VerdictGiven:
        low, high = (speedup - 0.2, speedup + 0.2) if speedup is not None else (None, None)
        return ev.VerdictGiven(variant=variant, verdict=replace(verdict(speedup), speedup_low=low, speedup_high=high))

    def runoff(first: str, *others: str, tied: bool) -> ev.RunoffFinished:
        slower = (Standing(name, 1.1, 1.1, 1.0, 1.2, tied) for name in others)
        standings = (Standing(first, 1.0, 1.0, 1.0, 1.0, True), *slower)
        return ev.RunoffFinished(problem="softmax", round=1, standings=standings)

    def lead(*more: ev.AnyEvent, v4: float = 3.1) -> tuple[str | None, str | None, str | None]:
        problem = after(small_search(), given("v3", 3.0), given("v4", v4), *more).problems["softmax"]
        return problem.best, problem.tied_with, problem.best_with_lead

    assert lead() == ("v4", "v3", "v3"), "the intervals overlap"
    assert lead(given("v3", 3.6)) == ("v3", None, "v3")
    assert lead(runoff("v3", "v4", tied=True)) == ("v3", "v4", "v3")
    assert lead(runoff("v4", "v3", tied=True)) == ("v4", "v3", "v3")
    assert lead(runoff("v4", "v3", tied=False)) == ("v4", None, "v4")
    assert lead(runoff("v3", "v4", tied=True), runoff("v4", "v3", tied=False)) == ("v4", None, "v4")
    assert lead(ev.NodePruned(node="v4")) == ("v3", None, "v3")

    assert lead(given("v4", 9.0)) == ("v4", None, "v4"), "a second verdict separates it"
    assert lead(runoff("v4", "v3", tied=True), given("v4", 9.0)) == ("v4", None, "v4"), "the newest figures count"
    for gone in (given("v3", 1.5), given("v3", None), ev.NodePruned(node="v3")):
        assert lead(gone) == ("v4", None, "v4"), "nothing is left to tie with"
    assert lead(given("v4", 3.05)) == lead(given("v1", 2.9)) == lead(ev.NodePruned(node="v2")) == ("v4", "v3", "v3")

    assert lead(v4=5.0) == ("v4", None, "v4")
    assert lead(given("v4", 2.95), v4=5.0) == ("v3", "v4", "v4"), "the former best is still correct"
    assert lead(given("v4", None), v4=5.0) == lead(ev.NodePruned(node="v4"), v4=5.0) == ("v3", None, "v3")

    assert lead(given("v1", 2.9), runoff("v1", "v2", tied=False)) == ("v1", "v3", "v3"), "a runoff without its rivals"


def test_what_is_pruned_is_not_the_best_of_its_round_until_it_is_restored() -> None:
    events = small_search()
    pruned = after(events, ev.NodePruned(node="i2"))
    assert pruned.best_of_round("softmax", 1) is None and pruned.best_of_round("softmax", 0) == 2.0
    judged_later = after(events, ev.NodePruned(node="i2"), ev.VerdictGiven(variant="v4", verdict=verdict(9.0)))
    assert judged_later.best_of_round("softmax", 1) is None
    restored = after(
        events,
        ev.NodePruned(node="i2"),
        ev.VerdictGiven(variant="v4", verdict=verdict(9.0)),
        ev.NodeRestored(node="i2"),
    )
    assert restored.best_of_round("softmax", 1) == 9.0
    ended = after(
        events,
        ev.VerdictGiven(variant="v4", verdict=verdict(2.5)),
        ev.NodePruned(node="v3"),
        ev.RoundFinished(problem="softmax", round=1, selected=(), dropped=()),
    )
    assert ended.best_of_round("softmax", 1) == 2.5
    ended.apply(Recorded(ended.seq + 1, 3000.0, ev.NodeRestored(node="v3")))
    assert ended.best_of_round("softmax", 1) == 3.0, "the round ended while its fastest kernel was pruned"
    assert (best := ended.best_after_round("softmax", 1)) is not None and best.id == "v3"
    leader = ended.leader_of_round("softmax", 0)
    assert leader is not None and leader.id == "v1", "a kernel of a later round does not change an earlier round"
    whole = after(events, ev.NodePruned(node="softmax"))
    assert whole.best_of_round("softmax", 0) is None and whole.problems["softmax"].best is None


def test_a_round_is_led_by_its_fastest_kernel_in_the_runoff() -> None:
    ranked = (("v1", 1.0), ("v4", 1.2), ("v3", 1.5))
    runoff = ev.RunoffFinished(
        problem="softmax",
        round=1,
        standings=tuple(Standing(name, ratio, ratio, ratio, ratio, tied=ratio == 1.0) for name, ratio in ranked),
    )
    state = after(small_search(), ev.VerdictGiven(variant="v4", verdict=verdict(2.5)), runoff)
    assert state.problems["softmax"].best == "v1" and (state.variants["v3"].speedup or 0.0) > 2.5
    leader = state.leader_of_round("softmax", 1)
    assert leader is not None and leader.id == "v4"


def test_leaders_stand_in_the_order_of_the_runoff() -> None:
    runoff = ev.RunoffFinished(
        problem="softmax",
        round=1,
        standings=(Standing("v1", 0.4, 1.0, 1.0, 1.0, False), Standing("v3", 0.5, 1.2, 1.1, 1.3, False)),
    )
    state = after(small_search(), runoff, ev.VerdictGiven(variant="v4", verdict=verdict(2.5)))
    assert [leader.id for leader in state.leaders("softmax")] == ["v3", "v4", "v1"], "by each one's own speedup"
    assert [leader.id for leader in state.standing_order("softmax")] == ["v4", "v1", "v3"]
    state = after(small_search(), runoff, ev.VerdictGiven(variant="v4", verdict=verdict(1.5)))
    assert [leader.id for leader in state.standing_order("softmax")] == ["v1", "v3", "v4"]
    assert [leader.id for leader in state.standing_order("softmax", 1)] == ["v1"]


def test_a_kernel_that_a_runoff_timed_has_the_best_kernels_figures_scaled() -> None:
    first = (Standing("v1", 0.4, 1.0, 1.0, 1.0, False), Standing("v3", 0.5, 1.25, 1.2, 1.3, False))
    second = (Standing("v4", 0.3, 1.0, 1.0, 1.0, False), Standing("v1", 0.6, 2.0, 1.9, 2.1, False))
    events = [
        ev.RunoffFinished(problem="softmax", round=0, standings=first),
        ev.VerdictGiven(variant="v4", verdict=verdict(2.2)),
        ev.RunoffFinished(problem="softmax", round=1, standings=second),
    ]
    state = after(small_search(), *events)
    figures = {name: figures_of(state, state.variants[name]) for name in ("v1", "v3", "v4")}
    assert state.problems["softmax"].best == "v4" and state.variants["v1"].speedup == 2.0
    assert figures["v4"] == (2.2, state.variants["v4"].kernel_ms, False, ""), "the best kernel's own verdict counts"
    assert figures["v1"] is not None and figures["v3"] is not None
    assert (figures["v1"].speedup, figures["v1"].scaled) == (pytest.approx(1.1), "v4"), "half as fast side by side"
    assert figures["v3"].speedup == pytest.approx(2.2 / 2 / 1.25), "an earlier runoff compared it with v1"
    again = after(small_search(), *events, ev.VerdictGiven(variant="v4", verdict=uncertain(4.4, 2.0, 6.0)))
    now = figures_of(again, again.variants["v1"])
    assert now is not None and (now.speedup, now.uncertain) == (pytest.approx(2.2), True), "with the best kernel's mark"


def test_the_first_of_a_runoff_stands_above_a_tied_kernel_that_is_the_best() -> None:
    standings = (Standing("v1", 0.4, 1.0, 1.0, 1.0, False), Standing("v3", 0.41, 1.02, 0.99, 1.05, True))
    state = after(
        small_search(),
        ev.VerdictGiven(variant="v1", verdict=uncertain(2.0, 1.2, 3.0)),
        ev.RunoffFinished(problem="softmax", round=1, standings=standings),
    )
    assert state.problems["softmax"].best == "v3", "the winner's speedup is uncertain"
    assert [leader.id for leader in state.standing_order("softmax")][:2] == ["v1", "v3"]


def test_a_round_is_led_by_whom_its_kernels_could_not_outrun() -> None:
    judged = [*small_search(), Recorded(100, 2000.0, ev.VerdictGiven(variant="v4", verdict=verdict(2.5)))]
    assert fold(judged).best_of_round("softmax", 1) == 3.0
    anew = after(judged, ev.VerdictGiven(variant="v3", verdict=verdict(2.2)))
    assert anew.best_of_round("softmax", 1) == 2.5, "the speedup of a first verdict is gone with it"
    standings = (Standing("v4", 0.4, 1.0, 1.0, 1.0, False), Standing("v3", 0.5, 1.2, 1.1, 1.3, False))
    raced = [*judged, Recorded(101, 2001.0, ev.RunoffFinished(problem="softmax", round=1, standings=standings))]
    assert fold(raced).best_of_round("softmax", 1) == 2.5, "side by side v3 was slower"
    assert after(raced, ev.VerdictGiven(variant="v3", verdict=verdict(2.2))).best_of_round("softmax", 1) == 2.5
    assert after(raced, ev.VerdictGiven(variant="v3", verdict=verdict(9.0))).best_of_round("softmax", 1) == 9.0, (
        "the problem's best stands for its round, and became that by its later verdict"
    )
    assert after(raced, ev.NodePruned(node="v4")).best_of_round("softmax", 1) == 3.0
    other = ev.RunoffFinished(problem="softmax", round=1, standings=(standings[1], standings[0]))
    assert after(raced, other).best_of_round("softmax", 1) == 3.0
    beside = ev.RunoffFinished(
        problem="softmax",
        round=1,
        standings=(Standing("v1", 0.4, 1.0, 1.0, 1.0, False), Standing("v3", 0.5, 1.25, 1.1, 1.3, False)),
    )
    assert after(judged, beside).best_of_round("softmax", 1) == 3.0, "from its own verdict, whatever a runoff says"
    # Later rounds rewrite nothing.
    third = [ev.IdeaProposed(idea="i3", problem="softmax", round=1, parent="v1", category="x", text="", proposer="p"),
             written("v5", "i3", 1, "v1"), ev.VerdictGiven(variant="v5", verdict=verdict(2.7))]  # fmt: skip
    places = {name: Standing(name, 1.0, 1.0, 1.0, 1.0, False) for name in ("v1", "v3", "v4", "v5")}

    def round_finished(number: int, *names: str) -> list[ev.AnyEvent]:
        order = tuple(places[name] for name in names)
        started = [ev.RoundStarted(problem="softmax", round=number, parents=())] if number > 1 else []
        return [*started, ev.RunoffFinished(problem="softmax", round=number, standings=order)]

    def led_by(*more: ev.AnyEvent) -> str | None:
        state = after(judged, *third, *more)
        # The round's fastest kernel; it leads if the problem's best kernel belongs to another round.
        return next(one.best for one in state.problems["softmax"].rounds if one.number == 1)

    assert led_by(*round_finished(1, "v4", "v3")) == "v5", "not raced, and its speedup is better"
    first = round_finished(1, "v4", "v5", "v3")
    assert led_by(*first) == "v4" == led_by(*first, *round_finished(2, "v1", "v3", "v5"))
    assert led_by(*first, *round_finished(2, "v5", "v4")) == "v4"
    assert led_by(*first, *round_finished(2, "v5", "v4"), ev.NodePruned(node="v4")) == "v5"


def test_a_later_runoff_leaves_the_figures_of_a_finished_round_as_they_were() -> None:
    ended = ev.RoundFinished(problem="softmax", round=1, selected=(), dropped=())
    standings = (Standing("v1", 0.4, 1.0, 1.0, 1.0, False), Standing("v3", 0.5, 1.25, 1.1, 1.3, False))
    later = (
        ev.RoundStarted(problem="softmax", round=2, parents=()),
        ev.RunoffFinished(problem="softmax", round=2, standings=standings),
    )
    state = after(small_search(), ended, *later)
    assert state.problems["softmax"].best == "v1"
    leader, reached = state.leader_of_round("softmax", 1), state.best_after_round("softmax", 1)
    assert leader is not None and reached is not None and leader.id == reached.id == "v3"
    assert (state.best_of_round("softmax", 1), state.best_of_round("softmax", 0)) == (3.0, 2.0)
    now = state.best_after_round("softmax", 2)
    assert now is not None and now.id == "v1", "an open round: the best so far"
    own = ev.RunoffFinished(problem="softmax", round=1, standings=standings)
    last = after(small_search(), ended, own).best_after_round("softmax", 1)
    assert last is not None and last.id == "v1", "a round's own last runoff counts, also after the round's end"
    pruned = after(small_search(), ended, *later, ev.NodePruned(node="v3")).best_after_round("softmax", 1)
    assert pruned is not None and pruned.id == "v1"


def test_pruning_and_restoring_leave_the_leader_of_a_finished_round_as_it_was() -> None:
    standings = (Standing("v4", 0.4, 1.0, 1.0, 1.0, False), Standing("v3", 0.5, 1.25, 1.1, 1.3, False))
    played = [
        ev.VerdictGiven(variant="v4", verdict=verdict(2.5)),
        ev.RoundFinished(problem="softmax", round=1, selected=(), dropped=()),
        ev.RoundStarted(problem="softmax", round=2, parents=()),
        ev.RunoffFinished(problem="softmax", round=2, standings=standings),
        ev.RoundFinished(problem="softmax", round=2, selected=(), dropped=()),
    ]

    def leader(*more: ev.AnyEvent) -> str | None:
        state = after(small_search(), *played, *more)
        assert more or state.problems["softmax"].best == "v4", "a later runoff made it the problem's best"
        found = state.leader_of_round("softmax", 1)
        return found.id if found is not None else None

    assert leader() == "v3"
    for node, meanwhile in (("v4", "v3"), ("v3", "v4"), ("i2", None), ("softmax", None)):
        assert leader(ev.NodePruned(node=node)) == meanwhile
        assert leader(ev.NodePruned(node=node), ev.NodeRestored(node=node)) == "v3"
    assert leader(ev.VerdictGiven(variant="v3", verdict=verdict(None))) == "v4"


def test_many_events_at_once_make_the_state_that_one_by_one_they_make() -> None:
    one_by_one, at_once = SessionState(), SessionState()
    for event in small_search():
        one_by_one.apply(event)
    best: list[tuple[int, str | None]] = []
    at_once.apply_all(
        small_search(), {ev.VerdictGiven: lambda told: best.append((told.seq, at_once.problems["softmax"].best))}
    )
    assert at_once == one_by_one
    assert best == [(7, "v1"), (8, "v1"), (15, "v3")], "each verdict is told of once it is in the state"


def test_a_second_verdict_replaces_the_first_in_the_ranking() -> None:
    state = after(small_search(), ev.VerdictGiven(variant="v3", verdict=verdict(1.5)))
    assert [variant.id for variant in state.leaders("softmax")] == ["v1", "v3"]
    state = after(small_search(), ev.VerdictGiven(variant="v3", verdict=verdict(None)))
    assert [variant.id for variant in state.leaders("softmax")] == ["v1"]


def test_verdicts_count_kernels_not_how_often_they_were_judged() -> None:
    before = after(small_search()).verdicts
    cancelled = ev.VerdictGiven(variant="v4", verdict=Verdict(status="cancelled"))
    assert after(small_search(), cancelled).verdicts == before
    again = [ev.VerdictGiven(variant=name, verdict=verdict(1.5)) for name in ("v1", "v4", "v4")]
    state = after(small_search(), cancelled, *again)
    assert state.verdicts == before + 1 == sum(one.was_judged for one in state.variants.values())


def test_a_retried_variant_is_in_flight_again_until_its_verdict() -> None:
    state = after(small_search(), ev.VariantStage(variant="v2", stage="queued"))
    assert [variant.id for variant in state.in_flight()] == ["v4", "v2"]
    state = after(small_search(), ev.VerdictGiven(variant="v4", verdict=verdict(1.0)))
    assert state.in_flight() == []


def uncertain(speedup: float, low: float, high: float) -> Verdict:
    return replace(verdict(speedup), speedup_low=low, speedup_high=high)


def test_an_uncertain_speedup_is_best_only_if_its_whole_interval_is_ahead() -> None:
    for low, best in ((1.0, "v3"), (3.5, "v4")):
        given = ev.VerdictGiven(variant="v4", verdict=uncertain(5.0, low, 9.0))
        assert after(small_search(), given).problems["softmax"].best == best


def test_other_programs_that_run_do_not_decide_which_kernel_is_best() -> None:
    for others in (0.0, 0.4):
        given = ev.VerdictGiven(variant="v4", verdict=replace(uncertain(3.1, 2.95, 3.2), others=others))
        assert after(small_search(), given).problems["softmax"].best == "v4"


def test_the_order_of_verdicts_does_not_decide_which_kernel_is_best() -> None:
    """Each of these would beat the next if two uncertain speedups were compared in another way than with a certain."""
    given = [
        ev.VerdictGiven(variant="v1", verdict=uncertain(2.0, 1.2, 3.0)),
        ev.VerdictGiven(variant="v3", verdict=uncertain(1.8, 1.7, 3.5)),
        ev.VerdictGiven(variant="v4", verdict=verdict(1.5)),
    ]
    unjudged = [one for one in small_search() if not isinstance(one.event, ev.VerdictGiven)]
    bests = {after(unjudged, *order).problems["softmax"].best for order in permutations(given)}
    assert bests == {"v3"}


def test_of_tied_kernels_a_certain_one_is_best() -> None:
    given = ev.VerdictGiven(variant="v4", verdict=uncertain(5.0, 1.0, 9.0))
    for tied, best in ((True, "v3"), (False, "v4")):
        runoff = ev.RunoffFinished(
            problem="softmax",
            round=1,
            standings=(Standing("v4", 0.2, 1.0, 1.0, 1.0, False), Standing("v3", 0.3, 1.2, 0.9, 1.3, tied)),
        )
        assert after(small_search(), given, runoff).problems["softmax"].best == best


def test_the_runoff_decides_until_a_later_verdict_beats_it() -> None:
    runoff = ev.RunoffFinished(
        problem="softmax",
        round=1,
        standings=(Standing("v1", 0.4, 1.0, 1.0, 1.0, False), Standing("v3", 0.5, 1.2, 1.1, 1.3, False)),
    )
    assert after(small_search(), runoff).problems["softmax"].best == "v1"


def judged(name: str, speedup: float, ms: float) -> ev.VerdictGiven:
    exact = replace(verdict(speedup), kernel=Timing(ms, ms, ms, 9), speedup_low=speedup, speedup_high=speedup)
    return ev.VerdictGiven(variant=name, verdict=exact)


def runoff_of(*names: str) -> ev.RunoffFinished:
    return ev.RunoffFinished(
        problem="softmax", round=0, standings=tuple(Standing(v, 1.3, 1.0, 1.0, 1.0, tied=False) for v in names)
    )


def test_a_verdict_after_a_runoff_counts_also_if_the_clock_was_set_back() -> None:
    state = after(small_search(), judged("v1", 2.0, 0.5), judged("v3", 3.0, 0.4), runoff_of("v3", "v1"))
    for event in (judged("v4", 9.0, 0.1), ev.NodePruned(node="v2")):
        state.apply(Recorded(state.seq + 1, 10.0, event))
    assert state.problems["softmax"].best == "v4"


def test_a_slow_kernel_that_is_restored_leaves_the_best_kernels_of_ended_rounds() -> None:
    """The runoff decided for v3. By their verdicts alone, v1 would lead."""
    state = after(
        recorded(
            problem_added("softmax"),
            ev.RoundStarted(problem="softmax", round=0, parents=()),
            *(proposed(idea, 0, None) for idea in ("i1", "i2")),
            *(written(name, "i1", 0, None) for name in ("v1", "v3")),
            written("v2", "i2", 0, None),
        ),
        judged("v1", 3.0, 0.40),
        judged("v2", 1.5, 0.50),
        judged("v3", 2.9, 0.39),
        ev.NodePruned(node="i2"),
        ev.RoundFinished(problem="softmax", round=0, selected=(), dropped=()),
        runoff_of("v3", "v1"),
    )
    before = state.best_after_round("softmax", 0)
    assert before is not None and before.id == "v3"
    state.apply(Recorded(state.seq + 1, 3000.0, ev.NodeRestored(node="i2")))
    assert state.best_after_round("softmax", 0) is before and state.leader_of_round("softmax", 0) is before


def test_whose_place_a_verdict_took_runs_in_the_runoff_that_decides() -> None:
    """A disturbance beside v3 inflated its speedup far beyond v2, the best until then. v1 is the fastest."""
    started = recorded(
        problem_added("softmax"),
        ev.RoundStarted(problem="softmax", round=0, parents=()),
        proposed("i1", 0, None),
        *(written(name, "i1", 0, None) for name in ("v1", "v2", "v3", "v4")),
        judged("v1", 2.0, 1.2),
        judged("v2", 2.6, 1.3),
    )
    taken = after(started, judged("v3", 5.5, 1.44))
    assert [leader.id for leader in runoff_leaders(taken, "softmax", 2)] == ["v3", "v1", "v2"]
    late = after(started, judged("v3", 5.5, 1.44), runoff_of("v1", "v4"))  # v3 was judged during that runoff
    assert late.problems["softmax"].former == "v3"
    met = after(started, judged("v3", 5.5, 1.44), runoff_of("v2", "v3", "v1"))
    assert (met.problems["softmax"].best, met.problems["softmax"].former) == ("v2", None)
    outdone = after(started, runoff_of("v2", "v1"), judged("v3", 5.5, 1.25), judged("v4", 9.0, 1.22))
    assert [leader.id for leader in runoff_leaders(outdone, "softmax", 2)] == ["v4", "v1", "v3", "v2"]


def test_a_runoff_that_contradicts_the_verdicts_is_uncertain_and_drops_no_kernel() -> None:
    """Load during the runoff slowed v2, whose verdict is as good as v3's."""
    started = recorded(
        problem_added("softmax"),
        ev.RoundStarted(problem="softmax", round=0, parents=()),
        proposed("i1", 0, None),
        *(written(name, "i1", 0, None) for name in ("v1", "v2", "v3")),
        judged("v1", 1.2, 3.6),
        judged("v2", 1.52, 2.9),
        judged("v3", 1.5, 2.9),
    )

    def measured(ratio: float) -> tuple[Standing, ...]:
        ratios = {"v3": 1.0, "v1": 1.26, "v2": ratio}
        return tuple(Standing(name, 3 * by, by, 0.99 * by, 1.01 * by, False) for name, by in ratios.items())

    variants = fold(started).variants
    assert not any(one.uncertain for one in with_doubts(measured(1.2), variants))
    standings = with_doubts(measured(1.85), variants)
    assert [one.variant for one in standings if one.uncertain] == ["v2"]
    state = after(started, ev.RunoffFinished(problem="softmax", round=0, standings=standings))
    problem, slowed, best = state.problems["softmax"], state.variants["v2"], state.variants["v3"]
    assert (problem.best, problem.former) == ("v3", "v2"), "the next runoff includes v2"
    assert why_new_best(state, problem, "v2") == "~85% faster than v2 side by side"
    assert last_runoff(problem, slowed) == "time ~+85% against v3 in the runoff of round 0"
    assert change_words(change_from(state, best, slowed)) == "~r-46%"
    figures = figures_of(state, slowed)
    assert figures is not None and (figures.speedup, figures.scaled) == (1.52, "")
    selection = greedy(candidates_of(state, problem), round_number=0, width=2, seed=0)
    assert {one.variant for one in selection.selected} == {"v2", "v3"}
    assert not any("in the runoff" in one.why for one in selection.selected if one.variant == "v2")
    state.apply(Recorded(state.seq + 1, 2900.0, ev.NodePruned(node="v3")))
    assert problem.best == "v2", "the kernel with the best verdict, because the runoff's winner is pruned"
    state.apply(Recorded(state.seq + 1, 2900.0, ev.NodeRestored(node="v3")))
    assert problem.best == "v3"
    again = ev.RunoffFinished(problem="softmax", round=1, standings=(Standing("v2", 3.0, 1.0, 1.0, 1.0, False),))
    for event in (ev.RoundStarted(problem="softmax", round=1, parents=()), again):
        state.apply(Recorded(state.seq + 1, 3000.0, event))
    assert (problem.best, lost_runoff(problem, slowed)) == ("v2", "time ~+85% against v3 in the runoff of round 0")


def test_indexes_agree_with_a_plain_search_over_a_random_session() -> None:
    rng = random.Random(7)
    events: list[ev.AnyEvent] = [problem_added("a"), problem_added("b")]
    variants: dict[str, tuple[str, str | None]] = {}
    latest: dict[str, float | None] = {}
    for number in range(6):
        for problem in ("a", "b"):
            events.append(ev.RoundStarted(problem=problem, round=number, parents=()))
    for count in range(200):
        problem = rng.choice("ab")
        parents = [name for name, (owner, _) in variants.items() if owner == problem]
        parent = rng.choice(parents) if parents and rng.random() < 0.8 else None
        number = rng.randrange(6)
        events.append(proposed(f"i{count}", number, parent, problem))
        events.append(written(f"v{count}", f"i{count}", number, parent, problem))
        variants[f"v{count}"] = (problem, parent)
        for name in rng.sample(sorted(variants), k=min(2, len(variants))):
            latest[name] = rng.choice([None, rng.uniform(0.5, 5)])
            events.append(ev.VerdictGiven(variant=name, verdict=verdict(latest[name])))
        if rng.random() < 0.1:
            events.append(ev.NodePruned(node=rng.choice(sorted(variants))))
        if rng.random() < 0.05:
            events.append(ev.NodeRestored(node=rng.choice(sorted(variants))))
    state = fold(recorded(*events))

    for problem in "ab":
        expected = sorted(
            (-speedup, name)
            for name, speedup in latest.items()
            if speedup is not None and variants[name][0] == problem and not state.is_pruned(name)
        )
        assert [variant.id for variant in state.leaders(problem)] == [name for _, name in expected]
        assert [variant.id for variant in state.leaders(problem, 3)] == [name for _, name in expected[:3]]
        assert state.problems[problem].best == expected[0][1]
        for number in range(6):
            speedups = [
                v.speedup
                for v in state.variants_of(problem)
                if v.round == number and v.speedup is not None and not state.is_pruned(v.id)
            ]
            assert state.best_of_round(problem, number) == max(speedups, default=None)
    assert {variant.id for variant in state.in_flight()} == variants.keys() - latest.keys()
    for node in rng.sample(sorted(variants), k=20):
        plain = {other for pool in (state.ideas, state.variants) for other in pool if node in set(state.lineage(other))}
        assert state.branch(node) == plain


@pytest.mark.parametrize(
    ("events", "who"),
    [
        ([proposed("i1", 0, "v1"), written("v1", "i1", 0, None)], "v1"),
        ([written("v1", "i1", 0, None), proposed("i1", 0, "v1")], "i1"),
        ([proposed("i1", 0, "i1")], "i1"),
        ([written("v1", "v1", 0, None)], "v1"),
        ([written("v1", "i1", 0, "v2"), written("v2", "i2", 0, "v1")], "v2"),
        (
            [
                written("v1", "i1", 0, "v3"),
                proposed("i2", 0, "v1"),
                written("v2", "i2", 0, "v1"),
                proposed("i3", 0, "v2"),
                written("v3", "i3", 0, "v2"),
            ],
            "v3",
        ),
    ],
)
def test_what_would_descend_from_itself_is_refused_where_the_loop_closes(events: list[ev.AnyEvent], who: str) -> None:
    before = fold(recorded(*events[:-1]))
    with pytest.raises(SessionDamaged, match=f"event {len(events)} .*{who} would descend from itself"):
        before.apply(recorded(*events)[-1])
    assert before.branch(who) is not None and list(before.lineage(who))  # the earlier fold can be walked


def test_a_kernel_that_is_put_under_another_parent_is_refused() -> None:
    """Reading downward would still find it under the first one, and so loop."""
    events = [written("v1", "i1", 0, None), written("v2", "i2", 0, "v1"), written("v1", "i1", 0, "v9")]
    with pytest.raises(SessionDamaged, match="v1 already exists"):
        fold(recorded(*events))


def test_a_problem_may_have_the_name_of_a_kernel() -> None:
    state = fold(
        recorded(
            problem_added("v1"),
            proposed("i1", 0, None, "v1"),
            written("v1", "i1", 0, None, "v1"),
            proposed("i2", 0, "v1", "v1"),
            written("v2", "i2", 0, "v1", "v1"),
        )
    )
    assert state.branch("i2") == {"i2", "v2"}


def test_kernels_at_work_are_told_apart_from_those_that_wait() -> None:
    stages: dict[str, ev.Stage] = {"v3": "building", "v4": "waiting", "v5": "checking"}
    state = fold(recorded(*(written(f"v{number}", "i1", 0, None) for number in range(1, 6))))
    assert kernels_at_work(state) == "5 queued"
    for name, stage in stages.items():
        state.apply(Recorded(state.seq + 1, 2000.0, ev.VariantStage(variant=name, stage=stage)))
    assert kernels_at_work(state) == "1 timing, 1 building, 1 waiting, 2 queued"


def test_kernels_left_over_from_a_finished_turn_stay_so_after_a_resume() -> None:
    started = ev.EngineStarted(pid=1, host="", version="", resumed=True, devices=(), sandbox="")
    state = fold(
        recorded(
            replace(started, resumed=False),
            problem_added("softmax"),
            problem_added("gelu"),
            ev.TurnStarted(problem="softmax", minutes=1.0),
            proposed("i1", 0, None),
            written("v1", "i1", 0, None),
            ev.TurnEnded(problem="softmax", reason="time"),
            ev.TurnStarted(problem="gelu", minutes=1.0),
            proposed("i2", 0, None, "gelu"),
            written("v2", "i2", 0, None, "gelu"),
            written("v3", "i2", 0, None, "gelu"),
            ev.VariantStage(variant="v3", stage="timing"),
        )
    )
    left, queued, timed = (state.variants[name] for name in ("v1", "v2", "v3"))
    stopped = ev.EngineStopped(reason="stopped", message="")
    for event in (stopped, started, stopped):
        state.apply(Recorded(state.seq + 1, 1000.0 + state.seq + 1, event))
        assert state.is_left_over(left) and not state.awaits_resume(left)
        assert state.at_work() == [queued, timed]
        assert state.awaits_resume(queued) == state.awaits_resume(timed) == (event is stopped)
    assert timed.stage == "queued"


def test_what_an_engine_measured_of_a_device_is_known_to_the_next_one() -> None:
    found = DeviceFact("cpu", "cpu", "Some Processor", "x86_64", 16 << 30, 4)
    measured = replace(found, bandwidth_gbs=20.0, peak_gflops=100.0)
    start = ev.EngineStarted(pid=1, host="h", version="0", resumed=False, devices=(found,), sandbox="")
    other = replace(found, name="Another Processor")
    life = [start, ev.DeviceMeasured(device=measured), start]
    assert fold(recorded(*life)).devices["cpu"] == measured
    assert fold(recorded(*life, replace(start, devices=(other,)))).devices["cpu"] == other
    assert fold(recorded(*life, replace(start, devices=()))).devices["cpu"] == measured, "it ended before it looked"


def test_a_spending_limit_and_the_time_budget_are_told_apart() -> None:
    started = ev.EngineStarted(pid=1, host="h", version="1", resumed=False, devices=(), sandbox="")
    for limit, by_time in (("", True), ("the session's limit of 3 calls is reached: 3 calls sent", False)):
        ending = _ended("budget", limit, fold(small_search()))
        state = after(small_search(), started, ev.EngineStopped(reason=ending.reason, message=ending.message))
        assert state.engine is not None and state.engine.stopped_by_time is by_time


def test_a_finished_round_remembers_its_figure_that_a_later_runoff_corrects() -> None:
    ended = ev.RoundFinished(problem="softmax", round=1, selected=(), dropped=())
    state = after(small_search(), ended)
    (_, first) = state.problems["softmax"].rounds
    assert first.speedup == 3.0 and correction_words(state, first) == ""
    standings = (Standing("v1", 0.4, 1.0, 1.0, 1.0, False), Standing("v3", 0.5, 1.25, 1.1, 1.3, False))
    state = after(
        small_search(),
        ended,
        ev.RoundStarted(problem="softmax", round=2, parents=()),
        ev.RunoffFinished(problem="softmax", round=2, standings=standings),
    )
    _, first, second = state.problems["softmax"].rounds
    assert round_speedup_words(state, "softmax", 1) == "1.60x", "2.00x / 1.25"
    assert correction_words(state, first) == "was 3.00x" and correction_words(state, second) == ""
    state = after(small_search(), ended, ev.RunoffFinished(problem="softmax", round=1, standings=standings))
    assert correction_words(state, state.problems["softmax"].rounds[1]) == "", "its own last runoff belongs to it"


def test_a_planned_stop_ends_with_its_engine() -> None:
    started = ev.EngineStarted(pid=1, host="h", version="0", resumed=True, devices=(), sandbox="")
    assert after(small_search(), started, ev.StopPlanned()).stop_planned
    assert not after(small_search(), started, ev.StopPlanned(), started).stop_planned
    assert not after(small_search(), started, ev.StopPlanned(), ev.StopCanceled()).stop_planned


def test_a_canceled_stop_clears_only_its_own_reason_for_a_missing_torch_compile() -> None:
    def reason(line: str) -> str:
        events = (ev.StopPlanned(), ev.LogLine(level="info", text=line), ev.StopCanceled())
        return after(small_search(), *events).problems["softmax"].compile_skipped

    assert reason(stopped_work(timing_compile("softmax"), STOP_PLANNED)) == ""
    assert "the turn has 10 s left" in reason(skipped_compile("softmax", 30.0, "turn", 10.0))


@pytest.mark.parametrize(("provider", "waits"), [("openai", True), (MANUAL, False)])
def test_a_stop_after_the_rounds_waits_for_a_model_that_writes_a_seed_but_not_for_a_person(
    provider: str, waits: bool
) -> None:
    """A provider bills a canceled call, but a person's reply arrives after a resume too."""
    first = ev.RoundStarted(problem="a", round=0, parents=())
    ended = recorded(problem_added("a"), first, ev.RoundFinished(problem="a", round=0, selected=(), dropped=()))
    assert not after(ended).has_running_rounds
    call = ev.ModelCallStarted(
        call="c1",
        attempt=1,
        provider=provider,
        model="m",
        site=CallSite("a", 0, "kernel", "i1"),
        prompt="p",
        tokens=1,
        dollars=None,
    )
    assert after(ended, call).has_running_rounds is waits
