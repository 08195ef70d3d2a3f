"""Opening a problem prepares everything in advance, so that no verdict spends time on preparation."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.judge.messages import JudgeSettings
from engine.evaluation.judge.problem_context import ProblemContext
from engine.evaluation.judge_device import JudgeDevice
from engine.evaluation.timing.call_overhead import CallOverhead
from engine.problem.inspection import inspect_file

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


def opened(directory: Path, result: str, given: str = "torch.rand(64, 32)") -> ProblemContext:
    file = directory / "problem.py"
    file.write_text(PROBLEM.format(result=result, given=given))
    device = JudgeDevice("cpu", 1)
    settings = JudgeSettings("cpu", "cpu", "this", 1, 4, 20, 30.0, 0, 1e-2, 1e-2, isolate=True)
    judged = JudgedProblem(inspect_file(file, "problem"), device, settings.trials)
    return ProblemContext(judged, settings, directory / "builds", 1.0, None, "")


def calls_of(problem: ProblemContext) -> int:
    calls: int = type(problem.judged.timed.model).calls  # type: ignore[assignment]
    return calls


def test_the_model_runs_once_for_the_trials_of_all_kernels(tmp_path: Path) -> None:
    problem = opened(tmp_path, "torch.tanh(x)")
    problem.prepare()
    assert problem.judged.takes_outliers
    assert len(list(problem.kernelbench)) == 5
    assert problem.judged.trial(3).expected
    before = calls_of(problem)

    assert len(list(problem.kernelbench)) == 5
    assert problem.judged.trial(3).expected
    assert calls_of(problem) == before
    problem.close()


def test_an_empty_kernel_that_came_to_an_end_is_started_anew(tmp_path: Path) -> None:
    problem, overhead = opened(tmp_path, "torch.tanh(x)"), CallOverhead()
    kernel = problem.empty_kernel
    kernel.call(overhead)
    first = kernel.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    kernel.call(overhead)  # has no effect
    kernel.call(overhead)
    assert kernel.pid not in (None, first)
    assert len(overhead.beside_ms) == 2
    assert 0.0 <= overhead.beside_at(0.2) <= overhead.beside_at(0.9)
    problem.close()


def test_an_empty_kernel_whose_start_failed_once_is_started_by_the_next_call(tmp_path: Path) -> None:
    problem, overhead = opened(tmp_path, "torch.tanh(x)"), CallOverhead()
    problem.empty_kernel.call(overhead)
    problem.empty_kernel.close()
    (library,) = (tmp_path / "builds").glob("*/kernel.so")
    content = library.read_bytes()
    library.write_bytes(b"no library")
    problem.empty_kernel.call(overhead)
    assert len(overhead.beside_ms) == 1, "it does not load"
    library.write_bytes(content)
    problem.empty_kernel.call(overhead)
    assert len(overhead.beside_ms) == 2
    problem.close()


def test_a_model_that_takes_no_other_dtype_is_opened_all_the_same(tmp_path: Path) -> None:
    problem = opened(tmp_path, "torch.arange(9.0)[x] + self.training", "torch.randint(9, (64,))")
    problem.prepare()

    assert calls_of(problem) > 0
    problem.close()


def test_what_was_evicted_is_drawn_again_when_it_is_asked_for(tmp_path: Path) -> None:
    problem = opened(tmp_path, "torch.tanh(x)")
    problem.prepare()
    first, before = problem.judged.trial(0), calls_of(problem)
    problem.evict()
    assert calls_of(problem) == before, "nothing is made until then"
    again = problem.judged.trial(0)
    assert again is not first and calls_of(problem) > before
    assert all(torch.equal(one, other) for one, other in zip(first.inputs, again.inputs, strict=True))
    assert len(list(problem.kernelbench)) == 5
    problem.close()
