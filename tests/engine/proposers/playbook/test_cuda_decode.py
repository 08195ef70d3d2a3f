"""Attention of a few queries and many keys: results on the CPU, emulated, and its machine code."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from engine.devices.fact import DeviceFact
from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.patterns.attention import decode
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
from tests.engine.proposers.playbook.wandering import known

B200 = DeviceFact("gpu", "cuda", "NVIDIA B200", "sm_100", 192 << 30, 148)
Sizes = tuple[int, int, int, int, int]
"""Matrices, queries, keys, width of a key, width of a value."""
FORWARD = "return F.scaled_dot_product_attention(q, k, v)"
EPILOGUE = "return torch.relu(F.scaled_dot_product_attention(q, k, v)) * 2"
CASES: dict[str, tuple[str, str, Sizes, Choices]] = {
    "one_part": (FORWARD, "float16", (3, 1, 200, 64, 64), {"sms": 2, "work": 1}),
    "parts": (FORWARD, "float16", (2, 1, 333, 64, 64), {"sms": 7, "work": 2, "threads": 64, "unroll": 2}),
    "waves": (FORWARD, "float16", (2, 1, 333, 64, 64), {"sms": 3, "work": 2, "waves": 4, "threads": 64, "unroll": 1}),
    "odd_width": (FORWARD, "float16", (2, 1, 129, 37, 53), {"sms": 2, "work": 2, "threads": 64}),
    "wide_values": (FORWARD, "bfloat16", (1, 1, 131, 64, 264), {"sms": 2, "work": 2, "threads": 64}),
    "several_queries": (FORWARD, "float32", (2, 4, 150, 48, 48), {"sms": 4, "work": 4, "threads": 64, "unroll": 1}),
    "epilogue": (EPILOGUE, "float32", (2, 1, 140, 20, 36), {"sms": 3, "work": 2, "threads": 64}),
}


def problem_of(folder: Path, forward: str, dtype: str, sizes: Sizes) -> Problem:
    matrices, queries, keys, width, values = sizes
    shapes = {"q": (matrices, 2, queries, width), "k": (matrices, 2, keys, width), "v": (matrices, 2, keys, values)}
    return make_problem(folder, forward, shapes, dtype=dtype)


def emitted(problem: Problem, choices: Choices, device: DeviceFact = A100) -> str:
    template, program = known(problem.spec, "cu")
    start = template.starts(program, problem.spec, device)[0].recipe
    assert start.choices["structure"] == decode.STRUCTURE
    return template.emit(program, start.with_(choices), problem.spec)


def test_results_in_the_emulator(tmp_path: Path) -> None:
    problems = [problem_of(tmp_path, forward, dtype, sizes) for forward, dtype, sizes, _ in CASES.values()]
    sources = [emitted(problem, case[-1]) for problem, case in zip(problems, CASES.values(), strict=True)]
    kernels = compile_all_emulated(tmp_path, [(p.spec, s) for p, s in zip(problems, sources, strict=True)])
    for problem, source, kernel in zip(problems, sources, kernels, strict=True):
        check(problem, run(problem, kernel, "cpu"), message=source)


def test_a_kernel_is_right_at_other_sizes(tmp_path: Path) -> None:
    source = emitted(problem_of(tmp_path, FORWARD, "float16", (3, 1, 200, 64, 64)), {"sms": 5, "work": 1})
    sizes: list[Sizes] = [(1, 1, 90, 48, 48), (2, 1, 151, 57, 57), (4, 1, 301, 80, 80)]
    problems = [problem_of(tmp_path, FORWARD, "float16", each) for each in sizes]
    kernels = compile_all_emulated(tmp_path, [(problem.spec, source) for problem in problems])
    for problem, kernel in zip(problems, kernels, strict=True):
        check(problem, run(problem, kernel, "cpu"), message=source)


def test_scores_that_grow_along_the_keys_keep_their_weights(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, FORWARD, "float32", (1, 1, 180, 32, 32))
    problem.inputs[1].mul_(torch.linspace(0.1, 40, 180)[:, None])
    (kernel,) = compile_all_emulated(tmp_path, [(problem.spec, emitted(problem, {"sms": 3, "work": 2, "threads": 64}))])
    check(problem, run(problem, kernel, "cpu"))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("device", [A100, H200, B200], ids=lambda device: device.arch)
def test_it_compiles(tmp_path: Path, device: DeviceFact) -> None:
    parts = []
    for name in ("one_part", "odd_width", "wide_values"):
        forward, dtype, sizes, choices = CASES[name]
        problem = problem_of(tmp_path, forward, dtype, sizes)
        parts.append((name, problem.spec, emitted(problem, choices, device)))
    machine_code(tmp_path, parts, device.arch)


def test_many_queries_or_a_causal_mask_keep_the_other_structures(tmp_path: Path) -> None:
    causal = "return F.scaled_dot_product_attention(q, k, v, is_causal=True)"
    for forward, queries in ((FORWARD, 5), (causal, 1)):
        problem = problem_of(tmp_path, forward, "float16", (2, queries, 200, 64, 64))
        template, program = known(problem.spec, "cu")
        starts = template.starts(program, problem.spec, H200)
        assert decode.STRUCTURE not in [start.recipe.choices["structure"] for start in starts]


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_results_on_the_gpu(tmp_path: Path, case: str) -> None:
    forward, dtype, sizes, choices = CASES[case]
    problem = problem_of(tmp_path, forward, dtype, sizes)
    major, minor = torch.cuda.get_device_capability()
    device = H200 if major == 9 else DeviceFact("gpu", "cuda", "", f"sm_{major}{minor}", 0, 108)
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        library = compile_cuda(Path(folder), problem.spec, emitted(problem, choices, device), device.arch)
        check(problem, run(problem, Kernel(library), "cuda"))
