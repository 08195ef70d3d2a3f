"""Timed calls get weights and inputs that no call has seen and that the model still accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from engine.evaluation.correctness.comparison import compare
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.judge_device import JudgeDevice
from engine.problem.inspection import inspect_file
from engine.problem.source import ProblemFileError
from engine.problem.spec import Language
from tests.engine.evaluation.conftest import Bench

Kernel = Callable[[torch.Tensor], torch.Tensor]

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


def test_weights_stay_within_bounds_and_are_no_interpolation_of_known_ones(judged: JudgedProblem) -> None:
    known = zip(judged.spec.weights, judged.drawn(0).weights, judged.drawn(1).weights, strict=True)
    for (spec, own, other), mixed in zip(known, weights_of(judged, 7), strict=True):
        if spec.role == "buffer":
            assert torch.equal(mixed, own)
            continue
        both = torch.cat([own.reshape(-1), other.reshape(-1)])
        assert bool(((mixed >= both.min() - 1e-6) & (mixed <= both.max() + 1e-6)).all())
        if mixed.numel() > 1000:
            share = float(((mixed - own) * (other - own)).sum() / (other - own).square().sum())
            left = (mixed - own - share * (other - own)).norm()
            assert float(left) > 0.3 * float((mixed - own).norm()), spec.name


def test_weights_change_with_the_seed_alone(judged: JudgedProblem) -> None:
    first, again, other = weights_of(judged, 7), weights_of(judged, 7), weights_of(judged, 8)

    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    for spec, one, two in zip(judged.spec.weights, first, other, strict=True):
        assert torch.equal(one, two) == (spec.role == "buffer"), spec.name


def test_the_reference_runs_on_mixed_weights(judged: JudgedProblem) -> None:
    """Buffers and parameters are interleaved, and each must reach its own place."""
    slot = judged.arena.slots[0]
    trial = judged.trial(0)
    trial.load(slot)
    judged.bind(slot)

    assert torch.allclose(judged.run(slot)[0], trial.expected[0])
    slot.weights[2].add_(1)
    changed = [spec.name for spec in judged.spec.weights][2]
    assert trial.changed(slot) == changed

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
def test_a_kernel_that_reads_one_half_of_a_triangular_matrix_is_right(
    bench_of: Callable[[Language], Bench], drawn: str, tmp_path: Path
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
    """For values a hundred times as large, squares overflow in fp16, and eager's outputs are zeros."""
    file = tmp_path / f"in_{dtype}.py"
    file.write_text(IN_HALF.replace("DTYPE", dtype))
    judged = JudgedProblem(inspect_file(file, f"in_{dtype}"), JudgeDevice("cpu", 1), 8)
    try:
        assert ("large" in judged.kinds) is takes
        assert {"drawn", "negated", "small", "centred", "offset"} <= set(judged.kinds)
    finally:
        judged.close()


def test_a_model_whose_shapes_depend_on_its_inputs_is_refused(tmp_path: Path) -> None:
    """Two draws may keep as many numbers of one row (2%), but not of all eight."""
    file = tmp_path / "varying.py"
    model = "class Model(torch.nn.Module):\n    def forward(self, x):\n        return [row[row > 0] for row in x]\n"
    file.write_text(f"import torch\n{model}def get_inputs():\n    return [torch.randn(8, 900)]\n")

    with pytest.raises(ProblemFileError, match="shape"):
        JudgedProblem(inspect_file(file, "varying"), JudgeDevice("cpu", 1), 8)


def test_inputs_that_change_the_shape_of_the_outputs_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "positive.py"
    model = "class Model(torch.nn.Module):\n    def forward(self, x):\n        return x[x > 0] * 2\n"
    file.write_text(f"import torch\n{model}def get_inputs():\n    return [torch.rand(64) + 0.1]\n")
    judged = JudgedProblem(inspect_file(file, "positive"), JudgeDevice("cpu", 1), 8)
    judged.close()


SCALED = """
import torch

class Model(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(features))

    def forward(self, x):
        return torch.relu(x) * self.scale

def get_inputs():
    return [torch.randn(20000, 1000)]

def get_init_inputs():
    return [1000]
"""
SCALED_CPP = """
extern "C" int launch(const float* x, const float* scale, float* out, void* workspace) {
    #pragma omp parallel for
    for (long long i = 0; i < x_dim0; i++)
        for (long long j = 0; j < x_dim1; j++) {
            const float v = x[i * x_dim1 + j];
            out[i * x_dim1 + j] = (v > 0 ? v : 0) * scale[j];
        }
    return 0;
}
"""


def test_an_honest_kernel_of_a_problem_larger_than_the_trials_memory_is_correct(
    bench_of: Callable[[Language], Bench], tmp_path: Path
) -> None:
    """Its trials are redrawn repeatedly, even between loading a slot and running the reference on that slot."""
    bench = bench_of("cpp")
    bench.open(SCALED, "scaled_large", tmp_path)
    verdict = bench.judge(SCALED_CPP)
    assert verdict.correct, verdict.reason


def test_drawing_a_trial_leaves_the_timed_reference_as_it_is(judged: JudgedProblem) -> None:
    slot = judged.arena.slots[1]
    judged.load_mixed(0, slot, 3)
    judged.bind(slot)
    before = [tensor.clone() for tensor in (*slot.weights, *judged.run(slot))]
    judged._kept.clear()

    judged.trial(3)
    judged.source.run(judged.trial(0).inputs)

    assert all(torch.equal(one, two) for one, two in zip((*slot.weights, *judged.run(slot)), before, strict=True))
    own_weights = judged.with_own_weights()
    own_weights.bind(judged.arena.slots[0])
    assert all(torch.equal(one, two) for one, two in zip(judged.run(slot), before[len(slot.weights) :], strict=True))


ROWS = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return FORWARD

def get_inputs():
    return [torch.randn(128, 65536)]

def get_init_inputs():
    return []
"""


def after_a_scan(terms: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The mean of ``terms`` over rows: by all terms if ``x`` is large, otherwise by half of them."""
    first = slice(None, x.shape[1] // 2)
    is_large = x.abs() > 8 * x[:, first].square().mean(1, keepdim=True).sqrt()
    usual, large = terms.masked_fill(is_large, 0.0), terms.masked_fill(~is_large, 0.0)
    return usual[:, first].mean(1, keepdim=True) + large.mean(1, keepdim=True)


def normalized_after_a_scan(x: torch.Tensor) -> torch.Tensor:
    mean = x.mean(1, keepdim=True)
    return (x - mean) * (after_a_scan((x - mean).square(), x - mean) + 1e-5).rsqrt()


def normalized_in_one_pass(x: torch.Tensor) -> torch.Tensor:
    mean = x.mean(1, keepdim=True)
    return (x - mean) * ((x * x).mean(1, keepdim=True) - mean * mean + 1e-5).rsqrt()


@pytest.mark.parametrize(
    ("forward", "sampled", "honest"),
    [
        ("torch.layer_norm(x, x.shape[1:])", normalized_after_a_scan, normalized_in_one_pass),
        ("(x * x).mean(1, keepdim=True)", lambda x: after_a_scan(x * x, x), lambda x: x.square().sum(1, True) / 65536),
    ],
    ids=["layernorm", "mean of squares"],
)
def test_a_sample_of_what_a_scan_finds_usual_is_found_off(
    forward: str, sampled: Kernel, honest: Kernel, tmp_path: Path
) -> None:
    """This holds even with correct handling of outliers: in heavy-tailed inputs, "large" has no threshold."""
    file = tmp_path / "rows.py"
    file.write_text(ROWS.replace("FORWARD", forward))
    judged = JudgedProblem(inspect_file(file, "rows"), JudgeDevice("cpu", 1), 8)

    def wrong_on(kernel: Kernel) -> set[str]:
        trials = [judged.trial(index) for index in range(judged.trials)]
        found = [(one, compare([kernel(one.inputs[0])], one.expected, 1e-2).problem) for one in trials]
        return {trial.kind for trial, problem in found if problem is not None}

    try:
        assert "heavy_tailed" in wrong_on(sampled)
        assert not wrong_on(honest)
    finally:
        judged.close()


LENGTHS = """
import random

import numpy
import torch

class Model(torch.nn.Module):
    def forward(self, x, ends, mask):
        return torch.segment_reduce(x, "sum", offsets=ends) * mask

def get_inputs():
    inner = sorted(GENERATOR)
    mask = torch.tensor([random.random() < 0.5 for _ in range(len(inner) + 1)])
    return [torch.randn(1000), torch.tensor([0, *inner, 1000]), mask]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("generator", "changes"),
    [
        ("torch.randperm(1000)[:30].tolist()", True),
        ("random.sample(range(1000), 30)", True),
        ("numpy.random.permutation(1000)[:30].tolist()", True),
        ("numpy.random.default_rng().permutation(1000)[:30].tolist()", False),  # No seed reaches this generator.
    ],
)
def test_integers_of_timed_calls_are_whole_draws_that_can_be_repeated(
    tmp_path: Path, generator: str, changes: bool
) -> None:
    (tmp_path / "lengths.py").write_text(LENGTHS.replace("GENERATOR", generator))
    judged = JudgedProblem(inspect_file(tmp_path / "lengths.py", "lengths"), JudgeDevice("cpu", 1), 4)
    slot, loaded = judged.arena.slots[0], []
    for seed in (7, 7, 8):
        judged.load_mixed(0, slot, seed)
        loaded.append([tensor.clone() for tensor in slot.inputs])
        ends = slot.inputs[1]
        assert int(ends[0]) == 0 and int(ends[-1]) == 1000 and bool((ends.diff() >= 0).all())
    assert all(torch.equal(*pair) for pair in zip(*loaded[:2], strict=True))
    assert torch.equal(loaded[0][1], loaded[2][1]) is not changes
    judged.close()
