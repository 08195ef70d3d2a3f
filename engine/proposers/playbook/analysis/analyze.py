"""Turn a traced reference into a pointwise program or a row program with reductions."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from math import inf, nan, prod
from typing import Any

from engine.problem.spec import GraphNode, ProblemSpec
from engine.proposers.playbook.analysis import aten
from engine.proposers.playbook.analysis import terms as t
from engine.proposers.playbook.analysis.terms import Shape, Term
from engine.proposers.playbook.base import Program, Unsupported
from engine.proposers.playbook.ir.program import ROW_OPS, Access, PointwiseProgram, Reduction, RowProgram, Store, Value
from engine.proposers.playbook.ir.sizes import named

MAX_NODES = 200
"""Maximum number of operators per graph. A larger graph is usually a whole network, and a single fused kernel for it
would be unreadable.
"""
_NUMBERS = {"inf": inf, "-inf": -inf, "nan": nan}
_TAKES_STRINGS = frozenset({"approximate", "rounding_mode", "dtype"})


def analyze(spec: ProblemSpec) -> Program:
    """Return the program that computes all outputs of ``spec``.

    Raises ``Unsupported``, whose message completes "because ...".
    """
    outputs = outputs_of(spec, checked_graph(spec))
    refuse_other_types(spec, outputs)
    reductions = [term for term in reachable(outputs.values()) if term.op == "reduce"]
    return _row_program(outputs, reductions) if reductions else pointwise_program(outputs)


def checked_graph(spec: ProblemSpec, *, writes: bool = False) -> tuple[GraphNode, ...]:
    """Return the graph of ``spec``. Raises ``Unsupported`` if a single kernel cannot compute the graph.

    Args:
        writes: Whether the pattern supports models that write to their buffers.
    """
    if spec.graph is None:
        raise Unsupported("the reference could not be traced")
    if not writes and any(tensor.mutated for tensor in spec.tensors):
        raise Unsupported("the model writes to one of its buffers")
    if sum(node.op == "call" for node in spec.graph) > MAX_NODES:
        raise Unsupported(f"the problem's graph has more than {MAX_NODES} operators")
    if any(tensor.numel == 0 for tensor in spec.outputs):
        raise Unsupported("one of the problem's outputs is empty")
    return spec.graph


def refuse_other_types(spec: ProblemSpec, outputs: Mapping[str, Term], indices: Container[str] = ()) -> None:
    """Raise ``Unsupported`` unless all tensors that ``outputs`` use are fp32 and no value depends on an element's
    position. Outputs that ``indices`` names must be int64 instead.
    """
    refuse_positions(outputs.values())
    used = {term.tensor for term in reachable(outputs.values()) if term.op == "load"} | set(outputs)
    for tensor in spec.tensors:
        wanted = "int64" if tensor.name in indices else "float32"
        if tensor.name in used and tensor.dtype != wanted:
            raise Unsupported(f"`{tensor.name}` is {tensor.dtype}, and this pattern supports only {wanted}")


def outputs_of(
    spec: ProblemSpec, graph: tuple[GraphNode, ...], known: Mapping[str, Term] | None = None
) -> dict[str, Term]:
    """Return the term of each output tensor; see :func:`terms_of`."""
    returned = terms_of(spec, graph, known)
    names = [tensor.name for tensor in spec.outputs]
    if len(returned) != len(names):
        raise Unsupported("the model returns something that is not a tensor")
    return dict(zip(names, returned, strict=True))


def terms_of(spec: ProblemSpec, graph: tuple[GraphNode, ...], known: Mapping[str, Term] | None = None) -> list[Term]:
    """Return a term for each tensor that ``graph`` returns. Raises ``Unsupported``.

    Args:
        known: Terms that are already known, by node name. The function skips nodes that only these terms need.
    """
    terms: dict[str, aten.Lowered] = dict(known or {})
    wanted = needed_nodes(graph, terms)
    shapes = {tensor.name: tensor.shape for tensor in spec.tensors}
    scalars = {scalar.name: scalar.value for scalar in spec.scalars}
    for node in graph:
        if node.name in terms or node.name not in wanted:
            continue
        if node.op == "placeholder":
            if node.target in scalars:
                terms[node.name] = t.number(float(scalars[node.target]))
            else:
                terms[node.name] = t.load(node.target, named(node.target, shapes[node.target]))
        elif node.op == "call":
            args = [_argument(arg, terms, node.target) for arg in node.args]
            kwargs = {
                key: value if key in _TAKES_STRINGS else _argument(value, terms, node.target)
                for key, value in node.kwargs.items()
                if key not in ("layout", "device", "pin_memory", "memory_format")
            }
            terms[node.name] = aten.lower(node.target, node.shape, args, kwargs)
        elif node.op == "getitem":
            several = terms[node.args[0]["ref"]]
            picked = several[node.args[1]] if isinstance(several, tuple) else None
            if picked is None:
                raise Unsupported(
                    f"the model uses output {node.args[1]} of {node.args[0]['ref']}, which the playbook cannot compute"
                )
            terms[node.name] = picked
        else:
            returned = [_argument(arg, terms, "output") for arg in _flat(node.args)]
            if not all(isinstance(term, Term) for term in returned):
                raise Unsupported("the model returns something that is not a tensor")
            return returned
    raise Unsupported("the problem's graph has no output")


def needed_nodes(graph: tuple[GraphNode, ...], stop: Container[str] = ()) -> set[str]:
    """Return the names of the nodes on which the output depends. Do not follow the arguments of nodes in ``stop``."""
    found: set[str] = set()
    for node in reversed(graph):
        if node.op == "output" or node.name in found:
            found.add(node.name)
            if node.name not in stop:
                found.update(references([*node.args, *node.kwargs.values()]))
    return found


def references(args: Iterable[Any]) -> Iterator[str]:
    """Yield the names of the nodes to which ``args`` refer."""
    for arg in args:
        if isinstance(arg, dict) and "ref" in arg:
            yield arg["ref"]
        elif isinstance(arg, (list, tuple)):
            yield from references(arg)


def _flat(args: tuple[Any, ...]) -> list[Any]:
    return [one for arg in args for one in (arg if isinstance(arg, (list, tuple)) else [arg])]


def _argument(arg: Any, terms: dict[str, aten.Lowered], target: str) -> Any:
    if isinstance(arg, dict) and "ref" in arg:
        term = terms[arg["ref"]]
        if isinstance(term, tuple):
            raise Unsupported(f"the model uses the outputs of {arg['ref']} as one tuple")
        return term
    if isinstance(arg, (list, tuple)):
        return [_argument(one, terms, target) for one in arg]
    return _NUMBERS.get(arg, arg) if isinstance(arg, str) else arg


def reachable(roots: Iterable[Term]) -> list[Term]:
    """Return ``roots`` and all terms on which ``roots`` depend, without duplicates."""
    seen: dict[int, Term] = {}
    waiting = list(roots)
    while waiting:
        term = waiting.pop()
        if id(term) not in seen:
            seen[id(term)] = term
            waiting.extend(term.args)
    return list(seen.values())


def refuse_positions(roots: Iterable[Term]) -> None:
    """Raise ``Unsupported`` if a term depends on an element's position."""
    if any(term.op == "position" for term in reachable(roots)):
        raise Unsupported(
            "a value depends on the positions of elements, which the playbook supports only after matrix products"
        )


def pointwise_program(outputs: dict[str, Term], *, positions: bool = False) -> PointwiseProgram:
    """Return the program for terms without reductions. Raises ``Unsupported``.

    Args:
        positions: Whether the pattern supports values that depend on an element's position.
    """
    if not positions:
        refuse_positions(outputs.values())
    sizes = {term.numel for term in outputs.values()}
    if len(sizes) != 1:
        raise Unsupported("the problem's outputs differ in size")
    numel = sizes.pop()
    lowering = _Lowering(numel, numel)
    stores = tuple(Store(name, lowering.value(term, _access(1, numel))) for name, term in outputs.items())
    return PointwiseProgram(numel, tuple(lowering.values), stores)


def _row_program(outputs: dict[str, Term], reductions: list[Term]) -> RowProgram:
    for term in reductions:
        shape = term.args[0].shape
        wide = [dim for dim, size in enumerate(shape) if size != 1]
        if term.dims != tuple(wide[len(wide) - len(term.dims) :]):
            raise Unsupported(f"the model reduces a {list(shape)} tensor over dimensions that are not the last ones")
        if term.reduce not in ROW_OPS:
            raise Unsupported(f"the model reduces rows with the unsupported operation {term.reduce}")
    geometries = {(term.args[0].numel, term.cols) for term in reductions}
    if len(geometries) != 1:
        raise Unsupported("the problem reduces rows of different lengths")
    numel, cols = geometries.pop()
    lowering = _Lowering(numel, cols)
    stores = []
    for name, term in outputs.items():
        if term.numel == numel:
            stores.append(Store(name, lowering.value(term, _access(1, numel))))
        elif term.numel == numel // cols:
            stores.append(Store(name, lowering.value(term, _access(cols, numel // cols)), per_row=True))
        else:
            raise Unsupported(f"output `{name}` has neither one element per input element nor one per row")
    return RowProgram(numel // cols, cols, tuple(lowering.values), tuple(lowering.reductions), tuple(stores))


def _access(inner: int, count: int) -> Access:
    return Access(1, 1) if count == 1 else Access(inner, count)


class _Lowering:
    """Collect a program's values, and merge equal values."""

    def __init__(self, numel: int, cols: int) -> None:
        self.numel, self.cols = numel, cols
        self.values: list[Value] = []
        self.reductions: list[Reduction] = []
        self._positions: dict[Value, int] = {}
        self._done: dict[tuple[int, Access], int] = {}
        self._kept: list[Term] = []  # Keep the term alive, so that ids in ``_done`` stay valid.

    def value(self, term: Term, access: Access) -> int:
        """Return the position of ``term``'s value in the program. ``access`` maps each domain element to the element of
        ``term`` that it reads.
        """
        key = (id(term), access)
        if key not in self._done:
            self._done[key] = self._lower(term, access)
            self._kept.append(term)
        return self._done[key]

    def _lower(self, term: Term, access: Access) -> int:
        if term.op == "const":
            return self._add(Value("const", number=term.number, text=term.text))
        if term.op == "load":
            return self._add(Value("load", tensor=term.tensor, access=access))
        if term.op == "position":
            return self._add(Value("position", access=access))
        if term.op == "view":
            return self.value(term.args[0], access)
        if term.op == "expand":
            return self.value(term.args[0], self._broadcast(term.args[0].shape, term.shape, access))
        if term.op == "reduce":
            return self._reduce(term, access)
        args = tuple(self.value(arg, self._broadcast(arg.shape, term.shape, access)) for arg in term.args)
        return self._add(Value(term.op, args))

    def _reduce(self, term: Term, access: Access) -> int:
        if access != _access(self.cols, self.numel // self.cols):
            raise Unsupported("the model combines a reduced value with elements of other rows")
        reduction = Reduction(term.reduce, self.value(term.args[0], _access(1, self.numel)))
        if reduction not in self.reductions:
            self.reductions.append(reduction)
        return self._add(Value("reduced", reduction=self.reductions.index(reduction)))

    def _broadcast(self, shape: Shape, wide: Shape, access: Access) -> Access:
        """Return the access to a tensor of ``shape`` that is broadcast to ``wide``. ``access`` is the access to
        ``wide``.
        """
        padded = (1,) * (len(wide) - len(shape)) + tuple(shape)
        kept = [dim for dim, size in enumerate(wide) if size != 1 and padded[dim] == size]
        spread = [dim for dim, size in enumerate(wide) if size != 1 and padded[dim] != size]
        if not kept:
            return Access(1, 1)
        if any(kept[0] < dim < kept[-1] for dim in spread):
            raise Unsupported(
                f"the model broadcasts {list(shape)} to {list(wide)} over dimensions that are not adjacent"
            )
        inner = prod(wide[kept[-1] + 1 :])
        return access.then(_access(inner, prod(wide[dim] for dim in kept)))

    def _add(self, value: Value) -> int:
        if value not in self._positions:
            self._positions[value] = len(self.values)
            self.values.append(value)
        return self._positions[value]
