"""The CUDA kernel file for a row program, and the data that the templates ``rows_*.cu.j2`` need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.codegen.cuda import Cuda, Stream, pointer_types, stream_of
from engine.proposers.playbook.codegen.dialect import Expression
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import program_assertions, size_assertion
from engine.proposers.playbook.ir.program import RowProgram, Value, needed
from engine.proposers.playbook.ir.sizes import factor, text
from engine.proposers.playbook.patterns.rows.cuda_plan import (
    BLOCK_KEPT_FLOATS,
    HALVES_FLOATS,
    HALVES_HELPER_REGISTERS,
    HALVES_PIECES,
    MOST_GRID_ROWS,
    RESERVED_BYTES,
    SHARED_BYTES,
    HalvesPlan,
    Plan,
    RingPlan,
    resolve,
)
from engine.proposers.playbook.patterns.rows.cuda_stages import FIELDS, Part, PartKind, RowStages

MOST_HELD = 256
"""Maximum number of a row's floats that a thread keeps at sizes other than the searched size. A thread's registers hold
fewer floats, so the compiler may spill some.
"""
_WIDTHS = {1: "1", 2: "cols % 2 == 0 ? 2 : 1", 4: "cols % 4 == 0 ? 4 : cols % 2 == 0 ? 2 : 1"}
_INFINITY = "__int_as_float(0x7f800000)"


def row_kernel(program: RowProgram, choices: Choices, spec: ProblemSpec) -> str:
    """Return the kernel source."""
    plan = resolve(program, choices)
    if plan.ring is None and plan.halves is None:
        return _file(plan, choices, spec)
    # At sizes for which this structure has no room, another structure in the same file takes over.
    other = resolve(program, {**choices, **_FALLBACK, "structure": "split" if plan.cluster == 0 else "loop"})
    fallback = _file(other, {**choices, **_FALLBACK}, spec, space="elsewhere")
    return _file(plan, choices, spec, fallback=fallback)


_FALLBACK: Choices = {"threads": 512, "unroll": 4, "rows_per_block": 4, "group_rows": 0, "span_kb": 64, "read": "plain"}


def _file(plan: Plan, choices: Choices, spec: ProblemSpec, *, space: str = "playbook", fallback: str = "") -> str:
    program = plan.stages.program
    view = RowView(plan.stages, fast=choices["math"] == "fast")
    names: dict[str, object] = {"workspace_bytes": "", "grid": "", "threads": plan.threads}
    if plan.structure == "split":
        names |= _split(plan, choices)
    elif plan.ring is not None:
        names |= _ring(plan, plan.ring, choices)
    elif plan.halves is not None:
        names |= _halves(plan, plan.halves, choices) | view.affine_names()
    elif plan.structure == "block":
        names |= _block(plan, choices)
    elif plan.structure == "registers":
        names |= _registers(plan, choices)
    else:
        names |= {"unroll": choices["unroll"], "tree": choices["merge"] == "tree", "grid": "rows"}
    tensors = plan.stages.tensors
    used = (*tensors, "stream", *(("workspace",) if names["workspace_bytes"] or fallback else ()))
    whole = plan.ring is not None or plan.halves is not None  # These structures need rows of whole 16-byte packs.
    return render(
        f"rows_{plan.structure}.cu.j2",
        space=space,
        fallback=fallback,
        rows=text(program.rows),
        cols=text(program.cols),
        width="4" if whole else _WIDTHS[plan.stages.width],
        size_assertions=program_assertions(program, needed(program.values, plan.stages.roots), spec),
        stream_loads=choices["read"] == "stream",
        stream_stores=choices["store"] == "stream",
        exp="__expf" if view.cuda.fast else "expf",
        tensors=pointer_types(tensors, spec),
        arguments=", ".join(tensors),
        launch=launch_signature(spec, "cu", frozenset(used)),
        **view.names(),
        **names,
    )


def _split(plan: Plan, choices: Choices) -> dict[str, object]:
    return {
        "unroll": choices["unroll"],
        "span_floats": int(choices["span_kb"]) * 256,
        "group_rows": min(int(choices["group_rows"]) or MOST_GRID_ROWS, MOST_GRID_ROWS),
        "rows_per_block": choices["rows_per_block"],
        "weights_by_column": plan.stages.out_extras_by_column,
        "workspace_bytes": "sizeof(Workspace)",
    }


def _registers(plan: Plan, choices: Choices) -> dict[str, object]:
    sharers = plan.threads * plan.cluster if plan.cluster else 32
    held = max(1, len(plan.stages.held))
    return {
        "cluster": plan.cluster,
        "blocks": choices["blocks"],
        "registers_assertion": size_assertion(
            f"keep * width * {held} <= {MOST_HELD}", f"rows that fit in the registers of {sharers} threads"
        ),
        "grid": "rows * cluster" if plan.cluster else "(rows * 32 + threads - 1) / threads",
    }


def _block(plan: Plan, choices: Choices) -> dict[str, object]:
    return {
        "blocks": max(1, int(choices["blocks"])),
        "cluster": plan.cluster,
        "keep": choices["keep"],
        "unroll": min(int(choices["unroll"]), 4),
        "kept_floats": BLOCK_KEPT_FLOATS,
        "shared_bytes": SHARED_BYTES,
        "reserved_bytes": RESERVED_BYTES,
        "block_assertion": size_assertion(
            "room >= 1 && kept <= most_kept", "rows that fit in the shared memory and registers of 8 blocks"
        ),
    }


def _halves(plan: Plan, halves: HalvesPlan, choices: Choices) -> dict[str, object]:
    return {
        "group": halves.group,
        "per": choices["per"],
        "slots": choices["slots"],
        "helper_registers": HALVES_HELPER_REGISTERS,
        "shared_bytes": SHARED_BYTES,
        "reserved_bytes": RESERVED_BYTES,
        "fits": f"cols % 4 == 0 && pieces <= {HALVES_PIECES} && pieces * per * 4 <= {HALVES_FLOATS} && room >= 2",
        "workspace_bytes": "2 * group * sizeof(Posted)",
    }


def _ring(plan: Plan, ring: RingPlan, choices: Choices) -> dict[str, object]:
    blocks, floats = max(1, int(choices["blocks"])), plan.stages.state_floats
    # Counters come first, one for each exchange of a row, aligned to 256 bytes. Posted states follow.
    posted = f"counter_bytes + exchanges * group * {4 * floats}"
    return {
        "cluster": plan.cluster,
        "blocks": blocks,
        "group": ring.group,
        "groups": max(1, int(choices["sms"]) * blocks // ring.group),
        "keep": ring.keep_wanted if ring.keep else 0,
        "writers": plan.writers,
        "moves_registers": plan.writers > 0 and ring.keep > 0 and not (plan.writers % 128 or plan.threads % 128),
        "fold_registers": 96 if plan.threads == 128 and plan.writers <= 256 else 80 if plan.threads == 128 else 64,
        "slot_bytes": ring.slot_bytes,
        "shared_bytes": SHARED_BYTES,
        "reserved_bytes": RESERVED_BYTES,
        "state_floats": floats,
        "fits": "cols % 4 == 0 && room >= pieces",
        "workspace_bytes": "" if plan.cluster else posted,
    }


class RowView:
    """A program's stages, prepared for ``rows.cu.j2``."""

    def __init__(self, stages: RowStages, *, fast: bool) -> None:
        self.stages, self.program = stages, stages.program
        self.values = stages.program.values
        self.cuda = Cuda(fast=fast)
        self.packs = Cuda(fast=fast, packs=True)
        self.row_names = {
            k: f"row.r{value.reduction}" if value.op == "reduced" else f"row.v{k}"
            for k, value in enumerate(self.values)
            if value.op == "reduced" or (self.program.per_row[k] and value.op != "const")
        }

    def names(self) -> dict[str, object]:
        """Return the template variables that do not depend on the kernel's structure."""
        stages, stores = self.stages, self.program.element_stores
        statements, results = self._elements([s.value for s in stores], stages.out_extras)
        numbers = [f"r{k}" for k in range(len(self.program.reductions))] + [f"v{k}" for k in stages.row_values]
        return {
            "row_numbers": numbers,
            "held": self._loads(stages.held),
            "begin": [self._number(k, self._begin(k)) for k in stages.row_values if self._known_before(k)],
            "stages": [self._stage(k, parts) for k, parts in enumerate(stages.stages)],
            "out_extras": self._loads(stages.out_extras),
            "outputs": [store.tensor for store in stores],
            "write": {"statements": statements, "results": results},
            "row_results": [
                {"tensor": store.tensor, "expression": self._row_number(store.value)}
                for store in self.program.row_stores
            ],
        }

    def affine_names(self) -> dict[str, object]:
        """Return the template variables for outputs computed from a scaled deviation plus an offset per row."""
        stages, stores = self.stages, self.program.element_stores
        first, root, slope = self._affine()
        statements, texts = self.cuda.statements(self.values, [root], {**self.row_names, first: "pivot"})
        rest, results = self._elements([store.value for store in stores], stages.out_extras, {root: "z.at[u]"})
        return {
            "affine": {"slope": slope, "statements": statements, "offset": texts[root]},
            "from_affine": {"statements": rest, "results": results},
        }

    def _affine(self) -> tuple[int, int, str]:
        """Return the position of the row's load, the position of an affine value, and the factor of the affine
        function. The affine value is an affine function of the load with per-row coefficients. All outputs depend on
        the load only through this value. If several values qualify, the last one is the affine value.
        """
        program, order = self.program, self.program.element_order(s.value for s in self.program.element_stores)
        held = self.stages.held[0]
        at = first = next(
            k for k in order if (self.values[k].tensor, self.values[k].access) == (held.tensor, held.access)
        )
        slope = ["1.0f"]
        stored = {store.value for store in program.element_stores}
        while at not in stored:
            users = [k for k in order if at in self.values[k].args]
            value = self.values[users[0]]
            others = [arg for arg in value.args if arg != at]
            if len(users) != 1 or len(value.args) - len(others) != 1 or not all(program.per_row[k] for k in others):
                break
            if (
                value.op in ("mul", "div")
                and value.args[0] in (at, *others)
                and (value.op == "mul" or value.args[0] == at)
            ):
                number = self._row_number(others[0])
                slope.append(number if value.op == "mul" else f"1.0f / {number}")
            elif value.op == "neg" or (value.op == "sub" and value.args[1] == at):
                slope.append("-1.0f")
            elif value.op not in ("add", "sub"):
                break
            at = users[0]
        factors = slope[1:] or slope
        return first, at, " * ".join(f"({one})" if "/" in one else one for one in factors)

    def _loads(self, found: Iterable[Stream]) -> list[dict[str, str]]:
        return [{"field": s.field, "tensor": s.tensor, "expression": self._load(s)} for s in found]

    def _load(self, stream: Stream) -> str:
        by_column = self.stages.by_column(stream) and stream not in self.stages.held
        index, domain = ("col", "cols") if by_column else ("base + col", "rows * cols")
        return self.packs.load(f"t.{stream.tensor}", stream.access, index, self.program.numel, domain)

    def _known_before(self, k: int) -> bool:
        return self.values[k].op == "load" or self.stages.ready(k) < 0

    def _begin(self, k: int) -> str:
        value = self.values[k]
        return f"t.{value.tensor}[{self._row_index(value)}]" if value.op == "load" else self._computed(k)

    @staticmethod
    def _number(k: int, expression: str) -> dict[str, str]:
        """Return the name and the expression of per-row value ``k``."""
        return {"name": f"v{k}", "expression": expression}

    def _row_index(self, value: Value) -> str:
        inner, count = value.access.inner, value.access.count
        if count == 1:
            return "0"
        step = inner // self.program.cols
        return f"r / {factor(step)} % {factor(count)}" if step > 1 else f"r % {factor(count)}"

    def _row_number(self, k: int) -> str:
        value = self.values[k]
        return self.cuda.literal(value.number, value.text) if value.op == "const" else self.row_names[k]

    def _computed(self, k: int) -> str:
        """Return the expression of per-row value ``k``."""
        args = [Expression(self._row_number(arg)) for arg in self.values[k].args]
        return self.cuda.expression(self.values[k], args).text

    def _stage(self, stage: int, parts: tuple[Part, ...]) -> dict[str, object]:
        sources = [part.source for part in parts]
        extras = self.stages.extras(sources)
        statements, folded = self._elements(sources, extras)
        fields = [(f"{field}{p}", part.kind, field) for p, part in enumerate(parts) for field in FIELDS[part.kind]]
        means = {part.mean: f"state.mean{p}" for p, part in enumerate(parts) if part.kind == "moments"}
        after = [k for k in self.stages.row_values if self.values[k].op != "load" and self.stages.ready(k) == stage]
        return {
            "parts": parts,
            "fields": [{"name": name} for name, _, _ in fields],
            "empty": ", ".join(_empty(kind, field) for _, kind, field in fields),
            "extras": self._loads(extras),
            "statements": statements,
            "folded": folded,
            "identities": [_identity(part.kind) for part in parts],
            "finish": [self._number(k, means[k] if k in means else self._computed(k)) for k in after],
        }

    def _elements(
        self, roots: list[int], extras: tuple[Stream, ...], known: Mapping[int, str] | None = None
    ) -> tuple[list[str], list[str]]:
        """Return statements that compute ``roots`` for one lane of a pack, and the resulting expressions.

        Args:
            known: The names of values that the kernel has already computed.
        """
        leaves = {**self.row_names, **(known or {})}
        for k in needed(self.values, roots):
            value = self.values[k]
            if value.op == "load" and k not in leaves:
                held = stream_of(self.stages.held, value)
                extra = stream_of(extras, value)
                leaves[k] = f"h.{held.field}.at[u]" if held else f"x.{extra.field}.at[u]" if extra else ""
        statements, texts = self.cuda.statements(self.values, roots, leaves)
        return statements, [texts[root] for root in roots]


def _identity(kind: PartKind) -> str:
    """Return the identity element of a part's operation, for positions past the end of the row."""
    return {"min": _INFINITY, "max": f"-{_INFINITY}", "online_softmax": f"-{_INFINITY}"}.get(kind, "0.0f")


def _empty(kind: PartKind, field: str) -> str:
    """Return the initial value of a field of a part's state."""
    if field != "m":
        return "0.0f"
    return _INFINITY if kind == "min" else f"-{_INFINITY}"
