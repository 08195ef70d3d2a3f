"""What follows a product or a convolution: elementwise work on its result, fused into the kernel that computes it.

The result of the heavy operator stands in the graph as a tensor called ``ACC``; everything behind it must then be a
pointwise program over the output's elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from msgspec.structs import replace

from engine.problem.spec import GraphNode, ProblemSpec
from engine.proposers.playbook import terms as t
from engine.proposers.playbook.analyse import (
    MAX_NODES,
    needed_nodes,
    outputs_of,
    pointwise_program,
    reachable,
    terms_of,
)
from engine.proposers.playbook.ir import Access, PointwiseProgram, Value
from engine.proposers.playbook.terms import Refused, Term

ACC = "@"
"""The name under which the heavy operator's result is loaded; no tensor of a problem can have it."""
FLOATS = ("float32", "float16", "bfloat16")


def graph_of(spec: ProblemSpec) -> tuple[GraphNode, ...]:
    """The nodes that the outputs need, in fewer forms: see ``_simpler``. Raises ``Refused``."""
    if spec.graph is None:
        raise Refused("its reference could not be traced")
    if any(tensor.mutated for tensor in spec.tensors):
        raise Refused("it writes to one of its buffers")
    if any(tensor.numel == 0 for tensor in spec.outputs):
        raise Refused("an output is empty")
    if len(spec.graph) > MAX_NODES:
        raise Refused(f"its graph has more than {MAX_NODES} operators")
    wanted = needed_nodes(spec.graph)
    found: list[GraphNode] = []
    for node in spec.graph:
        if node.name in wanted:
            found += _simpler(node)
    return tuple(found)


def calls(graph: tuple[GraphNode, ...], targets: Mapping[str, object] | frozenset[str]) -> list[GraphNode]:
    """The calls of one of ``targets``."""
    return [node for node in graph if node.op == "call" and node.target in targets]


def _simpler(node: GraphNode) -> list[GraphNode]:
    """addmm(bias, a, b) as mm(a, b) + bias, convolution(x, w, bias, ...) as convolution(x, w, None, ...) + bias, and
    conversions between floating-point types as copies."""
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
        # All arithmetic here is in fp32, and a store rounds to the type of its output.
        return [replace(node, target="aten.clone.default", kwargs={})]
    return [node]


def result_term(shape: tuple[int, ...]) -> Term:
    """The heavy operator's result as a term."""
    return t.load(ACC, shape)


def epilogue(
    spec: ProblemSpec, graph: tuple[GraphNode, ...], node: str, shape: tuple[int, ...], numel: int = 0
) -> PointwiseProgram:
    """What makes the outputs out of the result of ``node``, which has ``shape``, and ``numel`` elements where the shape
    does not know their name. Raises ``Refused``."""
    chain = _pointwise(spec, outputs_of(spec, graph, {node: result_term(shape)}), result_term(shape).numel)
    return replace(chain, numel=numel or prod(shape))  # under the names that the result's shape knows


def between(
    spec: ProblemSpec, graph: tuple[GraphNode, ...], first: str, shape: tuple[int, ...], last: str
) -> PointwiseProgram:
    """What makes node ``last`` out of the result of node ``first``; its only store is ``ACC``. Raises ``Refused``."""
    end = GraphNode("output__", "output", "output", ({"ref": last},))
    upto = next(place for place, node in enumerate(graph) if node.name == last) + 1
    (term,) = terms_of(spec, (*graph[:upto], end), {first: result_term(shape)})
    return _pointwise(spec, {ACC: term}, result_term(shape).numel)


def _pointwise(spec: ProblemSpec, outputs: dict[str, Term], numel: int) -> PointwiseProgram:
    everything = reachable(outputs.values())
    if any(term.op == "reduce" for term in everything):
        raise Refused("it reduces the result, and its templates fuse elementwise work only")
    names = {term.tensor for term in everything if term.op == "load"} | set(outputs)
    for tensor in spec.tensors:
        if tensor.name in names and tensor.dtype not in FLOATS:
            raise Refused(f"`{tensor.name}` is {tensor.dtype} and its templates are for {', '.join(FLOATS)}")
    chain = pointwise_program(outputs)
    for k in chain.order:
        value = chain.values[k]
        if value.op == "load" and value.tensor == ACC and value.access != _whole(numel):
            raise Refused("elements of its result meet elements of other places")
    if chain.numel != numel:
        raise Refused("an output has another size than its result")
    return chain


def _whole(numel: int) -> Access:
    return Access(1, numel) if numel > 1 else Access(1, 1)


def is_acc(value: Value) -> bool:
    return value.op == "load" and value.tensor == ACC


def tensors_of(chain: PointwiseProgram) -> tuple[str, ...]:
    """Tensors that ``chain`` reads and writes, without ``ACC``."""
    read = [chain.values[k].tensor for k in chain.order if chain.values[k].op == "load"]
    written = [store.tensor for store in chain.stores]
    return tuple(name for name in dict.fromkeys([*read, *written]) if name != ACC)
