"""The row pattern: reductions over the last dimensions, with elementwise operators before, between and after."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analysis.analyze import analyze
from engine.proposers.playbook.base import Pattern
from engine.proposers.playbook.ir.program import RowProgram
from engine.proposers.playbook.patterns.rows.cpp import CppRows
from engine.proposers.playbook.patterns.rows.cuda import CudaRows


class Rows(Pattern):
    """Row reductions such as softmax, layernorm, rmsnorm, group norm, sums, norms, and programs built from the same
    primitives.
    """

    name = "rows"
    templates = (CppRows(), CudaRows())

    def recognize(self, spec: ProblemSpec) -> RowProgram | None:
        program = analyze(spec)
        return program if isinstance(program, RowProgram) else None
