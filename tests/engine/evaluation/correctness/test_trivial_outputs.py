"""Opening a problem determines whether trivial outputs pass its checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.evaluation.correctness.comparison import Tolerances
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.correctness.trivial_outputs import try_trivial_outputs
from engine.evaluation.judge_device import JudgeDevice
from engine.problem.inspection import inspect_file

PUBLISHED = Tolerances(1e-2, 1e-2)


def result_of(directory: Path, forward: str, inputs: str = "torch.randn(40, 300)") -> str:
    file = directory / "problem.py"
    file.write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        f"    def forward(self, x):\n        return {forward}\n"
        f"def get_inputs():\n    return [{inputs}]\n"
        "def get_init_inputs():\n    return []\n"
    )
    judged = JudgedProblem(inspect_file(file, "problem"), JudgeDevice("cpu", 1), 8)
    try:
        return try_trivial_outputs(judged, PUBLISHED)
    finally:
        judged.close()


@pytest.mark.parametrize(
    ("forward", "inputs", "named"),
    [
        ("torch.nn.functional.gelu(x - x.mean(dim=1, keepdim=True)) * 0", "torch.randn(40, 300)", "zeros"),
        ("torch.softmax(x.mean(dim=1, keepdim=True), dim=1)", "torch.randn(40, 300)", "constants"),
        ("x.mean().expand(40, 300).contiguous()", "torch.randn(40, 300)", "the means of the outputs"),
        ("x + 0.0", "torch.randn(40, 300)", "copies of x"),
        ("torch.arange(300.0) + 0 * x", "torch.randn(40, 300)", "the outputs of the previous call"),
        ("x > 1e9", "torch.randn(40, 300)", "zeros"),
        ("(x - x) + 1", "torch.randint(0, 9, (40, 300))", "constants"),
        # within the tolerance, and only there
        ("1 + 0.008 * torch.tanh(x)", "torch.randn(40, 300)", "constants"),
    ],
)
def test_a_problem_that_needs_no_work_is_degenerate(forward: str, inputs: str, named: str, tmp_path: Path) -> None:
    assert result_of(tmp_path, forward, inputs) == named


@pytest.mark.parametrize(
    "forward",
    [
        "torch.softmax(x, dim=1)",
        "torch.relu(x)",
        "torch.nn.functional.mse_loss(x, -x)",
        "torch.log(x)",
        "torch.cumsum(x, dim=1)",
        "torch.max(x, dim=1)",
    ],
)
def test_other_problems_are_not(forward: str, tmp_path: Path) -> None:
    assert result_of(tmp_path, forward) == ""
