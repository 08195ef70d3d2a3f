"""The C++ kernel file for a row program: a function per pass over a row, a function that writes outputs, and
``launch``.

``templates/rows.cpp.j2`` is the kernel's template. :class:`RowKernel` supplies the statements, accumulators and
parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from msgspec import Struct

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.codegen.cpp import Cpp, load_row_number, name_of
from engine.proposers.playbook.codegen.cpp_math import math_functions, needs_no_errno
from engine.proposers.playbook.codegen.cpp_options import ElementwiseOptions
from engine.proposers.playbook.codegen.dialect import Namer, declaration
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import program_assertions, size_assertion
from engine.proposers.playbook.ir.program import FusedPair, RowProgram
from engine.proposers.playbook.ir.sizes import text

MAX_BUFFER_COLS = 65536
"""Maximum number of floats in a row's buffer. A buffer of this size (256 KiB) fits on the thread's stack and in the L2
cache.
"""
_LOCALS = ("c", "r", "at", "p", "stop", "begin", "end", "row", "rows", "kept", "width", "step", "lanes", "part", "all")
_FIELD = {"sum": "total", "max": "highest", "min": "lowest"}
_COSTLY = frozenset(
    {"exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "pow", "sin", "cos", "tan", "sinh", "cosh"}
)
_RANGE = [("long long", "r"), ("long long", "begin"), ("long long", "end")]


class RowOptions(ElementwiseOptions, frozen=True):
    """The choices for a row kernel.

    Attributes:
        order: With ``passes``, the kernel runs each pass over all rows before the next pass. With ``rows``, the kernel
            finishes each row while the row is in the cache.
        fused: Whether to merge two dependent reductions block by block.
        reuse: Whether to recompute a costly value of the last pass for the output, or to keep it in the output row or a
            buffer.
        parallel: Whether threads share the rows, or the ``parts`` of each row.
        chunk: Rows per work item; 0 leaves the choice to the schedule.
        accumulators: Independent vectors per reduction.
        block: Columns per block.
        backward: Whether to write a row from its end to its start.
    """

    order: Literal["passes", "rows"] = "rows"
    fused: bool = False
    reuse: Literal["recompute", "output", "buffer"] = "recompute"
    parallel: Literal["none", "rows", "columns"] = "none"
    parts: int = 2
    chunk: int = 0
    accumulators: int = 1
    block: int = 4096
    backward: bool = False


class Accumulator(Struct, frozen=True):
    """An accumulator: the variable ``name`` folds each element's ``value`` with ``op``."""

    name: str
    op: str
    value: str


class Prologue(Struct, frozen=True):
    """The code before a function's loop. ``rows`` maps each tensor to the address of its row ``r``, and ``statements``
    compute per-row numbers.
    """

    rows: dict[str, str]
    statements: list[str]


class Walk(Struct, frozen=True):
    """The body of a loop over columns. ``prefetched`` is the row pointer for prefetches, or "" for none."""

    statements: list[str]
    accumulators: list[Accumulator]
    prefetched: str = ""
    unrolled: bool = False


class Field(Struct, frozen=True):
    """A number that a pass returns for a row: a reduction's result."""

    name: str
    op: str


class Pair(Struct, frozen=True):
    """The field names of two fused reductions and, for moments, the mean with its statements."""

    first: str
    second: str
    mean: str = ""
    statements: tuple[str, ...] = ()
    correction: str = ""


class Pass(Struct, frozen=True):
    """One pass over a row. ``part`` says whether the pass returns a partial result to merge with other parts."""

    number: int
    kind: Literal["plain", "online_softmax", "moments"]
    what: str
    part: bool
    by_blocks: bool
    parameters: list[tuple[str, str]]
    arguments: str
    prologue: Prologue
    walks: list[Walk]
    fields: list[Field]
    pair: Pair | None = None


class Finish(Struct, frozen=True):
    """The function that writes a part of a row. ``aligned`` is the pointer that vector stores require to be aligned, or
    "" for none.
    """

    parameters: list[tuple[str, str]]
    arguments: str
    prologue: Prologue
    outputs: list[str]
    walk: Walk
    aligned: str


def row_kernel(program: RowProgram, options: RowOptions, spec: ProblemSpec) -> str:
    """Return the kernel source."""
    kernel = RowKernel(program, options, spec)
    used = kernel.used_values
    tensors = {program.values[k].tensor for k in used if program.values[k].op == "load"}
    tensors |= {store.tensor for store in program.stores}
    by_passes = options.order == "passes"
    assertions = program_assertions(program, used, spec)
    if kernel.buffered:
        assertions.append(size_assertion(f"kCols <= {MAX_BUFFER_COLS}", f"rows of at most {MAX_BUFFER_COLS} elements"))
    polynomials = options.math == "polynomial"
    return render(
        "rows.cpp.j2",
        title=f"Row kernel for {spec.name}, tuned for {program.rows} rows of {program.cols} elements.",
        no_errno=needs_no_errno(kernel.ops),
        rows=text(program.rows),
        cols=text(program.cols),
        wide=kernel.cpp.wide,
        lanes=options.lanes,
        accumulators=options.accumulators,
        unroll=options.unroll,
        block=options.block,
        prefetch=options.prefetch,
        parts=options.parts,
        order=options.order,
        sharing=options.parallel,
        schedule=options.schedule + (f", {options.chunk}" if options.chunk else ""),
        backward=options.backward,
        buffered=kernel.buffered,
        streaming=options.stores == "stream",
        size_assertions=assertions,
        row_fields=kernel.fields,
        passes=kernel.passes,
        finish=kernel.finish,
        row_stores=kernel.row_stores,
        launch=launch_signature(spec, "cpp", tensors | ({"workspace"} if by_passes else set())),
        math=math_functions(kernel.ops, wide=kernel.cpp.wide, polynomials=polynomials, degree=options.exp_degree),
    )


class RowKernel:
    """The view of ``program`` and ``options`` that the template uses."""

    def __init__(self, program: RowProgram, options: RowOptions, spec: ProblemSpec) -> None:
        self.program, self.options, self.spec = program, options, spec
        self.values = program.values
        namer = Namer()
        self.fields = [namer.name(_FIELD[reduction.op]) for reduction in program.reductions]
        self.cpp = Cpp(wide=options.lanes > 1)
        self.pair: FusedPair | None = program.fusable_pair if options.fused else None
        self.groups = self._groups()
        self.kept = kept_value(program) if options.reuse != "recompute" else None
        self.buffered = self.kept is not None and options.reuse == "buffer"
        self.names = [name for tensor in spec.tensors for name in (tensor.name, f"{tensor.name}_row")]
        self.loads = {
            k: self.cpp.load_row(value.tensor, value.access, program.rows, program.cols)
            for k, value in enumerate(self.values)
            if value.op == "load" and not program.per_row[k]
        }
        self.passes = [self._pass(number, group) for number, group in enumerate(self.groups, 1)]
        self.finish = self._finish() if program.element_stores else None

    @property
    def used_values(self) -> list[int]:
        """Positions of all values that the kernel uses, in order."""
        reductions = [reduction.source for reduction in self.program.reductions]
        return self._inside([*reductions, *(store.value for store in self.program.stores)])

    @property
    def ops(self) -> set[str]:
        """The program's operations that need a helper function."""
        found = {value.op for value in self.values} | {r.op for r in self.program.reductions if r.op != "sum"}
        return found | {"max"} if self.pair is not None and self.pair.kind == "online_softmax" else found

    @property
    def row_stores(self) -> list[str]:
        """The statements in ``launch`` that write one number per row."""
        stores = self.program.row_stores
        roots = [store.value for store in stores]
        leaves = self._row_leaves(self._inside(roots))
        lines, texts = Cpp(local="float").statements(self.values, roots, leaves, Namer([*_LOCALS, *self.names]))
        return [*lines, *(Cpp().store(store.tensor, "r", texts[store.value]) for store in stores)]

    def _groups(self) -> list[tuple[int, ...]]:
        """Return the reductions of each pass."""
        groups = list(self.program.passes)
        if self.pair is None:
            return groups
        at = next(n for n, group in enumerate(groups) if self.pair.first in group)
        return [*groups[:at], groups[at] + groups[at + 1], *groups[at + 2 :]]

    def _pass(self, number: int, group: tuple[int, ...]) -> Pass:
        if self.pair is not None and self.pair.first in group:
            return self._fused_pass(number, self.pair, group)
        reductions = self.program.reductions
        sources = [reductions[k].source for k in group]
        kept = self.kept if number == len(self.groups) else None
        roots = [*sources, *([kept] if kept is not None else [])]
        namer = Namer([*_LOCALS, *self.names])
        leaves: dict[int, str] = {}
        prologue = self._prologue(roots, leaves, namer)
        names = [(namer.name(self.fields[k]), reductions[k].op, reductions[k].source) for k in group]
        walk = self._walk(sources, names, leaves, namer, roots if number == 1 else [], kept)
        sums = any(reductions[k].op == "sum" for k in group)
        part = self.options.parallel == "columns"
        parameters = self._tensors(roots, kept=kept is not None)
        return Pass(
            number=number,
            kind="plain",
            what=", ".join(f"{self.fields[k]} ({reductions[k].op})" for k in group),
            part=part,
            by_blocks=self.cpp.wide and self.program.cols > self.options.block and sums,
            parameters=[*parameters, *_RANGE, ("const Row&" if part else "Row&", "row")],
            arguments=self._arguments(parameters),
            prologue=prologue,
            walks=[walk],
            fields=[Field(self.fields[k], reductions[k].op) for k in group],
        )

    def _fused_pass(self, number: int, pair: FusedPair, group: tuple[int, ...]) -> Pass:
        reductions = self.program.reductions
        second = reductions[pair.second].source
        deviation = self.values[second].args[0]
        roots = [pair.source, second]
        namer = Namer([*_LOCALS, "mean", *self.names])
        softmax = pair.kind == "online_softmax"
        leaves: dict[int, str] = {}
        for k, value in enumerate(self.values):
            if softmax and value.op == "reduced" and value.reduction == pair.first:
                leaves[k] = "part.highest"
            elif not softmax and k == pair.mean:
                leaves[k] = "mean"
        prologue = self._prologue(roots, leaves, namer)
        first_name = ("highest", "max", pair.source) if softmax else ("total", "sum", pair.source)
        second_names = (
            [("total", "sum", second)] if softmax else [("squares", "sum", second), ("rest", "sum", deviation)]
        )
        walks = [
            self._walk([pair.source], [first_name], leaves, Namer(namer.taken), roots if number == 1 else []),
            self._walk([k for *_, k in second_names], second_names, leaves, Namer(namer.taken), []),
        ]
        mean, statements = "", list[str]()
        if not softmax:
            everything = self._row_leaves(range(len(self.values)))
            statements, texts = Cpp().statements(self.values, [pair.mean], everything)
            mean = texts[pair.mean]
        parameters = self._tensors(roots)
        what = "running maximum and sum" if softmax else "moments"
        return Pass(
            number=number,
            kind=pair.kind,
            what=f"{what}, block by block in the cache",
            part=True,
            by_blocks=True,
            parameters=[*parameters, *_RANGE, ("const Row&", "row")],
            arguments=self._arguments(parameters),
            prologue=prologue,
            walks=walks,
            fields=[Field(self.fields[k], reductions[k].op) for k in group],
            pair=Pair(
                first=self.fields[pair.first],
                second=self.fields[pair.second],
                mean=mean,
                statements=tuple(statements),
                correction=self.fields[pair.correction] if pair.correction >= 0 else "",
            ),
        )

    def _finish(self) -> Finish:
        stores = self.program.element_stores
        roots = [store.value for store in stores]
        namer = Namer([*_LOCALS, *self.names])
        leaves: dict[int, str] = {}
        if self.kept is not None:
            leaves[self.kept] = "load(width, kept + c)" if self.cpp.wide else "kept[c]"
        prologue = self._prologue(roots, leaves, namer)
        streaming = self.options.stores == "stream"
        cpp = Cpp(wide=self.cpp.wide, streaming=streaming)
        lines, texts = cpp.statements(self.values, roots, leaves, namer)
        for store in stores:
            result = texts[store.value]
            if cpp.wide and self.program.per_row[store.value]:
                result = f"spread(width, {result})"
            lines.append(cpp.store(f"{store.tensor}_row", "c", result))
        given = () if self.kept is None else (self.kept,)
        parameters = self._tensors(roots, given=given, kept=bool(given), stores=[s.tensor for s in stores])
        return Finish(
            parameters=[*parameters, *_RANGE, ("const Row&", "row")],
            arguments=self._arguments(parameters),
            prologue=prologue,
            outputs=[store.tensor for store in stores],
            walk=Walk(lines, [], unrolled=self.options.unroll > 1),
            aligned=f"{stores[0].tensor}_row" if streaming and cpp.wide else "",
        )

    def _walk(
        self,
        roots: list[int],
        folded: Sequence[tuple[str, str, int]],
        leaves: dict[int, str],
        namer: Namer,
        prefetched: list[int],
        kept: int | None = None,
    ) -> Walk:
        """Return the body of a reduction loop. ``folded`` lists (accumulator, op, source), and ``prefetched`` lists the
        roots to prefetch.
        """
        wanted = roots if kept is None else [*roots, kept, kept]
        lines, texts = self.cpp.statements(self.values, wanted, leaves, namer)
        if kept is not None:
            lines.append(self.cpp.store("kept", "c", texts[kept]))
        return Walk(
            lines,
            [Accumulator(name, op, texts[source]) for name, op, source in folded],
            self._prefetched(prefetched),
            self.options.accumulators > 1,
        )

    def _prefetched(self, roots: Iterable[int]) -> str:
        """Return the row pointer of the first tensor that ``roots`` read row by row, or "" if there is none."""
        if self.options.prefetch == 0:
            return ""
        rows = (k for k in self._inside(roots) if k in self.loads and self.loads[k][1] is not None)
        return next((f"{self.values[k].tensor}_row" for k in rows), "")

    def _tensors(
        self, roots: Iterable[int], *, given: Collection[int] = (), kept: bool = False, stores: Sequence[str] = ()
    ) -> list[tuple[str, str]]:
        """Return the (type, name) of each pointer that a function needs to compute ``roots``."""
        tensors = {self.values[k].tensor for k in self._inside(roots, given) if self.values[k].op == "load"}
        found = [("const float*", tensor.name) for tensor in self.spec.tensors if tensor.name in tensors]
        found += [("float*", store) for store in stores]
        return [*found, ("float*", "kept")] if kept else found

    def _arguments(self, parameters: list[tuple[str, str]]) -> str:
        """Return the arguments that ``launch`` passes for ``parameters``."""
        kept = "kept" if self.buffered else ""
        if self.kept is not None and not self.buffered:
            kept = f"{self.program.element_stores[0].tensor} + r * kCols"
        return ", ".join(kept if name == "kept" else name for _, name in parameters)

    def _inside(self, roots: Iterable[int], given: Collection[int] = ()) -> list[int]:
        """Return ``roots`` and all values on which ``roots`` depend, in order. Stop at values in ``given``."""
        seen: set[int] = set()
        waiting = list(roots)
        while waiting:
            k = waiting.pop()
            if k not in seen:
                seen.add(k)
                if k not in given:
                    waiting.extend(self.values[k].args)
        return sorted(seen)

    def _prologue(self, roots: list[int], leaves: dict[int, str], namer: Namer) -> Prologue:
        """Return the code before a loop: row pointers and per-row numbers. Add the values that the loop may use to
        ``leaves``.
        """
        per_row = self.program.per_row
        inside = self._inside(roots, leaves)
        rows = {
            self.values[k].tensor: base
            for k in inside
            if k in self.loads and k not in leaves and (base := self.loads[k][1]) is not None
        }
        wanted = {k for k in roots if per_row[k]}
        for k in inside:
            if not per_row[k] and k not in leaves:
                wanted.update(arg for arg in self.values[k].args if per_row[arg])
        wanted = {k for k in wanted if k not in leaves and self.values[k].op != "const"}
        numbers = {**leaves, **self._row_leaves(k for k in inside if k not in leaves)}
        statements, texts = Cpp(local="float").statements(self.values, sorted(wanted), numbers, namer)
        for k in sorted(wanted):
            leaves[k] = texts[k]
            if not texts[k].replace("_", "").isalnum():
                leaves[k] = namer.name(self._local_name(k))
                statements.append(declaration("float", leaves[k], texts[k]))
        leaves.update((k, self.loads[k][0]) for k in inside if k in self.loads and k not in leaves)
        return Prologue(rows, statements)

    def _row_leaves(self, inside: Iterable[int]) -> dict[int, str]:
        """Return expressions for the reduced values and per-row loads among ``inside``."""
        leaves = {}
        for k in inside:
            value = self.values[k]
            if value.op == "reduced":
                leaves[k] = f"row.{self.fields[value.reduction]}"
            elif value.op == "load" and self.program.per_row[k]:
                leaves[k] = load_row_number(value.tensor, value.access, self.program.rows, self.program.cols)
        return leaves

    def _local_name(self, k: int) -> str:
        """Return the name of a local copy of per-row value ``k``."""
        if any(pair.mean == k for pair in self.program.fused_pairs):
            return "mean"
        value = self.values[k]
        return f"row_{self.fields[value.reduction]}" if value.op == "reduced" else name_of(value)


def kept_value(program: RowProgram) -> int | None:
    """Return a costly per-element value from the last pass that the outputs also need. Keeping this value may be
    faster than computing it again.
    """
    if not program.passes or not program.element_stores:
        return None
    last = [program.reductions[k].source for k in program.passes[-1]]
    computed = set(program.element_order(last))
    needed = set(program.element_order(store.value for store in program.element_stores))
    shared = [k for k in sorted(computed & needed) if _is_costly(program, k)]
    return shared[-1] if shared else None


def _is_costly(program: RowProgram, position: int) -> bool:
    return any(program.values[k].op in _COSTLY for k in program.element_order((position,)))
