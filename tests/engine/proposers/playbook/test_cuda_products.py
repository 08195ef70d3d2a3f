"""CUDA templates for matrix products, convolutions and attention.

Everywhere: random recipes on random shapes, with threads emulated on the CPU. With nvcc: a selection of structures is
compiled for sm_80 and sm_90a (``benchmarks/templates.py compile`` compiles all). On a GPU: results.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from engine.devices.fact import DeviceFact
from engine.proposers.playbook.base import Choices, Recipe
from tests.engine.proposers.playbook import test_cpp_attention, test_cpp_conv, test_cpp_matmul
from tests.engine.proposers.playbook.cpp_harness import Problem, make_problem
from tests.engine.proposers.playbook.cuda_harness import (
    A100,
    H200,
    check,
    compile_all_emulated,
    compile_cuda,
    machine_code,
    run,
)
from tests.engine.proposers.playbook.one_unit import Kernel
from tests.engine.proposers.playbook.wandering import known, ladder, wander

DTYPES = ("float32", "float16", "bfloat16")
PRODUCTS = tuple(test_cpp_matmul.PRODUCTS)
CONVOLUTIONS = tuple(test_cpp_conv.CONVOLUTIONS)
ATTENTION = tuple(test_cpp_attention.ATTENTION)
CASES = (*PRODUCTS, *CONVOLUTIONS, *ATTENTION)


def random_problem(folder: Path, case: str, dtype: str, seed: int) -> Problem:
    """Return ``case`` with sizes that are multiples of vector and tile sizes about half of the time."""
    rng = random.Random(f"{case} {dtype} {seed}")

    def size(low: int, high: int) -> int:
        return max(1, rng.randint(low, high) // 8 * 8) if rng.random() < 0.5 else rng.randint(low, high)

    if case in PRODUCTS:
        sizes = {"m": size(1, 80), "n": size(1, 140), "k": size(2, 150), "b": rng.randint(1, 3), "c": rng.randint(1, 2)}
        return make_problem(folder, *test_cpp_matmul.shaped(case, sizes), dtype=dtype)
    if case in ATTENTION:
        sizes = {"b": rng.randint(1, 2), "h": rng.randint(1, 2), "l": size(1, 90), "s": size(1, 150)}
        return make_problem(
            folder, *test_cpp_attention.shaped(case, sizes | {"d": size(1, 80), "e": size(1, 80)}), dtype=dtype
        )
    sizes = {"n": rng.randint(1, 2), "c": size(1, 9), "f": size(1, 40), "high": size(12, 30), "wide": size(12, 30)}
    limits = {"kh": (1, 3), "kw": (1, 4), "s": (1, 2), "t": (1, 3), "p": (0, 2), "q": (0, 3), "d": (1, 2)}
    sizes |= {name: rng.randint(*limit) for name, limit in limits.items()}
    return make_problem(folder, *test_cpp_conv.shaped(case, sizes), dtype=dtype)


def uses_tf32(recipe: Recipe, problem: Problem) -> bool:
    """Return whether fp32 operands were rounded on their way to tensor cores."""
    products = recipe.template in ("matmul_cu", "conv_cu")
    return products and recipe.choices["structure"] in ("tensor", "octets") and problem.inputs[0].dtype == torch.float32


@pytest.mark.parametrize("case", CASES)
def test_whatever_a_search_reaches_is_right(case: str, tmp_path: Path) -> None:
    problems, recipes, sources = [], [], []
    for seed, dtype in enumerate(DTYPES[:2] if len(case) % 2 else DTYPES[::2]):
        problem = random_problem(tmp_path, case, dtype, seed)
        template, program = known(problem.spec, "cu")
        recipe = wander(template, program, problem.spec, 17 * seed + len(case), H200 if seed else A100, 10)
        problems.append(problem)
        recipes.append(recipe)
        sources.append(template.emit(program, recipe, problem.spec))
    kernels = compile_all_emulated(
        tmp_path, [(problem.spec, source) for problem, source in zip(problems, sources, strict=True)]
    )
    for problem, recipe, source, kernel in zip(problems, recipes, sources, kernels, strict=True):
        check(problem, run(problem, kernel, "cpu"), tf32=uses_tf32(recipe, problem), message=source)


TILES: Choices = {"structure": "tiles", "bm": 64, "bn": 64, "bk": 16, "tm": 4, "tn": 8}
TENSOR: Choices = {"structure": "tensor", "bm": 64, "bn": 64, "bk": 32, "vector": True}
STRUCTURES: dict[str, Choices] = {
    "naive": {},
    "several": {"tm": 4, "bm": 32},
    "tiles": TILES,
    "buffered": {**TILES, "copy": "registers", "vector": True, "fused": True},
    "async": {**TILES, "copy": "async", "vector": True, "stages": 4, "group": 4, "math": "fast"},
    "tensor": {**TENSOR, "fused": True},
    "tensor_async": {**TENSOR, "copy": "async", "stages": 3, "bm": 128, "bn": 128, "wm": 2, "wn": 4, "fused": True},
}
COMPILED = [
    ("linear_gated", "several", "float32", A100),
    ("linear_gelu", "async", "float32", H200),
    ("transposed", "buffered", "float16", A100),
    ("broadcast", "tensor_async", "bfloat16", H200),
    ("plain", "tensor", "float32", A100),
    ("pooled", "buffered", "float32", H200),
    ("grouped", "tensor", "float16", A100),
    ("pooled_unevenly", "tensor_async", "float32", H200),
    ("causal", "tiles", "float32", A100),
    ("heads", "naive", "float16", H200),
    ("masked", "tensor_async", "float16", A100),
    ("primitives", "tensor", "bfloat16", H200),
]


def structured(problem: Problem, structure: str, device: DeviceFact) -> tuple[Recipe, str]:
    template, program = known(problem.spec, "cu")
    plain = template.starts(program, problem.spec, device)[-1].recipe
    recipe = plain.with_({key: value for key, value in STRUCTURES[structure].items() if key in plain.choices})
    return recipe, template.emit(program, recipe, problem.spec)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("device", [A100, H200], ids=lambda device: device.arch)
def test_nvcc_takes_every_structure(tmp_path: Path, device: DeviceFact) -> None:
    kernels = []
    for case, structure, dtype in (row[:3] for row in COMPILED if row[3] == device):
        problem = random_problem(tmp_path, case, dtype, 3)
        kernels.append((f"{case} {structure} {dtype}", problem.spec, structured(problem, structure, device)[1]))
    code = machine_code(tmp_path, kernels, device.arch).read_bytes()
    assert all(f"kernel_{number}".encode() in code for number in range(len(kernels)))


@pytest.mark.parametrize("case", ["linear_gelu", "pooled", "causal"])
def test_every_transformation_changes_the_source_or_opens_a_knob_that_exists(tmp_path: Path, case: str) -> None:
    problem = random_problem(tmp_path, case, "float16" if case in ATTENTION else "float32", 0)
    template, program = known(problem.spec, "cu")
    recipe = template.starts(program, problem.spec, H200)[-1].recipe
    for _ in range(6):
        transformations = template.transformations(program, recipe, H200)
        for transformation in transformations:
            changed = recipe.with_(transformation.changes, transformation.opens)
            assert template.emit(program, changed, problem.spec) != template.emit(program, recipe, problem.spec), (
                transformation.name
            )
            assert set(transformation.opens) <= set(template.knobs(program, changed, H200)), transformation.name
        if transformations:
            best = max(transformations, key=lambda one: one.gain)
            recipe = recipe.with_(best.changes, best.opens)
    assert recipe.choices["structure"] == "tensor"
    for step in ladder(template, program, problem.spec, H200):
        assert template.emit(program, step, problem.spec).count('extern "C" int launch(') == 1


def test_what_a_device_lacks_is_not_offered(tmp_path: Path) -> None:
    problem = random_problem(tmp_path, "plain", "float16", 0)
    template, program = known(problem.spec, "cu")
    turing = DeviceFact("gpu", "cuda", "T4", "sm_75", 16 << 30, 40)
    recipe = template.starts(program, problem.spec, turing)[0].recipe.with_({**TENSOR, "copy": "async"})
    source = template.emit(program, recipe, problem.spec)
    assert "wmma" not in source and "__pipeline" not in source


def test_fp32_that_came_out_wrong_on_tensor_cores_is_tried_without_them(tmp_path: Path) -> None:
    problem = random_problem(tmp_path, "plain", "float32", 0)
    template, program = known(problem.spec, "cu")
    recipe = template.starts(program, problem.spec, H200)[-1].recipe.with_(TENSOR)
    safer = template.safer(program, recipe)
    assert safer is not None
    assert "wmma" not in template.emit(program, safer, problem.spec)
    assert template.safer(program, safer) is None


@pytest.mark.gpu
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("case", CASES)
def test_results_on_the_gpu(tmp_path: Path, case: str, structure: str) -> None:
    dtype = DTYPES[(CASES.index(case) + list(STRUCTURES).index(structure)) % 3]
    problem = random_problem(tmp_path, case, dtype, len(structure))
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}" + ("a" if major >= 9 else "")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    recipe, source = structured(problem, structure, DeviceFact("gpu", "cuda", "", arch, 0, sms))
    with tempfile.TemporaryDirectory() as folder:
        found = run(problem, Kernel(compile_cuda(Path(folder), problem.spec, source, arch)), "cuda")
    check(problem, found, tf32=uses_tf32(recipe, problem), message=source)
