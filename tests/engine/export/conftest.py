"""A small session in a real file: two judged kernels of one problem, one derived from the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.devices.fact import DeviceFact
from engine.problem.c_header import derive_header
from engine.problem.inspection import inspect_file
from engine.problem.spec import ProblemSpec
from engine.session.records import events as ev
from engine.session.records.verdict import Baseline, BuildReport, KernelBenchVerdict, Timing, Verdict
from engine.session.state.session_state import SessionState, fold
from engine.session.store import EventWriter, SessionPaths, SessionReader, create_session

EXPLOITS = Path(__file__).parents[2] / "exploits"
CPU = DeviceFact(id="cpu", kind="cpu", name="a processor", arch="native", memory_bytes=1 << 33, cores=2)
FIRST = "// a first kernel\n"
SECOND = "// unrolled ```\n"


@pytest.fixture(scope="session")
def relu() -> ProblemSpec:
    return inspect_file(EXPLOITS / "problems" / "relu.py", "relu")


@pytest.fixture
def session(tmp_path: Path, relu: ProblemSpec) -> SessionPaths:
    paths = create_session(tmp_path, "night", "# a session\n", "config.toml", 1)
    writer = EventWriter(paths)
    honest = (EXPLOITS / "honest" / "cpp" / "relu_branchless.cpp").read_text()
    first, second = writer.put_blob(FIRST + honest), writer.put_blob(SECOND + honest)
    wrong = writer.put_blob("// wrong\n" + honest)
    header = derive_header(relu, "cpp")
    writer.append_all(
        [
            ev.EngineStarted(pid=1, host="here", version="0", devices=(CPU,), sandbox="seccomp", resumed=False),
            ev.ProblemAdded(problem=relu, language="cpp", header=header),
            ev.BaselineMeasured(problem="relu", baseline=Baseline("eager", Timing(1.0, 0.9, 1.1, 50))),
            ev.RoundStarted(problem="relu", round=0, parents=()),
            _idea("i1", None, "Write a plain loop"),
            _variant("v1", "i1", None, first),
            ev.VerdictGiven(variant="v1", verdict=_correct(1.25)),
            ev.RoundStarted(problem="relu", round=1, parents=(ev.Selected("v1", "the fastest"),)),
            _idea("i2", "v1", "Unroll the loop | by eight"),
            _variant("v2", "i2", "v1", second),
            _variant("v3", "i2", "v1", wrong),
            _variant("v4", "i2", "v1", wrong),
            ev.VerdictGiven(variant="v2", verdict=_correct(2.5)),
            ev.VerdictGiven(
                variant="v3", verdict=Verdict(status="wrong", reason="1 element is off", build=BuildReport(True, 0.3))
            ),
            ev.VerdictGiven(variant="v4", verdict=Verdict(status="error", reason="the machine was busy")),
        ]
    )
    writer.flush(5)
    writer.close()
    return paths


@pytest.fixture
def opened(session: SessionPaths) -> Iterator[tuple[SessionState, SessionReader]]:
    with SessionReader(session) as reader:
        yield fold(reader.read()), reader


def _idea(name: str, parent: str | None, text: str) -> ev.IdeaProposed:
    return ev.IdeaProposed(
        idea=name, problem="relu", round=0, parent=parent, category="control", text=text, proposer="playbook"
    )


def _variant(name: str, idea: str, parent: str | None, source: str) -> ev.VariantWritten:
    return ev.VariantWritten(
        variant=name,
        idea=idea,
        problem="relu",
        round=int(name != "v1"),
        parent=parent,
        language="cpp",
        source=source,
        proposer="playbook",
    )


def _correct(speedup: float) -> Verdict:
    ms = 1.0 / speedup
    return Verdict(
        status="correct",
        device=CPU.name,
        speedup=speedup,
        speedup_low=0.99 * speedup,
        speedup_high=1.01 * speedup,
        kernel=Timing(ms, ms, ms, 20),
        reference=Timing(1.0, 1.0, 1.0, 20),
        sol_share=0.2 * speedup,
        kernelbench=KernelBenchVerdict(status="correct", speedup=1.1 * speedup),
        build=BuildReport(True, 0.3, log="no warning"),
    )
