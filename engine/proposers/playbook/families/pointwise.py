"""Pointwise chains: every output element depends on the input elements of its own position."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analyse import analyse
from engine.proposers.playbook.cpp_pointwise import CppPointwise
from engine.proposers.playbook.cuda_pointwise import CudaPointwise
from engine.proposers.playbook.families.base import Family
from engine.proposers.playbook.ir import PointwiseProgram


class Pointwise(Family):
    """gelu, swiglu, relu and any chain of elementwise operators over broadcastable tensors."""

    name = "pointwise"
    templates = (CppPointwise(), CudaPointwise())

    def recognise(self, spec: ProblemSpec) -> PointwiseProgram | None:
        program = analyse(spec)
        return program if isinstance(program, PointwiseProgram) else None
