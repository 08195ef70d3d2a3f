"""A time that other programs disturbed is marked as uncertain, with all speedups that depend on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.problem.spec import ProblemSpec
from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.records.verdict import Baseline, Timing, Verdict
from engine.session.records.verdict_text import is_comparison_uncertain
from engine.session.state.session_state import fold
from tui.console.tables import print_results
from tui.report.overview import overview_of
from tui.text.narration import line_of
from tui.view.results import results_of

TIME = Timing(2.0, 2.0, 2.0, 9)


@pytest.mark.parametrize("paired_ms, uncertain", [(2.0, False), (1.7, False), (1.6, True), (2.5, True)])
def test_a_machine_whose_speed_changed_between_two_measurements_is_no_base_for_a_comparison(
    paired_ms: float, uncertain: bool
) -> None:
    verdict = Verdict(status="correct", speedup=2.0, speedup_low=1.9, speedup_high=2.1)
    paired = replace(verdict, reference=Timing(paired_ms, paired_ms, paired_ms, 9))
    assert is_comparison_uncertain(paired, Baseline("compile", TIME), Baseline("eager", TIME)) is uncertain
    assert not is_comparison_uncertain(paired, Baseline("compile", TIME), None)


def test_a_disturbed_time_of_compile_is_marked_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    spec = ProblemSpec(id="softmax", name="softmax", path="softmax.py", source="", tensors=())
    disturbed = ev.BaselineMeasured(problem="softmax", baseline=Baseline("compile", TIME, others=0.4))
    verdict = Verdict(status="correct", speedup=4.0, speedup_low=3.9, speedup_high=4.1, kernel=Timing(1.0, 1.0, 1.0, 9))
    events: list[ev.AnyEvent] = [
        ev.ProblemAdded(problem=spec, language="cpp", header=""),
        ev.BaselineMeasured(problem="softmax", baseline=Baseline("eager", TIME)),
        ev.RoundStarted(problem="softmax", round=0, parents=()),
        ev.IdeaProposed(idea="i1", problem="softmax", round=0, parent=None, category="", text="", proposer="hand"),
        ev.VariantWritten(
            variant="v1", idea="i1", problem="softmax", round=0, parent=None, language="cpp", source="", proposer="hand"
        ),
        ev.VerdictGiven(variant="v1", verdict=verdict),
        disturbed,
    ]
    state = fold(Recorded(seq, float(seq), event) for seq, event in enumerate(events, start=1))
    assert "timed while other programs used 40% of the CPU" in (line_of(disturbed, state, {}) or "")
    print_results(results_of(state, Path("sessions/demo"), 1.0))
    printed = capsys.readouterr().out
    assert "~2.000" in printed and "~2.00x" in printed
    assert "softmax: torch.compile was timed while other programs used 40% of the CPU" in printed
    quiet = Recorded(9, 9.0, ev.BaselineMeasured(problem="softmax", baseline=Baseline("compile", TIME, others=0.1)))
    state.apply(quiet)
    print_results(results_of(state, Path("sessions/demo"), 1.0))
    assert "~" not in capsys.readouterr().out
    headline = overview_of(state, results_of(state, Path("sessions/demo"), 1.0), "finished").headline
    assert "4.00x over eager PyTorch and 2.00x over torch.compile" in headline

    state.apply(Recorded(10, 10.0, ev.VerdictGiven(variant="v1", verdict=replace(verdict, others=0.4))))
    results = results_of(state, Path("sessions/demo"), 1.0)
    print_results(results)
    printed = capsys.readouterr().out
    assert "~4.00x" in printed and "~2.00x" in printed and "~2.000" not in printed
    assert "~4.00x over eager PyTorch and ~2.00x over torch.compile" in overview_of(state, results, "finished").headline
