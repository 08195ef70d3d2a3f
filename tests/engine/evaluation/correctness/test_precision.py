"""Sums in any order count as fp32, and rounded operands do not. The user chooses the required precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from engine.evaluation.correctness.comparison import KERNELBENCH, Tolerances
from engine.evaluation.correctness.precision import OutputErrors, Precision, PrecisionClassifier
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.judge_device import JudgeDevice
from engine.evaluation.judge_policy import POLICY, JudgePolicy
from engine.problem.inspection import inspect_file
from engine.session.records.verdict_text import precision_words
from tests.engine.evaluation.conftest import Bench
from tests.exploits.catalogue import HERE

Kernel = Callable[..., torch.Tensor]


def gauged(name: str, source: str, directory: Path, *kernels: Kernel, required: bool = False) -> list[Precision]:
    """Measure the precision of kernels written in PyTorch on typical timed calls."""
    with opened(name, source, directory) as judged:
        return [measured(judged, lambda _, kernel=kernel: kernel, required) for kernel in kernels]  # type: ignore[misc]


@contextmanager
def opened(name: str, source: str, directory: Path, policy: JudgePolicy = POLICY) -> Iterator[JudgedProblem]:
    file = directory / f"{name}.py"
    file.write_text(source)
    judged = JudgedProblem(inspect_file(file, name), JudgeDevice("cpu", 1), 3, KERNELBENCH, policy)
    try:
        yield judged
    finally:
        judged.close()


def measured(
    judged: JudgedProblem, kernel_of: Callable[[int], Kernel], required: bool, eager_ms: float = 1.0
) -> Precision:
    """``kernel_of`` computes the result of each timed call."""
    classifier = PrecisionClassifier(judged, eager_ms, required)

    slots = judged.arena.slots

    def load(index: int, mixture: int) -> None:
        judged.load_mixed(index, slots[index % len(slots)], mixture)
        if judged.takes_mean_zero:
            judged.centre(slots[index % len(slots)])

    for index in range(POLICY.precision.calls_required if required else POLICY.precision.calls):
        slot, load_again = slots[index % len(slots)], partial(load, index, judged.fresh_seed())
        load_again()
        slot.outputs[0].copy_(kernel_of(index)(*slot.inputs))
        classifier.offer(slot, load_again)
    return classifier.measure()


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
    """Three products of two halves each, as kernels compute on TF32 units."""
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
        "tf32": "tf32/fp16",
        "truncated": "tf32/fp16",
        "fp16": "tf32/fp16",
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
    assert whole.name == "fp32", whole
    # Storing in bf16 costs about as much here as operands in TF32, so either answer is fine.
    assert stored.name in ("tf32/fp16", "bf16") and not stored.sufficient, stored


@pytest.mark.parametrize(
    ("forward", "kernel"),
    [
        ("torch.nn.functional.elu(x)", lambda x: torch.where(x > 0, x, x.exp() - 1)),
        ("torch.tanh(x)", lambda x: 1 - 2 / ((2 * x).exp() + 1)),
    ],
    ids=["elu", "tanh"],
)
def test_values_near_one_in_between_are_fp32(forward: str, kernel: Kernel, tmp_path: Path) -> None:
    source = problem(forward, "torch.randn(64, 100)")
    plain, halves, coarse = gauged(
        "activation", source, tmp_path, kernel, lambda x: kernel(x.half().float()), lambda x: kernel(x).bfloat16()
    )
    assert plain.name == "fp32", plain
    assert halves.name == "tf32/fp16" and coarse.name == "bf16"


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


def test_in_fp64_it_is_said_which_kernel_computes_in_less(tmp_path: Path) -> None:
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
    assert [one.name for one in found] == ["fp64", "fp32", "tf32/fp16", "bf16"]
    assert [one.sufficient for one in found] == [True, True, False, False]


@pytest.mark.parametrize(
    ("forward", "inputs", "why"),
    [
        ("torch.argmax(x, dim=1)", "torch.randn(8, 9)", "no floating-point output"),
        ("torch.dropout(x, 0.5, True)", "torch.randn(8, 9)", "random numbers"),
        ("x.to(torch.float16).float()", "torch.randn(8, 9)", "casts to another dtype"),
        ("x * 0", "torch.randn(8, 9)", "no output with finite, nonzero values"),
    ],
)
def test_where_it_cannot_be_measured_it_says_why(forward: str, inputs: str, why: str, tmp_path: Path) -> None:
    (found,) = gauged("other", problem(forward, inputs), tmp_path, lambda x: torch.zeros(()))
    assert found.name == "" and found.sufficient
    assert why in found.words


LONG = problem("x @ y", "torch.rand(16, 8192)", "torch.rand(8192, 24)")


def test_errors_of_sums_are_not_those_of_rounding(tmp_path: Path) -> None:
    def backwards(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return sequential(x.flip(1), y.flip(0))

    def blocked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return sum((x[:, k : k + 64] @ y[k : k + 64] for k in range(0, 8192, 64)), torch.zeros(16, 24))

    def compensated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.double() @ y.double()).float()

    kernels = (sequential, backwards, blocked, compensated, split)
    for _ in range(3):  # new inputs each time
        for found in gauged("product", LONG, tmp_path, *kernels):
            assert found.name == "fp32", found


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
        assert found.name == "fp32", found


HALF = problem("torch.softmax(x, dim=1)", "torch.randn(64, 300)")


@pytest.mark.parametrize("low", [as_tf32, lambda x: x.half().float(), lambda x: x.bfloat16().float()])
@pytest.mark.parametrize("required", [True, False])
def test_operands_that_are_rounded_in_some_timed_calls(low: Kernel, required: bool, tmp_path: Path) -> None:
    def rounded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return sequential(low(x), low(y))

    all_calls = replace(POLICY, precision=replace(POLICY.precision, most_s=60.0, most_s_required=60.0))
    with opened("timed", LONG, tmp_path, all_calls) as judged:
        found = measured(judged, lambda index: sequential if index == 1 else rounded, required)
        assert found.name in ("tf32/fp16", "bf16") and not found.sufficient, found
        if required:
            sometimes = measured(judged, lambda index: rounded if index % 3 == 1 else sequential, required)
            assert sometimes.name == found.name, sometimes


@pytest.mark.parametrize("required", [True, False])
def test_outputs_that_are_stored_in_half_precision(required: bool, tmp_path: Path) -> None:
    (found,) = gauged("softmax", HALF, tmp_path, lambda x: torch.softmax(x, dim=1).half().float(), required=required)
    assert found.name == "tf32/fp16", found
    assert found.error > 1e-4 > 1e-6 > found.eager_error


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    ("source", "kernel"),
    [
        (LONG, sequential),
        (LONG, split),
        (problem("torch.layer_norm(x, (1024,))", "torch.rand(32, 1024)"), lambda x: moments(x)),
        (problem("torch.softmax(x, dim=1)", "torch.rand(32, 500)"), lambda x: online(x)),
        (problem("torch.tanh(x)", "torch.randn(64, 100)"), lambda x: 1 - 2 / ((2 * x).exp() + 1)),
        # Single sums near zero have arbitrary relative errors, in eager as in others.
        (problem("x.mean()", "torch.randn(100, 1000)"), lambda x: torch.cumsum(x.reshape(-1), 0)[-1] / x.numel()),
        (problem("(x * y).sum()", *("torch.randn(40, 500)",) * 2), lambda x, y: torch.cumsum(x * y, 1)[:, -1].sum()),
        (problem("(x - y).mean(1)", *("torch.rand(4, 900)",) * 2), lambda x, y: x.mean(1) - y.mean(1)),
    ],
)
def test_fp32_in_any_order_is_fp32(source: str, kernel: Kernel, required: bool, tmp_path: Path) -> None:
    for _ in range(3):  # new inputs each time
        (found,) = gauged("any", source, tmp_path, kernel, required=required)
        assert found.name == "fp32", found


def one_by_one(x: torch.Tensor) -> torch.Tensor:
    """Rows summed term by term in fp32."""
    return torch.from_numpy(np.add.accumulate(x.numpy(), axis=1)[:, -1].copy())


@pytest.mark.parametrize("draw", ["torch.rand", "torch.randn"])
def test_a_long_sequential_sum_is_fp32_and_rounded_operands_are_not(draw: str, tmp_path: Path) -> None:
    source = problem("x.sum(1)", f"{draw}(24, 131072)")
    for _ in range(3):  # new inputs each time
        plain, tf32, bf16 = gauged(
            "sum",
            source,
            tmp_path,
            one_by_one,
            lambda x: one_by_one(as_tf32(x)),
            lambda x: one_by_one(x.bfloat16().float()),
        )
        assert plain.name == "fp32", plain
        assert not tf32.sufficient and not bf16.sufficient, (tf32, bf16)


def test_what_a_sum_may_be_off_by_grows_with_its_length() -> None:
    def class_of(length: float, error: float) -> str:
        return OutputErrors(torch.float32, length, error, eager=3e-8, rounded=1e-5).class_by(POLICY.precision)

    assert class_of(131072.0, 1.5e-5) == "fp32" != class_of(1.0, 1.5e-5)
    assert class_of(131072.0, 2.8e-4) == "tf32/fp16"


def test_a_problem_of_200_mb_gets_outliers_and_its_kernels_are_measured(tmp_path: Path) -> None:
    source = problem("torch.relu(x) * y", "torch.randn(24000, 1000)", "torch.randn(1000)")
    with opened("large", source, tmp_path) as judged:
        judged.find_outlier_sizes(Tolerances(1e-2, 1e-2))
        assert judged.takes_outliers
        exact = measured(judged, lambda _: lambda x, y: torch.relu(x) * y, False, 100.0)
        rounded = measured(judged, lambda _: lambda x, y: torch.relu(x.bfloat16().float()) * y, False, 100.0)
    assert exact.name == "fp32" and exact.sufficient, exact
    assert rounded.name == "bf16" and not rounded.sufficient, rounded


@pytest.mark.parametrize("required", [True, False])
def test_kernels_of_a_slow_model_are_measured_against_its_fp32(required: bool, tmp_path: Path) -> None:
    never_fp64 = replace(POLICY, correctness=replace(POLICY.correctness, fp64_eager_ms=0.0))
    kernels: list[Kernel] = [
        lambda x, y: x @ y,
        lambda x, y: x[:, :700] @ y[:700] + x[:, 700:] @ y[700:],
        lambda x, y: as_tf32(x) @ as_tf32(y),
        lambda x, y: x.bfloat16().float() @ y.bfloat16().float(),
    ]
    source = problem("x @ y", "torch.rand(200, 2500)", "torch.rand(2500, 150)")
    with opened("slow", source, tmp_path, never_fp64) as judged:
        assert judged.exact_dtype == torch.float32
        found = [measured(judged, lambda _, kernel=kernel: kernel, required, 400.0) for kernel in kernels]  # type: ignore[misc]
    assert [one.name for one in found] == ["fp32", "fp32", "tf32/fp16", "bf16"]


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench("cpp", tmp_path, precision="fp32", tolerance="crfm")
    bench.open((HERE / "problems" / "long_matmul.py").read_text(), "long_matmul", tmp_path)
    yield bench
    bench.close()


def test_the_user_says_which_may_win(strict: Bench) -> None:
    lower = strict.judge((HERE / "cpp" / "low_precision.cpp").read_text())
    assert (lower.status, lower.pattern) == ("wrong", "lower precision"), (lower.reason, lower.checks)
    assert "bf16" in lower.reason

    honest = strict.judge((HERE / "honest" / "cpp" / "long_matmul_rows.cpp").read_text())
    assert honest.correct, honest.reason
    assert honest.precision == "fp32" and "times eager's" in precision_words(honest)


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


def test_a_kernel_that_must_be_exact_is_timed_where_it_is_measured(strict: Bench) -> None:
    verdict = strict.judge(SLOW_AT_MEAN_ZERO)
    assert verdict.correct and verdict.kernel is not None, verdict.reason
    assert verdict.kernel.median_ms >= 9.0
