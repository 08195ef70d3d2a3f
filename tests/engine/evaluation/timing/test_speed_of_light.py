"""The lower bound on a problem's time."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.evaluation.correctness.comparison import KERNELBENCH, Tolerances
from engine.evaluation.judge_device import JudgeDevice
from engine.evaluation.timing.speed_of_light import Peaks, needs_exact_products, sol_ms
from engine.problem.catalog import resolve
from engine.problem.inspection import inspect_file
from engine.problem.spec import ProblemSpec

CRFM = Tolerances(full=1e-2, half=1e-2)


def problem(name: str) -> ProblemSpec:
    (file,) = resolve([f"builtin:headline/{name}"], Path())
    return inspect_file(file.path, name)


@pytest.mark.parametrize(
    ("name", "tolerances", "exact"),
    [
        ("matmul_fp32", KERNELBENCH, True),
        ("matmul_fp32", CRFM, False),
        ("matmul_fp16", KERNELBENCH, False),
        ("conv2d", KERNELBENCH, True),
    ],
)
def test_a_tight_tolerance_rules_out_single_products_of_16_bit_operands(
    name: str, tolerances: Tolerances, exact: bool
) -> None:
    assert needs_exact_products(problem(name), tolerances) == exact


def test_a_half_precision_output_permits_single_products(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "import torch\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x, y):\n        return x.half() @ y.half()\n"
        "def get_inputs():\n    return [torch.randn(32, 32), torch.randn(32, 32)]\n"
        "def get_init_inputs():\n    return []\n"
    )
    assert not needs_exact_products(inspect_file(tmp_path / "half.py", "half"), KERNELBENCH)


def test_a_cpu_computes_fp32_products_at_its_measured_rate() -> None:
    device, spec = JudgeDevice("cpu", 2), problem("matmul_fp32")
    gflops = Peaks(device).gflops
    assert 1 < gflops < 100_000
    assert sol_ms(spec, device, Peaks(device, 1e9, gflops), KERNELBENCH) == pytest.approx(
        (spec.flops or 0) / gflops / 1e6, rel=0.2
    )
