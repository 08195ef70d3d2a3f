"""Recognize reductions over any dimensions, with elementwise operators before, between and after."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analysis.analyze import checked_graph, outputs_of, reachable, refuse_other_types
from engine.proposers.playbook.analysis.terms import Shape, Term
from engine.proposers.playbook.base import Program, Unsupported
from engine.proposers.playbook.ir.program import Access, Reduction, Store, Value
from engine.proposers.playbook.ir.reductions import Geometry, ReductionProgram
from engine.proposers.playbook.patterns.reductions.running import running_statistics

POSITIONS = frozenset({"argmax", "argmin"})
"""Reductions whose result is a position, in int64."""


def as_reductions(program: Program) -> ReductionProgram:
    """Return ``program``, whose type must be :class:`ReductionProgram`."""
    assert isinstance(program, ReductionProgram), "the analysis chose the wrong pattern"
    return program


def recognize_reductions(spec: ProblemSpec) -> ReductionProgram | None:
    """Return the program for ``spec``, or None if the problem contains no reduction. Raises ``Unsupported``."""
    graph = checked_graph(spec, writes=True)
    outputs = outputs_of(spec, graph)
    statistics, counters = running_statistics(spec, graph)
    outputs |= statistics
    reductions = [term for term in reachable(outputs.values()) if term.op == "reduce"]
    if not reductions:
        return None
    indices = {name for name, term in outputs.items() if _position(term) is not None}
    refuse_other_types(spec, outputs, indices)
    domains = {(_wide(term.args[0].shape), _reduced(term)) for term in reductions}
    if len(domains) != 1:
        raise Unsupported("the model's reductions run over different dimensions")
    shape, reduced = domains.pop()
    lowering = _Lowering(shape, reduced)
    stores = []
    for name, term in outputs.items():
        if name in indices:
            stores.append(Store(name, lowering.position(term), per_row=True))
        elif term.numel == lowering.geometry.numel:
            value = lowering.element(term, _access(1, lowering.geometry.numel))
            stores.append(Store(name, value))
        elif term.numel == lowering.geometry.rows:
            stores.append(Store(name, lowering.row(term, _access(1, lowering.geometry.rows)), per_row=True))
        else:
            raise Unsupported(f"output `{name}` has neither one element per input element nor one per row")
    if any(lowering.levels[one.source] for one in lowering.reductions):
        raise Unsupported("the model reduces a value that is the same for a whole row")
    levels = tuple(lowering.levels)
    return ReductionProgram(
        lowering.geometry, tuple(lowering.values), levels, tuple(lowering.reductions), tuple(stores), counters
    )


def _position(term: Term) -> Term | None:
    """Return the argmax or argmin that ``term`` views, if any."""
    while term.op == "view":
        term = term.args[0]
    return term if term.op == "reduce" and term.reduce in POSITIONS else None


def _wide(shape: Shape) -> Shape:
    """Return a shape without the sizes that are 1."""
    return tuple(size for size in shape if size != 1)


def _reduced(term: Term) -> tuple[int, ...]:
    """Return the reduced dimensions' positions among the dimensions whose size is not 1."""
    shape = term.args[0].shape
    return tuple(sum(size != 1 for size in shape[:dim]) for dim in term.dims)


def _access(inner: int, count: int) -> Access:
    return Access(1, 1) if count == 1 else Access(inner, count)


def _geometry(shape: Shape, reduced: Sequence[int]) -> Geometry:
    """Return a shape as runs of kept, reduced, kept and reduced dimensions, in this order. Raises ``Unsupported`` if
    the shape needs more runs.
    """
    sizes = [1, 1, 1, 1]
    slot = 0
    for folds, dims in groupby(range(len(shape)), key=lambda dim: dim in reduced):
        slot += slot % 2 != int(folds)
        if slot > 3:
            raise Unsupported("the model's kept and reduced dimensions alternate too often")
        sizes[slot] = prod(shape[dim] for dim in dims)
        slot += 1
    outer, folded, inner, run = sizes
    # If the last dimensions are reduced, their elements are one run, instead of many elements that are far apart.
    if run == 1 and inner == 1:
        folded, run = 1, folded
    return Geometry(outer, folded, inner, run)


class _Lowering:
    """Collect a program's values, each per domain element or per row."""

    def __init__(self, shape: Shape, reduced: tuple[int, ...]) -> None:
        self.shape, self.reduced = shape, reduced
        self.kept = tuple(dim for dim in range(len(shape)) if dim not in reduced)
        self.geometry = _geometry(shape, reduced)
        self.values: list[Value] = []
        self.levels: list[bool] = []
        self.reductions: list[Reduction] = []
        self._positions: dict[tuple[Value, bool], int] = {}
        self._done: dict[tuple[int, Access, bool], int] = {}
        # These references keep the ids in ``_done`` valid.
        self._alive: list[Term] = []

    def element(self, term: Term, access: Access) -> int:
        """Return the value of ``term`` per element. ``access`` maps the domain element's number to an element of
        ``term``.
        """
        return self._value(term, access, False)

    def row(self, term: Term, access: Access) -> int:
        """Return the value of ``term`` per row. ``access`` maps the row's number to an element of ``term``."""
        return self._value(term, access, True)

    def position(self, term: Term) -> int:
        """Return the result of the argmax or argmin that ``term`` views."""
        found = _position(term)
        assert found is not None
        return self._add(Value("reduced", reduction=self._reduction(found)), True)

    def _value(self, term: Term, access: Access, per_row: bool) -> int:
        key = (id(term), access, per_row)
        if key not in self._done:
            self._done[key] = self._lower(term, access, per_row)
            self._alive.append(term)
        return self._done[key]

    def _lower(self, term: Term, access: Access, per_row: bool) -> int:
        if term.op == "const":
            return self._add(Value("const", number=term.number, text=term.text), True)
        if term.op == "load":
            return self._add(Value("load", tensor=term.tensor, access=access), per_row or access.count == 1)
        if term.op == "view":
            return self._value(term.args[0], access, per_row)
        if term.op == "expand":
            return self._argument(term.args[0], term.shape, access, per_row)
        if term.op == "reduce":
            if not per_row or access != _access(1, self.geometry.rows):
                raise Unsupported("the model combines a reduced value with elements of other rows")
            if term.reduce in POSITIONS:
                raise Unsupported("the model uses the result of argmax or argmin in further arithmetic")
            return self._add(Value("reduced", reduction=self._reduction(term)), True)
        args = tuple(self._argument(arg, term.shape, access, per_row) for arg in term.args)
        return self._add(Value(term.op, args), per_row or all(self.levels[arg] for arg in args))

    def _reduction(self, term: Term) -> int:
        source = self.element(term.args[0], _access(1, self.geometry.numel))
        reduction = Reduction(term.reduce, source)
        if reduction not in self.reductions:
            self.reductions.append(reduction)
        return self.reductions.index(reduction)

    def _argument(self, term: Term, wide: Shape, access: Access, per_row: bool) -> int:
        """Return an operand that is broadcast to ``wide``. ``access`` selects an element of the broadcast operand."""
        padded = (1,) * (len(wide) - len(term.shape)) + tuple(term.shape)
        whole = access == _access(1, self.geometry.numel) and _wide(wide) == self.shape
        if whole and not per_row:
            dims = [dim for dim, size in enumerate(wide) if size != 1]
            if tuple(at for at, dim in enumerate(dims) if padded[dim] != 1) == self.kept:
                return self.row(term, _access(1, self.geometry.rows))
        return self._value(term, access.then(_broadcast(padded, wide)), per_row)

    def _add(self, value: Value, per_row: bool) -> int:
        key = (value, per_row)
        if key not in self._positions:
            self._positions[key] = len(self.values)
            self.values.append(value)
            self.levels.append(per_row)
        return self._positions[key]


def _broadcast(padded: Shape, wide: Shape) -> Access:
    """Return the access to a tensor of shape ``padded`` that is broadcast to ``wide``. Raises ``Unsupported``."""
    kept = [dim for dim, size in enumerate(wide) if size != 1 and padded[dim] == size]
    if not kept:
        return Access(1, 1)
    if any(kept[0] < dim < kept[-1] for dim, size in enumerate(wide) if size != 1 and padded[dim] != size):
        raise Unsupported(f"the model broadcasts {list(padded)} to {list(wide)} over dimensions that are not adjacent")
    return _access(prod(wide[kept[-1] + 1 :]), prod(wide[dim] for dim in kept))
