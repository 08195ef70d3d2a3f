"""The speedup over torch.compile does not depend on the machine's speed when the judge timed torch.compile."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.records.verdict import Baseline, Timing, Verdict
from engine.session.state.over_compile import over_compile
from engine.session.state.session_state import SessionState, fold
from tui.bench.report import _report
from tui.text.certainty import over_compile_words
from tui.view.results import results_of


def timing(ms: float) -> Timing:
    return Timing(ms, ms, ms, 9)


def verdict(speedup: float, eager_ms: float) -> Verdict:
    return Verdict(status="correct", speedup=speedup, kernel=timing(eager_ms / speedup), reference=timing(eager_ms))


def search(eager_ms: float | None, given: Verdict, low: float | None = None, high: float | None = None) -> SessionState:
    """A search of one kernel. torch.compile takes 1.5 ms, and eager ``eager_ms`` right after it."""
    given = replace(given, speedup_low=low, speedup_high=high)
    device = DeviceFact("cpu", "cpu", "", "", 1, 1)
    spec = ProblemSpec(id="softmax", name="softmax", path="softmax.py", source="", tensors=())
    compiled = Baseline("compile", timing(1.5), eager_ms=eager_ms)
    events: list[ev.AnyEvent] = [
        ev.EngineStarted(pid=1, host="", version="", resumed=False, devices=(device,), sandbox=""),
        ev.ProblemAdded(problem=spec, language="cpp", header=""),
        ev.BaselineMeasured(problem="softmax", baseline=Baseline("eager", timing(2.0))),
        ev.RoundStarted(problem="softmax", round=0, parents=()),
        ev.IdeaProposed(idea="i1", problem="softmax", round=0, parent=None, category="", text="", proposer="p"),
        ev.BaselineMeasured(problem="softmax", baseline=compiled),
        ev.VariantWritten(variant="v1", idea="i1", problem="softmax", round=0, parent=None, language="cpp", source="",
                          proposer="p"),
        ev.VerdictGiven(variant="v1", verdict=given),
    ]  # fmt: skip
    return fold(Recorded(seq, 100.0 * seq, event) for seq, event in enumerate(events, 1))


def test_the_machines_speed_during_the_measurement_of_torch_compile_cancels() -> None:
    # The kernel's verdict comes from a quiet machine. It was slower when the judge timed torch.compile and eager.
    state = search(3.0, verdict(4.0, 2.0), 3.8, 4.2)
    problem, best = state.problems["softmax"], state.variants["v1"]
    assert problem.best == "v1"
    assert over_compile(problem, best.verdict) == pytest.approx(2.0), "4x over eager, and torch.compile 2x over eager"
    assert over_compile_words(problem, best) == "2.00x"
    (row,) = results_of(state, Path("sessions/demo"), 1.0).problems
    assert row.over_compile == pytest.approx(2.0)
    over = _report(state, [], "").problems[0].over["compile"]
    assert (over.speedup, over.low, over.high) == (pytest.approx(2.0), pytest.approx(1.9), pytest.approx(2.1))


@pytest.mark.parametrize("eager_beside_ms", [3.0, None])
def test_a_reader_who_divides_the_times_of_a_row_gets_its_speedups(eager_beside_ms: float | None) -> None:
    # The median of eager's times is 2.2 ms. The speedup is the median ratio of pairs, so it is not exactly 2.2 / 0.5.
    state = search(eager_beside_ms, replace(verdict(4.0, 2.0), reference=timing(2.2)), 3.8, 4.2)
    (row,) = results_of(state, Path("sessions/demo"), 1.0).problems
    assert row.eager_ms and row.compile_ms and row.best_ms and row.over_compile
    assert row.eager_ms / row.best_ms == pytest.approx(row.speedup)
    assert row.compile_ms / row.best_ms == pytest.approx(row.over_compile)
    over = _report(state, [], "").problems[0].over
    assert (over["eager"].ms, over["compile"].ms) == (pytest.approx(row.eager_ms), pytest.approx(row.compile_ms))


def test_without_eagers_time_beside_torch_compile_the_two_times_count() -> None:
    state = search(None, verdict(4.0, 2.0))
    assert over_compile(state.problems["softmax"], state.variants["v1"].verdict) == pytest.approx(1.5 / 0.5)
    assert _report(state, [], "").problems[0].over["compile"].speedup == pytest.approx(1.5 / 0.5)


def test_the_comparison_is_uncertain_only_if_eagers_time_beside_torch_compile_is_unknown() -> None:
    for eager_ms, words in ((5.0, "1.20x"), (None, "~0.30x")):
        state = search(eager_ms, verdict(4.0, 20.0))  # Eager took 2 ms when its baseline was timed.
        assert over_compile_words(state.problems["softmax"], state.variants["v1"]) == words


def test_there_is_none_for_a_wrong_kernel() -> None:
    state = search(3.0, Verdict(status="wrong", kernel=timing(1.0)))
    assert over_compile(state.problems["softmax"], state.variants["v1"].verdict) is None
    (row,) = results_of(state, Path("sessions/demo"), 1.0).problems
    assert (row.eager_ms, row.compile_ms) == (2.0, 1.5), "the measured times"
