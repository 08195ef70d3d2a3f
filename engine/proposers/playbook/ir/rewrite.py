"""Rewrite programs without changing the results, except for rounding."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from engine.proposers.playbook.ir.program import PointwiseProgram, Reduction, RowProgram, Value


def row_reciprocals(program: RowProgram) -> RowProgram:
    """Replace divisions by a per-row number with multiplications by its reciprocal, which a kernel computes once per
    row.
    """

    def fixed(value: Value) -> bool:
        position = value.args[1]
        return program.per_row[position]

    values, moved = _with_reciprocals(program.values, lambda k, value: fixed(value) and not program.per_row[k])
    return RowProgram(
        program.rows,
        program.cols,
        values,
        tuple(Reduction(r.op, moved[r.source]) for r in program.reductions),
        tuple(replace(store, value=moved[store.value]) for store in program.stores),
    )


def pointwise_reciprocals(program: PointwiseProgram) -> PointwiseProgram:
    """Replace divisions by a number that all elements share with multiplications by its reciprocal."""

    def fixed(position: int) -> bool:
        value = program.values[position]
        return value.op == "const" or (value.op == "load" and value.access.count == 1)

    values, moved = _with_reciprocals(program.values, lambda _, value: fixed(value.args[1]))
    return PointwiseProgram(
        program.numel, values, tuple(replace(store, value=moved[store.value]) for store in program.stores)
    )


def _with_reciprocals(
    values: tuple[Value, ...], wanted: Callable[[int, Value], bool]
) -> tuple[tuple[Value, ...], list[int]]:
    """Return a program's new values, and the new position of each old value."""
    result: list[Value] = []
    positions: dict[Value, int] = {}
    moved: list[int] = []

    def add(value: Value) -> int:
        if value not in positions:
            positions[value] = len(result)
            result.append(value)
        return positions[value]

    for k, value in enumerate(values):
        args = tuple(moved[arg] for arg in value.args)
        if value.op == "div" and wanted(k, value):
            divisor = result[args[1]]
            if divisor.op == "const" and divisor.number != 0.0:
                words = f"1.0 / ({divisor.text})" if divisor.text else ""
                factor = add(Value("const", number=1.0 / divisor.number, text=words))
            else:
                factor = add(Value("reciprocal", (args[1],)))
            moved.append(add(Value("mul", (args[0], factor))))
        else:
            moved.append(add(replace(value, args=args)))
    return tuple(result), moved
