"""Problems whose answer needs no work are found when they are opened; the others are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.evaluation.checks import Tolerances
from engine.evaluation.device import JudgeDevice
from engine.evaluation.null_kernels import NullResult, try_null_kernels
from engine.evaluation.trials import JudgedProblem
from engine.problem.inspect import inspect_file

PUBLISHED = Tolerances(1e-2, 1e-2)


def result_of(directory: Path, forward: str, inputs: str = "torch.randn(40, 300)") -> NullResult:
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
        return try_null_kernels(judged, PUBLISHED)
    finally:
        judged.close()


@pytest.mark.parametrize(
    ("forward", "inputs", "named"),
    [
        ("torch.nn.functional.gelu(x - x.mean(dim=1, keepdim=True)) * 0", "torch.randn(40, 300)", "zeros"),
        ("torch.softmax(x.mean(dim=1, keepdim=True), dim=1)", "torch.randn(40, 300)", "constants"),
        ("x.mean().expand(40, 300).contiguous()", "torch.randn(40, 300)", "the means of the outputs"),
        ("x + 0.0", "torch.randn(40, 300)", "copies of x"),
        ("torch.arange(300.0) + 0 * x", "torch.randn(40, 300)", "the outputs of the call before"),
        ("x > 1e9", "torch.randn(40, 300)", "zeros"),
        ("(x - x) + 1", "torch.randint(0, 9, (40, 300))", "constants"),
    ],
)
def test_a_problem_that_needs_no_work_is_degenerate(forward: str, inputs: str, named: str, tmp_path: Path) -> None:
    result = result_of(tmp_path, forward, inputs)
    assert result.degenerate == named
    assert result.flags == (f"degenerate problem: {named} pass every check",)


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
def test_other_problems_keep_their_tolerance(forward: str, tmp_path: Path) -> None:
    assert result_of(tmp_path, forward) == NullResult(PUBLISHED)


def test_where_only_the_tolerance_lets_one_pass_it_is_tightened(tmp_path: Path) -> None:
    result = result_of(tmp_path, "1 + 0.008 * torch.tanh(x)")
    assert result.degenerate == ""
    assert 1e-4 <= result.tolerances.full < 4e-3
    assert "tolerance tightened" in result.tightened and "constants would pass" in result.tightened
