"""The attention pattern: scaled dot-product attention of inputs, causal or not, with an elementwise epilogue."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Pattern
from engine.proposers.playbook.patterns.attention.cpp import CppAttention
from engine.proposers.playbook.patterns.attention.cuda import CudaAttention
from engine.proposers.playbook.patterns.attention.program import AttentionProgram, recognize_attention


class Attention(Pattern):
    """Attention as ``scaled_dot_product_attention``, or as softmax(q k^T * s) v built from primitives."""

    name = "attention"
    templates = (CppAttention(), CudaAttention())

    def recognize(self, spec: ProblemSpec) -> AttentionProgram | None:
        return recognize_attention(spec)
