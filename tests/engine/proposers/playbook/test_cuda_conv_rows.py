"""Convolutions that stream down the rows of images on Hopper.

Where they apply, what nvcc makes of them at the traced and at other sizes, and on a Hopper GPU their results.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from engine.problem.c_header import derive_header
from engine.proposers.playbook.base import Choices, Recipe
from engine.proposers.playbook.patterns.conv.cuda import stream_of
from engine.proposers.playbook.patterns.conv.hopper import plan as stream_plan
from tests.engine.proposers.playbook.cpp_harness import Problem, make_problem
from tests.engine.proposers.playbook.cuda_harness import A100, H200, compile_cuda, errors, run
from tests.engine.proposers.playbook.one_unit import Kernel, in_one_unit
from tests.engine.proposers.playbook.test_cuda_octets import DTYPES, FP16_TOLERANCE, LARGE, TOLERANCE, conv_of
from tests.engine.proposers.playbook.wandering import WGMMA_ROWS
from tests.patience import PATIENCE_S

ALEXNET = "self.c = nn.Conv2d(3, 96, 11, stride=4, padding=2)"
# name: forward, shape of x, constructor
CASES: dict[str, tuple[str, tuple[int, ...], str]] = {
    "columns": ("return self.c(x)", (3, 3, 131, 137), ALEXNET),
    "strips": ("return F.relu(self.c(x))", (2, 3, 41, 611), "self.c = nn.Conv2d(3, 40, 5, stride=2, padding=1)"),
    "phases": ("return self.c(x) * 2", (3, 5, 90, 130), "self.c = nn.Conv2d(5, 33, (4, 3), stride=3, padding=(0, 1))"),
    "deep": ("return F.relu(self.c(x))", (2, 64, 13, 56), "self.c = nn.Conv2d(64, 128, 3, padding=1)"),
    "dilated": ("return self.c(x)", (2, 16, 24, 100), "self.c = nn.Conv2d(16, 40, 3, padding=2, dilation=2)"),
    "grouped": (
        "return F.hardswish(self.c(x))", (2, 12, 14, 100),
        "self.c = nn.Conv2d(12, 40, 3, stride=2, padding=1, groups=2, bias=False)",
    ),
    "line": ("return F.silu(self.c(x))", (2, 16, 61), "self.c = nn.Conv1d(16, 24, 9, stride=2)"),
    "pooled": ("return F.max_pool2d(F.relu(self.c(x)), 3, 2)", (3, 3, 131, 137), ALEXNET),
    "pooled_strips": (
        "return F.max_pool2d(F.relu(self.c(x)), 3, 2, padding=1)", (2, 3, 41, 395),
        "self.c = nn.Conv2d(3, 40, 5, padding=2)",
    ),
    "pooled_apart": (
        "return F.max_pool2d(torch.sigmoid(self.c(x)), 2) + 1", (3, 8, 41, 70),
        "self.c = nn.Conv2d(8, 24, 3, padding=1)",
    ),
    "pooled_falling": (
        "return F.max_pool2d(self.c(x) * -2, (3, 2), stride=(3, 1))", (3, 16, 41, 58),
        "self.c = nn.Conv2d(16, 50, 3, padding=1)",
    ),
}  # fmt: skip
OTHER_SIZES = ((64, 128), (89, 199), (124, 288))
"""Batch and side of the headline problems at a smaller, an odd and a larger size."""


def problem_of(folder: Path, case: str, dtype: str = "float32", sizes: tuple[int, int] | None = None) -> Problem:
    forward, shape, init = (CASES | LARGE)[case]
    if sizes is not None:
        shape = (sizes[0], shape[1], sizes[1], sizes[1])
    return make_problem(folder, forward, {"x": shape}, init, dtype)


def by_rows(problem: Problem, changes: Choices) -> tuple[Recipe, str]:
    template, program = conv_of(problem)
    start = template.starts(program, problem.spec, H200)[0]
    assert start.name == WGMMA_ROWS
    recipe = start.recipe.with_(changes)
    assert stream_of(program, recipe) is not None
    return recipe, template.emit(program, recipe, problem.spec)


COMPILED: list[tuple[str, str, Choices]] = [
    ("alexnet", "float32", {}),
    ("alexnet", "float32", {"arithmetic": "fp16", "teams": 2}),
    ("alexnet_pooled", "float32", {"arithmetic": "fp16"}),
    ("vgg", "float16", {}),
    ("pooled_falling", "bfloat16", {"loaders": 1}),
]


def compiled(folder: Path, parts: list[tuple[str, str, str]]) -> subprocess.CompletedProcess[str]:
    """Compile ``parts`` (name, header, source) for Hopper. Warnings are errors."""
    source = folder / "kernels.cu"
    source.write_text(in_one_unit(parts))
    command = ["nvcc", "-O3", "-std=c++17", "-cubin", "-Xptxas", "-v", "-Werror", "all-warnings"]
    command += ["-gencode", "arch=compute_90a,code=sm_90a", str(source), "-o", str(folder / "kernels.cubin")]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_products_stay_asynchronous_and_in_registers(tmp_path: Path) -> None:
    parts = []
    for case, dtype, changes in COMPILED:
        problem = problem_of(tmp_path, case, dtype)
        parts.append((f"{case} {dtype}", derive_header(problem.spec, "cu"), by_rows(problem, changes)[1]))
    done = compiled(tmp_path, parts)
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    # C7517 and C7519 announce a wait and a fence where branches join, beside our own.
    assert not re.findall(r"C75(?!17|19)\d\d", report), report
    spills = [int(size) for size in re.findall(r"(\d+) bytes spill", report)]
    assert len(spills) >= 4 * len(COMPILED) and not any(spills), report


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_batch_height_and_width_may_change_but_not_channels(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "alexnet_pooled")
    _, source = by_rows(problem, {"arithmetic": "fp16"})
    headers = [derive_header(problem_of(tmp_path, "alexnet_pooled", sizes=sizes).spec, "cu") for sizes in OTHER_SIZES]
    done = compiled(tmp_path, [(str(k), header, source) for k, header in enumerate(headers)])
    assert done.returncode == 0, done.stdout + done.stderr
    other = make_problem(
        tmp_path, LARGE["alexnet_pooled"][0], {"x": (8, 4, 224, 224)},
        "self.c = nn.Conv2d(4, 96, 11, stride=4, padding=2)",
    )  # fmt: skip
    done = compiled(tmp_path, [("channels", derive_header(other.spec, "cu"), source)])
    assert done.returncode != 0 and "not for this size: needs" in done.stdout + done.stderr


def test_only_hopper_streams_rows_and_narrow_images_do_not(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "columns")
    template, program = conv_of(problem)
    assert [start.name for start in template.starts(program, problem.spec, H200)] == [WGMMA_ROWS, "wgmma", "direct"]
    assert [start.name for start in template.starts(program, problem.spec, A100)] == ["direct"]
    narrow = make_problem(tmp_path, "return self.c(x)", {"x": (2, 16, 14, 14)}, "self.c = nn.Conv2d(16, 32, 3)")
    template, program = conv_of(narrow)
    assert WGMMA_ROWS not in [start.name for start in template.starts(program, narrow.spec, H200)]


def test_windows_that_share_more_than_a_row_keep_the_other_structures(tmp_path: Path) -> None:
    problem = make_problem(
        tmp_path, "return F.max_pool2d(self.c(x), 3, 1)", {"x": (2, 8, 40, 60)}, "self.c = nn.Conv2d(8, 32, 3)"
    )
    _, program = conv_of(problem)
    assert stream_plan.refusal(program, 90) == "pooling windows have gaps, excess padding, or more than one shared row"


@pytest.mark.parametrize("case", ["columns", "pooled"])
def test_every_transformation_changes_the_source_and_opens_knobs_that_exist(tmp_path: Path, case: str) -> None:
    problem = problem_of(tmp_path, case)
    template, program = conv_of(problem)
    recipe, _ = by_rows(problem, {"prefetch": 0})
    assert "fp16_tensor_cores" in {one.name for one in template.transformations(program, recipe, H200)}
    recipe, source = by_rows(problem, {"prefetch": 0, "arithmetic": "fp16", "teams": 1})
    found = template.transformations(program, recipe, H200)
    assert "prefetch_patches" in {one.name for one in found}
    for one in found:
        changed = recipe.with_(one.changes, one.opens)
        assert template.emit(program, changed, problem.spec) != source, one.name
        assert set(one.opens) <= set(template.knobs(program, changed, H200)), one.name


def test_fp32_that_came_out_wrong_is_tried_with_more_exact_arithmetic(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "columns")
    template, program = conv_of(problem)
    exact = template.safer(program, by_rows(problem, {"arithmetic": "fp16"})[0])
    assert exact is not None and exact.choices["arithmetic"] == "bf16x3"
    plain = template.safer(program, exact)
    assert plain is not None and "mma" not in template.emit(program, plain, problem.spec)


@pytest.mark.parametrize("case", LARGE)
def test_every_setting_fits_a_block(tmp_path: Path, case: str) -> None:
    problem = problem_of(tmp_path, case)
    template, program = conv_of(problem)
    rng = random.Random(case)
    for _ in range(200):
        recipe, _ = by_rows(problem, {"arithmetic": rng.choice(["bf16x3", "fp16"])})
        knobs = template.knobs(program, recipe, H200)
        plan = stream_of(program, recipe.with_({knob: rng.choice(values) for knob, values in knobs.items()}))
        assert plan is not None
        groups = plan.teams * (1 + plan.loaders)
        registers = plan.teams * (plan.consumer_registers + plan.loaders * plan.producer_registers)
        assert registers <= groups * (65536 // (128 * groups) // 8 * 8)  # A block cannot get more than at its launch.
        sums = plan.lines // 2 * (plan.accumulators + (1 if program.pool is not None else 0))
        assert sums < (plan.consumer_registers or 255) and plan.slots > plan.window


@pytest.mark.gpu
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"arithmetic": "fp16"},
        {"arithmetic": "fp16", "teams": 1, "loaders": 2, "most_slots": 7},
        {"sms": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("case", CASES)
def test_results_on_a_hopper_gpu(tmp_path: Path, case: str, changes: Choices) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    dtype = DTYPES[list(CASES).index(case) % 3] if "sms" in changes else "float32"
    problem = problem_of(tmp_path, case, dtype)
    recipe, source = by_rows(problem, changes)
    limit = FP16_TOLERANCE if dtype == "float32" and recipe.choices["arithmetic"] == "fp16" else TOLERANCE[dtype]
    with tempfile.TemporaryDirectory() as folder:
        kernel = Kernel(compile_cuda(Path(folder), problem.spec, source, H200.arch))
        for _ in range(2):
            (error,) = errors(problem, run(problem, kernel, "cuda"))
            assert error <= limit, f"error {error:.1e}\n{source}"


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", OTHER_SIZES, ids=str)
@pytest.mark.parametrize("case", ["alexnet", "alexnet_pooled"])
def test_a_kernel_is_right_at_other_sizes(tmp_path: Path, case: str, sizes: tuple[int, int]) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    _, source = by_rows(problem_of(tmp_path, case), {})
    problem = problem_of(tmp_path, case, sizes=(sizes[0] // 16, sizes[1]))
    with tempfile.TemporaryDirectory() as folder:
        kernel = Kernel(compile_cuda(Path(folder), problem.spec, source, H200.arch))
        (error,) = errors(problem, run(problem, kernel, "cuda"))
        assert error <= TOLERANCE["float32"]
