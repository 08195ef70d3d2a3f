"""Recognize and describe scaled dot-product attention with an elementwise epilogue."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec.structs import replace

from engine.problem.spec import DTYPE_BYTES, GraphNode, ProblemSpec
from engine.proposers.playbook.analysis.epilogue import FLOATS, calls, epilogue, graph_of
from engine.proposers.playbook.analysis.layouts import Layout, layout_of, viewed
from engine.proposers.playbook.base import Program, Unsupported
from engine.proposers.playbook.codegen.size_assertions import number_assertions, product_assertions
from engine.proposers.playbook.ir.program import PointwiseProgram
from engine.proposers.playbook.patterns.gemm.program import Operand

FUSED = frozenset(
    f"aten.{name}.default"
    for name in ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
                 "_scaled_dot_product_efficient_attention", "scaled_dot_product_attention")
)  # fmt: skip
WIDE = 256
"""Number of columns above which a head is wide: fused fp32 kernels cannot keep tiles of its queries on the chip."""
MANY_QUERIES = 64
"""Minimum number of queries for separate matrix products instead of fused attention. With fewer queries, each product
is too small, so fused attention is faster.
"""
SOFTMAX = frozenset({"aten._softmax.default", "aten._safe_softmax.default"})
BATCHED = frozenset({"aten.bmm.default", "aten.mm.default"})
_SAME_ELEMENTS = frozenset(
    f"aten.{name}"
    for name in ("view.default", "_unsafe_view.default", "reshape.default", "expand.default", "clone.default",
                 "contiguous.default", "detach.default", "alias.default", "unsqueeze.default", "squeeze.dim")
)  # fmt: skip


class AttentionProgram(Program, frozen=True):
    """Attention over ``batch`` matrices: ``q`` (rows x width), ``k`` (keys x width), ``v`` (keys x value_width).

    Attributes:
        causal: Whether query i attends only to keys 0 to i.
        chain: The program that computes the problem's outputs from the attention's ``batch`` x ``rows`` x
            ``value_width`` results.
        usual_scale: Whether ``scale`` is 1 / sqrt(width) at every width.
        size_assertions: Lines of C that stop the build for sizes that a kernel does not support.
    """

    batch: int
    rows: int
    keys: int
    width: int
    value_width: int
    scale: float
    causal: bool
    q: Operand
    k: Operand
    v: Operand
    chain: PointwiseProgram
    usual_scale: bool
    size_assertions: tuple[str, ...]

    @property
    def dtype(self) -> str:
        return self.q.dtype

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]


def is_wide(dtype: str, rows: int, width: int, value_width: int) -> bool:
    """Return whether separate products on a GPU are faster than fused attention of ``rows`` queries."""
    return dtype == "float32" and rows >= MANY_QUERIES and max(width, value_width) > WIDE


def recognize_attention(spec: ProblemSpec) -> AttentionProgram | None:
    """Return the program for ``spec``, or None if the problem contains no attention. Raises ``Unsupported``."""
    if spec.graph is None:
        return None
    operators, softmaxes = calls(spec.graph, FUSED), calls(spec.graph, SOFTMAX)
    if not operators and not (softmaxes and len(calls(spec.graph, BATCHED)) == 2):
        return None
    graph = graph_of(spec)
    nodes = {node.name: node for node in graph}
    if len(operators) > 1:
        raise Unsupported(f"the model has {len(operators)} attention operators, and the playbook fuses only one")
    return _operator(spec, graph, nodes, operators[0]) if operators else _primitives(spec, graph, nodes)


def _operator(
    spec: ProblemSpec, graph: tuple[GraphNode, ...], nodes: Mapping[str, GraphNode], node: GraphNode
) -> AttentionProgram:
    named = dict(zip(("query", "key", "value", "dropout_p", "is_causal"), node.args, strict=False)) | node.kwargs
    if named.get("dropout_p"):
        raise Unsupported("the model's attention uses dropout")
    if named.get("attn_mask") is not None or named.get("attn_bias") is not None:
        raise Unsupported("the model's attention uses a mask tensor, and the playbook supports only the causal mask")
    picked = [each for each in graph if each.op == "getitem" and each.args[0]["ref"] == node.name]
    result = picked[0] if picked else node
    if [each.args[1] for each in picked] not in ([0], []) or result.shape is None:
        raise Unsupported("the model uses outputs of the attention operator other than the result")
    q, k, v = (_matrices(spec, nodes, named[name]["ref"]) for name in ("query", "key", "value"))
    scale = named.get("scale")
    scale = float(scale) if scale is not None else None
    return _program(spec, graph, result, q, k, v, scale, bool(named.get("is_causal", False)))


def _primitives(
    spec: ProblemSpec, graph: tuple[GraphNode, ...], nodes: Mapping[str, GraphNode]
) -> AttentionProgram | None:
    """Recognize softmax(q k^T) v written as two matmuls. Return None for all other graphs."""
    products, softmax = calls(graph, BATCHED), calls(graph, SOFTMAX)
    if len(products) != 2 or len(softmax) != 1:
        return None
    first, last = products
    if _behind(last.args[0]["ref"], nodes).name != softmax[0].name:
        return None
    rank = len(softmax[0].shape or ())
    if softmax[0].args[1] not in (-1, rank - 1):
        raise Unsupported("the attention's softmax does not run over the keys")
    scale, causal, node = 1.0, False, nodes[softmax[0].args[0]["ref"]]
    while node.name != first.name:
        if node.target in _SAME_ELEMENTS:
            pass
        elif (factor := _factor(node)) is not None:
            scale *= factor
        elif _masks(node, nodes):
            causal = True
        else:
            raise Unsupported(f"the model applies {_short(node)} to the attention scores before their softmax")
        node = nodes[node.args[0]["ref"]]
    operands = []
    for name in (first.args[0]["ref"], first.args[1]["ref"]):
        plain, factor = _unscaled(name, nodes)
        scale *= factor
        operands.append(_matrices(spec, plain, name))
    q, (dtype, k) = operands
    turned = Layout(k.tensor, k.offset, (k.dims[0], k.dims[2], k.dims[1]))
    return _program(spec, graph, last, q, (dtype, turned), _matrices(spec, nodes, last.args[1]["ref"]), scale, causal)


def _behind(name: str, nodes: Mapping[str, GraphNode]) -> GraphNode:
    node = nodes[name]
    while node.target in _SAME_ELEMENTS:
        node = nodes[node.args[0]["ref"]]
    return node


def _factor(node: GraphNode) -> float | None:
    """Return the constant factor that a node applies, or None if it does not multiply or divide by a constant."""
    if node.target in ("aten.mul.Tensor", "aten.mul.Scalar") and isinstance(node.args[1], (int, float)):
        return float(node.args[1])
    if node.target in ("aten.div.Tensor", "aten.div.Scalar") and isinstance(node.args[1], (int, float)):
        return 1.0 / node.args[1]
    return None


def _unscaled(name: str, nodes: Mapping[str, GraphNode]) -> tuple[dict[str, GraphNode], float]:
    """Remove an operand's constant factors. Return the remaining nodes and the product of the factors."""
    factor, found, node = 1.0, dict(nodes), nodes[name]
    while node.op == "call" and node.args and isinstance(node.args[0], dict):
        times = _factor(node)
        if times is not None:
            factor *= times
            found[node.name] = replace(node, target="aten.clone.default", args=node.args[:1], kwargs={})
        node = nodes[node.args[0]["ref"]]
    return found, factor


def _masks(node: GraphNode, nodes: Mapping[str, GraphNode]) -> bool:
    """Return whether a node masks each query's scores for all later keys."""
    if node.target == "aten.masked_fill.Scalar":
        return node.args[2] == "-inf" and _is_causal(node.args[1], nodes)
    return node.target == "aten.add.Tensor" and not node.kwargs and _adds_causal(node.args[1], nodes)


def _is_causal(mask: object, nodes: Mapping[str, GraphNode]) -> bool:
    """Return whether a mask is true exactly above the diagonal: ``triu(ones, 1)``, or ``tril(ones) == 0``."""
    if not isinstance(mask, dict):
        return False
    node = _behind(mask["ref"], nodes)
    if node.target in ("aten.logical_not.default", "aten.bitwise_not.default"):
        return _triangle(node.args[0], nodes, "aten.tril.default", 0)
    if node.target == "aten.eq.Scalar" and node.args[1] == 0:
        return _triangle(node.args[0], nodes, "aten.tril.default", 0)
    if node.target == "aten.to.dtype" or node.target == "aten._to_copy.default":
        return _is_causal(node.args[0], nodes)
    return _triangle(mask, nodes, "aten.triu.default", 1)


def _adds_causal(mask: object, nodes: Mapping[str, GraphNode]) -> bool:
    """Return whether a mask is 0 up to the diagonal and -inf above it: ``where(tril(ones), 0, -inf)``."""
    node = _behind(mask["ref"], nodes) if isinstance(mask, dict) else None
    if node is None or node.target != "aten.where.self":
        return False
    seen, hidden = (nodes[arg["ref"]] for arg in node.args[1:3])
    numbers = [one.args[0] if one.target == "aten.scalar_tensor.default" else None for one in (seen, hidden)]
    return numbers == [0.0, "-inf"] and _triangle(node.args[0], nodes, "aten.tril.default", 0)


def _triangle(value: object, nodes: Mapping[str, GraphNode], target: str, diagonal: int) -> bool:
    if not isinstance(value, dict):
        return False
    node = _behind(value["ref"], nodes)
    if node.target == "aten._to_copy.default":
        return _triangle(node.args[0], nodes, target, diagonal)
    given = node.args[1] if len(node.args) > 1 else 0
    if node.target != target or given != diagonal or not isinstance(node.args[0], dict):
        return False
    ones = _behind(node.args[0]["ref"], nodes)
    filled = ones.target == "aten.full.default" and ones.args[1] in (1, 1.0, True)
    return ones.target in ("aten.ones.default", "aten.ones_like.default") or filled


def _short(node: GraphNode) -> str:
    return node.target.removeprefix("aten.").split(".")[0] or node.op


def _matrices(spec: ProblemSpec, nodes: Mapping[str, GraphNode], name: str) -> tuple[str, Layout]:
    """Return the dtype and layout of an operand, with the leading dimensions joined into one."""
    layout = layout_of(name, dict(nodes))
    tensor = None if layout is None else next((one for one in spec.tensors if one.name == layout.tensor), None)
    if layout is None or tensor is None:
        raise Unsupported("the model computes a query, key or value of its attention instead of taking it as an input")
    if tensor.dtype not in FLOATS:
        raise Unsupported(f"`{tensor.name}` is {tensor.dtype}, and the playbook supports only {', '.join(FLOATS)}")
    if len(layout.dims) == 2:
        return tensor.dtype, Layout(layout.tensor, layout.offset, ((), *layout.dims))
    leading = math.prod(layout.shape[:-2])
    return tensor.dtype, viewed(layout, (leading, *layout.shape[-2:]))


def _program(
    spec: ProblemSpec,
    graph: tuple[GraphNode, ...],
    result: GraphNode,
    q: tuple[str, Layout],
    k: tuple[str, Layout],
    v: tuple[str, Layout],
    scale: float | None,
    causal: bool,
) -> AttentionProgram:
    """Create the program. If ``scale`` is None, use 1 / sqrt(width)."""
    if len({q[0], k[0], v[0]}) != 1:
        raise Unsupported("the attention's query, key and value differ in data type")
    operands = []
    for dtype, layout in (q, k, v):
        row, col = layout.stride(1), layout.stride(2)
        if row is None or col is None:
            raise Unsupported(f"a dimension of `{layout.tensor}` does not have a single stride in memory")
        operands.append(Operand(layout.tensor, dtype, layout.offset, layout.dims[0], row, col))
    batches, rows, width = q[1].shape
    if {q[1].shape[0], k[1].shape[0], v[1].shape[0]} != {batches} or k[1].shape[2] != width or not k[1].shape[1]:
        raise Unsupported("the shapes of the attention's query, key and value do not match")
    layouts = (q[1], k[1], v[1])
    values = v[1].shape[2]
    chain = epilogue(spec, graph, result.name, result.shape or (), batches * rows * values)
    tensors = [tensor for tensor in spec.tensors if tensor.name in {layout.tensor for layout in layouts}]
    telling = [] if scale is None else number_assertions([scale], tensors)
    return AttentionProgram(
        batch=batches,
        rows=rows,
        keys=k[1].shape[1],
        width=width,
        value_width=values,
        scale=1.0 / math.sqrt(width) if scale is None else scale,
        causal=causal,
        q=operands[0],
        k=operands[1],
        v=operands[2],
        chain=chain,
        usual_scale=scale is None,
        size_assertions=(*product_assertions(spec, chain, layouts), *telling),
    )
