"""What is made when a problem is opened, so that no kernel's verdict pays for it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from engine.evaluation.checks import Tolerances
from engine.evaluation.control import Control
from engine.evaluation.device import JudgeDevice
from engine.evaluation.messages import JudgeSettings
from engine.evaluation.null_kernels import NullResult
from engine.evaluation.opened import OpenedProblem
from engine.evaluation.trials import JudgedProblem
from engine.problem.inspect import inspect_file

PROBLEM = """
import torch
class Model(torch.nn.Module):
    calls = 0
    def forward(self, x):
        Model.calls += 1
        return {result}
def get_inputs():
    return [{given}]
def get_init_inputs():
    return []
"""


def opened(directory: Path, result: str, given: str = "torch.rand(64, 32)") -> OpenedProblem:
    file = directory / "problem.py"
    file.write_text(PROBLEM.format(result=result, given=given))
    device = JudgeDevice("cpu", 1)
    settings = JudgeSettings("cpu", "cpu", "this", 1, 4, 20, 30.0, 0, 1e-2, 1e-2, isolate=True)
    judged = JudgedProblem(inspect_file(file, "problem"), device, settings.trials)
    return OpenedProblem(judged, settings, 1.0, None, NullResult(Tolerances(1e-2, 1e-2)))


def calls_of(problem: OpenedProblem) -> int:
    calls: int = type(problem.judged.reference.model).calls  # type: ignore[assignment]
    return calls


def test_the_model_has_run_for_the_first_kernel_too(tmp_path: Path) -> None:
    problem = opened(tmp_path, "torch.tanh(x)")
    problem.prepare()
    before = calls_of(problem)

    assert problem.gauge(problem.judged).note == ""
    assert len(list(problem.kernelbench)) == 5
    assert calls_of(problem) == before
    problem.close()


def test_an_empty_kernel_that_came_to_an_end_is_started_anew(tmp_path: Path) -> None:
    problem, control = opened(tmp_path, "torch.tanh(x)"), Control()
    kernel = problem.empty_kernel
    kernel.call(control)
    first = kernel.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    kernel.call(control)  # nothing comes of it
    kernel.call(control)
    assert kernel.pid not in (None, first)
    assert len(control.beside_ms) == len(control.used_ms) == 2
    assert 0.0 <= control.beside_at(0.2) <= control.beside_at(0.9)
    problem.close()


def test_a_model_that_takes_no_other_dtype_is_opened_all_the_same(tmp_path: Path) -> None:
    problem = opened(tmp_path, "torch.arange(9.0)[x] + self.training", "torch.randint(9, (64,))")
    problem.prepare()

    assert calls_of(problem) > 0
    problem.close()
