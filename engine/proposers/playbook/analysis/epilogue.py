"""The epilogue of a heavy operator (matmul or convolution): elementwise work on its output, fused into the same kernel.

In the graph, a tensor called ``ACC`` represents the heavy operator's output. All later operators must form a pointwise
program over the output's elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from msgspec.structs import replace

from engine.problem.spec import GraphNode, ProblemSpec
from engine.proposers.playbook.analysis import terms as t
from engine.proposers.playbook.analysis.analyze import (
    MAX_NODES,
    needed_nodes,
    outputs_of,
    pointwise_program,
    reachable,
    terms_of,
)
from engine.proposers.playbook.analysis.terms import Term
from engine.proposers.playbook.base import Unsupported
from engine.proposers.playbook.ir.program import Access, PointwiseProgram, Value

ACC = "@"
"""The name of the heavy operator's output in programs. No tensor of a problem has this name."""
FLOATS = ("float32", "float16", "bfloat16")


def graph_of(spec: ProblemSpec) -> tuple[GraphNode, ...]:
    """Return the nodes that the problem's outputs need, simplified (see ``_simpler``). Raises ``Unsupported``."""
    if spec.graph is None:
        raise Unsupported("the reference could not be traced")
    if any(tensor.mutated for tensor in spec.tensors):
        raise Unsupported("the model writes to one of its buffers")
    if any(tensor.numel == 0 for tensor in spec.outputs):
        raise Unsupported("one of the problem's outputs is empty")
    if len(spec.graph) > MAX_NODES:
        raise Unsupported(f"the problem's graph has more than {MAX_NODES} nodes")
    wanted = needed_nodes(spec.graph)
    found: list[GraphNode] = []
    for node in spec.graph:
        if node.name in wanted:
            found += _simpler(node)
    return tuple(found)


def calls(graph: tuple[GraphNode, ...], targets: Mapping[str, object] | frozenset[str]) -> list[GraphNode]:
    """Return the nodes that call one of the operators in ``targets``."""
    return [node for node in graph if node.op == "call" and node.target in targets]


def _simpler(node: GraphNode) -> list[GraphNode]:
    """Rewrite fused operators as primitives.

    ``addmm(bias, a, b)`` becomes ``mm(a, b) + bias``. ``convolution(x, w, bias, ...)`` becomes
    ``convolution(x, w, None, ...) + bias``. Conversions between floating-point types become copies.
    """
    plain = {"aten.addmm.default": "aten.mm.default", "aten.baddbmm.default": "aten.bmm.default",
             "aten.addmv.default": "aten.mv.default"}.get(node.target)  # fmt: skip
    name, ref = f"{node.name}__product", {"ref": f"{node.name}__product"}
    if plain is not None:
        bias, a, b = node.args[:3]
        beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
        product = GraphNode(name, "call", plain, (a, b), {}, node.shape, node.dtype)
        scaled = GraphNode(f"{name}_scaled", "call", "aten.mul.Tensor", (ref, alpha), {}, node.shape, node.dtype)
        total = ({"ref": scaled.name}, bias)
        return [product, scaled, replace(node, target="aten.add.Tensor", args=total, kwargs={"alpha": beta})]
    if node.target == "aten.convolution.default" and node.args[2] is not None and node.shape is not None:
        bare = replace(node, name=name, args=(*node.args[:2], None, *node.args[3:]))
        shape = (node.shape[1], *(1,) * (len(node.shape) - 2))
        bias = GraphNode(
            f"{name}_bias", "call", "aten.view.default", (node.args[2], list(shape)), {}, shape, node.dtype
        )
        return [bare, bias, replace(node, target="aten.add.Tensor", args=(ref, {"ref": bias.name}), kwargs={})]
    if node.target == "aten._to_copy.default" and node.kwargs.get("dtype") in FLOATS:
        # All arithmetic here is in fp32, and a store rounds to the output's type.
        return [replace(node, target="aten.clone.default", kwargs={})]
    return [node]


def result_term(shape: tuple[int, ...]) -> Term:
    """Return the heavy operator's output as a term."""
    return t.load(ACC, shape)


def epilogue(
    spec: ProblemSpec,
    graph: tuple[GraphNode, ...],
    node: str,
    shape: tuple[int, ...],
    numel: int = 0,
    *,
    positions: bool = False,
) -> PointwiseProgram:
    """Return the program that computes the problem's outputs from the output of ``node``. Raises ``Unsupported``.

    Args:
        shape: The shape of ``node``'s output.
        numel: The number of elements in that output, as a named size (``ir.sizes``). Required if the sizes in ``shape``
            have lost their names.
        positions: Whether the pattern supports values that depend on an element's position.
    """
    outputs = outputs_of(spec, graph, {node: result_term(shape)})
    chain = _pointwise(spec, outputs, result_term(shape).numel, positions)
    return replace(chain, numel=numel or prod(shape))  # Keep the names of sizes.


def between(
    spec: ProblemSpec, graph: tuple[GraphNode, ...], first: str, shape: tuple[int, ...], last: str
) -> PointwiseProgram:
    """Return the program that computes node ``last`` from the output of node ``first`` and stores the result to
    ``ACC``.

    Raises ``Unsupported``.
    """
    end = GraphNode("output__", "output", "output", ({"ref": last},))
    upto = next(place for place, node in enumerate(graph) if node.name == last) + 1
    (term,) = terms_of(spec, (*graph[:upto], end), {first: result_term(shape)})
    return _pointwise(spec, {ACC: term}, result_term(shape).numel)


def _pointwise(spec: ProblemSpec, outputs: dict[str, Term], numel: int, positions: bool = False) -> PointwiseProgram:
    everything = reachable(outputs.values())
    if any(term.op == "reduce" for term in everything):
        raise Unsupported("the model reduces the operator's result, and the playbook fuses only elementwise work")
    names = {term.tensor for term in everything if term.op == "load"} | set(outputs)
    for tensor in spec.tensors:
        if tensor.name in names and tensor.dtype not in FLOATS:
            raise Unsupported(f"`{tensor.name}` is {tensor.dtype}, and the playbook supports only {', '.join(FLOATS)}")
    chain = pointwise_program(outputs, positions=positions)
    for k in chain.order:
        value = chain.values[k]
        if value.op == "load" and value.tensor == ACC and value.access != _whole(numel):
            raise Unsupported("the model combines elements from different positions of the operator's result")
    if chain.numel != numel:
        raise Unsupported("one of the problem's outputs and the operator's result differ in size")
    return chain


def _whole(numel: int) -> Access:
    return Access(1, numel) if numel > 1 else Access(1, 1)


def is_acc(value: Value) -> bool:
    return value.op == "load" and value.tensor == ACC


def tensors_of(chain: PointwiseProgram) -> tuple[str, ...]:
    """Return the tensors that ``chain`` reads and writes, except ``ACC``."""
    read = [chain.values[k].tensor for k in chain.order if chain.values[k].op == "load"]
    written = [store.tensor for store in chain.stores]
    return tuple(name for name in dict.fromkeys([*read, *written]) if name != ACC)
