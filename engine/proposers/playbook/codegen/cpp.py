"""C++ with GCC's vector extensions: scalar code, or code that works on both single elements and vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.proposers.playbook.base import Language
from engine.proposers.playbook.codegen.cpp_math import FUNCTIONS
from engine.proposers.playbook.codegen.dialect import UNARY, Dialect, Expression, Operator, Values, is_name, position
from engine.proposers.playbook.ir.program import Access, Value
from engine.proposers.playbook.ir.sizes import factor, text

_LONG = 76
"""Number of characters above which a subexpression gets its own variable."""


def _infix(sign: str, level: int) -> Operator:
    return Operator(f"{{0}} {sign} {{1}}", level, (level, level + 1))


def _logic(sign: str, level: int) -> Operator:
    return Operator(f"{{0}} {sign} {{1}}", level, (UNARY, UNARY))


_OPERATORS = {
    "or": _logic("|", 0), "and": _logic("&", 1), "eq": _infix("==", 2), "ne": _infix("!=", 2),
    "lt": _infix("<", 3), "le": _infix("<=", 3), "gt": _infix(">", 3), "ge": _infix(">=", 3),
    "add": _infix("+", 4), "sub": _infix("-", 4), "mul": _infix("*", 5), "div": _infix("/", 5),
    "neg": Operator("-{0}", UNARY, (UNARY + 1,)), "not": Operator("!{0}", UNARY, (UNARY + 1,)),
    "reciprocal": Operator("1.0f / {0}", 5, (6,)), "rsqrt": Operator("1.0f / sqrt_of({0})", 5),
    "select": Operator("({0} ? {1} : {2})"),
    **{op: Operator(f"{op}_of({{0}})") for op in FUNCTIONS},
    **{op: Operator(f"{op}_of({{0}}, {{1}})") for op in ("max", "min", "pow", "atan2", "fmod")},
}  # fmt: skip
_WIDE_SELECT = Operator("select_of({0}, {1}, {2})")
_NAMES = {
    "mul": "product", "add": "sum", "sub": "difference", "div": "quotient", "exp": "exponential", "select": "chosen",
    "max": "higher", "min": "lower", "neg": "negated", "rsqrt": "inverse_root", "sqrt": "root",
    "reciprocal": "inverse",
}  # fmt: skip


def name_of(value: Value) -> str:
    """Return the name of a local variable for ``value``."""
    return f"{value.tensor}_value" if value.op == "load" else _NAMES.get(value.op, f"{value.op}_value")


@dataclass(frozen=True)
class Cpp(Dialect):
    """The C++ dialect.

    Attributes:
        wide: Whether the code also works on vectors.
        local: The type of local variables.
        streaming: Whether stores bypass the caches.
    """

    wide: bool = False
    local: str = "auto"
    streaming: bool = False

    @property
    def language(self) -> Language:
        return "cpp"

    def operator(self, op: str) -> Operator:
        return _WIDE_SELECT if self.wide and op == "select" else _OPERATORS[op]

    def number(self, number: float) -> str:
        if math.isnan(number):
            return "NAN"
        if math.isinf(number):
            return "INFINITY" if number > 0 else "-INFINITY"
        return f"{float(number)!r}f"

    def variable(self, values: Values, k: int, text: Expression, uses: int, leaf: bool) -> str | None:
        simple = values[k].op in ("const", "reduced") or (leaf and is_name(text.text))
        return None if simple or (uses == 1 and len(text.text) <= _LONG) else name_of(values[k])

    def type_of(self, values: Values, k: int) -> str:
        return self.local

    def load(self, pointer: str, access: Access, index: str, domain: int) -> str:
        if access.count == 1:
            return f"{pointer}[0]"
        if access.inner == 1 and access.count == domain:
            return f"load(width, {pointer} + {index})" if self.wide else f"{pointer}[{index}]"
        if self.wide:
            return f"pick<{text(access.inner)}, {text(access.count)}>(width, {pointer}, {index})"
        return f"{pointer}[{position(index if is_name(index) else f'({index})', access.inner, access.count)}]"

    def load_row(self, tensor: str, access: Access, rows: int, cols: int) -> tuple[str, str | None]:
        """Return the load at row ``r`` and column ``c``. If the load uses a pointer ``<tensor>_row``, also return the
        address that initializes this pointer.
        """
        if access.inner != 1 or access.count % cols != 0:
            return self.load(tensor, access, "r * kCols + c", 0), None
        here = access.count // cols
        pointer = tensor if here == 1 else f"{tensor}_row"
        row = "r" if here == rows else f"r % {factor(here)}"
        found = f"load(width, {pointer} + c)" if self.wide else f"{pointer}[c]"
        return found, None if here == 1 else f"{tensor} + {row} * kCols"

    def store(self, pointer: str, index: str, value: str) -> str:
        if not self.wide:
            return f"{pointer}[{index}] = {value};"
        return f"{'stream' if self.streaming else 'store'}({pointer} + {index}, {value});"


def load_row_number(tensor: str, access: Access, rows: int, cols: int) -> str:
    """Return a load whose value is the same for every element in row ``r``."""
    if access.count == 1:
        return f"{tensor}[0]"
    return f"{tensor}[{position('r', access.inner // cols, access.count, rows)}]"
