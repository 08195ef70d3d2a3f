"""The copies pattern: outputs that are only copies of input elements."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Pattern
from engine.proposers.playbook.patterns.copies.cpp import CppCopies
from engine.proposers.playbook.patterns.copies.cuda import CudaCopies
from engine.proposers.playbook.patterns.copies.program import CopyProgram, recognize_copies


class Copies(Pattern):
    """Transposes, permutations, slices, expansions, concatenations, padding, and triangles of matrices."""

    name = "copies"
    templates = (CppCopies(), CudaCopies())

    def recognize(self, spec: ProblemSpec) -> CopyProgram | None:
        return recognize_copies(spec)
