"""Scans: which problems the playbook takes, and the results of its C++ and CUDA kernels."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.problem.inspection import inspect_file
from engine.proposers.playbook.base import Unsupported
from engine.proposers.playbook.patterns.scans.program import recognize_scan
from engine.session.records.other_sizes import NOT_FOR_THIS_SIZE
from tests.engine.proposers.playbook import cuda_harness
from tests.engine.proposers.playbook.cpp_harness import Problem, build, check_all, make_problem
from tests.engine.proposers.playbook.cuda_harness import H200
from tests.engine.proposers.playbook.wandering import CPU, known

Shapes = dict[str, tuple[int, ...]]
EXCLUSIVE = (
    "sums = torch.cumsum(x.narrow(1, 0, x.size(1) - 1), dim=1)\n"
    "return torch.cat((torch.zeros_like(x.select(1, 0).unsqueeze(1)), sums), dim=1)"
)
CASES: dict[str, tuple[str, Shapes]] = {
    "sum": ("return torch.cumsum(x, 1)", {"x": (3, 1203)}),
    "product": ("return torch.cumprod(1 + x / 8, dim=-1)", {"x": (2, 3, 70)}),
    "reversed": ("return torch.cumsum(x.flip(1), dim=1).flip(1)", {"x": (4, 333)}),
    "exclusive": (EXCLUSIVE, {"x": (3, 290)}),
    "masked": ("return F.relu(torch.cumsum(x * (y > 0), 1)) + b", {"x": (3, 65), "y": (3, 65), "b": (65,)}),
    "middle": ("return torch.cumsum(x, 1) * 2", {"x": (2, 9, 41)}),
    "middle_reversed": ("return torch.cumsum(x.flip(0), dim=0).flip(0)", {"x": (19, 37)}),
    "middle_exclusive": (EXCLUSIVE, {"x": (2, 11, 33)}),
}


MASKED = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, mask):
        return torch.cumsum(x * mask, dim=1)


def get_inputs():
    return [torch.rand(5, 77), torch.rand(5, 77) > 0.5]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("case", CASES)
def test_a_scan_knows_its_direction_and_its_rows(tmp_path: Path, case: str) -> None:
    program = recognize_scan(make_problem(tmp_path, *CASES[case]).spec)
    assert program is not None
    assert program.reverse == ("reversed" in case)
    assert program.exclusive == ("exclusive" in case)
    assert (program.inner > 1) == case.startswith("middle")


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("return torch.cumsum(x.flip(0), 1)", "flip"),
        ("return torch.cumsum(x.flip(1), 1) + x", "result of flip"),
        ("return torch.cumsum(x[:, 1:], 1)", "slice"),
        ("return torch.cumsum(torch.cumsum(x, 1), 0)", "2 scans"),
        ("return torch.cumsum(x.sum(1), 0)", "result of a reduction"),
        ("return torch.cumsum(x, 1).sum(1)", "reduces the operator's result"),
        ("return torch.cumsum(x, 1, dtype=torch.float64)", "float64"),
        ("return torch.cumsum(x.half(), 1)", "float16"),
    ],
)
def test_a_refusal_gives_the_reason(tmp_path: Path, forward: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        recognize_scan(make_problem(tmp_path, forward, {"x": (4, 12)}).spec)


def test_a_problem_without_scans_belongs_to_another_pattern(tmp_path: Path) -> None:
    assert recognize_scan(make_problem(tmp_path, "return x + 1", {"x": (3, 4)}).spec) is None


def test_every_kernel_in_cpp_is_right(tmp_path: Path) -> None:
    kernels: list[tuple[Any, ...]] = []
    for case in CASES.values():
        problem = make_problem(tmp_path, *case)
        template, program = known(problem.spec)
        for start in template.starts(program, problem.spec, CPU):
            kernels.append((problem, template.emit(program, start.recipe.with_({"tile": 16}), problem.spec)))
    check_all(kernels, tmp_path, optimize="-O1")


def test_every_kernel_in_cuda_is_right(tmp_path: Path) -> None:
    problems: list[Problem] = []
    kernels: list[tuple[Any, str]] = []
    for case in CASES.values():
        problem = make_problem(tmp_path, *case)
        template, program = known(problem.spec, "cu")
        for start in template.starts(program, problem.spec, H200):
            problems.append(problem)
            kernels.append((problem.spec, template.emit(program, start.recipe.with_({"threads": 64}), problem.spec)))
    built = cuda_harness.compile_all_emulated(tmp_path, kernels)
    for problem, (_, source), kernel in zip(problems, kernels, built, strict=True):
        cuda_harness.check(problem, cuda_harness.run(problem, kernel, "cpu"), message=source)


def test_a_mask_may_be_boolean(tmp_path: Path) -> None:
    path = tmp_path / "masked.py"
    path.write_text(MASKED)
    scope: dict[str, Any] = {}
    exec(MASKED, scope)
    problem = Problem(inspect_file(path, "masked"), scope["get_inputs"](), [], scope["Model"]())
    template, program = known(problem.spec)
    recipe = template.starts(program, problem.spec, CPU)[0].recipe
    check_all([(problem, template.emit(program, recipe, problem.spec))], tmp_path, optimize="-O1")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_takes_the_kernels(tmp_path: Path) -> None:
    kernels: list[tuple[Any, ...]] = []
    for case in ("exclusive", "middle_reversed"):
        spec = make_problem(tmp_path, *CASES[case]).spec
        template, program = known(spec, "cu")
        kernels.append((case, spec, template.emit(program, template.starts(program, spec, H200)[0].recipe, spec)))
    code = cuda_harness.machine_code(tmp_path, kernels, H200.arch).read_bytes()
    assert all(f"kernel_{number}".encode() in code for number in range(len(kernels)))


def test_a_kernel_is_right_at_another_size_or_refuses_it(tmp_path: Path) -> None:
    kernels: list[tuple[Any, ...]] = []
    for case, shape in (("exclusive", (2, 47)), ("middle", (3, 5, 70))):
        source, there = make_problem(tmp_path, *CASES[case]), make_problem(tmp_path, CASES[case][0], {"x": shape})
        template, program = known(source.spec)
        kernels.append(
            (there, template.emit(program, template.starts(program, source.spec, CPU)[0].recipe, source.spec))
        )
    check_all(kernels, tmp_path, optimize="-O1")
    forward = "return torch.cumsum(x * y, 1)"
    source = make_problem(tmp_path, forward, {"x": (3, 40), "y": (1, 40)})
    there = make_problem(tmp_path, forward, {"x": (3, 40), "y": (3, 40)})
    template, program = known(source.spec)
    text = template.emit(program, template.starts(program, source.spec, CPU)[0].recipe, source.spec)
    with pytest.raises(AssertionError, match=NOT_FOR_THIS_SIZE):
        build(tmp_path, there.spec, text)
