"""The convolution pattern: one convolution of inputs, with bias, an elementwise epilogue and max pooling."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Pattern
from engine.proposers.playbook.patterns.conv.cpp import CppConv
from engine.proposers.playbook.patterns.conv.cuda import CudaConv
from engine.proposers.playbook.patterns.conv.program import ConvProgram, recognize_conv


class Conv(Pattern):
    """Convolutions like ``nn.Conv2d`` and ``nn.Conv1d``, with any stride, padding, dilation and groups, plus ReLU or
    max pooling.
    """

    name = "conv"
    templates = (CppConv(), CudaConv())

    def recognize(self, spec: ProblemSpec) -> ConvProgram | None:
        return recognize_conv(spec)
