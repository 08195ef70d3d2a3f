"""CUDA C++: one variable per value, with loads and stores of packs.

A *pack* is ``width`` adjacent elements that one thread loads or stores with one instruction (16 bytes at ``width`` 4).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import Struct

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Language
from engine.proposers.playbook.codegen.dialect import Dialect, Expression, Operator, Values, position
from engine.proposers.playbook.ir.program import Access, Value
from engine.proposers.playbook.ir.sizes import text

_PRECISE = {
    "neg": "-{0}", "abs": "fabsf({0})", "sign": "sign_of({0})", "not": "!{0}",
    "floor": "floorf({0})", "ceil": "ceilf({0})", "round": "rintf({0})", "trunc": "truncf({0})",
    "exp": "expf({0})", "expm1": "expm1f({0})", "log": "logf({0})", "log1p": "log1pf({0})",
    "sqrt": "sqrtf({0})", "rsqrt": "rsqrtf({0})", "reciprocal": "1.0f / {0}",
    "tanh": "tanhf({0})", "sigmoid": "1.0f / (1.0f + expf(-{0}))", "erf": "erff({0})",
    "sin": "sinf({0})", "cos": "cosf({0})", "tan": "tanf({0})", "atan": "atanf({0})",
    "sinh": "sinhf({0})", "cosh": "coshf({0})",
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "pow": "powf({0}, {1})", "max": "max_of({0}, {1})", "min": "min_of({0}, {1})",
    "atan2": "atan2f({0}, {1})", "fmod": "fmodf({0}, {1})",
    "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}", "eq": "{0} == {1}",
    "ne": "{0} != {1}", "and": "{0} && {1}", "or": "{0} || {1}", "select": "{0} ? {1} : {2}",
}  # fmt: skip
_FAST = {
    "exp": "__expf({0})",
    "log": "__logf({0})",
    "reciprocal": "__fdividef(1.0f, {0})",
    "div": "__fdividef({0}, {1})",
    "sigmoid": "__fdividef(1.0f, 1.0f + __expf(-{0}))",
    "tanh": "fast_tanh({0})",
}
"""Intrinsics that compile to one or two special-function instructions.

The relative error of ``__expf(x)`` is about (2 + 1.2 |x|) * 2^-22 (CUDA C++ Programming Guide, intrinsic functions).
At x = -30, the relative error is 1e-5, but exp(x) itself is only 1e-13.
"""
FAST_OPS = frozenset(_FAST)
"""Operations whose code differs with ``fast`` arithmetic."""
_PRECISE_OPERATORS = {op: Operator(pattern) for op, pattern in _PRECISE.items()}
_FAST_OPERATORS = {op: Operator(pattern) for op, pattern in {**_PRECISE, **_FAST}.items()}
_TRUTH = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"})
_LARGEST = 3.4028235677973366e38
"""The threshold above which doubles round to infinity in fp32."""


def compute_capability(arch: str) -> int:
    """Return the number in an architecture's name, such as 90 for ``sm_90a``; 80 for a name without a number."""
    found = re.search(r"\d+", arch)
    return int(found.group()) if found else 80


class Stream(Struct, frozen=True):
    """A tensor that a kernel loads, with the access to its elements. ``field`` is the pack's name in the kernel."""

    field: str
    tensor: str
    access: Access


@dataclass(frozen=True)
class Cuda(Dialect):
    """The CUDA C++ dialect. With ``fast``, kernels use special-function units. With ``packs``, kernels load and store
    whole packs.
    """

    fast: bool = False
    packs: bool = False

    @property
    def language(self) -> Language:
        return "cu"

    def operator(self, op: str) -> Operator:
        return (_FAST_OPERATORS if self.fast else _PRECISE_OPERATORS)[op]

    def number(self, number: float) -> str:
        if math.isnan(number):
            return "__int_as_float(0x7fffffff)"
        if abs(number) > _LARGEST:
            return "__int_as_float(0x7f800000)" if number > 0 else "__int_as_float(0xff800000)"
        digits = repr(float(number))
        return f"({digits}f)" if digits.startswith("-") else f"{digits}f"

    def variable(self, values: Values, k: int, text: Expression, uses: int, leaf: bool) -> str | None:
        return None if leaf or values[k].op == "const" else f"v{k}"

    def type_of(self, values: Values, k: int) -> str:
        value = values[k]
        if value.op == "select":
            return self.type_of(values, value.args[1])
        return "bool" if value.op in _TRUTH else "float"

    def load(self, pointer: str, access: Access, index: str, domain: int, domain_text: str = "") -> str:
        """See ``Dialect.load``. ``domain_text`` is the C expression of the domain's size."""
        if self.packs:
            if access.inner == 1 and access.count >= domain:
                return f"load_row({pointer} + {index})"
            # Both the index and the domain's size are multiples of the width.
            return f"pick<{text(access.inner)}, {text(access.count)}, {domain_text}>({pointer}, {index})"
        if access.count == 1:
            return f"{pointer}[0]"
        return f"{pointer}[place<{text(access.inner)}, {text(access.count)}, {domain_text}>({index})]"

    def store(self, pointer: str, index: str, value: str) -> str:
        return f"store({pointer} + {index}, {value});" if self.packs else f"{pointer}[{index}] = {value};"


def pointer_types(tensors: Iterable[str], spec: ProblemSpec) -> list[dict[str, str]]:
    """Return the ``name`` and ``type`` of each field in ``Tensors``. All elements are fp32."""
    outputs = {tensor.name for tensor in spec.outputs}
    return [{"name": name, "type": "float*" if name in outputs else "const float*"} for name in tensors]


def streams(values: Values, positions: Iterable[int]) -> tuple[Stream, ...]:
    """Return the distinct loads among the values at ``positions``."""
    found: dict[tuple[str, Access], Stream] = {}
    for k in positions:
        value = values[k]
        if value.op == "load":
            found.setdefault((value.tensor, value.access), Stream(f"e{k}", value.tensor, value.access))
    return tuple(found.values())


def stream_of(found: Iterable[Stream], value: Value) -> Stream | None:
    """Return the stream in ``found`` that ``value`` loads; None if there is no such stream."""
    return next((s for s in found if s.tensor == value.tensor and s.access == value.access), None)


def flat_index(access: Access, index: str, domain: int) -> str:
    """Return the C expression of the flat index at which domain element ``index`` (a ``long long``) reads."""
    return position(f"({index})", access.inner, access.count, domain)
