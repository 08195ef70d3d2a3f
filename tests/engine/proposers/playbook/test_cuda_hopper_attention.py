"""Attention with wgmma: where it applies, what nvcc makes of it, and on a Hopper GPU its results."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from engine.problem.c_header import derive_header
from engine.proposers.playbook.base import Choices, Recipe, Template
from engine.proposers.playbook.patterns.attention import hopper
from engine.proposers.playbook.patterns.attention.program import AttentionProgram
from tests.engine.proposers.playbook import test_cpp_attention
from tests.engine.proposers.playbook.cpp_harness import Problem, make_problem
from tests.engine.proposers.playbook.cuda_harness import A100, H200, check, compile_cuda, machine_code, run
from tests.engine.proposers.playbook.one_unit import Kernel, in_one_unit
from tests.engine.proposers.playbook.wandering import known
from tests.patience import PATIENCE_S

Sizes = dict[str, int]
HEADLINE: Sizes = {"b": 32, "h": 32, "l": 512, "s": 512, "d": 64, "e": 64}
SIZES: dict[str, Sizes] = {
    "even": {"b": 2, "h": 3, "l": 256, "s": 384, "d": 64, "e": 64},
    "odd": {"b": 2, "h": 3, "l": 201, "s": 333, "d": 64, "e": 64},
    "wide": {"b": 1, "h": 2, "l": 300, "s": 217, "d": 128, "e": 128},
    "uneven": {"b": 2, "h": 1, "l": 517, "s": 90, "d": 40, "e": 72},
    "widest": {"b": 1, "h": 2, "l": 130, "s": 500, "d": 256, "e": 256},
    "tiny": {"b": 1, "h": 2, "l": 5, "s": 3, "d": 8, "e": 8},
}
SETTINGS: dict[str, Choices] = {
    "first": {},
    "long_tiles": {"groups": 2, "keys": 128, "stages": 4},
    "three": {"groups": 3, "keys": 128, "stages": 3},
    "no_turns": {"groups": 4, "keys": 64, "turns": False},
    "long_turns": {"groups": 2, "keys": 128, "stages": 4, "turns": True},
    "short_tiles": {"groups": 1, "keys": 32, "stages": 2},
    "two_blocks": {"sms": 2},
}
CASES = tuple(test_cpp_attention.ATTENTION)


def problem_of(folder: Path, case: str, dtype: str, sizes: Sizes) -> Problem:
    return make_problem(folder, *test_cpp_attention.shaped(case, sizes), dtype=dtype)


def with_wgmma(problem: Problem, changes: Choices) -> tuple[Template, AttentionProgram, Recipe]:
    template, program = known(problem.spec, "cu")
    assert isinstance(program, AttentionProgram)
    start = template.starts(program, problem.spec, H200)[0]
    assert start.name == hopper.STRUCTURE
    return template, program, start.recipe.with_(changes)


def emitted(problem: Problem, changes: Choices) -> str:
    template, program, recipe = with_wgmma(problem, changes)
    return template.emit(program, recipe, problem.spec)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_products_stay_asynchronous_and_in_registers(tmp_path: Path) -> None:
    parts = []
    for case, dtype, sizes, setting in [
        ("operator", "float16", HEADLINE, "first"),
        ("operator", "float16", HEADLINE, "no_turns"),
        ("operator", "float16", HEADLINE, "long_turns"),
        ("causal", "bfloat16", SIZES["odd"], "first"),
        ("causal", "float16", SIZES["wide"], "first"),
        ("heads", "float16", SIZES["uneven"], "first"),
        ("operator", "bfloat16", SIZES["widest"], "first"),
    ]:
        problem = problem_of(tmp_path, case, dtype, sizes)
        parts.append(
            (f"{case} {dtype} {sizes}", derive_header(problem.spec, "cu"), emitted(problem, SETTINGS[setting]))
        )
    source = tmp_path / "kernels.cu"
    source.write_text(in_one_unit(parts))
    command = ["nvcc", "-O3", "-std=c++17", "-cubin", "-Xptxas", "-v", "-Werror", "all-warnings"]
    command += ["-gencode", "arch=compute_90a,code=sm_90a", str(source), "-o", str(tmp_path / "kernels.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    report = done.stdout + done.stderr
    assert not re.findall(r"C75\d\d", report), report
    spills = [int(size) for size in re.findall(r"(\d+) bytes spill", report)]
    assert len(spills) >= 2 * len(parts) and not any(spills), report


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_wgmma_comes_first_on_hopper_only(tmp_path: Path, dtype: str) -> None:
    problem = problem_of(tmp_path, "causal", dtype, SIZES["odd"])
    template, program = known(problem.spec, "cu")
    assert [start.name for start in template.starts(program, problem.spec, H200)] == ["wgmma", "warps"]
    assert [start.name for start in template.starts(program, problem.spec, A100)] == ["warps"]


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        ("float32", {}),
        ("float16", {"d": 20}),
        ("float16", {"e": 71}),
        ("bfloat16", {"d": 264}),
        ("float16", {"e": 512}),
    ],
)
def test_what_wgmma_and_tensor_maps_cannot_read_keeps_the_other_structures(
    tmp_path: Path, dtype: str, sizes: Sizes
) -> None:
    problem = problem_of(tmp_path, "causal", dtype, SIZES["odd"] | sizes)
    template, program = known(problem.spec, "cu")
    assert [start.name for start in template.starts(program, problem.spec, H200)] == ["warps"]


def test_transposed_keys_keep_the_other_structures(tmp_path: Path) -> None:
    shapes: dict[str, tuple[int, ...]] = {"q": (2, 64, 64), "k": (2, 64, 128), "v": (2, 128, 64)}
    problem = make_problem(tmp_path, "return torch.softmax(q @ k, -1) @ v", shapes, dtype="float16")
    template, program = known(problem.spec, "cu")
    assert [start.name for start in template.starts(program, problem.spec, H200)] == ["warps"]


def test_a_kernel_is_the_same_each_time(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "heads", "float16", SIZES["odd"])
    assert emitted(problem, {}) == emitted(problem, {})


@pytest.mark.parametrize("size", SIZES)
def test_every_setting_fits_shared_memory_and_registers(tmp_path: Path, size: str) -> None:
    problem = problem_of(tmp_path, "causal", "float16", SIZES[size])
    template, program, recipe = with_wgmma(problem, {})
    knobs = template.knobs(program, recipe, H200)
    for values in itertools.product(*knobs.values()):
        plan = hopper.resolve(program, recipe.with_(dict(zip(knobs, values, strict=True))).choices)
        assert plan.groups >= 1 and plan.stages >= 2 and plan.tile_keys % 16 == 0 < plan.tile_keys
        assert plan.shared_bytes <= 227 * 1024 and plan.needed_registers <= plan.registers
        # What consumers gain comes out of what the block got at its launch. Otherwise, they would wait forever.
        at_launch = min(255, 65536 // (128 * (plan.groups + 1))) // 8 * 8
        assert plan.registers * plan.groups + hopper.PRODUCER_REGISTERS <= at_launch * (plan.groups + 1)


@pytest.mark.parametrize("case", ["operator", "causal"])
@pytest.mark.parametrize("size", ["even", "wide"])
def test_every_transformation_changes_the_source_and_opens_knobs_that_exist(
    tmp_path: Path, case: str, size: str
) -> None:
    problem = problem_of(tmp_path, case, "float16", SIZES[size])
    template, program, recipe = with_wgmma(problem, {})
    found = template.transformations(program, recipe, H200)
    assert found
    for one in found:
        changed = recipe.with_(one.changes, one.opens)
        assert template.emit(program, changed, problem.spec) != template.emit(program, recipe, problem.spec), one.name
        assert set(one.opens) <= set(template.knobs(program, changed, H200)), one.name


def test_wrong_outputs_are_tried_without_tensor_cores(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "operator", "float16", SIZES["even"])
    template, program, recipe = with_wgmma(problem, {})
    safer = template.safer(program, recipe)
    assert safer is not None and safer.choices["structure"] == "tiles"
    assert "wgmma" not in template.emit(program, safer, problem.spec)
    assert template.safer(program, safer) is None


OTHER_SIZES: dict[str, Sizes] = {
    "longer": SIZES["odd"] | {"l": 1001},
    "narrower": SIZES["odd"] | {"d": 48, "e": 40},
    "wider": SIZES["odd"] | {"d": 80, "e": 96},
    "unaligned": SIZES["odd"] | {"d": 61, "e": 61},
}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_a_kernel_builds_at_other_sizes(tmp_path: Path) -> None:
    source = emitted(problem_of(tmp_path, "causal", "float16", SIZES["even"]), {})
    others = [(name, problem_of(tmp_path, "causal", "float16", sizes)) for name, sizes in OTHER_SIZES.items()]
    machine_code(tmp_path, [(name, problem.spec, source) for name, problem in others], H200.arch)


@pytest.mark.gpu
@pytest.mark.parametrize("size", OTHER_SIZES)
@pytest.mark.parametrize("case", ["operator", "causal"])
def test_a_kernel_is_right_at_other_sizes_on_a_hopper_gpu(tmp_path: Path, case: str, size: str) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    source = emitted(problem_of(tmp_path, case, "float16", SIZES["even"]), {})
    other = problem_of(tmp_path, case, "float16", OTHER_SIZES[size])
    library = compile_cuda(tmp_path, other.spec, source, H200.arch)
    check(other, run(other, Kernel(library), "cuda"))


def on_hopper(folder: Path, problem: Problem, changes: Choices) -> list[torch.Tensor]:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        library = compile_cuda(Path(place), problem.spec, emitted(problem, changes), H200.arch)
        return run(problem, Kernel(library), "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES)
def test_results_on_a_hopper_gpu(tmp_path: Path, case: str, size: str, setting: str) -> None:
    dtype = ("float16", "bfloat16")[(CASES.index(case) + list(SIZES).index(size) + len(setting)) % 2]
    problem = problem_of(tmp_path, case, dtype, SIZES[size])
    check(problem, on_hopper(tmp_path, problem, SETTINGS[setting]))


@pytest.mark.gpu
@pytest.mark.parametrize(("case", "scale"), [("operator", 0.3), ("operator", -0.3), ("causal", 0.3)])
def test_scores_that_grow_along_the_keys_on_a_hopper_gpu(tmp_path: Path, case: str, scale: float) -> None:
    # A causal mask with a negative scale has no reference: PyTorch 2.11 returns NaN for it on a CPU.
    forward = f"return F.scaled_dot_product_attention(q, k, v, is_causal={case == 'causal'}, scale={scale})"
    shapes = test_cpp_attention.shaped(case, SIZES["odd"])[1]
    problem = make_problem(tmp_path, forward, shapes, dtype="float16")
    problem.inputs[1].mul_(torch.linspace(0.1, 6, SIZES["odd"]["s"])[:, None])
    check(problem, on_hopper(tmp_path, problem, {}))
