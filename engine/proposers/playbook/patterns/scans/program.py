"""Recognize and describe scans with elementwise operators before and after."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Literal

from engine.problem.spec import GraphNode, ProblemSpec
from engine.proposers.playbook.analysis.analyze import pointwise_program, reachable, terms_of
from engine.proposers.playbook.analysis.epilogue import ACC, calls, epilogue, graph_of, is_acc
from engine.proposers.playbook.base import Program, Unsupported
from engine.proposers.playbook.codegen.size_assertions import number_assertions, whole
from engine.proposers.playbook.ir.program import PointwiseProgram

SCANS: Mapping[str, Literal["sum", "prod"]] = {"aten.cumsum.default": "sum", "aten.cumprod.default": "prod"}
_FLIP = "aten.flip.default"
_SLICE = "aten.slice.Tensor"
_CAT = "aten.cat.default"
_ZEROS = frozenset({"aten.zeros_like.default", "aten.zeros.default", "aten.new_zeros.default"})


class ScanProgram(Program, frozen=True):
    """A scan of ``outer`` x ``inner`` rows of ``length`` elements. Elements of a row are ``inner`` elements apart.

    Attributes:
        reverse: Whether the scan begins at the end of each row.
        exclusive: Whether an output excludes the element at its own position. The first output of a row is then 0.
        before: The program that computes the elements to scan. It stores only to ``ACC``.
        chain: The program that computes the outputs from the scan's results.
    """

    op: Literal["sum", "prod"]
    outer: int
    length: int
    inner: int
    reverse: bool
    exclusive: bool
    before: PointwiseProgram
    chain: PointwiseProgram

    @property
    def rows(self) -> int:
        return self.outer * self.inner


def as_scan(program: Program) -> ScanProgram:
    """Return ``program``, whose type must be :class:`ScanProgram`."""
    assert isinstance(program, ScanProgram), "the analysis chose the wrong pattern"
    return program


def recognize_scan(spec: ProblemSpec) -> ScanProgram | None:
    """Return the program for ``spec``, or None if the problem does not contain a scan. Raises ``Unsupported``."""
    if spec.graph is None or not calls(spec.graph, frozenset(SCANS)):
        return None
    graph = graph_of(spec)
    found = calls(graph, frozenset(SCANS))
    if len(found) != 1:
        raise Unsupported(f"the model has {len(found)} scans, and the playbook fuses only one")
    node = found[0]
    if node.kwargs.get("dtype") not in (None, "float32") or node.dtype != "float32":
        raise Unsupported(
            f"the model's scan is in {node.kwargs.get('dtype') or node.dtype}, but the playbook supports only float32"
        )
    shape = node.shape or (1,)
    dim = node.args[1] % len(shape)
    nodes = {each.name: each for each in graph}
    source, result = nodes[node.args[0]["ref"]], node
    flipped, cut = _flips(source, dim), _cuts_the_last(source, dim, nodes)
    if flipped or cut:
        result = _only_user(node, graph)
        if not (_flips(result, dim) if flipped else _begins_with_zeros(result, node, dim, nodes)):
            raise Unsupported(f"the model scans the result of {source.target.removeprefix('aten.').split('.')[0]}")
        source = nodes[source.args[0]["ref"]]
        if SCANS[node.target] == "prod" and cut:
            raise Unsupported("the model computes an exclusive cumulative product that begins with 0")
    end = GraphNode("output__", "output", "output", ({"ref": source.name},))
    upto = next(place for place, each in enumerate(graph) if each.name == source.name) + 1
    (term,) = terms_of(spec, (*graph[:upto], end))
    if any(each.op == "reduce" for each in reachable([term])):
        raise Unsupported("the model scans the result of a reduction")
    if source.shape != result.shape or term.numel == 0:
        shapes = f"shape {list(source.shape or ())}, but its result has shape {list(result.shape or ())}"
        raise Unsupported(f"the scan's input has {shapes}")
    before = pointwise_program({ACC: term})
    chain = epilogue(spec, graph, result.name, result.shape or (), term.numel)
    loads = [before.values[k].tensor for k in before.order if before.values[k].op == "load"]
    for tensor in spec.tensors:
        types = ("float32", "bool") if tensor.name in loads else ("float32",)
        used = {*loads, *(store.tensor for store in chain.stores), *_loads(chain)}
        if tensor.name in used and tensor.dtype not in types:
            raise Unsupported(f"`{tensor.name}` is {tensor.dtype}, and scans support only float32")
        if tensor.dtype == "bool" and tensor.name in _loads(chain):
            raise Unsupported(f"the model uses the bool tensor `{tensor.name}` after the scan")
    sizes = term.shape or (1,)
    return ScanProgram(
        op=SCANS[node.target],
        outer=prod(sizes[:dim]),
        length=sizes[dim],
        inner=prod(sizes[dim + 1 :]),
        reverse=flipped,
        exclusive=cut,
        before=before,
        chain=chain,
    )


def scan_assertions(program: ScanProgram, spec: ProblemSpec) -> list[str]:
    """Assert that every tensor has all elements that the kernel reads or writes."""
    tensors = {tensor.name: tensor for tensor in spec.tensors}
    lines: list[str] = []
    numbers: list[float] = []
    read = set()
    for part in (program.before, program.chain):
        for value in (part.values[k] for k in part.order):
            if value.op == "load" and not is_acc(value):
                lines += whole(tensors[value.tensor], value.access.count)
                read.add(value.tensor)
            elif value.op == "const" and not value.text:
                numbers.append(value.number)
    for store in program.chain.stores:
        lines += whole(tensors[store.tensor], program.outer * program.length * program.inner)
    given = [tensor for tensor in spec.tensors if tensor.name in read]
    return list(dict.fromkeys([*lines, *number_assertions(numbers, given)]))


def _loads(chain: PointwiseProgram) -> set[str]:
    return {chain.values[k].tensor for k in chain.order if chain.values[k].op == "load"}


def _flips(node: GraphNode, dim: int) -> bool:
    return node.target == _FLIP and [each % len(node.shape or (1,)) for each in node.args[1]] == [dim]


def _cuts_the_last(node: GraphNode, dim: int, nodes: Mapping[str, GraphNode]) -> bool:
    """Return whether ``node`` only removes the last element of its operand along ``dim``."""
    if node.target != _SLICE or node.shape is None:
        return False
    source = nodes[node.args[0]["ref"]].shape or ()
    args = [*node.args, *(0, 0, None, 1)[len(node.args) - 1 :]]
    return args[1] % len(source) == dim and not args[2] and args[4] == 1 and node.shape[dim] == source[dim] - 1


def _begins_with_zeros(node: GraphNode, scan: GraphNode, dim: int, nodes: Mapping[str, GraphNode]) -> bool:
    """Return whether ``node`` puts a zero before each row of ``scan``."""
    if node.target != _CAT or len(node.args[0]) != 2:
        return False
    first, second = (nodes[each["ref"]] for each in node.args[0])
    along = (node.args[1] if len(node.args) > 1 else 0) % len(node.shape or (1,))
    return first.target in _ZEROS and second is scan and along == dim and (first.shape or ())[dim] == 1


def _only_user(node: GraphNode, graph: tuple[GraphNode, ...]) -> GraphNode:
    """Return the only node that uses ``node``. Raises ``Unsupported`` if several nodes use it."""
    ref = {"ref": node.name}
    users = [each for each in graph if any(ref == one or (isinstance(one, list) and ref in one) for one in each.args)]
    if len(users) != 1 or users[0].op == "output":
        raise Unsupported(
            "the model scans a flipped or shortened tensor, and the playbook supports only reversed and exclusive scans"
        )
    return users[0]
