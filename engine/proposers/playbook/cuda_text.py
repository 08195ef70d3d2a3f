"""CUDA C++ text of the values of a program: literals, arithmetic, and loads of one pack of elements.

A *pack* is ``width`` neighbouring elements that one thread moves with one instruction (16 bytes at width 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from string import Template as Text

from msgspec import Struct

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.ir import Access, Value
from engine.proposers.playbook.signature import launch_signature
from engine.proposers.playbook.sizes import factor, text

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
"""One or two special-function instructions each. Relative error of ``__expf(x)`` is about (2 + 1.2 |x|) * 2^-22
(CUDA C++ Programming Guide, intrinsic functions), so 1e-5 at |x| = 30 where the result is 1e-13 already."""
_TRUTH = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"})

HELPERS = """\
// NaN wins, as in PyTorch (fmaxf drops it).
__device__ __forceinline__ float max_of(float a, float b) {
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
__device__ __forceinline__ float min_of(float a, float b) {
    float c;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
__device__ __forceinline__ float sign_of(float a) { return float(a > 0.0f) - float(a < 0.0f); }
// 1 - 2 / (1 + e^2a): saturates cleanly on both sides, absolute error about 1e-7.
__device__ __forceinline__ float fast_tanh(float a) {
    return 1.0f - __fdividef(2.0f, 1.0f + exp2f(2.885390081777927f * a));
}
"""


def fill(template: str, **names: object) -> str:
    """``template`` with ``$name`` or ``${name}`` replaced; an unknown name is an error."""
    return Text(template).substitute({key: str(value) for key, value in names.items()})


def literal(number: float, words: str = "") -> str:
    """A float literal. ``words``: ``Value.text``."""
    if words:
        return f"float({words})"
    if math.isnan(number):
        return "__int_as_float(0x7fffffff)"
    if abs(number) > 3.4028235677973366e38:
        return "__int_as_float(0x7f800000)" if number > 0 else "__int_as_float(0xff800000)"
    digits = repr(float(number))
    return f"{digits}f" if number >= 0 and not digits.startswith("-") else f"({digits}f)"


def expression(value: Value, arguments: Iterable[str], fast: bool) -> str:
    """The C expression of an arithmetic value, given the expressions of its arguments."""
    pattern = _FAST.get(value.op, _PRECISE[value.op]) if fast else _PRECISE[value.op]
    return pattern.format(*arguments)


def ctype(values: tuple[Value, ...], position: int) -> str:
    """``bool`` for a truth value, else ``float``."""
    value = values[position]
    if value.op == "select":
        return ctype(values, value.args[1])
    return "bool" if value.op in _TRUTH else "float"


def statements(
    values: tuple[Value, ...], order: Iterable[int], name: Callable[[int], str | None], fast: bool
) -> tuple[list[str], Callable[[int], str]]:
    """One line per value of ``order`` that ``name`` does not already name, and the name of every value.

    ``name`` gives the C expression of loads, reduced values and whatever else exists before the lines.
    """

    def refer(position: int) -> str:
        given = name(position)
        if given is not None:
            return given
        value = values[position]
        return literal(value.number, value.text) if value.op == "const" else f"v{position}"

    lines = [
        f"const {ctype(values, k)} v{k} = {expression(values[k], map(refer, values[k].args), fast)};"
        for k in order
        if values[k].op not in ("const", "load", "reduced") and name(k) is None
    ]
    return lines, refer


class Stream(Struct, frozen=True):
    """One tensor as one access of it sees it: ``field`` names its pack in the kernel."""

    field: str
    tensor: str
    access: Access


def streams(values: tuple[Value, ...], positions: Iterable[int]) -> tuple[Stream, ...]:
    """The distinct loads among ``positions``."""
    found: dict[tuple[str, Access], Stream] = {}
    for k in positions:
        value = values[k]
        if value.op == "load":
            found.setdefault((value.tensor, value.access), Stream(f"e{k}", value.tensor, value.access))
    return tuple(found.values())


def stream_of(found: Iterable[Stream], value: Value) -> Stream | None:
    """The stream that ``value``, a load, reads from."""
    return next((s for s in found if s.tensor == value.tensor and s.access == value.access), None)


def pick(access: Access, pointer: str, index: str, domain: str) -> str:
    """Expression of type ``Pack``: the elements of domain elements ``index`` to ``index + width - 1``.

    ``index`` is a multiple of ``width``; ``domain`` is its size, a C constant, and a multiple of ``width`` too.
    """
    return f"pick<{text(access.inner)}, {text(access.count)}, {domain}>({pointer}, {index})"


def place(access: Access, index: str, domain: str) -> str:
    """Index into the accessed tensor of domain element ``index``, in the type of ``index``."""
    return "0" if access.count == 1 else f"place<{text(access.inner)}, {text(access.count)}, {domain}>({index})"


def flat_index(access: Access, index: str, numel: int) -> str:
    """Index into the accessed tensor of domain element ``index``, a ``long long``."""
    outer = f"({index}) / {factor(access.inner)}" if access.inner > 1 else f"({index})"
    return outer if access.inner * access.count >= numel else f"{outer} % {factor(access.count)}"


PICK = """\
// Where element index of the domain finds its element of a tensor.
template <long long inner, long long count, long long domain, class I>
__device__ __forceinline__ I place(I index) {
    const I outer = inner > 1 ? index / I(inner) : index;
    return inner * count >= domain ? outer : outer % I(count);
}
// The elements of a whole pack. index is a multiple of width.
template <long long inner, long long count, long long domain, class I>
__device__ __forceinline__ Pack pick(const float* from, I index) {
    if constexpr (count == 1) {
        return same(from[0]);
    } else if constexpr (inner == 1 && (count >= domain || count % width == 0)) {
        return load(from + (count >= domain ? index : index % I(count)));
    } else if constexpr (inner % width == 0) {
        return same(from[place<inner, count, domain>(index)]);
    } else {
        Pack p;
#pragma unroll
        for (int u = 0; u < width; ++u) p.at[u] = from[place<inner, count, domain>(index + u)];
        return p;
    }
}
"""
_VECTOR = """\
// n floats as one instruction moves them.
template <int n>
struct Vector;
template <>
struct Vector<1> {
    using type = float;
};
template <>
struct Vector<2> {
    using type = float2;
};
template <>
struct Vector<4> {
    using type = float4;
};
"""


def packs(read_hint: str, store_hint: str) -> str:
    """``Pack``, of ``width`` elements, with its loads and stores. Hints: ``plain``, or ``stream`` (evict first)."""
    read = {"plain": "__ldg", "stream": "__ldcs"}[read_hint]
    put = "__stcs(to, q)" if store_hint == "stream" else "*to = q"
    return fill(
        _VECTOR
        + """\
using Quick = Vector<width>::type;
struct Pack {
    float at[width];
};
__device__ __forceinline__ Pack unpacked(const Quick& q) {
    Pack p;
#pragma unroll
    for (int u = 0; u < width; ++u) p.at[u] = reinterpret_cast<const float*>(&q)[u];
    return p;
}
// Data that is read again (weights): the default cache policy.
__device__ __forceinline__ Pack load(const float* from) {
    return unpacked(__ldg(reinterpret_cast<const Quick*>(from)));
}
// Data of one row.
__device__ __forceinline__ Pack load_row(const float* from) {
    return unpacked($read(reinterpret_cast<const Quick*>(from)));
}
__device__ __forceinline__ Pack same(float a) {
    Pack p;
#pragma unroll
    for (int u = 0; u < width; ++u) p.at[u] = a;
    return p;
}
__device__ __forceinline__ void store(float* at, const Pack& p) {
    Quick* to = reinterpret_cast<Quick*>(at);
    Quick q;
#pragma unroll
    for (int u = 0; u < width; ++u) reinterpret_cast<float*>(&q)[u] = p.at[u];
    $put;
}
"""
        + PICK,
        read=read,
        put=put,
    )


def launch(spec: ProblemSpec, used: Iterable[str], body: Iterable[str]) -> str:
    """``launch`` with ``body`` indented, returning the error of the last launch."""
    signature = launch_signature(spec, "cu", frozenset((*used, "stream")))
    lines = "\n".join(f"    {line}" for line in body)
    return f"{signature} {{\n{lines}\n}}\n"
