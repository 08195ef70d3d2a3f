"""What the functions of an emitted C++ row kernel are made of: names, loads, loops over columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.cpp_access import Loaded, row_element, row_number
from engine.proposers.playbook.cpp_expr import Namer, name_of, render
from engine.proposers.playbook.cpp_options import RowOptions
from engine.proposers.playbook.cpp_text import indent
from engine.proposers.playbook.ir import FusedPair, RowProgram

MAX_BUFFER_COLS = 65536
"""A row's buffer lies on the thread's stack and should fit the second-level cache: 256 KiB."""
Group = tuple[int, ...]
"""The reductions of one pass."""
LOCALS = ("c", "r", "at", "p", "stop", "begin", "end", "row", "rows", "kept", "width", "step", "lanes", "part", "all")
_FIELD = {"sum": "total", "max": "highest", "min": "lowest"}
IDENTITY = {"sum": "0.0f", "max": "-INFINITY", "min": "INFINITY"}


class RowCode:
    """Facts of one emission, and the pieces that its functions share."""

    def __init__(self, program: RowProgram, options: RowOptions, spec: ProblemSpec) -> None:
        self.program, self.options, self.spec = program, options, spec
        self.values = program.values
        self.fields = self._fields()
        self.pair: FusedPair | None = program.fusable_pair if options.fused else None
        self.passes = self._passes()
        self.kept = kept_value(program) if options.reuse != "recompute" else None
        self.wide = options.lanes > 1
        self.columns = options.parallel == "columns"
        self.element_loads = self._element_loads()

    def _fields(self) -> list[str]:
        namer = Namer()
        return [namer.name(_FIELD[reduction.op]) for reduction in self.program.reductions]

    def _passes(self) -> list[tuple[int, ...]]:
        passes = list(self.program.passes)
        if self.pair is None:
            return passes
        at = next(n for n, group in enumerate(passes) if self.pair.first in group)
        return [*passes[:at], passes[at] + passes[at + 1], *passes[at + 2 :]]

    def _element_loads(self) -> dict[int, Loaded]:
        program = self.program
        return {
            k: row_element(value.tensor, value.access, program.rows, program.cols, self.options.lanes)
            for k, value in enumerate(self.values)
            if value.op == "load" and not program.per_row[k]
        }

    def in_pair(self, group: tuple[int, ...]) -> bool:
        return self.pair is not None and self.pair.first in group

    def has_part(self, group: tuple[int, ...]) -> bool:
        """Whether a pass leaves a mergeable part rather than the row's result."""
        return self.columns or self.in_pair(group)

    def parameters(
        self, roots: Iterable[int], *, given: Collection[int] = (), kept: bool = False, stores: Sequence[str] = ()
    ) -> list[tuple[str, str]]:
        """(type, name) of the tensors that a function computing ``roots`` needs."""
        tensors = {self.values[k].tensor for k in self.inside(roots, given) if self.values[k].op == "load"}
        found = [("const float*", tensor.name) for tensor in self.spec.tensors if tensor.name in tensors]
        found += [("float*", store) for store in stores]
        return [*found, ("float*", "kept")] if kept else found

    def inside(self, roots: Iterable[int], given: Collection[int] = ()) -> list[int]:
        """All values that ``roots`` depend on, themselves included, not looking behind ``given``; in order."""
        seen: set[int] = set()
        waiting = list(roots)
        while waiting:
            k = waiting.pop()
            if k not in seen:
                seen.add(k)
                if k not in given:
                    waiting.extend(self.values[k].args)
        return sorted(seen)

    def prologue(self, roots: list[int], leaves: dict[int, str], namer: Namer) -> list[str]:
        """Row pointers and per-row numbers before a loop; fills ``leaves`` with what the loop body may use."""
        lines = []
        program = self.program
        inside = self.inside(roots, leaves)
        for k in inside:
            loaded = self.element_loads.get(k)
            if k not in leaves and loaded is not None and loaded.row_base is not None:
                pointer = f"{self.values[k].tensor}_row"
                line = f"const float* {pointer} = {loaded.row_base};"
                if line not in lines:
                    lines.append(line)
        wanted = {k for k in roots if program.per_row[k]}
        for k in inside:
            if not program.per_row[k] and k not in leaves:
                wanted.update(arg for arg in self.values[k].args if program.per_row[arg])
        wanted = {k for k in wanted if k not in leaves and self.values[k].op != "const"}
        numbers = {**leaves, **self.row_leaves(k for k in inside if k not in leaves)}
        statements, texts = render(self.values, sorted(wanted), numbers, namer, wide=False, local="float")
        lines += statements
        for k in sorted(wanted):
            text = texts[k]
            if not text.replace("_", "").isalnum():
                name = namer.name(self.local_name(k))
                lines.append(f"const float {name} = {text};")
                text = name
            leaves[k] = text
        for k in inside:
            if k in self.element_loads and k not in leaves:
                leaves[k] = self.element_loads[k].text
        return lines

    def row_leaves(self, inside: Iterable[int]) -> dict[int, str]:
        leaves = {}
        for k in inside:
            value = self.values[k]
            if value.op == "reduced":
                leaves[k] = f"row.{self.fields[value.reduction]}"
            elif value.op == "load" and self.program.per_row[k]:
                leaves[k] = row_number(value.tensor, value.access, self.program.cols, self.program.rows)
        return leaves

    def local_name(self, k: int) -> str:
        """What a local copy of per-row value ``k`` is called."""
        if any(pair.mean == k for pair in self.program.fused_pairs):
            return "mean"
        value = self.values[k]
        return f"row_{self.fields[value.reduction]}" if value.op == "reduced" else name_of(value)

    def loop(self, body: list[str], *, accumulators: Sequence[tuple[str, str]], prefetch: str | None, unroll: int,
              start: str, stop: str, align: str | None = None) -> list[str]:  # fmt: skip
        """A loop over columns [start, stop). ``accumulators``: (name, op). Leaves each as a ``float`` or ``double``."""
        if not self.wide:
            lines = [f"{'double' if op == 'sum' else 'float'} {name} = {IDENTITY[op].replace('0.0f', '0.0')};"
                     for name, op in accumulators]  # fmt: skip
            ahead = [f"__builtin_prefetch({prefetch});"] if prefetch else []
            return [*lines, f"for (long long c = {start}; c < {stop}; ++c) {{", *indent(ahead + body), "}"]
        references = "".join(f", auto& {name}" for name, _ in accumulators)
        lines = [f"const auto step = [&](auto width, long long c{references}) {{", *indent(body), "};"]
        count = self.options.accumulators if accumulators else unroll
        for name, op in accumulators:
            lines.append(f"vec {name}_lanes[kAccumulators];")
            lines.append(f"for (vec& lanes : {name}_lanes) lanes = splat({IDENTITY[op]});")
            lines.append(f"float {name}_one = {IDENTITY[op]};")
        lines.append(f"long long c = {start};")
        if align is not None:
            unaligned = f"reinterpret_cast<size_t>({align} + c) % sizeof(vec) != 0"
            lines.append(f"if constexpr (kTail) while (c < {stop} && {unaligned}) step(One{{}}, c++);")
        ahead = [f"__builtin_prefetch({prefetch});"] if prefetch else []
        if count > 1:
            constant = "kAccumulators" if accumulators else "kUnroll"
            at = "".join(f", {name}_lanes[k]" for name, _ in accumulators)
            inner = [line.replace(" + c +", " + c + k * kLanes +") for line in ahead]
            inner.append(f"step(Wide{{}}, c + k * kLanes{at});")
            lines += [
                f"for (; c + {constant} * kLanes <= {stop}; c += {constant} * kLanes) {{",
                "#pragma GCC unroll 16",
                *indent([f"for (int k = 0; k < {constant}; ++k) {{", *indent(inner), "}"]),
                "}",
            ]
            ahead = []
        first = "".join(f", {name}_lanes[0]" for name, _ in accumulators)
        lines += [f"for (; c + kLanes <= {stop}; c += kLanes) {{", *indent([*ahead, f"step(Wide{{}}, c{first});"]), "}"]
        ones = "".join(f", {name}_one" for name, _ in accumulators)
        lines.append(f"if constexpr (kTail) for (; c < {stop}; ++c) step(One{{}}, c{ones});")
        for name, op in accumulators:
            lanes = f"{'add' if op == 'sum' else op}_lanes({name}_lanes)"
            both = f"{lanes} + {name}_one" if op == "sum" else f"{op}_of({lanes}, {name}_one)"
            lines.append(f"const {'double' if op == 'sum' else 'float'} {name} = kTail ? {both} : {lanes};")
        return lines

    def accumulate(self, roots: list[int], group: Sequence[tuple[str, str, int]], leaves: dict[int, str], namer: Namer,
                    keep: bool) -> list[str]:  # fmt: skip
        """The body of a reducing loop. ``group``: (accumulator, op, source)."""
        wanted = [*roots, self.kept, self.kept] if keep and self.kept is not None else roots
        body, texts = render(self.values, wanted, leaves, namer, wide=self.wide)
        if keep and self.kept is not None:
            body.append(f"kept[c] = {texts[self.kept]};" if not self.wide else f"store(kept + c, {texts[self.kept]});")
        for name, op, source in group:
            text = texts[source]
            body.append(f"{name} += {text};" if op == "sum" else f"{name} = {op}_of({name}, {text});")
        return body

    def prefetch(self, roots: Iterable[int], first: bool) -> str | None:
        if not first or self.options.prefetch == 0:
            return None
        for k in self.inside(roots):
            loaded = self.element_loads.get(k)
            if loaded is not None and loaded.row_base is not None:
                return f"{self.values[k].tensor}_row + c + kPrefetch"
        return None

    def blocks(self, inner: list[str]) -> list[str]:
        return ["for (long long at = begin; at < end; at += kBlock) {",
                *indent(["const long long stop = at + kBlock < end ? at + kBlock : end;", *inner]), "}"]  # fmt: skip

    def names(self) -> list[str]:
        return [name for tensor in self.spec.tensors for name in (tensor.name, f"{tensor.name}_row")]


COSTLY = frozenset(
    {"exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "pow", "sin", "cos", "tan", "sinh", "cosh"}
)


def kept_value(program: RowProgram) -> int | None:
    """A costly per-element value of the last pass that the outputs need too: worth keeping rather than recomputing."""
    if not program.passes or not program.element_stores:
        return None
    last = [program.reductions[k].source for k in program.passes[-1]]
    computed = set(program.element_order(last))
    needed = set(program.element_order(store.value for store in program.element_stores))
    shared = [k for k in sorted(computed & needed) if _is_costly(program, k)]
    return shared[-1] if shared else None


def _is_costly(program: RowProgram, position: int) -> bool:
    return any(program.values[k].op in COSTLY for k in program.element_order((position,)))
