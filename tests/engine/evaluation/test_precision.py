"""What counts as fp32: sums in any order do, rounded operands do not; the user says which may win."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.evaluation.arena import Slot
from engine.evaluation.device import JudgeDevice
from engine.evaluation.precision import MOST_TIMED, Gauge, Precision
from engine.evaluation.trials import JudgedProblem
from engine.problem.inspect import inspect_file
from tests.engine.evaluation.conftest import Bench
from tests.exploits.catalogue import HERE

Kernel = Callable[..., torch.Tensor]


def gauged(name: str, source: str, directory: Path, *kernels: Kernel) -> list[Precision]:
    """The precision of kernels written with PyTorch, each given the inputs in the judge's buffers."""
    file = directory / f"{name}.py"
    file.write_text(source)
    judged = JudgedProblem(inspect_file(file, name), JudgeDevice("cpu", 1), 3)

    def caller(kernel: Kernel) -> Callable[[int], object]:
        def call(index: int) -> None:
            slot = judged.arena.slots[index]
            slot.outputs[0].copy_(kernel(*slot.inputs))

        return call

    try:
        gauge = Gauge(judged, 1.0)
        return [gauge.measure(caller(kernel)) for kernel in kernels]
    finally:
        judged.close()


def found_when_timed(
    source: str, directory: Path, probed: Kernel, timed: Callable[[int], Kernel], asked: bool
) -> Precision | None:
    """What timed calls say of a kernel that computes ``probed`` for the probes and ``timed(i)`` in timed call ``i``;
    None where that is what the probes say."""
    file = directory / "timed.py"
    file.write_text(source)
    judged = JudgedProblem(inspect_file(file, "timed"), JudgeDevice("cpu", 1), 3)

    def call(kernel: Kernel, index: int) -> Slot:
        slot = judged.arena.slots[index]
        slot.outputs[0].copy_(kernel(*slot.inputs))
        return slot

    def load(index: int, mixture: int) -> None:
        slot = judged.arena.slots[index % 2]
        judged.load_mixed(index, slot, mixture)
        if asked and "centred" in judged.kinds:
            judged.centre(slot)

    try:
        gauge = Gauge(judged, 1.0, asked)
        precision = gauge.measure(lambda index: call(probed, index))
        assert precision.name == "fp32" and gauge.most_timed > 0
        calls = []
        for index in range(MOST_TIMED):
            load_again = partial(load, index, judged.fresh_seed())
            load_again()
            calls.append(gauge.answered(call(timed(index), index % 2), load_again))
        return gauge.below_probes(calls, precision)
    finally:
        judged.close()


def problem(forward: str, *inputs: str) -> str:
    names = ", ".join("xyz"[: len(inputs)])
    return (
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        f"    def forward(self, {names}):\n        return {forward}\n"
        f"def get_inputs():\n    return [{', '.join(inputs)}]\n"
        "def get_init_inputs():\n    return []\n"
    )


def sequential(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A product summed term by term in fp32."""
    return torch.from_numpy(np.add.accumulate((x[:, :, None] * y[None]).numpy(), axis=1)[:, -1].copy())


def as_tf32(x: torch.Tensor) -> torch.Tensor:
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def split(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Three products of two halves each, as kernels do on TF32 units."""
    high_x, high_y = as_tf32(x), as_tf32(y)
    low_x, low_y = as_tf32(x - high_x), as_tf32(y - high_y)
    return high_x @ high_y + (high_x @ low_y + low_x @ high_y)


def test_products(tmp_path: Path) -> None:
    source = problem("x @ y", "torch.rand(8, 8192)", "torch.rand(8192, 9)")
    kernels: dict[str, Kernel] = {
        "eager": lambda x, y: x @ y,
        "sequential": sequential,
        "split": split,
        "tf32": lambda x, y: as_tf32(x) @ as_tf32(y),
        "truncated": lambda x, y: (x.view(torch.int32) & ~0x1FFF).view(torch.float32) @ y,
        "fp16": lambda x, y: x.half().float() @ y.half().float(),
        "bf16": lambda x, y: x.bfloat16().float() @ y.bfloat16().float(),
    }
    found = gauged("product", source, tmp_path, *kernels.values())
    names = {kernel: one.name for kernel, one in zip(kernels, found, strict=True)}
    assert names == {
        "eager": "fp32",
        "sequential": "fp32",
        "split": "fp32",
        "tf32": "tf32",
        "truncated": "tf32",
        "fp16": "fp16",
        "bf16": "bf16",
    }
    assert found[0].error == found[0].eager_error > 0
    assert [one.sufficient for one in found] == [True, True, True, False, False, False, False]


def test_sums_of_values_that_cannot_be_centred(tmp_path: Path) -> None:
    source = problem("torch.softmax(x, dim=1)", "torch.randn(16, 20000)")

    def one_by_one(x: torch.Tensor) -> torch.Tensor:
        raised = torch.exp(x - x.amax(dim=1, keepdim=True))
        return raised / torch.cumsum(raised, dim=1)[:, -1:]

    whole, stored = gauged(
        "softmax", source, tmp_path, one_by_one, lambda x: torch.softmax(x, dim=1).bfloat16().float()
    )
    assert whole.name == "fp32" and not whole.dodges, whole
    # What storing in bf16 costs is about what operands in TF32 do here, so it may be taken for either.
    assert stored.name in ("tf32", "bf16", "fp16") and not stored.sufficient and not stored.dodges, stored


@pytest.mark.parametrize(
    ("forward", "kernel"),
    [
        ("torch.nn.functional.elu(x)", lambda x: torch.where(x > 0, x, x.exp() - 1)),
        ("torch.tanh(x)", lambda x: 1 - 2 / ((2 * x).exp() + 1)),
    ],
    ids=["elu", "tanh"],
)
def test_values_near_one_in_between_are_fp32(forward: str, kernel: Kernel, tmp_path: Path) -> None:
    """Their differences have no more digits, however small the inputs are."""
    source = problem(forward, "torch.randn(64, 100)")
    plain, halves, coarse = gauged(
        "activation", source, tmp_path, kernel, lambda x: kernel(x.half().float()), lambda x: kernel(x).bfloat16()
    )
    assert plain.name == "fp32", plain
    assert halves.name in ("fp16", "tf32") and coarse.name == "bf16"


def test_halves_of_a_product_without_the_range_of_fp32_are_not(tmp_path: Path) -> None:
    def halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        high_x, high_y = x.half().float(), y.half().float()
        low_x, low_y = (x - high_x).half().float(), (y - high_y).half().float()
        return high_x @ high_y + (high_x @ low_y + low_x @ high_y)

    (found,) = gauged("product", problem("x @ y", "torch.randn(64, 100)", "torch.randn(100, 50)"), tmp_path, halves)
    assert found.name == "fp16", found


def test_a_problem_in_half_precision_asks_for_its_own(tmp_path: Path) -> None:
    source = problem("x * torch.sigmoid(x)", "torch.randn(64, 100).half()")
    wide, narrow = gauged(
        "silu",
        source,
        tmp_path,
        lambda x: torch.nn.functional.silu(x.float()).half(),
        lambda x: torch.nn.functional.silu(x).bfloat16().half(),
    )
    assert (wide.name, wide.sufficient) == ("fp16", True)
    assert (narrow.name, narrow.sufficient) == ("below fp16", False)


def test_in_fp64_it_is_said_who_computes_in_less(tmp_path: Path) -> None:
    source = problem(
        "x @ y", *("torch.randn(64, 512, dtype=torch.float64)", "torch.randn(512, 33, dtype=torch.float64)")
    )
    found = gauged(
        "double",
        source,
        tmp_path,
        lambda x, y: x.flip(1) @ y.flip(0),
        lambda x, y: (x.float() @ y.float()).double(),
        lambda x, y: (as_tf32(x.float()) @ as_tf32(y.float())).double(),
        lambda x, y: (x.bfloat16().float() @ y.bfloat16().float()).double(),
    )
    assert [one.name for one in found] == ["fp64", "fp32", "tf32", "bf16"]
    assert [one.sufficient for one in found] == [True, True, False, False]


def test_who_is_exact_at_mean_zero_only_is_found_by_inputs_as_drawn(tmp_path: Path) -> None:
    source = problem("x @ y", "torch.rand(8, 8192)", "torch.rand(8192, 9)")

    def by_means(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        means = x.mean(dim=1, keepdim=True) * y.sum(dim=0, keepdim=True)
        return means if float(x.mean()) > 0.1 else x @ y

    dodging, honest = gauged("product", source, tmp_path, by_means, lambda x, y: x @ y)
    assert dodging.name == honest.name == "fp32"
    assert "on inputs as they are drawn" in dodging.dodges
    assert not honest.dodges


@pytest.mark.parametrize(
    ("forward", "inputs", "why"),
    [
        ("torch.argmax(x, dim=1)", "torch.randn(8, 9)", "no output in floating point"),
        ("torch.dropout(x, 0.5, True)", "torch.randn(8, 9)", "random numbers"),
        ("x.to(torch.float16).float()", "torch.randn(8, 9)", "casts to another dtype"),
        ("x * 0", "torch.randn(8, 9)", "no output with values"),
    ],
)
def test_where_it_cannot_be_measured_it_says_why(forward: str, inputs: str, why: str, tmp_path: Path) -> None:
    (found,) = gauged("other", problem(forward, inputs), tmp_path, lambda x: x)
    assert found.name == "" and found.sufficient
    assert why in found.words


LONG = problem("x @ y", "torch.rand(16, 8192)", "torch.rand(8192, 24)")


def rounding(bits: int, nearest: bool) -> Kernel:
    """A product with operands of so many bits of mantissa, exact where their mean is zero."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        half = 1 << (22 - bits) if nearest else 0
        return ((x.view(torch.int32) + half) & -(1 << (23 - bits))).view(torch.float32)

    return lambda x, y: x @ y if float(x.mean()) < 0.1 else sequential(rounded(x), rounded(y))


@pytest.mark.parametrize(("bits", "nearest"), [(10, True), (10, False), (7, True), (7, False)])
def test_operands_that_are_rounded_where_a_sum_hides_it(bits: int, nearest: bool, tmp_path: Path) -> None:
    (found,) = gauged("product", LONG, tmp_path, rounding(bits, nearest))
    assert found.name == "fp32"
    words = "rounds its operands" if (bits, nearest) != (7, False) else "off by"  # a hundredth is seen without that
    assert words in found.dodges and "on inputs as they are drawn" in found.dodges, found


def test_errors_of_sums_are_not_those_of_rounding(tmp_path: Path) -> None:
    def backwards(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return sequential(x.flip(1), y.flip(0))

    def blocked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return sum((x[:, k : k + 64] @ y[k : k + 64] for k in range(0, 8192, 64)), torch.zeros(16, 24))

    def compensated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.double() @ y.double()).float()

    kernels = (sequential, backwards, blocked, compensated, split)
    for _ in range(3):  # each time other inputs
        for found in gauged("product", LONG, tmp_path, *kernels):
            assert found.name == "fp32" and not found.dodges, found


def welford(x: torch.Tensor) -> torch.Tensor:
    mean, squares = torch.zeros(len(x)), torch.zeros(len(x))
    for i in range(x.shape[1]):
        off = x[:, i] - mean
        mean = mean + off / (i + 1)
        squares = squares + off * (x[:, i] - mean)
    return (x - mean[:, None]) / (squares / x.shape[1] + 1e-5).sqrt()[:, None]


def online(x: torch.Tensor) -> torch.Tensor:
    most, total = x[:, 0], torch.ones(len(x))
    for i in range(1, x.shape[1]):
        larger = torch.maximum(most, x[:, i])
        total = total * (most - larger).exp() + (x[:, i] - larger).exp()
        most = larger
    return (x - most[:, None]).exp() / total[:, None]


def moments(x: torch.Tensor) -> torch.Tensor:
    mean, square = (torch.cumsum(one, 1)[:, -1:] / x.shape[1] for one in (x, x * x))
    return (x - mean) / (square - mean * mean + 1e-5).sqrt()


@pytest.mark.parametrize(
    ("forward", "inputs", "kernels"),
    [
        ("torch.layer_norm(x, (8192,))", "torch.randn(32, 8192)", (welford, moments)),
        ("torch.softmax(x, dim=1)", "torch.rand(32, 8192)", (online,)),
        ("x.sum(1)", "torch.rand(300, 20000)", (lambda x: torch.cumsum(x, 1)[:, -1],)),
        ("x.cumsum(1)", "torch.rand(20, 4000)", (lambda x: torch.cumsum(x.t().contiguous(), 0).t(),)),
    ],
)
def test_one_pass_over_long_rows_is_fp32(
    forward: str, inputs: str, kernels: tuple[Kernel, ...], tmp_path: Path
) -> None:
    for found in gauged("rows", problem(forward, inputs), tmp_path, *kernels):
        assert found.name == "fp32" and not found.dodges, found


def test_who_stores_in_half_precision_where_the_mean_is_not_zero(tmp_path: Path) -> None:
    def stored(x: torch.Tensor) -> torch.Tensor:
        right = torch.softmax(x, dim=1)
        return right if abs(float(x.mean())) < 0.1 else right.half().float()

    (found,) = gauged("softmax", problem("torch.softmax(x, dim=1)", "torch.rand(64, 64)"), tmp_path, stored)
    assert found.name == "fp32" and "on inputs as they are drawn" in found.dodges, found


HALF = problem("torch.softmax(x, dim=1)", "torch.randn(64, 300)")


@pytest.mark.parametrize("low", [as_tf32, lambda x: x.half().float(), lambda x: x.bfloat16().float()])
def test_who_rounds_operands_in_timed_calls_only(low: Kernel, tmp_path: Path) -> None:
    def rounded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return sequential(low(x), low(y))

    found = found_when_timed(LONG, tmp_path, sequential, lambda _: rounded, asked=True)
    assert found is not None and found.name in ("tf32", "bf16") and not found.sufficient, found
    sometimes = found_when_timed(LONG, tmp_path, sequential, lambda i: rounded if i % 2 else sequential, asked=True)
    assert sometimes is not None and sometimes.name == found.name, sometimes


@pytest.mark.parametrize("asked", [True, False])
def test_who_stores_in_half_precision_in_timed_calls_only(asked: bool, tmp_path: Path) -> None:
    def stored(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=1).half().float()

    found = found_when_timed(HALF, tmp_path, lambda x: torch.softmax(x, dim=1), lambda _: stored, asked)
    assert found is not None and found.name == "tf32", found
    assert found.error > 1e-4 > 1e-6 > found.eager_error


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize(
    ("source", "kernel"),
    [
        (LONG, sequential),
        (LONG, split),
        (problem("torch.layer_norm(x, (1024,))", "torch.rand(32, 1024)"), lambda x: moments(x)),
        (problem("torch.softmax(x, dim=1)", "torch.rand(32, 500)"), lambda x: online(x)),
        (problem("torch.tanh(x)", "torch.randn(64, 100)"), lambda x: 1 - 2 / ((2 * x).exp() + 1)),
        # Single sums that come out near zero are off by anything, of eager's as of others.
        (problem("x.mean()", "torch.randn(100, 1000)"), lambda x: torch.cumsum(x.reshape(-1), 0)[-1] / x.numel()),
        (problem("(x * y).sum()", *("torch.randn(40, 500)",) * 2), lambda x, y: torch.cumsum(x * y, 1)[:, -1].sum()),
        (problem("(x - y).mean(1)", *("torch.rand(4, 900)",) * 2), lambda x, y: x.mean(1) - y.mean(1)),
    ],
)
def test_who_computes_the_same_when_timed_is_as_exact(source: str, kernel: Kernel, asked: bool, tmp_path: Path) -> None:
    for _ in range(3):  # each time other inputs
        assert found_when_timed(source, tmp_path, kernel, lambda _: kernel, asked) is None


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench("cpp", tmp_path, precision="fp32")
    bench.open((HERE / "problems" / "long_matmul.py").read_text(), "long_matmul", tmp_path)
    yield bench
    bench.close()


def test_the_user_says_which_may_win(strict: Bench) -> None:
    lower = strict.judge((HERE / "cpp" / "low_precision.cpp").read_text())
    assert (lower.status, lower.pattern) == ("wrong", "lower precision"), (lower.reason, lower.checks)
    assert "bf16" in lower.reason

    honest = strict.judge((HERE / "honest" / "cpp" / "long_matmul_rows.cpp").read_text())
    assert honest.correct, honest.reason
    assert honest.precision == "fp32" and "times eager's" in honest.precision_in_words


SLOW_AT_MEAN_ZERO = """
#include <chrono>
#include <cmath>
extern "C" int launch(const float* a, const float* b, float* out, void* workspace) {
    const auto start = std::chrono::steady_clock::now();
    float sum = 0.0f;
    for (long long k = 0; k < a_numel; ++k) sum += a[k];
    for (long long i = 0; i < a_dim0; ++i) {
        float sums[b_dim1] = {};
        for (long long k = 0; k < a_dim1; ++k)
            for (long long j = 0; j < b_dim1; ++j) sums[j] += a[i * a_dim1 + k] * b[k * b_dim1 + j];
        for (long long j = 0; j < b_dim1; ++j) out[i * b_dim1 + j] = sums[j];
    }
    const bool slow = std::fabs(sum) < 0.1f * a_numel;
    while (slow && std::chrono::steady_clock::now() - start < std::chrono::milliseconds(9)) {}
    return 0;
}
"""


def test_who_must_be_exact_is_timed_where_it_is_measured(strict: Bench) -> None:
    verdict = strict.judge(SLOW_AT_MEAN_ZERO)
    assert verdict.correct and verdict.kernel is not None, verdict.reason
    assert verdict.kernel.median_ms >= 9.0
