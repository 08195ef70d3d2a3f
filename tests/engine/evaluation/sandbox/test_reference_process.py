"""The reference runs in a process of its own, on buffers of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.evaluation.build.compilers import remove_leftovers
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.judge.messages import JudgeSettings
from engine.evaluation.judge_device import JudgeDevice
from engine.evaluation.rejection import Rejected
from engine.evaluation.sandbox.reference_process import ReferenceProcess
from engine.problem.inspection import inspect_file

SETTINGS = JudgeSettings("cpu", "cpu", "this", 1, 4, 20, 30.0, 0, 1e-2, 1e-2, isolate=True)
PROBLEM = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.norm = torch.nn.BatchNorm1d(width)

    def forward(self, x):
        return self.norm(torch.dropout(self.linear(x), 0.5, True))

def get_inputs():
    return [torch.rand(64, 32)]

def get_init_inputs():
    return [32]
"""


@pytest.fixture
def problem(tmp_path: Path) -> Iterator[JudgedProblem]:
    file = tmp_path / "problem.py"
    file.write_text(PROBLEM)
    judged = JudgedProblem(inspect_file(file, "problem"), JudgeDevice("cpu", 1), SETTINGS.trials)
    yield judged
    judged.close()


@pytest.fixture
def process(problem: JudgedProblem, tmp_path: Path) -> Iterator[ReferenceProcess]:
    made = ReferenceProcess(problem, SETTINGS, 1.0, tmp_path)
    yield made
    made.close()


def test_it_runs_the_model_on_the_slots_inputs_and_leaves_the_slot_alone(
    problem: JudgedProblem, process: ReferenceProcess
) -> None:
    slot = problem.arena.slots[0]
    problem.load_mixed(0, slot, seed=7)
    before = [tensor.clone() for tensor in slot.tensors]
    process.begin()
    took_ms = process.time_ms(slot, problem.device.flushes, seed=3, untimed=0)
    assert took_ms is not None and 0.0 < took_ms < 1e3
    for tensor, kept in zip(slot.tensors, before, strict=True):
        assert torch.equal(*(one.reshape(-1).view(torch.uint8) for one in (tensor, kept)))  # Poison is NaN.

    torch.manual_seed(3)
    (expected,) = problem.run(slot)  # This writes the running statistics of the normalization.
    written = [expected, *slot.results[len(slot.outputs) :]]
    assert process.arena is not None
    assert any(
        all(torch.allclose(mine, theirs, rtol=1e-4) for mine, theirs in zip(own.results, written, strict=True))
        for own in process.arena.slots
    )


def test_the_process_serves_all_kernels_of_a_problem_and_ends_with_it(
    problem: JudgedProblem, process: ReferenceProcess
) -> None:
    assert process.pid is None and process.held_bytes == 0
    process.begin()
    first = process.pid
    assert first is not None and process.held_bytes > 0
    process.begin()
    assert process.pid == first
    process.close()
    assert process.pid is None and process.held_bytes == 0
    process.close()


def test_a_process_that_ends_is_started_once_more(problem: JudgedProblem, process: ReferenceProcess) -> None:
    slot = problem.arena.slots[0]
    problem.load_mixed(0, slot, seed=7)
    process.begin()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(Rejected, match="the reference's process failed") as found:
        process.time_ms(slot, problem.device.flushes, seed=None, untimed=0)
    assert found.value.status == "error"
    assert process.pid is None and process.time_ms(slot, problem.device.flushes, seed=None, untimed=0) is None

    process.begin()
    assert process.time_ms(slot, problem.device.flushes, seed=None, untimed=0) is not None
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(Rejected):
        process.time_ms(slot, problem.device.flushes, seed=None, untimed=0)
    process.begin()
    assert process.pid is None


def test_a_later_session_removes_the_files_of_a_judge_that_was_killed(
    problem: JudgedProblem, process: ReferenceProcess, tmp_path: Path
) -> None:
    process.begin()
    (home,) = tmp_path.glob("build-*")
    os.utime(home, (0, 0))
    process.begin()
    remove_leftovers(tmp_path)
    assert home.is_dir(), "in use"

    os.utime(home, (0, 0))
    remove_leftovers(tmp_path)
    assert not home.exists()
    process.begin()
    slot = problem.arena.slots[0]
    problem.load_mixed(0, slot, seed=7)
    assert process.time_ms(slot, problem.device.flushes, seed=None, untimed=0) is not None
    process.close()
    assert not list(tmp_path.glob("build-*"))


def test_a_long_reference_needs_no_process(problem: JudgedProblem, tmp_path: Path) -> None:
    long = ReferenceProcess(problem, SETTINGS, eager_ms=1e3, builds=tmp_path)
    long.begin()
    assert long.pid is None
    assert long.time_ms(problem.arena.slots[0], problem.device.flushes, seed=None, untimed=0) is None


def test_without_a_model_that_a_process_can_load_the_judge_times_the_reference(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "problem.py"
    beside = tmp_path / "width"
    beside.write_text("32")
    file.write_text(PROBLEM.replace("import torch", f"import torch\n\nWIDTH = int(open({str(beside)!r}).read())"))
    judged = JudgedProblem(inspect_file(file, "problem"), JudgeDevice("cpu", 1), SETTINGS.trials)
    apart = ReferenceProcess(judged, SETTINGS, eager_ms=1.0, builds=tmp_path)
    apart.begin()
    assert apart.pid is None
    assert "the judge times the reference itself" in capfd.readouterr().err
    judged.close()
