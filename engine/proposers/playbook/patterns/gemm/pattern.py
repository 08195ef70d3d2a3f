"""The matmul pattern: one product of inputs, batched or not, with an elementwise epilogue."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Pattern
from engine.proposers.playbook.patterns.gemm.cpp import CppMatmul
from engine.proposers.playbook.patterns.gemm.cuda import CudaMatmul
from engine.proposers.playbook.patterns.gemm.program import MatmulProgram, recognize_matmul


class Matmul(Pattern):
    """Matmuls like ``x @ w``, ``torch.matmul`` and ``nn.Linear``, with transposed or broadcast operands and a fused
    epilogue.
    """

    name = "matmul"
    templates = (CppMatmul(), CudaMatmul())

    def recognize(self, spec: ProblemSpec) -> MatmulProgram | None:
        return recognize_matmul(spec)
