"""The C++ kernel file for a reduction program: a function per pass over part of a tile, and ``launch``.

A tile is one row, or several rows whose elements are interleaved in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.codegen.cpp import Cpp, name_of
from engine.proposers.playbook.codegen.cpp_math import math_functions, needs_no_errno
from engine.proposers.playbook.codegen.cpp_options import Arithmetic
from engine.proposers.playbook.codegen.dialect import Namer, position
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.ir.reductions import ReductionProgram
from engine.proposers.playbook.ir.sizes import text
from engine.proposers.playbook.patterns.reductions.program import POSITIONS
from engine.proposers.playbook.patterns.reductions.sizes import reduction_assertions

_LOCALS = ("o", "q", "c", "i", "j", "first", "count", "begin", "end", "at", "stop", "found", "part", "width", "step",
           "base", "tile", "task", "k", "all", "span")  # fmt: skip
FIELD = {"sum": "total", "max": "highest", "min": "lowest", "prod": "product", "argmax": "where", "argmin": "where"}


class ReductionOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The choices for a reduction kernel.

    Attributes:
        lanes: Floats in a vector; 1 means scalar code.
        tile: Adjacent rows per tile, if the elements of a row are not adjacent.
        accumulators: Independent vectors per reduction, if the elements of a row are adjacent.
        order: With ``tiles``, a thread runs all passes on a tile while the tile is in the cache. With ``passes``,
            threads share the ``parts`` of every tile, one pass after another.
        parallel: Whether threads share the work.
    """

    lanes: int = 1
    tile: int = 512
    accumulators: int = 1
    order: Literal["tiles", "passes"] = "tiles"
    parts: int = 1
    parallel: bool = False
    schedule: Literal["static", "dynamic", "guided"] = "static"
    math: Arithmetic = "libm"
    exp_degree: int = 6


class Fold(Struct, frozen=True):
    """A fold of each element's ``value`` into ``name`` with ``op``."""

    name: str
    op: str
    value: str


class Body(Struct, frozen=True):
    """A function over part of a tile. ``row_statements`` and ``row_values`` (name, expression) compute the per-row
    numbers that the elements of row ``q`` need.
    """

    number: int
    parameters: list[tuple[str, str]]
    arguments: str
    row_statements: list[str]
    row_values: list[tuple[str, str]]
    statements: list[str]
    folds: list[Fold]


def reduction_kernel(program: ReductionProgram, options: ReductionOptions, spec: ProblemSpec) -> str:
    """Return the kernel source."""
    positions = any(one.op in POSITIONS for one in program.reductions)
    lanes = 1 if positions else options.lanes  # Vector code does not compare positions.
    writer = _Writer(program, spec, wide=lanes > 1)
    shape = program.geometry
    ops = {value.op for value in program.values} | {one.op for one in program.reductions if one.op in ("max", "min")}
    used = writer.tensors(k for k in range(len(program.values))) | {store.tensor for store in program.stores}
    split = options.order == "passes"
    return render(
        "reductions.cpp.j2",
        title=f"Reduction kernel for {spec.name}, tuned for {shape.rows} rows of {shape.cols} elements.",
        no_errno=needs_no_errno(ops),
        outer=text(shape.outer),
        folded=text(shape.folded),
        inner=text(shape.inner),
        run=text(shape.run),
        adjacent=shape.adjacent,
        wide=lanes > 1,
        lanes=lanes,
        tile=1 if shape.adjacent else options.tile,
        accumulators=options.accumulators,
        split=split,
        parts=options.parts if split else 1,
        parallel=options.parallel,
        schedule=options.schedule,
        positions=positions,
        size_assertions=reduction_assertions(program, spec),
        fields=[(name, one.op) for name, one in zip(writer.fields, program.reductions, strict=True)],
        passes=[writer.fold(number, group) for number, group in enumerate(program.passes, 1)],
        groups=[[(writer.fields[k], program.reductions[k].op) for k in group] for group in program.passes],
        apply=writer.apply(),
        rows_out=writer.rows_out(),
        counters=program.counters,
        launch=launch_signature(spec, "cpp", {*used, *program.counters, "workspace"}),
        math=math_functions(ops, wide=lanes > 1, polynomials=options.math == "polynomial", degree=options.exp_degree),
    )


class _Writer:
    """Write the statements of a reduction kernel."""

    def __init__(self, program: ReductionProgram, spec: ProblemSpec, *, wide: bool) -> None:
        self.program, self.spec, self.wide = program, spec, wide
        self.names = [tensor.name for tensor in spec.tensors]
        namer = Namer([*_LOCALS, *self.names])
        self.fields = [namer.name(FIELD[one.op]) for one in program.reductions]

    def fold(self, number: int, group: tuple[int, ...]) -> Body:
        """Return the kernel's pass that computes the reductions in ``group``."""
        reductions = [self.program.reductions[k] for k in group]
        roots = tuple(one.source for one in reductions)
        body, texts = self._body(number, roots, ())
        folds = [Fold(self.fields[k], one.op, texts[one.source]) for k, one in zip(group, reductions, strict=True)]
        return replace(body, folds=folds)

    def apply(self) -> Body | None:
        """Return the loop that writes the outputs with one element per domain element."""
        stores = self.program.element_stores
        if not stores:
            return None
        body, texts = self._body(0, tuple(store.value for store in stores), tuple(store.tensor for store in stores))
        for store in stores:
            value = texts[store.value]
            if self.wide and self.program.per_row[store.value]:
                value = f"spread(width, {value})" if self.program.geometry.adjacent else value
            body.statements.append(Cpp(wide=self.wide).store(store.tensor, "i", value))
        return body

    def rows_out(self) -> dict[str, object] | None:
        """Return the function that writes the outputs with one element per row."""
        stores = self.program.row_stores
        if not stores:
            return None
        roots = [store.value for store in stores]
        namer = Namer([*_LOCALS, *self.names, *self.fields])
        lines, texts = Cpp(local="float").statements(self.program.values, roots, self._row_leaves(), namer)
        lines += [f"{store.tensor}[q] = {texts[store.value]};" for store in stores]
        parameters = self._parameters(self._below(roots), tuple(store.tensor for store in stores))
        return {"parameters": parameters, "arguments": ", ".join(name for _, name in parameters), "statements": lines}

    def tensors(self, positions: Iterable[int]) -> set[str]:
        return {self.program.values[k].tensor for k in positions if self.program.values[k].op == "load"}

    def _body(self, number: int, roots: tuple[int, ...], stored: tuple[str, ...]) -> tuple[Body, dict[int, str]]:
        program, values = self.program, self.program.values
        wanted = program.row_values(roots)
        namer = Namer([*_LOCALS, *self.names, *self.fields])
        row_lines, row_texts = Cpp(local="float").statements(values, wanted, self._row_leaves(), namer)
        leaves: dict[int, str] = {}
        row_values = []
        for k in wanted:
            name = namer.name(
                f"row_{self.fields[values[k].reduction] if values[k].op == 'reduced' else name_of(values[k])}"
            )
            row_values.append((name, row_texts[k]))
            vector = self.wide and not program.geometry.adjacent
            leaves[k] = f"load(width, {name} + c)" if vector else f"{name}[{'0' if program.geometry.adjacent else 'c'}]"
        cpp = Cpp(wide=self.wide)
        elements = program.elements(roots)
        for k in elements:
            if values[k].op == "load":
                leaves[k] = cpp.load(values[k].tensor, values[k].access, "i", program.geometry.numel)
        lines, texts = cpp.statements(values, roots, leaves, namer)
        parameters = self._parameters([*elements, *self._below(wanted)], stored)
        arguments = ", ".join(name for _, name in parameters)
        return Body(number, parameters, arguments, row_lines, row_values, lines, []), texts

    def _row_leaves(self) -> dict[int, str]:
        """Return the expressions of reductions and loads for row ``q``."""
        leaves = {}
        for k, value in enumerate(self.program.values):
            if value.op == "reduced":
                leaves[k] = f"found.{self.fields[value.reduction]}[q]"
            elif value.op == "load" and self.program.per_row[k]:
                access, rows = value.access, self.program.geometry.rows
                index = "0" if access.count == 1 else position("q", access.inner, access.count, rows)
                leaves[k] = f"{value.tensor}[{index}]"
        return leaves

    def _below(self, roots: Iterable[int]) -> list[int]:
        """Return the values per row on which ``roots`` depend."""
        seen: set[int] = set()
        waiting = list(roots)
        while waiting:
            k = waiting.pop()
            if k not in seen:
                seen.add(k)
                waiting.extend(self.program.values[k].args)
        return sorted(seen)

    def _parameters(self, positions: Iterable[int], stored: tuple[str, ...]) -> list[tuple[str, str]]:
        tensors, types = self.tensors(positions), {tensor.name: tensor.dtype for tensor in self.spec.tensors}
        tensors -= set(stored)
        found = [("const float*", tensor.name) for tensor in self.spec.tensors if tensor.name in tensors]
        return [*found, *(("int64_t*" if types[name] == "int64" else "float*", name) for name in stored)]
