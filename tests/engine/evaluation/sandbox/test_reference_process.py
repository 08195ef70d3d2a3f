"""The reference runs in a process of its own, on buffers of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.judge.messages import JudgeSettings
from engine.evaluation.judge_device import JudgeDevice
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
def process(problem: JudgedProblem) -> Iterator[ReferenceProcess]:
    made = ReferenceProcess(problem, SETTINGS, 1.0)
    yield made
    made.close()


def test_it_runs_the_model_on_the_slots_inputs_and_leaves_the_slot_alone(
    problem: JudgedProblem, process: ReferenceProcess
) -> None:
    slot = problem.arena.slots[0]
    problem.load_mixed(0, slot, seed=7)
    before = [tensor.clone() for tensor in slot.tensors]
    process.begin()
    times = process.times(slot, problem.device.flushes, seed=3, untimed=0)
    assert times is not None and 0.0 < times.ms < 1e3 and 0.0 < times.launching_ms < 1e3
    for tensor, kept in zip(slot.tensors, before, strict=True):
        assert torch.equal(tensor, kept) or bool(kept.isnan().all())

    torch.manual_seed(3)
    (expected,) = problem.run(slot)  # This writes the running statistics of the normalization.
    written = [expected, *slot.results[len(slot.outputs) :]]
    assert process.arena is not None
    assert any(
        all(torch.equal(mine, theirs) for mine, theirs in zip(own.results, written, strict=True))
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


def test_after_the_end_of_its_process_the_judge_times_the_reference(
    problem: JudgedProblem, process: ReferenceProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    slot = problem.arena.slots[0]
    problem.load_mixed(0, slot, seed=7)
    process.begin()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    assert process.times(slot, problem.device.flushes, seed=None, untimed=0) is None
    assert "the judge times the reference itself" in capfd.readouterr().err
    process.begin()
    assert process.pid is None


def test_a_long_reference_needs_no_process(problem: JudgedProblem) -> None:
    long = ReferenceProcess(problem, SETTINGS, eager_ms=1e3)
    long.begin()
    assert long.pid is None
    assert long.times(problem.arena.slots[0], problem.device.flushes, seed=None, untimed=0) is None
