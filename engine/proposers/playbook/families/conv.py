"""Convolutions: one convolution of given tensors, with bias, elementwise work and max pooling behind it."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.conv.cpp import CppConv
from engine.proposers.playbook.conv.cuda import CudaConv
from engine.proposers.playbook.conv.program import ConvProgram, recognise_conv
from engine.proposers.playbook.families.base import Family


class Conv(Family):
    """``nn.Conv2d`` and ``nn.Conv1d`` with any stride, padding, dilation and groups; ReLU, max pooling and the like."""

    name = "conv"
    templates = (CppConv(), CudaConv())

    def recognise(self, spec: ProblemSpec) -> ConvProgram | None:
        return recognise_conv(spec)
