"""Find the names of a ``.py`` module's CUDA kernels: precompiled ones, Triton kernels, and those that NVRTC compiles.

CUDA registers each kernel under a name that the library contains as a constant. CUPTI reports C++ names with template
arguments and parameters, and Triton names unchanged. A module may copy the name of a library's kernel. A Triton name
from the source must therefore match exactly, and must not look like a cuBLAS name.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from engine.evaluation.inspect import elf, work
from engine.evaluation.judge_policy import POLICY

_WORD = re.compile(rb"(?<=\0)[A-Za-z_$][\w$.]*(?=\0)")
_DECLARED = re.compile(r"__global__\s+(?:[\w\s]|\([^()]*\))*?\b(?!__launch_bounds__)(\w+)\s*\(")


_OF_A_LIBRARY = re.compile(
    r"nvjet_|(?:(?:maxwell|volta|turing|ampere|hopper|blackwell)_|sm\d+_|cutlass|cudnn)\w*"
    r"(?:gemm|conv|fprop|dgrad|wgrad|xmma|cutlass|cudnn)"
)
"""Plain C names of kernels in cuBLAS and cuDNN, such as ``ampere_sgemm_128x64_nn``."""


class OwnKernels:
    """The names of a module's own kernels. ``name in own`` accepts a name as CUPTI reports it.

    ``compiled``: names in the module's libraries. ``written``: CUDA C++ kernels in the source. ``triton``: Triton
    kernels in the source.
    """

    def __init__(self, compiled: set[str], written: set[str], triton: set[str]) -> None:
        self._compiled, self._written, self._triton = compiled, written, triton

    def __contains__(self, name: str) -> bool:
        if name in self._compiled:
            return True
        if _OF_A_LIBRARY.match(name):
            return False
        return name in self._triton or work.short(name).rpartition("::")[2] in self._written


def of(source: str, libraries: Sequence[Path]) -> OwnKernels:
    """Return the kernels of a module and of the libraries that it compiled."""
    compiled = {name[: POLICY.library.name_chars] for library in libraries for name in _registered(library)}
    return OwnKernels(compiled, set(_DECLARED.findall(source)), _in_triton(source))


def _registered(library: Path) -> set[str]:
    """Return all names among a library's constants, and the demangled forms of C++ names."""
    found: set[str] = set()
    with contextlib.suppress(*elf.FAULTS):
        for section in elf.sections(library.read_bytes()):
            if section.name.startswith(".rodata"):
                found |= {word.decode() for word in _WORD.findall(b"\0" + section.content)}
    return found | {torch._C._demangle(name) for name in found if name.startswith("_Z")}


def _in_triton(source: str) -> set[str]:
    """Return the names of functions with the decorator ``@triton.jit``, whatever other decorators they have."""
    try:
        functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError):
        return set()
    return {one.name for one in functions if any(ast.unparse(by).endswith("jit") for by in one.decorator_list)}
