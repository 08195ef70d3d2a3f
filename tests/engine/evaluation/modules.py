"""``.py`` kernels for the tests: a softmax as KernelBench's ``ModelNew``, honest and dishonest."""

from __future__ import annotations

_TEXT = """
import ctypes, os, threading, time
import torch
{top}

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {before}
        out = torch.softmax(x, dim=1)
        {after}
        return out
"""


def softmax(*, top: str = "", init: str = "pass", before: str = "pass", after: str = "pass") -> str:
    """Return a correct softmax with extra code: at module level, in the constructor, before and after the work."""
    indented = {"init": init, "before": before, "after": after}
    return _TEXT.format(top=top, **{name: text.replace("\n", "\n        ") for name, text in indented.items()})
