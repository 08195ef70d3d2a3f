"""Convolutions whose filters read one channel each: results of the CUDA kernels, emulated on the CPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.proposers.playbook.base import Choices
from tests.engine.proposers.playbook import cuda_harness
from tests.engine.proposers.playbook.cpp_harness import Problem, make_problem
from tests.engine.proposers.playbook.cuda_harness import H200
from tests.engine.proposers.playbook.wandering import known

# name: forward, shape of x, constructor, dtype, choices
CASES: dict[str, tuple[str, tuple[int, ...], str, str, Choices]] = {
    "square": ("return self.c(x)", (2, 5, 13, 37), "self.c = nn.Conv2d(5, 5, 3, groups=5, bias=False)", "float32", {}),
    "epilogue": (
        "return F.relu(self.c(x)) * 2", (1, 4, 20, 9),
        "self.c = nn.Conv2d(4, 8, (3, 5), stride=(2, 1), padding=(1, 2), groups=4)", "float32", {"rows": 4},
    ),
    "dilated": (
        "return self.c(x)", (2, 3, 17, 19),
        "self.c = nn.Conv2d(3, 3, 3, stride=3, padding=2, dilation=2, groups=3)", "float16", {"rows": 2},
    ),
    "line": ("return self.c(x)", (2, 6, 70), "self.c = nn.Conv1d(6, 6, 7, padding=3, groups=6)", "float32", {}),
    "strided_input": (
        "return self.c(x.transpose(2, 3))", (2, 4, 9, 12),
        "self.c = nn.Conv2d(4, 4, 7, padding=3, groups=4)", "float32", {"rows": 16},
    ),
}  # fmt: skip


def kernel_of(folder: Path, case: str) -> tuple[Problem, str]:
    forward, shape, init, dtype, choices = CASES[case]
    problem = make_problem(folder, forward, {"x": shape}, init, dtype)
    template, program = known(problem.spec, "cu")
    first = template.starts(program, problem.spec, H200)[0]
    assert first.name == "channels"
    return problem, template.emit(program, first.recipe.with_(choices), problem.spec)


def test_every_kernel_is_right(tmp_path: Path) -> None:
    kernels = [kernel_of(tmp_path, case) for case in CASES]
    built = cuda_harness.compile_all_emulated(tmp_path, [(problem.spec, source) for problem, source in kernels])
    for (problem, source), kernel in zip(kernels, built, strict=True):
        cuda_harness.check(problem, cuda_harness.run(problem, kernel, "cpu"), message=source)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_takes_the_kernels(tmp_path: Path) -> None:
    kernels = [(case, problem.spec, source) for case in CASES for problem, source in [kernel_of(tmp_path, case)]]
    code = cuda_harness.machine_code(tmp_path, kernels, H200.arch).read_bytes()
    assert all(f"kernel_{number}".encode() in code for number in range(len(kernels)))
