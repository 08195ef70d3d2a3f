"""Generate statements and expressions from a program's values, in C++ or CUDA C++.

The class :class:`Dialect` visits the values. The subclasses in ``cpp`` and ``cuda`` supply operators, literals, loads
and stores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.proposers.playbook.base import Language
from engine.proposers.playbook.ir.program import Access, Value
from engine.proposers.playbook.ir.sizes import factor

ATOM = 9
"""The precedence of a name, a call or an expression in parentheses."""
UNARY = 7

Values = tuple[Value, ...]


class Expression(NamedTuple):
    """A C expression, and the precedence of its outermost operator."""

    text: str
    level: int = ATOM

    def grouped(self, level: int) -> str:
        """Return the expression as an operand, in parentheses if its precedence is below ``level``."""
        return self.text if self.level >= level else f"({self.text})"


class Operator(NamedTuple):
    """An operation's syntax: a format string, its precedence, and the lowest precedence that each operand may have."""

    pattern: str
    level: int = ATOM
    operands: tuple[int, ...] = (0, 0, 0)

    def of(self, args: Sequence[Expression]) -> Expression:
        texts = [arg.grouped(level) for arg, level in zip(args, self.operands, strict=False)]
        return Expression(self.pattern.format(*texts), self.level)


class Namer:
    """Assign names that are unique within a function."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)

    def name(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self.taken:
            count += 1
            name = f"{wanted}{count}"
        self.taken.add(name)
        return name


@dataclass(frozen=True)
class Dialect(ABC):
    """One language's syntax for values, loads and stores."""

    @property
    @abstractmethod
    def language(self) -> Language: ...

    @abstractmethod
    def operator(self, op: str) -> Operator:
        """Return the syntax of the operation ``op`` (``ir.program.Value.op``)."""

    @abstractmethod
    def number(self, number: float) -> str:
        """Return a float literal."""

    @abstractmethod
    def load(self, pointer: str, access: Access, index: str, domain: int) -> str:
        """Return the expression that loads the input for domain element ``index``. ``domain``: number of domain
        elements.
        """

    @abstractmethod
    def store(self, pointer: str, index: str, value: str) -> str:
        """Return the statement that writes ``value`` at ``index``."""

    @abstractmethod
    def variable(self, values: Values, k: int, text: Expression, uses: int, leaf: bool) -> str | None:
        """Return the preferred name for value ``k`` if it needs its own variable; None to use its text in place."""

    @abstractmethod
    def type_of(self, values: Values, k: int) -> str:
        """Return the type of a variable for value ``k``."""

    def literal(self, number: float, text: str = "") -> str:
        """Return a constant. ``text`` is the constant as an expression in the header's sizes, if any
        (``Value.text``).
        """
        return f"float({text})" if text else self.number(number)

    def expression(self, value: Value, args: Sequence[Expression]) -> Expression:
        """Return the expression of ``value``, given its arguments' expressions."""
        if value.op == "const":
            text = self.literal(value.number, value.text)
            return Expression(text, UNARY if text.startswith("-") else ATOM)
        return self.operator(value.op).of(args)

    def statements(
        self, values: Values, roots: Iterable[int], leaves: Mapping[int, str], namer: Namer | None = None
    ) -> tuple[list[str], dict[int, str]]:
        """Return statements that compute ``roots``, and an expression for each root.

        Args:
            roots: Positions of the wanted values. A repeated position counts as another use.
            leaves: Values that already have a name or a load expression.
            namer: Tracker of the names in use in the function.
        """
        namer, roots = namer or Namer(), list(roots)
        order, uses = _uses(values, roots, leaves)
        lines: list[str] = []
        texts: dict[int, Expression] = {}
        for k in order:
            leaf = leaves.get(k)
            if leaf is None:
                found = self.expression(values[k], [texts[arg] for arg in values[k].args])
            else:
                found = Expression(leaf)
            wanted = self.variable(values, k, found, uses[k], leaf is not None)
            if wanted is not None:
                name = namer.name(wanted)
                lines.append(declaration(self.type_of(values, k), name, found.text))
                found = Expression(name)
            texts[k] = found
        return lines, {k: texts[k].text for k in roots}


def declaration(type_: str, name: str, text: str) -> str:
    """Return the statement that declares a variable with a value."""
    return f"const {type_} {name} = {text};"


def is_name(text: str) -> bool:
    """Return whether ``text`` is the name of a variable or a member, such as ``row.total``."""
    return text.replace(".", "").replace("_", "").isalnum()


def position(index: str, inner: int, count: int, domain: int = 0) -> str:
    """Return ``index / inner % count`` as a C expression, without redundant steps. ``domain`` is the number of domain
    elements.
    """
    outer = index if inner == 1 else f"{index} / {factor(inner)}"
    return outer if domain and inner * count >= domain else f"{outer} % {factor(count)}"


def _uses(values: Values, roots: list[int], leaves: Mapping[int, str]) -> tuple[list[int], Mapping[int, int]]:
    """Return the values to compute, in order, and the number of uses of each value."""
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
