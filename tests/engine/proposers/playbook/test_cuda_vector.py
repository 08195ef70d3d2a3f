"""Products of a matrix and a vector: results of the CUDA kernels, emulated on the CPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.proposers.playbook.base import Choices, Recipe
from engine.proposers.playbook.patterns.gemm.cuda_vector import STRUCTURE, is_matrix_vector
from engine.proposers.playbook.patterns.gemm.program import MatmulProgram
from tests.engine.proposers.playbook import cuda_harness
from tests.engine.proposers.playbook.cpp_harness import Problem, make_problem
from tests.engine.proposers.playbook.cuda_harness import H200
from tests.engine.proposers.playbook.wandering import known

Shapes = dict[str, tuple[int, ...]]
# name: forward, shapes, constructor, dtype, choices
CASES: dict[str, tuple[str, Shapes, str, str, Choices]] = {
    "column": ("return x @ y", {"x": (37, 1000), "y": (1000, 1)}, "", "float32", {"lines": 4, "team": 256}),
    "vector": ("return F.relu(x @ y) * 2", {"x": (9, 77), "y": (77,)}, "", "float32", {"lines": 2, "team": 32}),
    "linear": ("return self.l(x)", {"x": (1, 264)}, "self.l = nn.Linear(264, 50)", "float16", {"lines": 8, "team": 32}),
    "batch": ("return x @ y", {"x": (3, 10, 36), "y": (3, 36, 1)}, "", "float32", {"lines": 1, "team": 256}),
}


def kernel_of(folder: Path, case: str) -> tuple[Problem, str]:
    forward, shapes, init, dtype, choices = CASES[case]
    problem = make_problem(folder, forward, shapes, init, dtype)
    template, program = known(problem.spec, "cu")
    assert isinstance(program, MatmulProgram) and is_matrix_vector(program)
    plain = template.starts(program, problem.spec, H200)[-1].recipe.choices
    recipe = Recipe(template.name, {**plain, "structure": STRUCTURE, **choices})
    return problem, template.emit(program, recipe, problem.spec)


def test_every_kernel_is_right(tmp_path: Path) -> None:
    kernels = [kernel_of(tmp_path, case) for case in CASES]
    built = cuda_harness.compile_all_emulated(tmp_path, [(problem.spec, source) for problem, source in kernels])
    for (problem, source), kernel in zip(kernels, built, strict=True):
        cuda_harness.check(problem, cuda_harness.run(problem, kernel, "cpu"), message=source)


def test_many_lines_start_with_the_kernel(tmp_path: Path) -> None:
    for lines, first in ((3000, "vector"), (64, "dots")):
        spec = make_problem(tmp_path, "return x @ y", {"x": (lines, 64), "y": (64, 1)}).spec
        template, program = known(spec, "cu")
        assert template.starts(program, spec, H200)[0].name == first


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_takes_the_kernels(tmp_path: Path) -> None:
    kernels = [(case, problem.spec, source) for case in CASES for problem, source in [kernel_of(tmp_path, case)]]
    code = cuda_harness.machine_code(tmp_path, kernels, H200.arch).read_bytes()
    assert all(f"kernel_{number}".encode() in code for number in range(len(kernels)))
