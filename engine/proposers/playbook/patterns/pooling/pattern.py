"""The pooling pattern."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Pattern
from engine.proposers.playbook.patterns.pooling.cpp import CppPooling
from engine.proposers.playbook.patterns.pooling.cuda import CudaPooling
from engine.proposers.playbook.patterns.pooling.program import PoolProgram, recognize_pooling


class Pooling(Pattern):
    """Max and average pooling with an elementwise epilogue."""

    name = "pooling"
    templates = (CppPooling(), CudaPooling())

    def recognize(self, spec: ProblemSpec) -> PoolProgram | None:
        return recognize_pooling(spec)
