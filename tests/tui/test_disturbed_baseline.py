"""A time of torch.compile in which other programs had a hand is not shown like one that is sure."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import events as ev
from engine.events import Recorded
from engine.problem.spec import ProblemSpec
from engine.state import fold
from engine.verdict import Baseline, Timing, Verdict
from tui.narration import line_of
from tui.results import results_of
from tui.tables import print_results

TIME = Timing(2.0, 2.0, 2.0, 9)


def test_a_disturbed_time_of_compile_is_marked_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    spec = ProblemSpec(id="softmax", name="softmax", path="softmax.py", source="", tensors=())
    disturbed = ev.BaselineMeasured(problem="softmax", baseline=Baseline("compile", TIME, others=0.4))
    verdict = Verdict(status="correct", speedup=4.0, speedup_low=3.9, speedup_high=4.1, kernel=Timing(1.0, 1.0, 1.0, 9))
    events: list[ev.AnyEvent] = [
        ev.ProblemAdded(problem=spec, form="cpp", header=""),
        ev.BaselineMeasured(problem="softmax", baseline=Baseline("eager", TIME)),
        ev.RoundStarted(problem="softmax", round=0, parents=()),
        ev.IdeaProposed(idea="i1", problem="softmax", round=0, parent=None, category="", text="", proposer="hand"),
        ev.VariantWritten(
            variant="v1", idea="i1", problem="softmax", round=0, parent=None, form="cpp", source="", proposer="hand"
        ),
        ev.VerdictGiven(variant="v1", verdict=verdict),
        disturbed,
    ]
    state = fold(Recorded(seq, float(seq), event) for seq, event in enumerate(events, start=1))
    assert "timed while other programs used 40% of the processor" in (line_of(disturbed, state, {}) or "")
    print_results(results_of(state, Path("sessions/demo"), 1.0))
    printed = capsys.readouterr().out
    assert "~2.000" in printed and "~2.00x" in printed
    assert "softmax: torch.compile was timed while other programs used 40% of the processor" in printed
    quiet = Recorded(9, 9.0, ev.BaselineMeasured(problem="softmax", baseline=Baseline("compile", TIME, others=0.1)))
    state.apply(quiet)
    print_results(results_of(state, Path("sessions/demo"), 1.0))
    assert "~" not in capsys.readouterr().out
