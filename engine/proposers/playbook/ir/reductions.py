"""Programs that reduce any dimensions: a domain of four groups of dimensions, with values per element and per row."""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct

from engine.proposers.playbook.base import Program
from engine.proposers.playbook.ir.program import FusedPair, Reduction, Store, Value, fused_pairs, is_alone, passes_of


class Geometry(Struct, frozen=True):
    """A domain of ``outer`` x ``folded`` x ``inner`` x ``run`` elements in row-major order.

    A **row** contains the elements at one position in ``outer`` and one position in ``inner``. A reduction folds the
    ``folded`` x ``run`` elements of a row. A sum over the middle dimension has a ``run`` of 1. Batch statistics have an
    ``outer`` of 1.
    """

    outer: int
    folded: int
    inner: int
    run: int

    @property
    def rows(self) -> int:
        return self.outer * self.inner

    @property
    def cols(self) -> int:
        return self.folded * self.run

    @property
    def numel(self) -> int:
        return self.rows * self.cols

    @property
    def adjacent(self) -> bool:
        """Whether the elements of a row are adjacent, at least in runs. If not, adjacent elements are in different
        rows.
        """
        return self.run > 1 or self.inner == 1


class ReductionProgram(Program, frozen=True, dict=True):
    """A program over ``geometry``. ``per_row`` says which values belong to a row. All other values belong to an
    element.

    In a per-row load, ``access`` maps the row's number: ``o * inner + c`` at position ``o`` in ``outer`` and ``c`` in
    ``inner``. In a per-element load, ``access`` maps the element's number. A store may overwrite a model buffer that
    the same row reads. ``counters`` names int64 buffers that each call increments by 1.
    """

    geometry: Geometry
    values: tuple[Value, ...]
    per_row: tuple[bool, ...]
    reductions: tuple[Reduction, ...]
    stores: tuple[Store, ...]
    counters: tuple[str, ...] = ()

    @cached_property
    def passes(self) -> tuple[tuple[int, ...], ...]:
        """Return the program's reductions by pass; see ``passes_of``."""
        return passes_of(self.values, self.reductions)

    @property
    def cols(self) -> int:
        return self.geometry.cols

    @cached_property
    def moments(self) -> FusedPair | None:
        """Return the first ``moments`` pair that has a correction and whose passes compute nothing else, if any."""
        pairs = (one for one in fused_pairs(self) if one.kind == "moments" and one.correction >= 0)
        return next((one for one in pairs if is_alone(self, one)), None)

    @property
    def element_stores(self) -> tuple[Store, ...]:
        return tuple(store for store in self.stores if not store.per_row)

    @property
    def row_stores(self) -> tuple[Store, ...]:
        return tuple(store for store in self.stores if store.per_row)

    def elements(self, roots: tuple[int, ...]) -> tuple[int, ...]:
        """Return the values per element that ``roots`` need, in execution order."""
        seen: set[int] = set()
        waiting = [k for k in roots if not self.per_row[k]]
        while waiting:
            k = waiting.pop()
            if k not in seen:
                seen.add(k)
                waiting.extend(arg for arg in self.values[k].args if not self.per_row[arg])
        return tuple(sorted(seen))

    def row_values(self, roots: tuple[int, ...]) -> tuple[int, ...]:
        """Return the per-row values, except constants, among ``roots`` and the arguments of ``elements(roots)``."""
        found = {k for k in roots if self.per_row[k]}
        for k in self.elements(roots):
            found.update(arg for arg in self.values[k].args if self.per_row[arg])
        return tuple(sorted(k for k in found if self.values[k].op != "const"))
