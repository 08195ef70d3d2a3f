"""Row reductions: reductions over the last dimensions with elementwise operators before, between and after."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analyse import analyse
from engine.proposers.playbook.cpp_rows import CppRows
from engine.proposers.playbook.cuda_rows_template import CudaRows
from engine.proposers.playbook.families.base import Family
from engine.proposers.playbook.ir import RowProgram


class Rows(Family):
    """softmax, layernorm, rmsnorm, group norm, sums, norms and what is written in their primitives."""

    name = "rows"
    templates = (CppRows(), CudaRows())

    def recognise(self, spec: ProblemSpec) -> RowProgram | None:
        program = analyse(spec)
        return program if isinstance(program, RowProgram) else None
