"""Problems as groups: the partition, and their kernels in C++ against the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.patterns import PATTERNS
from engine.proposers.playbook.patterns.groups.template import Groups
from engine.proposers.playbook.playbook import _known, _own
from engine.proposers.protocol import Task
from tests.engine.proposers.playbook.cpp_harness import Problem, check_all, make_problem

CPU = DeviceFact("cpu", "cpu", "", "", 0, 2)
Shapes = dict[str, tuple[int, ...]]

PROBLEMS: dict[str, tuple[str, str, Shapes, str]] = {
    "sum_of_product": ("self.l = nn.Linear(37, 19)", "return F.gelu(self.l(x)).sum(1)", {"x": (13, 37)},
                       "matmul rows"),
    "mlp": ("self.a = nn.Linear(9, 17); self.b = nn.Linear(17, 17); self.c = nn.Linear(17, 17)",
            "return self.c(F.relu(self.b(F.relu(self.a(x)))))", {"x": (5, 9)}, "matmul matmul matmul"),
    "batch_norm": ("self.c = nn.Conv2d(3, 5, 3); self.n = nn.BatchNorm2d(5)",
                   "return F.relu(self.n(self.c(x))) * 2", {"x": (3, 3, 9, 11)}, "conv reductions"),
    "residual": ("self.a = nn.Conv2d(6, 6, 3, padding=1, bias=False); self.m = nn.BatchNorm2d(6); "
                 "self.n = nn.BatchNorm2d(6)",
                 "y = F.relu(self.m(self.a(x)))\nreturn F.relu(self.n(self.a(y)) + x)", {"x": (2, 6, 7, 5)},
                 "conv reductions conv reductions"),
    "two_outputs": ("self.l = nn.Linear(11, 7)", "y = self.l(x)\nreturn y.softmax(-1), y.view(-1), y.mean()",
                    {"x": (3, 5, 11)}, "matmul rows rows"),
}  # fmt: skip


def _recognized(spec: ProblemSpec) -> tuple[ProblemSpec, Groups]:
    task = _own(Task(spec, "", "cpp", CPU, None, None))
    template, _ = _known(task)
    assert isinstance(template, Groups)
    return task.problem, template


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Problem]:
    folder = tmp_path_factory.mktemp("groups")
    return {name: make_problem(folder, forward, shapes, init) for name, (init, forward, shapes, _) in PROBLEMS.items()}


@pytest.mark.parametrize("name", PROBLEMS)
def test_partition_into_the_largest_groups(problems: dict[str, Problem], name: str) -> None:
    spec, template = _recognized(problems[name].spec)
    program = PATTERNS[-1].recognize(spec)
    assert program is not None
    plan = template.plan(program)
    assert " ".join(plan.kinds[step.kind].pattern for step in plan.steps) == PROBLEMS[name][-1]


def test_groups_compute_the_problem(problems: dict[str, Problem], tmp_path: Path) -> None:
    kernels = []
    for problem in problems.values():
        spec, template = _recognized(problem.spec)
        program = PATTERNS[-1].recognize(spec)
        assert program is not None
        kernels += [(problem, template.emit(program, start.recipe, spec)) for start in template.starts(program, spec, CPU)]
    check_all(kernels, tmp_path)
