"""Device functions of a row program that every CUDA structure of the family shares.

The emitted code separates *what* is computed from *how* the row is walked. What, written here: ``Tensors`` (all
pointers), ``Held`` (one pack of each tensor that differs from row to row), ``ExtraS`` (packs of what stage ``S``
reads besides: weights), ``Row`` (numbers of a row), ``StateS`` (a partial result of stage ``S`` that merges with
another), ``evaluateS``, ``finishS`` and ``write``. How is up to the structures (``cuda_rows_block`` and kin).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Literal

from msgspec import Struct

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.cuda_text import (
    HELPERS,
    Stream,
    fill,
    packs,
    pick,
    statements,
    stream_of,
    streams,
)
from engine.proposers.playbook.demands import program_demands
from engine.proposers.playbook.ir import FusedPair, RowProgram, Value, needed
from engine.proposers.playbook.sizes import factor, text

PartKind = Literal["sum", "max", "min", "online_softmax", "moments"]
_FIELDS: dict[PartKind, tuple[str, ...]] = {
    "sum": ("s",),
    "max": ("m",),
    "min": ("m",),
    "online_softmax": ("m", "s"),
    "moments": ("n", "mean", "low", "m2"),
}
_WIDTHS = {1: "1", 2: "cols % 2 == 0 ? 2 : 1", 4: "cols % 4 == 0 ? 4 : cols % 2 == 0 ? 2 : 1"}
_INFINITY = "__int_as_float(0x7f800000)"
_EMPTY = {"s": "0.0f", "m": f"-{_INFINITY}", "n": "0.0f", "mean": "0.0f", "low": "0.0f", "m2": "0.0f"}


class Part(Struct, frozen=True):
    """One running result of a stage: a reduction, or two that one pass computes together (``second`` >= 0)."""

    kind: PartKind
    source: int
    first: int
    second: int = -1
    mean: int = -1
    correction: int = -1

    def __contains__(self, reduction: int) -> bool:
        return reduction in (self.first, self.second, self.correction)


def stages_of(program: RowProgram, fused: bool) -> tuple[tuple[Part, ...], ...]:
    """Passes over the row. ``fused``: dependent pairs that one pass can compute are computed together."""
    chosen: dict[int, FusedPair] = {}
    riders: dict[int, int] = {}
    for pair in program.fused_pairs if fused else ():
        if pair.first not in chosen and pair.first not in riders and pair.second not in riders:
            chosen[pair.first] = pair
            riders.update({k: pair.first for k in (pair.second, pair.correction) if k >= 0})
    level: dict[int, int] = {}

    def level_of(reduction: int) -> int:
        if reduction not in level:
            leader = riders.get(reduction)
            used = program.reductions_of(program.reductions[reduction].source)
            level[reduction] = (
                level_of(leader) if leader is not None else 1 + max((level_of(k) for k in used), default=-1)
            )
        return level[reduction]

    found: list[list[Part]] = [[] for _ in range(1 + max(map(level_of, range(len(program.reductions))), default=-1))]
    for k, reduction in enumerate(program.reductions):
        if k in chosen:
            pair = chosen[k]
            part = Part(pair.kind, pair.source, k, pair.second, pair.mean, pair.correction)
            found[level_of(k)].append(part)
        elif k not in riders:
            found[level_of(k)].append(Part(reduction.op, reduction.source, k))
    return tuple(tuple(parts) for parts in found)


class RowCode:
    """The shared text for ``program``. ``width``: elements of a pack, a divisor of ``cols``."""

    def __init__(
        self, program: RowProgram, *, width: int, fused: bool, fast: bool, read_hint: str, store_hint: str
    ) -> None:
        self.program = program
        self.width = width
        self.fast = fast
        self.hints = (read_hint, store_hint)
        self.stages = stages_of(program, fused)

    @cached_property
    def _roots(self) -> tuple[int, ...]:
        return (*(r.source for r in self.program.reductions), *(s.value for s in self.program.stores))

    @cached_property
    def held(self) -> tuple[Stream, ...]:
        """Tensors as large as the domain, read in its order."""
        values = self.program.values
        wanted = self.program.element_order(self._roots)
        return tuple(s for s in streams(values, wanted) if s.access.inner == 1 and s.access.count >= self.program.numel)

    def extras(self, roots: Iterable[int]) -> tuple[Stream, ...]:
        """What else a loop over the row must load for ``roots``."""
        found = streams(self.program.values, self.program.element_order(roots))
        held = {(s.tensor, s.access) for s in self.held}
        return tuple(s for s in found if (s.tensor, s.access) not in held)

    @cached_property
    def out_extras(self) -> tuple[Stream, ...]:
        return self.extras(store.value for store in self.program.element_stores)

    @property
    def out_extras_by_column(self) -> bool:
        """Whether the stores' extras are the same in every row."""
        return all(self._by_column(s) for s in self.out_extras)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors that the kernel reads or writes."""
        values = self.program.values
        read = [values[k].tensor for k in needed(values, self._roots) if values[k].op == "load"]
        return tuple(dict.fromkeys((*read, *(store.tensor for store in self.program.stores))))

    @property
    def state_bytes(self) -> int:
        """Size of the largest stage's state."""
        return 4 * max(sum(len(_FIELDS[p.kind]) for p in parts) for parts in self.stages)

    @property
    def row_fields(self) -> int:
        return len(self._row_values) + len(self.program.reductions)

    def _by_column(self, stream: Stream) -> bool:
        return self.program.cols % (stream.access.inner * stream.access.count) == 0

    @cached_property
    def _row_values(self) -> tuple[int, ...]:
        values = self.program.values
        return tuple(
            k
            for k in needed(values, self._roots)
            if self.program.per_row[k] and values[k].op not in ("const", "reduced")
        )

    def text(self, spec: ProblemSpec) -> str:
        """Everything that the structures share, to stand inside their namespace."""
        stage_texts = [self._stage(k) for k in range(len(self.stages))]
        return "\n".join(
            (
                fill(
                    "constexpr int cols = $cols;\n"
                    "constexpr int width = $width, packs = cols / width;  // elements of a pack, which divide a row\n"
                    "constexpr long long rows = $rows;\n$demands\n",
                    cols=text(self.program.cols),
                    rows=text(self.program.rows),
                    width=_WIDTHS[self.width],
                    demands="\n".join(program_demands(self.program, needed(self.program.values, self._roots), spec)),
                ),
                HELPERS + MOMENTS,
                packs(*self.hints),
                self._structs(spec),
                self._begin(),
                *stage_texts,
                self._write(),
                _MERGE,
            )
        )

    def _structs(self, spec: ProblemSpec) -> str:
        outputs = {t.name for t in spec.outputs}
        pointers = "".join(f"    {'' if n in outputs else 'const '}float* {n};\n" for n in self.tensors)
        numbers = [f"r{k}" for k in range(len(self.program.reductions))] + [f"v{k}" for k in self._row_values]
        fields = "".join(f"    float {n};\n" for n in numbers)
        loads = self._loads("Held", "load_held", self.held, "load_row")
        return (
            f"struct Tensors {{\n{pointers}}};\n"
            f"// What is known of a row: results of reductions (r) and values computed from them (v).\n"
            f"struct Row {{\n{fields}}};\n{loads}"
        )

    def _loads(self, struct: str, function: str, found: tuple[Stream, ...], load: str) -> str:
        fields = "".join(f"    Pack {s.field};\n" for s in found)
        lines = "".join(f"    found.{s.field} = {self._load(s, load)};\n" for s in found)
        return fill(
            """\
struct $struct {
$fields};
__device__ __forceinline__ $struct $function(const Tensors& t, long long base, int col) {
    $struct found;
$lines    return found;
}
""",
            struct=struct,
            fields=fields,
            function=function,
            lines=lines,
        )

    def _load(self, stream: Stream, function: str) -> str:
        pointer = f"t.{stream.tensor}"
        if function == "load_row":
            return f"load_row({pointer} + base + col)"
        by_column = self._by_column(stream)
        return pick(stream.access, pointer, *(("col", "cols") if by_column else ("base + col", "rows * cols")))

    def _begin(self) -> str:
        lines = []
        for k in self._row_values:
            value = self.program.values[k]
            if value.op == "load":
                lines.append(f"row.v{k} = t.{value.tensor}[{self._row_index(value)}];")
            elif self._ready(k) < 0:
                lines.append(self._assign(k))
        body = "".join(f"    {line}\n" for line in lines)
        return (
            "__device__ __forceinline__ Row begin_row(const Tensors& t, long long r) {\n"
            f"    Row row = {{}};\n{body}    return row;\n}}\n"
        )

    def _row_index(self, value: Value) -> str:
        inner, count = value.access.inner, value.access.count
        if count == 1:
            return "0"
        step = inner // self.program.cols
        return f"r / {factor(step)} % {factor(count)}" if step > 1 else f"r % {factor(count)}"

    def _ready(self, position: int) -> int:
        """The stage after which a per-row value can be computed, -1 if before all."""
        used = self.program.reductions_of(position)
        return max((self._stage_of(k) for k in used), default=-1)

    def _stage_of(self, reduction: int) -> int:
        return next(k for k, parts in enumerate(self.stages) if any(reduction in p for p in parts))

    def _row_name(self, position: int) -> str | None:
        value = self.program.values[position]
        if value.op == "reduced":
            return f"row.r{value.reduction}"
        return f"row.v{position}" if self.program.per_row[position] and value.op != "const" else None

    def _assign(self, position: int) -> str:
        name = self._row_name
        lines, _ = statements(self.program.values, (position,), lambda k: None if k == position else name(k), self.fast)
        return lines[0].split(" ", 2)[2].replace(f"v{position} =", f"row.v{position} =", 1)

    def _lane_names(self, found: tuple[Stream, ...]) -> Callable[[int], str | None]:
        """Names of values inside the loop over the lanes of a pack."""

        def name(position: int) -> str | None:
            value = self.program.values[position]
            known = self._row_name(position)
            if known is not None or value.op != "load":
                return known
            held = stream_of(self.held, value)
            if held is not None:
                return f"h.{held.field}.at[u]"
            extra = stream_of(found, value)
            return None if extra is None else f"x.{extra.field}.at[u]"

        return name

    def _stage(self, stage: int) -> str:
        parts = self.stages[stage]
        sources = [p.source for p in parts]
        extras = self.extras(sources)
        lines, refer = statements(
            self.program.values, self.program.element_order(sources), self._lane_names(extras), self.fast
        )
        for p, part in enumerate(parts):
            lines.append(f"values.a{p}[at + u] = valid ? {refer(part.source)} : {_identity(part.kind)};")
        finish = [line for p, part in enumerate(parts) for line in _results(p, part)]
        means = {part.mean: f"state.mean{p}" for p, part in enumerate(parts) if part.kind == "moments"}
        for k in self._row_values:
            if self.program.values[k].op != "load" and self._ready(k) == stage:
                finish.append(f"row.v{k} = {means[k]};" if k in means else self._assign(k))
        return self._state(stage) + fill(
            """
$loads
// Elements at to at + width - 1 of the values that stage $s folds; those past the row's end change nothing.
template <int n>
__device__ __forceinline__ void evaluate$s(Values$s<n>& values, int at, bool valid, const Held& h,
                                           const Extra$s& x, const Row& row) {
#pragma unroll
    for (int u = 0; u < width; ++u) {
$lines    }
}
__device__ __forceinline__ void finish$s(const State$s& state, Row& row) {
$finish}
""",
            s=stage,
            loads=self._loads(f"Extra{stage}", f"load_extra{stage}", extras, "load"),
            lines="".join(f"        {line}\n" for line in lines),
            finish="".join(f"    {line}\n" for line in finish),
        )

    def _state(self, stage: int) -> str:
        parts = self.stages[stage]
        fields = [(f"{f}{p}", part, f) for p, part in enumerate(parts) for f in _FIELDS[part.kind]]
        empty = [_INFINITY if part.kind == "min" else _EMPTY[f] for _, part, f in fields]
        return fill(
            """\
template <int n>
struct Values$s {
$arrays};
struct State$s {
$fields
    static __device__ __forceinline__ State$s empty() { return {$empty}; }
    __device__ __forceinline__ State$s from_lane(int mask) const {
        return {$shuffled};
    }
    template <int n>
    __device__ __forceinline__ void push(const Values$s<n>& values, int valid) {
$push    }
    __device__ __forceinline__ void merge(const State$s& other) {
$merge    }
};
""",
            s=stage,
            arrays="".join(f"    float a{p}[n];\n" for p in range(len(parts))),
            fields="\n".join(f"    float {name};" for name, _, _ in fields),
            empty=", ".join(empty),
            shuffled=", ".join(f"__shfl_xor_sync(0xffffffffu, {name}, mask)" for name, _, _ in fields),
            push="".join(_indented(fill(_PUSH[part.kind], p=p, exp=self._exp), 8) for p, part in enumerate(parts)),
            merge="".join(_indented(fill(_COMBINE[part.kind], p=p, exp=self._exp), 8) for p, part in enumerate(parts)),
        )

    @property
    def _exp(self) -> str:
        return "__expf" if self.fast else "expf"

    def _write(self) -> str:
        stores = self.program.element_stores
        order = self.program.element_order(s.value for s in stores)
        lines, refer = statements(self.program.values, order, self._lane_names(self.out_extras), self.fast)
        lines += [f"y{n}.at[u] = {refer(s.value)};" for n, s in enumerate(stores)]
        row_lines = []
        for s in self.program.row_stores:
            _, name = statements(self.program.values, (), self._row_name, self.fast)
            row_lines.append(f"t.{s.tensor}[r] = {name(s.value)};")
        return fill(
            """\
$loads
__device__ __forceinline__ void write(const Tensors& t, long long base, int col, const Held& h,
                                      const ExtraOut& x, const Row& row) {
$declared#pragma unroll
    for (int u = 0; u < width; ++u) {
$lines    }
$stores}
// Results of which there is one per row.
__device__ __forceinline__ void write_row(const Tensors& t, long long r, const Row& row) {
$row_lines}
constexpr bool writes_elements = $elements;
""",
            loads=self._loads("ExtraOut", "load_extra_out", self.out_extras, "load"),
            declared="".join(f"    Pack y{n};\n" for n in range(len(stores))),
            lines="".join(f"        {line}\n" for line in lines),
            stores="".join(f"    store(t.{s.tensor} + base + col, y{n});\n" for n, s in enumerate(stores)),
            row_lines="".join(f"    {line}\n" for line in row_lines),
            elements="true" if stores else "false",
        )


def _indented(text: str, spaces: int) -> str:
    return "".join(f"{' ' * spaces}{line}\n" if not line.startswith("#") else f"{line}\n" for line in text.splitlines())


def _identity(kind: PartKind) -> str:
    return {"min": _INFINITY, "max": f"-{_INFINITY}", "online_softmax": f"-{_INFINITY}"}.get(kind, "0.0f")


def _results(p: int, part: Part) -> list[str]:
    if part.kind == "moments":
        # The program's deviations are from the rounded mean; what that rounding lost is the correction, exactly.
        lines = [f"row.r{part.first} = state.mean{p} * cols;"]
        square = f"state.m2{p}"
        if part.correction >= 0:
            lines.append(f"row.r{part.correction} = state.low{p} * cols;")
            square += f" + state.n{p} * state.low{p} * state.low{p}"
        return [*lines, f"row.r{part.second} = {square};"]
    if part.kind == "online_softmax":
        return [f"row.r{part.first} = state.m{p};", f"row.r{part.second} = state.s{p};"]
    return [f"row.r{part.first} = state.{_FIELDS[part.kind][0]}{p};"]


_SUM = """\
float sum$p = 0.0f;
#pragma unroll
for (int i = 0; i < n; ++i) sum$p += values.a$p[i];
"""
_PUSH: dict[PartKind, str] = {
    "sum": _SUM + "s$p += sum$p;\n",
    "max": "#pragma unroll\nfor (int i = 0; i < n; ++i) m$p = max_of(m$p, values.a$p[i]);\n",
    "min": "#pragma unroll\nfor (int i = 0; i < n; ++i) m$p = min_of(m$p, values.a$p[i]);\n",
    "online_softmax": """\
float top$p = m$p;
#pragma unroll
for (int i = 0; i < n; ++i) top$p = max_of(top$p, values.a$p[i]);
// A row that is all -inf so far: any finite reference gives the sum 0.
const float reference$p = top$p == -__int_as_float(0x7f800000) ? 0.0f : top$p;
float sum$p = s$p * $exp(m$p - reference$p);
#pragma unroll
for (int i = 0; i < n; ++i) sum$p += $exp(values.a$p[i] - reference$p);
m$p = top$p;
s$p = sum$p;
""",
    # Two passes over values in registers, then Chan's formula: never E[x^2] - E[x]^2, which cancels for x far from 0.
    "moments": "if (valid > 0) {\n"
    + _SUM
    + """\
const float count$p = float(valid), center$p = __fdividef(sum$p, count$p);
float rest$p = 0.0f, square$p = 0.0f;
#pragma unroll
for (int i = 0; i < n; ++i) {
    const float d = i < valid ? values.a$p[i] - center$p : 0.0f;
    rest$p += d;
    square$p += d * d;
}
const float shift$p = __fdividef(rest$p, count$p);
merge_moments(n$p, mean$p, low$p, m2$p, count$p, center$p, shift$p, square$p - rest$p * shift$p);
}
""",
}
_COMBINE: dict[PartKind, str] = {
    "sum": "s$p += other.s$p;\n",
    "max": "m$p = max_of(m$p, other.m$p);\n",
    "min": "m$p = min_of(m$p, other.m$p);\n",
    "online_softmax": """\
const float top$p = max_of(m$p, other.m$p);
const float reference$p = top$p == -__int_as_float(0x7f800000) ? 0.0f : top$p;
s$p = s$p * $exp(m$p - reference$p) + other.s$p * $exp(other.m$p - reference$p);
m$p = top$p;
""",
    "moments": "merge_moments(n$p, mean$p, low$p, m2$p, other.n$p, other.mean$p, other.low$p, other.m2$p);\n",
}
MOMENTS = """\
// Count, mean and sum of squared deviations of two disjoint sets (Chan, Golub, LeVeque 1979). The mean is mean + low:
// what an addition rounds away goes to low (Knuth's two-sum), so that rows far from zero lose nothing.
__device__ __forceinline__ void merge_moments(float& n, float& mean, float& low, float& m2, float other_n,
                                              float other_mean, float other_low, float other_m2) {
    if (n == 0.0f) {  // nothing to merge with: the formula below would round low away
        n = other_n;
        mean = other_mean;
        low = other_low;
        m2 = other_m2;
        return;
    }
    const float total = n + other_n, share = __fdividef(other_n, total);
    const float delta = (other_mean - mean) + (other_low - low);
    const float step = delta * share, next = mean + step, added = next - mean;
    low += (mean - (next - added)) + (step - added);
    mean = next;
    m2 += other_m2 + delta * delta * n * share;
    n = total;
}
"""
_MERGE = """\
template <class S>
__device__ __forceinline__ S merge_warp(S state) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) state.merge(state.from_lane(mask));
    return state;
}
"""
