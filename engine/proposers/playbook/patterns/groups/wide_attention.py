"""Rewrite attention with wide heads as two matrix products and a softmax.

A kernel that fuses attention keeps a row of accumulators per query on the chip. Wide heads leave no room for tiles of
queries, so separate products are faster, although the scores then go through memory.
"""

from __future__ import annotations

import math

from engine.problem.spec import GraphNode
from engine.proposers.playbook.base import Unsupported
from engine.proposers.playbook.patterns.attention.program import FUSED, is_wide


def is_wide_attention(node: GraphNode, nodes: dict[str, GraphNode]) -> bool:
    """Return whether ``node`` computes attention that :func:`as_products` supports and that is slower in a fused
    kernel.
    """
    if node.target not in FUSED or len(node.args) > 3 or not node.kwargs.keys() <= {"scale", "is_causal", "dropout_p"}:
        return False
    q, k, v = (nodes[arg["ref"]] for arg in node.args)
    if node.kwargs.get("is_causal") or node.kwargs.get("dropout_p") or q.shape is None or v.shape is None:
        return False
    same = q.shape[:-2] == (k.shape or ())[:-2] == v.shape[:-2]
    return same and q.dtype is not None and is_wide(q.dtype, q.shape[-2], q.shape[-1], v.shape[-1])


def as_products(result: GraphNode, attention: GraphNode, nodes: dict[str, GraphNode]) -> list[GraphNode]:
    """Return the nodes that compute ``result``, the result of ``attention``. Raises ``Unsupported``."""
    if result.op == "getitem" and result.args[1] != 0:
        raise Unsupported("the model uses outputs of the attention operator other than the result")
    q, k, v = attention.args
    shapes = [nodes[arg["ref"]].shape or () for arg in (q, k, v)]
    batch, (rows, width), (keys, columns) = math.prod(shapes[0][:-2]), shapes[0][-2:], shapes[2][-2:]
    scale = attention.kwargs.get("scale")
    scale = 1.0 / math.sqrt(width) if scale is None else float(scale)
    found: list[GraphNode] = []

    def add(word: str, target: str, args: tuple[object, ...], shape: tuple[int, ...]) -> dict[str, str]:
        name = f"{result.name}__{word}"
        found.append(GraphNode(name, "call", f"aten.{target}", args, {}, shape, result.dtype))
        return {"ref": name}

    scores = (batch, rows, keys)
    queries = add("queries", "view.default", (q, [batch, rows, width]), (batch, rows, width))
    lines = add("keys", "view.default", (k, [batch, keys, width]), (batch, keys, width))
    turned = add("turned", "transpose.int", (lines, 1, 2), (batch, width, keys))
    product = add("scores", "bmm.default", (queries, turned), scores)
    scaled = add("scaled", "mul.Tensor", (product, scale), scores)
    weights = add("weights", "_softmax.default", (scaled, -1, False), scores)
    values = add("values", "view.default", (v, [batch, keys, columns]), (batch, keys, columns))
    sums = add("sums", "bmm.default", (weights, values), (batch, rows, columns))
    shape = list(result.shape or ())
    found.append(GraphNode(result.name, "call", "aten.view.default", (sums, shape), {}, result.shape, result.dtype))
    return found
