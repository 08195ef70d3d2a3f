"""The pointwise pattern, in which every output element depends only on the input elements at its position."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analysis.analyze import analyze
from engine.proposers.playbook.base import Pattern
from engine.proposers.playbook.ir.program import PointwiseProgram
from engine.proposers.playbook.patterns.pointwise.cpp import CppPointwise
from engine.proposers.playbook.patterns.pointwise.cuda import CudaPointwise


class Pointwise(Pattern):
    """Chains of elementwise operators over broadcastable tensors, such as gelu, swiglu and relu."""

    name = "pointwise"
    templates = (CppPointwise(), CudaPointwise())

    def recognize(self, spec: ProblemSpec) -> PointwiseProgram | None:
        program = analyze(spec)
        return program if isinstance(program, PointwiseProgram) else None
