"""The pattern of reductions over any dimensions, for problems that the row pattern does not support."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Pattern
from engine.proposers.playbook.ir.reductions import ReductionProgram
from engine.proposers.playbook.patterns.reductions.cpp import CppReductions
from engine.proposers.playbook.patterns.reductions.cuda import CudaReductions
from engine.proposers.playbook.patterns.reductions.program import recognize_reductions


class Reductions(Pattern):
    """Sums, means, norms, softmax, extrema and positions of extrema, over any dimensions."""

    name = "reductions"
    templates = (CppReductions(), CudaReductions())

    def recognize(self, spec: ProblemSpec) -> ReductionProgram | None:
        return recognize_reductions(spec)
