"""The epilogue of a matrix product in C++: the function ``finish`` computes outputs from one sum or a vector of
sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from engine.proposers.playbook.analysis.epilogue import ACC, is_acc, tensors_of
from engine.proposers.playbook.codegen.cpp import Cpp
from engine.proposers.playbook.codegen.cpp_math import math_functions
from engine.proposers.playbook.codegen.cpp_options import Arithmetic
from engine.proposers.playbook.codegen.dialect import Namer
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.text import indent
from engine.proposers.playbook.ir.program import Access, PointwiseProgram, needed
from engine.proposers.playbook.ir.sizes import factor, text

GATHER = """\
// Element (i / inner) % count of p, for one i or for kLanes.
[[gnu::always_inline]] inline float gather(One, const float* p, long long i, long long inner, long long count) {
  return p[i / inner % count];
}
inline vec gather(Wide, const float* p, long long i, long long inner, long long count) {
  vec result = {};
  for (int lane = 0; lane < kLanes; ++lane) result[lane] = p[(i + lane) / inner % count];
  return result;
}
"""

PLACES = """\
// (i / inner) % count as a number, for one i or for kLanes.
[[gnu::always_inline]] inline float place(One, long long i, long long inner, long long count) {
  return float(i / inner % count);
}
inline vec place(Wide, long long i, long long inner, long long count) {
  vec result = {};
  for (int lane = 0; lane < kLanes; ++lane) result[lane] = float((i + lane) / inner % count);
  return result;
}
"""


def ops_of(*chains: PointwiseProgram) -> set[str]:
    """Return the operations of all ``chains``."""
    return {chain.values[k].op for chain in chains for k in chain.order}


def preamble(
    chains: Sequence[PointwiseProgram], lanes: int, math: Arithmetic, *, transposes: bool = False
) -> list[str]:
    """Return the types and helpers that ``finish`` and vector code need. If ``lanes`` is 1, the code is scalar.

    ``transposes``: whether the code transposes square blocks.
    """
    ops = ops_of(*chains)
    if lanes == 1:
        return [math_functions(ops, wide=False)]
    body = "\n".join(line for chain in chains for line in finish(chain, 1, lanes))
    pieces = [f"constexpr int kLanes = {lanes};", _vectors("spread(" in body, transposes, lanes)]
    pieces += [GATHER] if "gather(" in body else []
    pieces += [PLACES] if "place(" in body else []
    return [*pieces, math_functions(ops, wide=True, polynomials=math == "polynomial", degree=6)]


@cache
def _vectors(spread: bool, transposes: bool, lanes: int) -> str:
    """Return the types, loads and stores of vectors. Include ``spread`` if a kernel stores one number to all lanes, and
    ``transpose`` if it transposes square blocks.
    """
    code = f"store({' spread(' if spread else ''}{' transpose(' if transposes else ''}"
    return render("_vectors.cpp.j2", code=code, lanes=lanes)


def tensors_struct(names: Iterable[str], outputs: Iterable[str]) -> list[str]:
    """Return the struct ``Tensors``, which contains every pointer that the kernel uses, under the tensor's name."""
    written = set(outputs)
    fields = [f"  {'' if name in written else 'const '}float* {name};" for name in names]
    return ["struct Tensors {", *fields, "};"]


def finish(chain: PointwiseProgram, cols: int, lanes: int, name: str = "finish", to: str = "") -> list[str]:
    """Return the function ``finish(width, t, i, n, acc)``, the epilogue of output ``i`` in column ``n`` of ``cols``.

    If ``lanes`` is above 1, ``finish`` also accepts a vector of sums in one row. A store to ``ACC`` goes to the pointer
    parameter ``to``.
    """
    wide = lanes > 1
    leaves: dict[int, str] = {}
    for k in chain.order:
        value = chain.values[k]
        if is_acc(value):
            leaves[k] = "acc"
        elif value.op == "load":
            leaves[k] = _load(value.tensor, value.access, chain.numel, cols, lanes)
        elif value.op == "position":
            inner, count = value.access.inner, value.access.count
            if wide:
                leaves[k] = f"place(width, i, {text(inner)}, {text(count)})"
            else:
                leaves[k] = f"float({_index('i', inner, count, chain.numel)})"
    taken = Namer(("i", "n", "t", "acc", "width", to))
    lines, texts = Cpp(wide=wide).statements(chain.values, [s.value for s in chain.stores], leaves, taken)
    for store in chain.stores:
        result = texts[store.value]
        target = to if store.tensor == ACC else f"t.{store.tensor} + i"
        if wide:
            result = result if _varies(chain, store.value) else f"spread(width, {result})"
            lines.append(f"store({target}, {result});")
        else:
            lines.append(f"*{target} = {result};" if store.tensor == ACC else f"t.{store.tensor}[i] = {result};")
    kind = "Width width, const Tensors& t, long long i, long long n, Value acc" if wide else (
        "const Tensors& t, long long i, long long n, float acc"
    )  # fmt: skip
    unused = [word for word in ("width", "t", "i", "n", "acc") if not _mentions(lines, word)]
    for word in unused:
        kind = kind.replace(f" {word},", f" /*{word}*/,") if word != "acc" else kind.replace(" acc", " /*acc*/")
    kind += f", float* {to}" if to else ""
    head = ["template <class Width, class Value>"] if wide else []
    note = "// The epilogue of result i in column n, or of kLanes results." if wide else "// The epilogue of result i."
    return [note, *head, f"inline void {name}({kind}) {{", *indent(lines), "}"]


def _mentions(lines: Iterable[str], word: str) -> bool:
    import re

    return any(re.search(rf"\b{word}\b", line) for line in lines)


def _varies(chain: PointwiseProgram, value: int) -> bool:
    loads = (chain.values[k] for k in needed(chain.values, (value,)) if chain.values[k].op == "load")
    return any(is_acc(load) or load.access.count > 1 for load in loads)


def _load(tensor: str, access: Access, numel: int, cols: int, lanes: int) -> str:
    """Return the C expression that loads an element for output ``i`` in column ``n``."""
    inner, count = access.inner, access.count
    if count == 1:
        return f"t.{tensor}[0]"
    if inner % cols == 0 and cols > 1:
        return f"t.{tensor}[{_index('i', inner, count, numel)}]"
    if inner == 1 and count % cols == 0 and cols > 1:
        where = "n" if count == cols else _index("i", 1, count, numel)
        return f"load(width, t.{tensor} + {where})" if lanes > 1 else f"t.{tensor}[{where}]"
    if lanes > 1:
        return f"gather(width, t.{tensor}, i, {text(inner)}, {text(count)})"
    return f"t.{tensor}[{_index('i', inner, count, numel)}]"


def _index(i: str, inner: int, count: int, numel: int) -> str:
    outer = i if inner == 1 else f"{i} / {factor(inner)}"
    return outer if inner * count >= numel else f"{outer} % {factor(count)}"


def pointers(chains: Sequence[PointwiseProgram], *more: str) -> list[str]:
    """Return the names of the tensors in ``Tensors``."""
    return list(dict.fromkeys((*more, *(name for chain in chains for name in tensors_of(chain)))))
