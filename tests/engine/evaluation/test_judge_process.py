"""The engine's side of a judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.devices.hardware import cpu_fact
from engine.evaluation.device_waits import DeviceWatch
from engine.evaluation.evaluator import EvaluationError
from engine.evaluation.judge import messages
from engine.evaluation.judge_process import JudgeProcess
from engine.problem.inspection import inspect_file
from tests.engine.evaluation.judge.test_server import SETTINGS
from tests.patience import PATIENCE_S

FAILS_ON_A_GPU = """
from pathlib import Path

import torch

class Model(torch.nn.Module):
    def forward(self, x):
        if not Path(__file__).exists():  # The judge knows only the source.
            raise RuntimeError("CUDA error: {error}")
        return x + 1

def get_inputs():
    return [torch.rand(64)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("error", "goes_on"), [("device-side assert triggered", False), ("out of memory", True)])
async def test_a_judge_that_can_no_longer_use_its_gpu_is_replaced(tmp_path: Path, error: str, goes_on: bool) -> None:
    (tmp_path / "fails.py").write_text(FAILS_ON_A_GPU.format(error=error))
    problem = inspect_file(tmp_path / "fails.py", "fails")
    (tmp_path / "fails.py").unlink()
    watch = DeviceWatch(lambda wait: None, lambda device, seconds: None)
    watch.start([cpu_fact()])
    judge = JudgeProcess(SETTINGS, tmp_path / "builds", watch)
    try:
        with pytest.raises(EvaluationError, match=f"CUDA error: {error}|needs more memory"):
            await judge.ask(messages.OpenProblem(problem), PATIENCE_S, lambda stage: None)
        assert judge.running is goes_on

        answer = await judge.ask(messages.Measure(100.0, 100.0), PATIENCE_S, lambda stage: None)
        assert answer == messages.Measured(100.0, 100.0)
    finally:
        await judge.stop()
        await watch.close()
