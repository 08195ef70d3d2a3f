"""What timed calls are given: weights and inputs that no call has seen, and that the model still accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from engine.evaluation.device import JudgeDevice
from engine.evaluation.trials import JudgedProblem
from engine.problem.inspect import inspect_file
from engine.problem.spec import Form
from tests.engine.evaluation.conftest import Bench

NORMALISED = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(900, 800)
        self.norm = torch.nn.BatchNorm1d(800).eval()
        self.last = torch.nn.Linear(800, 3, dtype=torch.float32)
        self.register_buffer("bounds", torch.full((800,), float("-inf")))

    def forward(self, x):
        return self.last(torch.maximum(self.norm(self.first(x)), self.bounds))

def get_inputs():
    return [torch.randn(4, 900)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[JudgedProblem]:
    file = tmp_path / "normalised.py"
    file.write_text(NORMALISED)
    judged = JudgedProblem(inspect_file(file, "normalised"), JudgeDevice("cpu", 1), 8)
    yield judged
    judged.close()


def weights_of(judged: JudgedProblem, seed: int) -> list[torch.Tensor]:
    slot = judged.arena.slots[0]
    judged.load_mixed(0, slot, seed)
    return [tensor.clone() for tensor in slot.weights]


def test_each_weight_lies_between_two_known_ones_by_a_share_of_its_own(judged: JudgedProblem) -> None:
    known = zip(judged.spec.weights, judged.drawn(0).weights, judged.drawn(1).weights, strict=True)
    for (spec, own, other), mixed in zip(known, weights_of(judged, 7), strict=True):
        if spec.role == "buffer":
            assert torch.equal(mixed, own)
            continue
        slack = 1e-6
        assert bool(((mixed >= torch.minimum(own, other) - slack) & (mixed <= torch.maximum(own, other) + slack)).all())
        apart = own != other  # of a million drawn values some are the same twice
        shares = (mixed - own)[apart] / (other - own)[apart]
        if shares.numel() > 100:
            assert 0.4 < float(shares.mean()) < 0.6 and float(shares.std()) > 0.3, spec.name
            assert abs(float(torch.corrcoef(torch.stack([shares[1:], shares[:-1]]))[0, 1])) < 0.2


def test_shares_change_with_the_seed_alone(judged: JudgedProblem) -> None:
    first, again, other = weights_of(judged, 7), weights_of(judged, 7), weights_of(judged, 8)

    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    for spec, one, two in zip(judged.spec.weights, first, other, strict=True):
        assert torch.equal(one, two) == (spec.role == "buffer"), spec.name


def test_the_reference_runs_on_mixed_weights(judged: JudgedProblem) -> None:
    """Buffers and parameters stand in each other's midst: each must reach its own place."""
    slot = judged.arena.slots[0]
    trial = judged.trial(0)
    trial.load(slot)
    judged.bind(slot)

    assert torch.allclose(judged.run(slot)[0], trial.expected[0])
    slot.weights[2].add_(1)
    changed = [spec.name for spec in judged.spec.weights][2]
    assert trial.unchanged(slot) == changed

    judged.load_mixed(0, slot, 3)
    assert bool(torch.isfinite(judged.run(slot)[0]).all())


TRIANGLES = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, y):
        return x @ y

def get_inputs():
    return [torch.randn(90, 90).tril(), DRAWN]

def get_init_inputs():
    return []
"""
LOWER_HALF = """
extern "C" int launch(const float* x, const float* y, float* out, void* workspace) {
    for (long long i = 0; i < x_dim0; i++)
        for (long long j = 0; j < y_dim1; j++) {
            float sum = 0;
            for (long long k = 0; k <= i; k++) sum += x[i * x_dim1 + k] * y[k * y_dim1 + j];
            out[i * y_dim1 + j] = sum;
        }
    return 0;
}
"""


@pytest.mark.parametrize("drawn", ["torch.randn(90, 40)", "torch.eye(90)[torch.randperm(90)]"])
def test_who_reads_one_half_of_a_triangular_matrix_is_right(
    bench_of: Callable[[Form], Bench], drawn: str, tmp_path: Path
) -> None:
    bench = bench_of("cpp")
    bench.open(TRIANGLES.replace("DRAWN", drawn), f"triangles{len(drawn)}", tmp_path)
    verdict = bench.judge(LOWER_HALF)
    assert verdict.correct, verdict.reason
    assert verdict.precision == "fp32"


IN_HALF = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)

def get_inputs():
    return [4 * torch.randn(40, 100).DTYPE()]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(("dtype", "takes"), [("half", False), ("bfloat16", True), ("float", True)])
def test_what_eager_itself_gets_wrong_is_not_asked_for(dtype: str, takes: bool, tmp_path: Path) -> None:
    """A hundred times as large, squares overflow in fp16, and eager's outputs are zeros."""
    file = tmp_path / f"in_{dtype}.py"
    file.write_text(IN_HALF.replace("DTYPE", dtype))
    judged = JudgedProblem(inspect_file(file, f"in_{dtype}"), JudgeDevice("cpu", 1), 8)
    try:
        assert ("large" in judged.kinds) is takes
        assert {"drawn", "negated", "small", "centred", "offset"} <= set(judged.kinds)
    finally:
        judged.close()
