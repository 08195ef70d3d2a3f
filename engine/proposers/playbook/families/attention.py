"""Attention: scaled dot-product attention of given tensors, causal or not, and elementwise work on its result."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.attention.cpp import CppAttention
from engine.proposers.playbook.attention.cuda import CudaAttention
from engine.proposers.playbook.attention.program import AttentionProgram, recognise_attention
from engine.proposers.playbook.families.base import Family


class Attention(Family):
    """``scaled_dot_product_attention``, and softmax(q k^T * s) v written in primitives."""

    name = "attention"
    templates = (CppAttention(), CudaAttention())

    def recognise(self, spec: ProblemSpec) -> AttentionProgram | None:
        return recognise_attention(spec)
