"""Small pieces of text that every emitted C++ kernel shares."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from engine.proposers.playbook.cpp_math import NEED_NO_ERRNO

_WIDTH = 100
STORE = """\
[[gnu::always_inline]] inline void store(float* p, float value) { *p = value; }
[[gnu::always_inline]] inline void store(float* p, vec value) { *reinterpret_cast<vec_unaligned*>(p) = value; }
"""
SPREAD = """\
inline float spread(One, float value) { return value; }
[[gnu::always_inline]] inline vec spread(Wide, float value) { return splat(value); }
"""
_STREAM = """\
// Stores past the caches, to memory. p is aligned to a whole vector, or it is a single element.
[[gnu::always_inline]] inline void stream(float* p, float value) {{ *p = value; }}
[[gnu::always_inline]] inline void stream(float* p, vec value) {{
#if defined(__clang__)
  __builtin_nontemporal_store(value, reinterpret_cast<vec*>(p));
#elif defined({macro})
  {builtin}(p, value);
#else
  *reinterpret_cast<vec_unaligned*>(p) = value;
#endif
}}
inline void stream_fence() {{
#if defined(__SSE__)
  __builtin_ia32_sfence();
#endif
}}
"""


def stream(lanes: int) -> str:
    """Non-temporal stores of 8 or 16 lanes, ordinary ones where the instruction set has none.

    By builtins: ``immintrin.h`` alone would take longer to compile than the kernel.
    """
    if lanes == 16:
        return _STREAM.format(macro="__AVX512F__", builtin="__builtin_ia32_movntps512")
    return _STREAM.format(macro="__AVX__", builtin="__builtin_ia32_movntps256")


def indent(lines: Iterable[str]) -> list[str]:
    """``lines`` two columns further right; preprocessor lines stay at the margin."""
    return [line if not line or line.startswith("#") else f"  {line}" for text in lines for line in text.split("\n")]


def banner(title: str, ops: Iterable[str]) -> list[str]:
    """The head of a file: what it is, includes, and pragmas that its operations need."""
    lines = [f"// {title}", "#include <cmath>", "#include <cstddef>", ""]
    if NEED_NO_ERRNO & set(ops):
        lines += ['#pragma GCC optimize("no-math-errno", "no-trapping-math")  // lets sqrt and floor be vectorised', ""]
    return lines


def function(comment: str, result: str, name: str, parameters: Sequence[tuple[str, str]], body: list[str]) -> list[str]:
    """A function with ``comment`` above it; parameters that ``body`` does not mention stay unnamed (no warning)."""
    words = set(re.findall(r"\w+", "\n".join(body)))
    texts = [f"{type_} {name}" if name in words else f"{type_} /*{name}*/" for type_, name in parameters]
    lines = [f"inline {result} {name}({', '.join(texts)}) {{"]
    if len(lines[0]) > _WIDTH:
        joined = textwrap.wrap(", ".join(text.replace(" ", "\0") for text in texts), _WIDTH - 6)
        lines = [f"inline {result} {name}(", *(f"    {line}" for line in joined)]
        lines = [line.replace("\0", " ") for line in lines]
        lines[-1] += ") {"
    return [f"// {comment}", *lines, *indent(body), "}"]


def omp_for(schedule: str, chunk: int) -> str:
    """``for schedule(...)``; chunk 0 leaves it to the schedule."""
    return f"for schedule({schedule})" if chunk == 0 else f"for schedule({schedule}, {chunk})"
