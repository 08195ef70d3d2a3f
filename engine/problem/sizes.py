"""The sizes that a problem file names, and the same file with other ones. Imports no torch.

A size is a whole number of at least 2: a module-level constant (``ROWS = 1000``; ``M, K = 720, 600``), an element of
a module-level tuple or list (``SHAPE[0]``), or a literal inside ``get_inputs`` and ``get_init_inputs``, where equal
literals are one size, known by its value (``4096``), so that inputs and weights go on fitting together.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from msgspec import Struct

from engine.near import did_you_mean

_FUNCTIONS = ("get_inputs", "get_init_inputs")
SMALLEST_SCALED = 16
"""Smaller numbers (channels, kernel sizes, strides) are left alone where there are larger ones."""


class SizeError(ValueError):
    """Sizes that cannot be set; says which ones there are."""


class _Place(Struct, frozen=True):
    """Where a number stands: line from 0, columns in bytes of UTF-8."""

    line: int
    start: int
    end: int


def sizes_of(source: str) -> dict[str, int]:
    """Every size of a problem file by its name, in the order of the file. Raises ``SyntaxError``."""
    return {name: value for name, (value, _) in _found(source).items()}


def with_sizes(source: str, sizes: Mapping[str, int]) -> str:
    """The same file with other sizes; all else stays as it was, byte for byte. Raises ``SizeError``."""
    found = _found(source)
    edits: list[tuple[_Place, int]] = []
    for name, value in sizes.items():
        if name not in found:
            known = ", ".join(f"{one}={was}" for one, (was, _) in found.items()) or "none"
            raise SizeError(f"no size {name} in this problem{did_you_mean(name, found)}; there are: {known}")
        edits += [(place, value) for place in found[name][1]]
    lines = [line.encode() for line in source.split("\n")]
    for place, value in sorted(edits, key=lambda edit: (edit[0].line, edit[0].start), reverse=True):
        line = lines[place.line]
        lines[place.line] = line[: place.start] + str(value).encode() + line[place.end :]
    return b"\n".join(lines).decode()


def parse_sizes(text: str) -> dict[str, int]:
    """``ROWS=1000,COLUMNS=512`` as a mapping. Raises ``SizeError``."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, sign, value = (word.strip() for word in part.partition("="))
        digits = value.replace("_", "")
        if not name or not sign or not digits.isdecimal() or int(digits) < 1:
            raise SizeError(f"{part.strip()!r}: a size is NAME=NUMBER, for example ROWS=1000,COLUMNS=512")
        sizes[name] = int(digits)
    return sizes


def written(sizes: Mapping[str, int]) -> str:
    """``ROWS=1000, COLUMNS=512``."""
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


def scalable(sizes: Mapping[str, int]) -> dict[str, int]:
    """Those that are worth scaling: the ones of at least ``SMALLEST_SCALED``, or all where there is none."""
    large = {name: value for name, value in sizes.items() if value >= SMALLEST_SCALED}
    return large or dict(sizes)


def smaller(value: int, count: int) -> int:
    """``value`` for a problem of a quarter of the elements, where ``count`` sizes are scaled alike."""
    return _aligned(value, 0.25 ** (1.0 / max(1, count)))


def larger(value: int, count: int) -> int:
    """``value`` for a problem of twice the elements."""
    return _aligned(value, 2.0 ** (1.0 / max(1, count)))


def odd(value: int, count: int) -> int:
    """An odd number somewhat below ``value``, no multiple of 3, 5 or 7: nothing divides it that a kernel may like."""
    wanted = max(3, int(value * 0.8 ** (1.0 / max(1, count))) | 1)
    while wanted > 11 and any(wanted % divisor == 0 for divisor in (3, 5, 7)):
        wanted -= 2
    return wanted


def _aligned(value: int, factor: float) -> int:
    """``value * factor``, where it can be a multiple of the power of two (up to 64) that ``value`` is a multiple of."""
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
    """Name -> value and every place in which it stands. A name that is assigned twice is no constant."""
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
        if (number := _number(value)) is not None:
            yield target.id, number
        elif isinstance(value, ast.Tuple | ast.List):
            for index, element in enumerate(value.elts):
                if (number := _number(element)) is not None:
                    yield f"{target.id}[{index}]", number
    elif (
        isinstance(target, ast.Tuple | ast.List)
        and isinstance(value, ast.Tuple | ast.List)
        and len(target.elts) == len(value.elts)
    ):
        for one, element in zip(target.elts, value.elts, strict=True):
            yield from _assignments(one, element)


def _literals(function: ast.FunctionDef) -> Iterator[_Number]:
    """Numbers of the function's body, but for negated ones and indices, which are axes and not sizes."""
    nodes = list(ast.walk(function))
    axes = {id(node.operand) for node in nodes if isinstance(node, ast.UnaryOp)}
    axes |= {id(part) for node in nodes if isinstance(node, ast.Subscript) for part in ast.walk(node.slice)}
    for node in nodes:
        if id(node) not in axes and (number := _number(node)) is not None:
            yield number


def _number(node: ast.AST) -> _Number | None:
    if not isinstance(node, ast.Constant) or type(node.value) is not int or node.value < 2:
        return None
    assert node.end_col_offset is not None
    return _Number(node.value, _Place(node.lineno - 1, node.col_offset, node.end_col_offset))
