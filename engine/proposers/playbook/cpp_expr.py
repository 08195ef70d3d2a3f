"""Prints values of a program as C++: statements for what is used twice, nested expressions for the rest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from engine.proposers.playbook.cpp_math import NEED_HELPER
from engine.proposers.playbook.ir import BINARY_OPS, COMPARE_OPS, LOGIC_OPS, Value

_INFIX = {"add": ("+", 4), "sub": ("-", 4), "mul": ("*", 5), "div": ("/", 5),
          "lt": ("<", 3), "le": ("<=", 3), "gt": (">", 3), "ge": (">=", 3), "eq": ("==", 2), "ne": ("!=", 2),
          "and": ("&", 1), "or": ("|", 0)}  # fmt: skip
_ATOM = 9
_UNARY = 7
_NAMES = {
    "mul": "product", "add": "sum", "sub": "difference", "div": "quotient", "exp": "exponential", "select": "chosen",
    "max": "higher", "min": "lower", "neg": "negated", "rsqrt": "inverse_root", "sqrt": "root",
    "reciprocal": "inverse",
}  # fmt: skip
_LONG = 76
"""Longer expressions are cut by naming a part."""


def literal(number: float, words: str = "") -> str:
    """A float constant; doubles are rounded by the compiler as PyTorch rounds them. ``words``: ``Value.text``."""
    if words:
        return f"float({words})"
    if math.isnan(number):
        return "NAN"
    if math.isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    text = repr(float(number))
    return f"{text}f"


class Namer:
    """Names that are unique in one function."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)

    def name(self, wish: str) -> str:
        name, count = wish, 1
        while name in self.taken:
            count += 1
            name = f"{wish}{count}"
        self.taken.add(name)
        return name


def name_of(value: Value) -> str:
    """What a local variable for ``value`` is called."""
    if value.op == "load":
        return f"{value.tensor}_value"
    return _NAMES.get(value.op, f"{value.op}_value")


def render(
    values: tuple[Value, ...],
    roots: Iterable[int],
    leaves: Mapping[int, str],
    namer: Namer,
    *,
    wide: bool,
    local: str = "auto",
) -> tuple[list[str], dict[int, str]]:
    """Statements that compute ``roots``, and an expression for each of them.

    ``leaves`` are values that already have a name or a load. A root given twice counts as used twice. ``wide``:
    the statements must also hold for vectors.
    ``local`` is the type of local variables.
    """
    roots = list(roots)
    order, uses = _uses(values, roots, leaves)
    lines: list[str] = []
    texts: dict[int, tuple[str, int]] = {}
    for k in order:
        value = values[k]
        if k in leaves:
            text, level = leaves[k], _ATOM
        else:
            text, level = _expression(value, [texts[arg] for arg in value.args], wide)
        simple = value.op in ("const", "reduced") or (k in leaves and _is_name(text))
        if not simple and (uses[k] > 1 or len(text) > _LONG):
            name = namer.name(name_of(value))
            lines.append(f"const {local} {name} = {text};")
            text, level = name, _ATOM
        texts[k] = (text, level)
    return lines, {k: texts[k][0] for k in roots}


def _is_name(text: str) -> bool:
    return text.replace(".", "").replace("_", "").isalnum()


def _uses(
    values: tuple[Value, ...], roots: list[int], leaves: Mapping[int, str]
) -> tuple[list[int], Mapping[int, int]]:
    uses: Counter[int] = Counter(roots)
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        k = waiting.pop()
        if k in seen:
            continue
        seen.add(k)
        if k not in leaves:
            uses.update(values[k].args)
            waiting.extend(values[k].args)
    return sorted(seen), uses


def _expression(value: Value, args: list[tuple[str, int]], wide: bool) -> tuple[str, int]:
    op = value.op
    if op == "const":
        text = literal(value.number, value.text)
        return text, _UNARY if text.startswith("-") else _ATOM
    if op in _INFIX and op in BINARY_OPS | COMPARE_OPS | LOGIC_OPS:
        sign, level = _INFIX[op]
        if op in LOGIC_OPS:
            return f"{_grouped(args[0], _UNARY)} {sign} {_grouped(args[1], _UNARY)}", level
        left = _grouped(args[0], level)
        right = _grouped(args[1], level + 1)
        return f"{left} {sign} {right}", level
    if op == "neg":
        return f"-{_grouped(args[0], _UNARY + 1)}", _UNARY
    if op == "not":
        return f"!{_grouped(args[0], _UNARY + 1)}", _UNARY
    if op == "reciprocal":
        return f"1.0f / {_grouped(args[0], 6)}", 5
    if op == "rsqrt":
        return f"1.0f / sqrt_of({args[0][0]})", 5
    if op == "select":
        condition, a, b = (text for text, _ in args)
        return (f"select_of({condition}, {a}, {b})", _ATOM) if wide else (f"({condition} ? {a} : {b})", _ATOM)
    assert op in NEED_HELPER, f"value {op} has no C++ form"
    return f"{op}_of({', '.join(text for text, _ in args)})", _ATOM


def _grouped(arg: tuple[str, int], level: int) -> str:
    text, own = arg
    return text if own >= level else f"({text})"
