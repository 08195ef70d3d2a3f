"""Find and replace the sizes in a problem file. This module does not import torch.

A size is an integer of at least 2. At module level, a size may be a constant (``ROWS = 1000``; ``M, K = 720, 600``) or
an element of a tuple or list (``SHAPE[0]``). Inside ``get_inputs`` and ``get_init_inputs``, any literal may be a size.
Equal literals form one size, named by its value (``4096``), so that inputs and weights stay consistent. At module
level, a product of integers (``N = 2048 * 2``) is also one size.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from msgspec import Struct

from engine.suggestions import did_you_mean

_FUNCTIONS = ("get_inputs", "get_init_inputs")
SMALLEST_SCALED = 16
"""Smallest size that scales. Smaller sizes (channels, kernel sizes, strides) scale only if no size is this large."""


class SizeError(ValueError):
    """The requested sizes are malformed, or the problem does not accept them. The message gives the reason."""


class _Place(Struct, frozen=True):
    """The position of a number in the file. Line numbers start at 0; columns are UTF-8 byte offsets."""

    line: int
    start: int
    end: int


def sizes_of(source: str) -> dict[str, int]:
    """Return all sizes in a problem file by name, in file order. Raises ``SyntaxError``."""
    return {name: value for name, (value, _) in _found(source).items()}


def with_sizes(source: str, sizes: Mapping[str, int]) -> str:
    """Return the source with other sizes. All other bytes stay the same. Raises ``SizeError``."""
    found = _found(source)
    edits: list[tuple[_Place, int]] = []
    for name, value in sizes.items():
        if name not in found:
            known = ", ".join(f"{one}={was}" for one, (was, _) in found.items()) or "none"
            near = did_you_mean(name, found)
            raise SizeError(f"this problem has no size {name}{f'{near} Its' if near else '; its'} sizes are: {known}")
        edits += [(place, value) for place in found[name][1]]
    lines = [line.encode() for line in source.split("\n")]
    for place, value in sorted(edits, key=lambda edit: (edit[0].line, edit[0].start), reverse=True):
        line = lines[place.line]
        lines[place.line] = line[: place.start] + str(value).encode() + line[place.end :]
    return b"\n".join(lines).decode()


def parse_sizes(text: str) -> dict[str, int]:
    """Parse a list such as ``ROWS=1000,COLUMNS=512``. Raises ``SizeError``."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, sign, value = (word.strip() for word in part.partition("="))
        digits = value.replace("_", "")
        if not name or not sign or not digits.isdecimal() or int(digits) < 1:
            raise SizeError(f"{part.strip()!r} is not a size; write NAME=NUMBER, for example ROWS=1000,COLUMNS=512")
        sizes[name] = int(digits)
    return sizes


def written(sizes: Mapping[str, int]) -> str:
    """Format sizes as ``ROWS=1000, COLUMNS=512``."""
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def scalable(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of at least ``SMALLEST_SCALED``, or all sizes if none is that large."""
    large = {name: value for name, value in sizes.items() if value >= SMALLEST_SCALED}
    return large or dict(sizes)


def smaller(value: int, count: int) -> int:
    """Scale ``value`` for a problem with a quarter of the elements, when ``count`` sizes scale together."""
    return _aligned(value, 0.25 ** (1.0 / max(1, count)))


def larger(value: int, count: int) -> int:
    """Scale ``value`` for a problem with twice as many elements."""
    return _aligned(value, 2.0 ** (1.0 / max(1, count)))


def odd(value: int, count: int) -> int:
    """Return an odd number below ``value``. A result above 11 is not a multiple of 3, 5 or 7. Odd numbers are not
    multiples of common tile sizes.
    """
    wanted = max(3, int(value * 0.8 ** (1.0 / max(1, count))) | 1)
    while wanted > 11 and any(wanted % divisor == 0 for divisor in (3, 5, 7)):
        wanted -= 2
    return wanted


def _aligned(value: int, factor: float) -> int:
    """Return ``value * factor``, rounded to a multiple of a power of two (at most 64) that divides ``value``."""
    unit = min(value & -value, 64)
    while unit * 4 > value and unit > 1:
        unit //= 2
    scaled = max(unit, round(value * factor / unit) * unit)
    if scaled == value:
        scaled += unit if factor > 1 else -unit
    return max(1, scaled)


class _Number(Struct, frozen=True):
    value: int
    place: _Place


def _found(source: str) -> dict[str, tuple[int, list[_Place]]]:
    """Map each name to its value and its positions. The result omits names that the file assigns twice, because such
    names are not constants.
    """
    tree = ast.parse(source)
    constants: dict[str, list[_Number]] = {}
    literals: dict[str, list[_Number]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            pairs = [(target, statement.value) for target in statement.targets]
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            pairs = [(statement.target, statement.value)]
        else:
            pairs = []
        for target, value in pairs:
            for name, number in _assignments(target, value):
                constants.setdefault(name, []).append(number)
        if isinstance(statement, ast.FunctionDef) and statement.name in _FUNCTIONS:
            for number in _literals(statement):
                literals.setdefault(str(number.value), []).append(number)
    kept = {name: numbers for name, numbers in constants.items() if len(numbers) == 1} | literals
    return {name: (numbers[0].value, [number.place for number in numbers]) for name, numbers in kept.items()}


def _assignments(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, _Number]]:
    if isinstance(target, ast.Name):
        if (number := _number(value, _product(value))) is not None:
            yield target.id, number
        elif isinstance(value, ast.Tuple | ast.List):
            for index, element in enumerate(value.elts):
                if (number := _number(element, _product(element))) is not None:
                    yield f"{target.id}[{index}]", number
    elif (
        isinstance(target, ast.Tuple | ast.List)
        and isinstance(value, ast.Tuple | ast.List)
        and len(target.elts) == len(value.elts)
    ):
        for one, element in zip(target.elts, value.elts, strict=True):
            yield from _assignments(one, element)


def _literals(function: ast.FunctionDef) -> Iterator[_Number]:
    """Yield the integers in the function's body. Skip negated integers and indices, because these are usually axes."""
    nodes = list(ast.walk(function))
    axes = {id(node.operand) for node in nodes if isinstance(node, ast.UnaryOp)}
    axes |= {id(part) for node in nodes if isinstance(node, ast.Subscript) for part in ast.walk(node.slice)}
    for node in nodes:
        if isinstance(node, ast.Constant) and id(node) not in axes:
            number = _number(node, node.value)
            if number is not None:
                yield number


def _number(node: ast.expr, value: object) -> _Number | None:
    """Return ``value`` with the node's position if ``value`` is a size and the node is on one line."""
    if type(value) is not int or value < 2 or node.lineno != node.end_lineno:
        return None
    assert node.end_col_offset is not None
    return _Number(value, _Place(node.lineno - 1, node.col_offset, node.end_col_offset))


def _product(node: ast.expr) -> int | None:
    """Return the value of an integer or of a product of integers."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _product(node.left), _product(node.right)
        return left * right if left is not None and right is not None else None
    return None
