"""Matrix products: one product of given tensors, batched or not, with elementwise work on its result."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.families.base import Family
from engine.proposers.playbook.matmul.cpp import CppMatmul
from engine.proposers.playbook.matmul.cuda import CudaMatmul
from engine.proposers.playbook.matmul.program import MatmulProgram, recognise_matmul


class Matmul(Family):
    """``x @ w``, ``torch.matmul``, ``nn.Linear``, transposed or broadcast operands, and a fused epilogue."""

    name = "matmul"
    templates = (CppMatmul(), CudaMatmul())

    def recognise(self, spec: ProblemSpec) -> MatmulProgram | None:
        return recognise_matmul(spec)
