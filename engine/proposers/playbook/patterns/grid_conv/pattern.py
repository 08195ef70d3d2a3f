"""The pattern of convolutions over one to three dimensions, transposed or not."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Pattern
from engine.proposers.playbook.patterns.grid_conv.cpp import CppGridConv
from engine.proposers.playbook.patterns.grid_conv.cuda import CudaGridConv
from engine.proposers.playbook.patterns.grid_conv.program import GridConvProgram, recognize_grid_conv


class GridConv(Pattern):
    """Convolutions like ``nn.Conv3d`` and ``nn.ConvTranspose1d`` to ``nn.ConvTranspose3d``, with any stride, padding,
    dilation and groups, and an elementwise epilogue.
    """

    name = "grid_conv"
    templates = (CppGridConv(), CudaGridConv())

    def recognize(self, spec: ProblemSpec) -> GridConvProgram | None:
        return recognize_grid_conv(spec)
