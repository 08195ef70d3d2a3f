"""The speedup over torch.compile does not depend on the machine's speed when the judge timed torch.compile."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

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

COMPILED_AT = 400.0


def timing(ms: float) -> Timing:
    return Timing(ms, ms, ms, 9)


def verdict(speedup: float, eager_ms: float) -> Verdict:
    return Verdict(status="correct", speedup=speedup, kernel=timing(eager_ms / speedup), reference=timing(eager_ms))


def search(kind: Literal["cpu", "cuda"], *verdicts: tuple[float, Verdict]) -> SessionState:
    """A search of one kernel per verdict, each with its time. torch.compile takes half as long as eager with 3 ms."""
    device = DeviceFact(kind, kind, "", "", 1, 1)
    spec = ProblemSpec(id="softmax", name="softmax", path="softmax.py", source="", tensors=())
    events: list[tuple[float, ev.AnyEvent]] = [
        (0.0, ev.EngineStarted(pid=1, host="", version="", resumed=False, devices=(device,), sandbox="")),
        (0.0, ev.ProblemAdded(problem=spec, language="cpp", header="")),
        (0.0, ev.BaselineMeasured(problem="softmax", baseline=Baseline("eager", timing(2.0)))),
        (0.0, ev.RoundStarted(problem="softmax", round=0, parents=())),
        (0.0, ev.IdeaProposed(idea="i1", problem="softmax", round=0, parent=None, category="", text="", proposer="p")),
        (COMPILED_AT, ev.BaselineMeasured(problem="softmax", baseline=Baseline("compile", timing(1.5)))),
    ]
    for number, (at, given) in enumerate(verdicts, 1):
        name = f"v{number}"
        events.append((0.0, ev.VariantWritten(variant=name, idea="i1", problem="softmax", round=0, parent=None,
                                              language="cpp", source="", proposer="p")))  # fmt: skip
        events.append((at, ev.VerdictGiven(variant=name, verdict=given)))
    events.sort(key=lambda one: one[0])
    return fold(Recorded(seq, at, event) for seq, (at, event) in enumerate(events, 1))


LOADED = (
    (100.0, verdict(4.0, 2.0)),
    (390.0, verdict(3.0, 3.0)),
    (410.0, verdict(2.0, 3.1)),
    (380.0, verdict(3.0, 3.0)),
)
"""The best kernel's verdict comes from a quiet machine. When torch.compile was timed, the machine was slower."""


def test_on_a_cpu_the_load_during_the_measurement_of_torch_compile_cancels() -> None:
    state = search("cpu", *LOADED)
    problem, best = state.problems["softmax"], state.variants["v1"]
    assert problem.best == "v1"
    assert over_compile(problem, best.verdict) == pytest.approx(2.0), "4x eager, and torch.compile 2x eager"
    assert over_compile_words(problem, best) == "2.00x"
    (row,) = results_of(state, Path("sessions/demo"), 1.0).problems
    assert row.over_compile == pytest.approx(2.0)
    over = _report(state, [], "").problems[0].over["compile"]
    assert (over.speedup, over.low, over.high) == (pytest.approx(2.0), pytest.approx(2.0), pytest.approx(2.0))


def test_one_disturbed_verdict_does_not_decide() -> None:
    state = search("cpu", *LOADED, (399.0, verdict(3.0, 30.0)))
    assert over_compile(state.problems["softmax"], state.variants["v1"].verdict) == pytest.approx(4.0 * 1.5 / 3.1)


def test_on_a_gpu_and_without_the_times_of_eager_the_two_times_count() -> None:
    on_gpu = search("cuda", *LOADED)
    assert over_compile(on_gpu.problems["softmax"], on_gpu.variants["v1"].verdict) == pytest.approx(1.5 / 0.5)
    bare = search("cpu", *((at, replace(given, reference=None)) for at, given in LOADED))
    assert over_compile(bare.problems["softmax"], bare.variants["v1"].verdict) == pytest.approx(1.5 / 0.5)


def test_there_is_none_for_a_wrong_kernel() -> None:
    state = search("cpu", (100.0, Verdict(status="wrong", kernel=timing(1.0))))
    assert over_compile(state.problems["softmax"], state.variants["v1"].verdict) is None
