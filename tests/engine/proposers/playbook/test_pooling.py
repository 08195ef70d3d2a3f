"""Pooling: which problems the playbook takes, and the results of its C++ and CUDA kernels."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.proposers.playbook.base import Unsupported
from engine.proposers.playbook.patterns.pooling.program import PoolProgram, recognize_pooling
from engine.session.records.other_sizes import NOT_FOR_THIS_SIZE
from tests.engine.proposers.playbook import cuda_harness
from tests.engine.proposers.playbook.cpp_harness import Problem, build, check_all, make_problem
from tests.engine.proposers.playbook.cuda_harness import H200
from tests.engine.proposers.playbook.wandering import CPU, known

Shape = tuple[int, ...]
CASES: dict[str, tuple[str, Shape]] = {
    "max_1d": ("return F.max_pool1d(x, 8, 1, 4, 3)", (2, 3, 61)),
    "max_2d": ("return F.max_pool2d(x, 4, 1, 1)", (2, 2, 13, 35)),
    "max_2d_dilated": ("return F.relu(F.max_pool2d(x, (3, 2), (2, 3), 1, (2, 1)) + 1)", (1, 3, 14, 22)),
    "max_2d_rounded_up": ("return F.max_pool2d(x, 3, 2, ceil_mode=True)", (2, 3, 12, 24)),
    "max_3d": ("return F.max_pool3d(x, 3, 2, 1, 3)", (2, 9, 11, 17)),
    "average_1d": ("return F.avg_pool1d(x, 8, 1, 4)", (2, 3, 50)),
    "average_2d": ("return F.avg_pool2d(x, 5)", (3, 23, 41)),
    "average_2d_inside": ("return F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)", (2, 2, 10, 13)),
    "average_3d": ("return F.avg_pool3d(x, 3, 2, 1)", (2, 2, 6, 7, 20)),
}


def recognized(folder: Path, forward: str, shape: Shape, dtype: str = "float32") -> PoolProgram | None:
    return recognize_pooling(make_problem(folder, forward, {"x": shape}, dtype=dtype).spec)


@pytest.mark.parametrize("case", CASES)
def test_the_sizes_are_those_of_the_reference(tmp_path: Path, case: str) -> None:
    problem = make_problem(tmp_path, CASES[case][0], {"x": CASES[case][1]})
    program = recognize_pooling(problem.spec)
    assert program is not None
    assert program.size[-1] == problem.spec.outputs[0].shape[-1]
    for axis in range(3):
        reach = (program.window[axis] - 1) * program.dilation[axis] + 1
        space = program.image[axis] + 2 * program.padding[axis] - reach
        rounding = program.stride[axis] - 1 if program.rounds_up else 0
        assert program.size[axis] == (space + rounding) // program.stride[axis] + 1


@pytest.mark.parametrize(
    ("forward", "dtype", "reason"),
    [
        ("return F.avg_pool2d(x, 3, 2, ceil_mode=True)", "float32", "ceil_mode"),
        ("return F.max_pool2d(x, 2, return_indices=True)", "float32", "indices"),
        ("return F.max_pool2d(x, 2)", "float16", "float16"),
        ("return F.max_pool2d(x.exp(), 2)", "float32", "a computed value"),
        ("return F.max_pool2d(x.transpose(2, 3), 2)", "float32", "slices or permutes"),
        ("return F.max_pool2d(F.max_pool2d(x, 2), 2)", "float32", "2 pooling operators"),
        ("return F.avg_pool2d(x, 2).sum(1)", "float32", "reduces the operator's result"),
    ],
)
def test_a_refusal_gives_the_reason(tmp_path: Path, forward: str, dtype: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        recognized(tmp_path, forward, (2, 3, 12, 14), dtype)


def test_a_problem_without_pooling_belongs_to_another_pattern(tmp_path: Path) -> None:
    assert recognized(tmp_path, "return x + 1", (3, 4)) is None


def test_every_kernel_in_cpp_is_right(tmp_path: Path) -> None:
    kernels: list[tuple[Any, ...]] = []
    for forward, shape in CASES.values():
        problem = make_problem(tmp_path, forward, {"x": shape})
        template, program = known(problem.spec)
        for start in template.starts(program, problem.spec, CPU):
            kernels.append((problem, template.emit(program, start.recipe, problem.spec)))
    check_all(kernels, tmp_path, optimize="-O1")


def test_every_kernel_in_cuda_is_right(tmp_path: Path) -> None:
    problems: list[Problem] = []
    kernels: list[tuple[Any, str]] = []
    for forward, shape in CASES.values():
        problem = make_problem(tmp_path, forward, {"x": shape})
        template, program = known(problem.spec, "cu")
        for start in template.starts(program, problem.spec, H200):
            problems.append(problem)
            kernels.append((problem.spec, template.emit(program, start.recipe, problem.spec)))
    built = cuda_harness.compile_all_emulated(tmp_path, kernels)
    for problem, (_, source), kernel in zip(problems, kernels, built, strict=True):
        cuda_harness.check(problem, cuda_harness.run(problem, kernel, "cpu"), message=source)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_takes_the_kernels(tmp_path: Path) -> None:
    kernels: list[tuple[Any, ...]] = []
    for case in ("max_2d_dilated", "average_2d_inside"):
        spec = make_problem(tmp_path, CASES[case][0], {"x": CASES[case][1]}).spec
        template, program = known(spec, "cu")
        kernels.append((case, spec, template.emit(program, template.starts(program, spec, H200)[0].recipe, spec)))
    code = cuda_harness.machine_code(tmp_path, kernels, H200.arch).read_bytes()
    assert all(f"kernel_{number}".encode() in code for number in range(len(kernels)))


def test_a_kernel_is_right_at_another_size(tmp_path: Path) -> None:
    forward = CASES["max_2d"][0]
    source, there = (make_problem(tmp_path, forward, {"x": shape}) for shape in ((2, 2, 13, 35), (1, 3, 6, 9)))
    template, program = known(source.spec)
    recipe = template.starts(program, source.spec, CPU)[0].recipe
    check_all([(there, template.emit(program, recipe, source.spec))], tmp_path, optimize="-O1")
    template, program = known(source.spec, "cu")
    text = template.emit(program, template.starts(program, source.spec, H200)[0].recipe, source.spec)
    cuda_harness.check(there, cuda_harness.run(there, cuda_harness.compile_emulated(tmp_path, there.spec, text), "cpu"))


def test_an_epilogue_with_a_bias_holds_the_kernel_to_its_sizes(tmp_path: Path) -> None:
    forward, init = "return F.avg_pool2d(x, 2) + self.b", "self.b = nn.Parameter(torch.randn(3, 1, 1))"
    source, there = (make_problem(tmp_path, forward, {"x": (2, 3, 8, width)}, init) for width in (10, 12))
    template, program = known(source.spec)
    text = template.emit(program, template.starts(program, source.spec, CPU)[0].recipe, source.spec)
    check_all([(source, text)], tmp_path, optimize="-O1")
    with pytest.raises(AssertionError, match=NOT_FOR_THIS_SIZE):
        build(tmp_path, there.spec, text)
