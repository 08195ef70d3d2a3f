"""Matmuls with wgmma: where they apply, what nvcc makes of them, and on a Hopper GPU their results."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from engine.problem.c_header import derive_header
from engine.proposers.playbook.base import Choices, Recipe, Template
from engine.proposers.playbook.patterns.gemm import hopper
from engine.proposers.playbook.patterns.gemm.program import MatmulProgram, recognize_matmul
from engine.session.records.other_sizes import NOT_FOR_THIS_SIZE
from tests.engine.proposers.playbook import test_cpp_matmul
from tests.engine.proposers.playbook.cpp_harness import Problem, make_problem
from tests.engine.proposers.playbook.cuda_harness import A100, H200, compile_cuda, errors, run
from tests.engine.proposers.playbook.one_unit import Kernel, in_one_unit
from tests.engine.proposers.playbook.wandering import WGMMA, known
from tests.patience import PATIENCE_S

TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 6e-3}
"""Allowed relative error by output dtype. Three products of bf16 numbers reach 4e-6 to 7e-6 in fp32."""
FP16_TOLERANCE = 2e-3
PRODUCTS = tuple(name for name in test_cpp_matmul.PRODUCTS if name != "vector")
DTYPES = ("float16", "bfloat16", "float32")
SIZES = {
    "even": {"b": 2, "c": 3, "m": 520, "n": 776, "k": 264},
    "odd": {"b": 3, "c": 2, "m": 261, "n": 517, "k": 333},
    "small": {"b": 1, "c": 1, "m": 17, "n": 24, "k": 40},
}
SETTINGS: dict[str, Choices] = {
    "first": {},
    "small_tiles": {"bm": 64, "bn": 64, "cluster": 1, "stages": 3},
    "wide_tiles": {"bm": 128, "bn": 256, "cluster": 2, "group": 1},
    "uneven_tiles": {"bm": 128, "bn": 192, "cluster": 1, "group": 16},
    "split": {"splits": 4, "bm": 64, "bn": 128},
    "fp16": {"arithmetic": "fp16"},
}
COMPILED: list[tuple[str, str, int, Choices]] = [
    ("plain", "float16", 4096, {}),
    ("plain", "float32", 4096, {}),
    ("plain", "float32", 4096, {"arithmetic": "fp16"}),
    ("transposed", "bfloat16", 517, {"bm": 128, "bn": 192, "cluster": 2}),
    ("linear_gelu", "float16", 1024, {"bm": 128, "bn": 256}),
    ("linear_gated", "float32", 261, {"bm": 64, "bn": 256}),
    ("shared", "float32", 264, {"splits": 4, "bm": 128, "bn": 128}),
]


def problem_of(folder: Path, case: str, dtype: str, sizes: dict[str, int]) -> Problem:
    return make_problem(folder, *test_cpp_matmul.shaped(case, sizes), dtype=dtype)


def with_wgmma(problem: Problem, changes: Choices) -> tuple[Template, MatmulProgram, Recipe]:
    template, program = known(problem.spec, "cu")
    assert isinstance(program, MatmulProgram)
    start = template.starts(program, problem.spec, H200)[0]
    assert start.name == WGMMA
    return template, program, start.recipe.with_(changes)


def emitted(problem: Problem, changes: Choices) -> str:
    template, program, recipe = with_wgmma(problem, changes)
    return template.emit(program, recipe, problem.spec)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_products_stay_asynchronous_and_in_registers(tmp_path: Path) -> None:
    parts = []
    for case, dtype, size, changes in COMPILED:
        problem = problem_of(tmp_path, case, dtype, {"b": 2, "c": 2, "m": size, "n": size, "k": size})
        parts.append((f"{case} {dtype} {size}", derive_header(problem.spec, "cu"), emitted(problem, changes)))
    source = tmp_path / "kernels.cu"
    source.write_text(in_one_unit(parts))
    command = ["nvcc", "-O3", "-std=c++17", "-cubin", "-Xptxas", "-v", "-Werror", "all-warnings"]
    command += ["-gencode", "arch=compute_90a,code=sm_90a", str(source), "-o", str(tmp_path / "kernels.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    report = done.stdout + done.stderr
    assert not re.findall(r"C75\d\d", report), report
    spills = [int(size) for size in re.findall(r"(\d+) bytes spill", report)]
    assert len(spills) >= 2 * len(COMPILED) and not any(spills), report


@pytest.mark.parametrize("dtype", DTYPES)
def test_wgmma_comes_first_on_hopper_only(tmp_path: Path, dtype: str) -> None:
    problem = problem_of(tmp_path, "plain", dtype, SIZES["even"])
    template, program = known(problem.spec, "cu")
    assert [start.name for start in template.starts(program, problem.spec, H200)] == [WGMMA, "dots"]
    assert [start.name for start in template.starts(program, problem.spec, A100)] == ["dots"]


@pytest.mark.parametrize("sizes", [{"m": 3, "n": 64, "k": 64}, {"m": 64, "n": 64, "k": 5}])
def test_matrices_smaller_than_an_instruction_keep_the_other_structures(tmp_path: Path, sizes: dict[str, int]) -> None:
    problem = problem_of(tmp_path, "plain", "float16", sizes)
    template, program = known(problem.spec, "cu")
    assert [start.name for start in template.starts(program, problem.spec, H200)] == ["dots"]


def test_a_kernel_is_the_same_each_time(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "linear_gelu", "float32", SIZES["odd"])
    assert emitted(problem, {}) == emitted(problem, {})


def test_only_operands_that_tensor_maps_cannot_describe_are_packed(tmp_path: Path) -> None:
    aligned = emitted(problem_of(tmp_path, "transposed", "float16", SIZES["even"]), {})
    odd = emitted(problem_of(tmp_path, "transposed", "float16", SIZES["odd"]), {})
    assert "pack_a" not in aligned and "workspace_bytes" not in aligned
    assert "pack_a" in odd and "pack_b" in odd and "workspace_bytes" in odd


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_at_other_sizes_the_build_names_the_multiple_that_tensor_maps_need(tmp_path: Path) -> None:
    source = emitted(problem_of(tmp_path, "plain", "float16", SIZES["even"]), {})
    there = problem_of(tmp_path, "plain", "float16", SIZES["odd"])
    with pytest.raises(AssertionError, match=f"{NOT_FOR_THIS_SIZE}: needs .* to be a multiple of 8"):
        compile_cuda(tmp_path, there.spec, source, H200.arch)


def test_every_setting_fits_the_shared_memory_of_a_block(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "plain", "float32", SIZES["odd"])
    template, program, recipe = with_wgmma(problem, {})
    knobs = template.knobs(program, recipe, H200)
    for bm in knobs["bm"]:
        for bn in knobs["bn"]:
            for stages in knobs["stages"]:
                plan = hopper.resolve(recipe.choices | {"bm": bm, "bn": bn, "stages": stages}, program)
                assert 2 <= plan.stages <= int(stages) and plan.shared_bytes <= 227 * 1024
                assert plan.bm // 64 // plan.consumers * plan.bn // 2 <= 128


def test_fp32_that_came_out_wrong_is_tried_with_more_exact_arithmetic(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "plain", "float32", SIZES["even"])
    template, program, recipe = with_wgmma(problem, {"arithmetic": "fp16"})
    exact = template.safer(program, recipe)
    assert exact is not None and exact.choices["arithmetic"] == "bf16x3"
    plain = template.safer(program, exact)
    assert plain is not None and "wgmma" not in template.emit(program, plain, problem.spec)


@pytest.mark.parametrize(("dtype", "sizes"), [("float32", SIZES["even"]), ("float16", {"m": 128, "n": 128, "k": 8192})])
def test_every_transformation_changes_the_source_and_opens_knobs_that_exist(
    tmp_path: Path, dtype: str, sizes: dict[str, int]
) -> None:
    problem = problem_of(tmp_path, "linear_gelu", dtype, sizes | {"b": 1})
    template, program, recipe = with_wgmma(problem, {"splits": 1})
    found = template.transformations(program, recipe, H200)
    assert found
    for one in found:
        changed = recipe.with_(one.changes, one.opens)
        assert template.emit(program, changed, problem.spec) != template.emit(program, recipe, problem.spec), one.name
        assert set(one.opens) <= set(template.knobs(program, changed, H200)), one.name


def test_long_sums_of_few_results_are_split(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "plain", "float16", {"m": 128, "n": 256, "k": 32768})
    _, _, recipe = with_wgmma(problem, {})
    assert int(recipe.choices["splits"]) > 1


@pytest.mark.gpu
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", PRODUCTS)
def test_results_on_a_hopper_gpu(tmp_path: Path, case: str, size: str, setting: str) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    dtype = DTYPES[(PRODUCTS.index(case) + list(SIZES).index(size) + list(SETTINGS).index(setting)) % 3]
    problem = problem_of(tmp_path, case, dtype, SIZES[size])
    program = recognize_matmul(problem.spec)
    assert program is not None
    if hopper.refusal(program, H200.arch) is not None:
        pytest.skip("its matrices are too small")
    with tempfile.TemporaryDirectory() as folder:
        source = emitted(problem, SETTINGS[setting])
        kernel = Kernel(compile_cuda(Path(folder), problem.spec, source, H200.arch))
        for _ in range(2):
            found = run(problem, kernel, "cuda")
            for tensor, error in zip(found, errors(problem, found), strict=True):
                limit = FP16_TOLERANCE if setting == "fp16" else TOLERANCE[str(tensor.dtype).removeprefix("torch.")]
                assert math.isfinite(error) and error <= limit, f"error {error:.1e} > {limit:.1e}"
