"""The scan pattern."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Pattern
from engine.proposers.playbook.patterns.scans.cpp import CppScans
from engine.proposers.playbook.patterns.scans.cuda import CudaScans
from engine.proposers.playbook.patterns.scans.program import ScanProgram, recognize_scan


class Scans(Pattern):
    """Scans like cumsum and cumprod, including reversed, exclusive and masked scans."""

    name = "scans"
    templates = (CppScans(), CudaScans())

    def recognize(self, spec: ProblemSpec) -> ScanProgram | None:
        return recognize_scan(spec)
