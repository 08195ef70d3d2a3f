"""The stages of a row program in CUDA, the values that each stage folds, and the tensors that each loop loads."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from msgspec import Struct

from engine.proposers.playbook.codegen.cuda import Stream, streams
from engine.proposers.playbook.ir.program import FusedPair, ReduceOp, RowProgram, needed

PartKind = ReduceOp | Literal["online_softmax", "moments"]
FIELDS: dict[PartKind, tuple[str, ...]] = {
    "sum": ("s",),
    "max": ("m",),
    "min": ("m",),
    "online_softmax": ("m", "s"),
    "moments": ("n", "mean", "low", "m2"),
}
"""The fields of a part's state, one float each, by kind."""


class Part(Struct, frozen=True):
    """One running result of a stage: a reduction, or a pair of reductions in one pass (``second`` >= 0)."""

    kind: PartKind
    source: int
    first: int
    second: int = -1
    mean: int = -1
    correction: int = -1

    def __contains__(self, reduction: int) -> bool:
        return reduction in (self.first, self.second, self.correction)


def stages_of(program: RowProgram, fused: bool) -> tuple[tuple[Part, ...], ...]:
    """Return the passes over the row. With ``fused``, a single pass computes each fusable pair of reductions."""
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


class RowStages:
    """The stages of ``program`` and the loads of each loop.

    Args:
        width: Elements per pack, a divisor of ``cols``.
        fused: Whether to compute dependent pairs of reductions in one stage.
    """

    def __init__(self, program: RowProgram, *, width: int, fused: bool) -> None:
        self.program = program
        self.width = width
        self.stages = stages_of(program, fused)

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """Values that the kernel reduces or stores."""
        return (*(r.source for r in self.program.reductions), *(s.value for s in self.program.stores))

    @cached_property
    def held(self) -> tuple[Stream, ...]:
        """Loads of tensors that are as large as the domain, in domain order."""
        wanted = streams(self.program.values, self.program.element_order(self.roots))
        return tuple(s for s in wanted if s.access.inner == 1 and s.access.count >= self.program.numel)

    def extras(self, roots: Iterable[int]) -> tuple[Stream, ...]:
        """Return the loads that ``roots`` need in addition to ``held``."""
        found = streams(self.program.values, self.program.element_order(roots))
        held = {(s.tensor, s.access) for s in self.held}
        return tuple(s for s in found if (s.tensor, s.access) not in held)

    @cached_property
    def out_extras(self) -> tuple[Stream, ...]:
        """The loads that the outputs need, except those of the row itself."""
        return self.extras(store.value for store in self.program.element_stores)

    @property
    def out_extras_by_column(self) -> bool:
        """Whether the extra loads of the outputs are the same in every row."""
        return all(self.by_column(s) for s in self.out_extras)

    def by_column(self, stream: Stream) -> bool:
        """Return whether a load depends only on the column."""
        return self.program.cols % (stream.access.inner * stream.access.count) == 0

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors that the kernel reads or writes."""
        values = self.program.values
        read = [values[k].tensor for k in needed(values, self.roots) if values[k].op == "load"]
        return tuple(dict.fromkeys((*read, *(store.tensor for store in self.program.stores))))

    @property
    def state_floats(self) -> int:
        """Maximum number of floats in a stage's state."""
        return max(sum(len(FIELDS[part.kind]) for part in parts) for parts in self.stages)

    @cached_property
    def row_values(self) -> tuple[int, ...]:
        """Per-row values that a kernel keeps in addition to the reductions' results."""
        values = self.program.values
        return tuple(
            k
            for k in needed(values, self.roots)
            if self.program.per_row[k] and values[k].op not in ("const", "reduced")
        )

    def ready(self, position: int) -> int:
        """Return the stage after which a kernel can compute a per-row value, or -1 if the value does not depend on a
        stage.
        """
        used = self.program.reductions_of(position)
        return max((self._stage_of(k) for k in used), default=-1)

    def _stage_of(self, reduction: int) -> int:
        return next(k for k, parts in enumerate(self.stages) if any(reduction in part for part in parts))
