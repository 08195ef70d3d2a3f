"""Rewrite a graph with fewer kinds of operators, so that patterns need not support every kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from msgspec.structs import replace

from engine.problem.spec import GraphNode
from engine.proposers.playbook.analysis.analyze import references
from engine.proposers.playbook.analysis.aten import FILLS, RULES
from engine.proposers.playbook.patterns.groups.wide_attention import as_products, is_wide_attention

_UNBIND = "aten.unbind.int"
_OF_ONE = frozenset(
    f"aten.{name}"
    for name in ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "prod.dim_int", "logsumexp.default")
)
"""Reductions that return the element itself if they reduce only one element."""
_KEEP_SCORES = frozenset(
    f"aten.{name}"
    for name in ("view.default", "_unsafe_view.default", "mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar")
)
"""Operators that may appear between a matrix product and its softmax, if all other operands are numbers."""
_SPLITS = frozenset({"aten.split.Tensor", "aten.split_with_sizes.default", _UNBIND})


def references_of(node: GraphNode) -> Iterator[str]:
    """Yield the names of the nodes that ``node`` uses."""
    return references([*node.args, *node.kwargs.values()])


def simplified(graph: list[GraphNode]) -> list[GraphNode]:
    """Return ``graph`` with fewer kinds of operators: slices and concatenations replace operators that move
    elements.
    """
    nodes = {node.name: node for node in graph}
    found: list[GraphNode] = []
    for node in graph:
        source = nodes[node.args[0]["ref"]] if node.op == "getitem" else None
        if node.target in _SPLITS:
            continue
        if is_wide_attention(node, nodes):
            if node.shape is not None:  # Otherwise, a ``getitem`` picks the result.
                found += as_products(node, node, nodes)
            continue
        if source is not None and is_wide_attention(source, nodes):
            found += as_products(node, source, nodes)
            continue
        if source is not None and source.target in _SPLITS:
            found.append(_part(node, source, nodes))
        elif node.target in FILLS and list(references_of(node)):  # An example is ``zeros_like``.
            value = FILLS[node.target]
            number = value if value is not None else node.args[1]
            made = replace(node, target="aten.full.default", args=(list(node.shape or ()), number), kwargs={})
            found.append(made)
        elif node.target in _OF_ONE and _same_size(node, nodes):
            found.append(
                replace(node, target="aten.view.default", args=(node.args[0], list(node.shape or ())), kwargs={})
            )
        elif (rewrite := _REWRITES.get(node.target)) is not None:
            found += rewrite(node, nodes)
        else:
            found += _with_expansions(node, nodes)
    return found


def _same_size(node: GraphNode, nodes: Mapping[str, GraphNode]) -> bool:
    source = nodes[node.args[0]["ref"]]
    return source.dtype == node.dtype and prod(source.shape or ()) == prod(node.shape or ())


def _with_expansions(node: GraphNode, nodes: Mapping[str, GraphNode]) -> list[GraphNode]:
    """Return an elementwise operator, preceded by views that expand some operands over a middle dimension.

    A kernel cannot index an operand expanded this way, but a separate group can copy the view.
    """
    wide = node.shape
    given = [nodes[arg["ref"]] if isinstance(arg, dict) and "ref" in arg else None for arg in node.args]
    shapes = [one.shape for one in given if one is not None]
    if wide is None or node.target not in RULES or not all(_broadcasts(shape, wide) for shape in shapes):
        return [node]
    views: list[GraphNode] = []
    args = list(node.args)
    for place, one in enumerate(given):
        if one is not None and one.shape is not None and _is_split(one.shape, wide):
            name = f"{node.name}__{place}"
            views.append(GraphNode(name, "call", "aten.expand.default", (args[place], list(wide)), {}, wide, one.dtype))
            args[place] = {"ref": name}
    return [*views, replace(node, args=tuple(args))]


def _broadcasts(shape: tuple[int, ...] | None, wide: tuple[int, ...]) -> bool:
    if shape is None or len(shape) > len(wide):
        return False
    return all(size in (1, have) for size, have in zip(shape[::-1], wide[::-1], strict=False))


def _is_split(shape: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    """Return whether broadcasting ``shape`` to ``wide`` expands a dimension between two unchanged dimensions."""
    padded = (1,) * (len(wide) - len(shape)) + shape
    kept = [dim for dim, size in enumerate(padded) if size != 1]
    return any(wide[dim] != 1 and padded[dim] == 1 for dim in range(kept[0], kept[-1])) if kept else False


def _part(node: GraphNode, split: GraphNode, nodes: Mapping[str, GraphNode]) -> GraphNode:
    """Replace ``node``, which gets one part of a split tensor, with a slice of that tensor."""
    source, at = split.args[0], node.args[1]
    shape = nodes[source["ref"]].shape or ()
    rest = [*split.args[1:]] if split.target == _UNBIND else [*split.args[2:]]
    dim = (rest[0] if rest else split.kwargs.get("dim", 0)) % len(shape)
    if split.target == _UNBIND:
        return replace(node, op="call", target="aten.select.int", args=(source, dim, at))
    given = split.args[1]
    begin = sum(given[:at]) if isinstance(given, (list, tuple)) else at * given
    end = begin + (node.shape or ())[dim]
    return replace(node, op="call", target="aten.slice.Tensor", args=(source, dim, begin, end))


def _stack(node: GraphNode, nodes: Mapping[str, GraphNode]) -> list[GraphNode]:
    shape = node.shape or ()
    dim = (node.args[1] if len(node.args) > 1 else 0) % len(shape)
    thin = (*shape[:dim], 1, *shape[dim + 1 :])
    parts = [
        GraphNode(f"{node.name}__{k}", "call", "aten.unsqueeze.default", (one, dim), {}, thin, node.dtype)
        for k, one in enumerate(node.args[0])
    ]
    refs = [{"ref": part.name} for part in parts]
    return [*parts, replace(node, target="aten.cat.default", args=(refs, dim))]


def _roll(node: GraphNode, nodes: Mapping[str, GraphNode]) -> list[GraphNode]:
    shape = node.shape or ()
    if len(node.args) < 3 or not node.args[2]:
        return [node]
    found: list[GraphNode] = []
    source = node.args[0]
    moves = list(zip(node.args[1], node.args[2], strict=True))
    for k, (shift, axis) in enumerate(moves):
        dim = axis % len(shape)
        size, cut = shape[dim], (-shift) % shape[dim]
        parts = [
            _slice(f"{node.name}__{k}_{word}", source, shape, dim, begin, end, node.dtype)
            for word, begin, end in (("tail", cut, size), ("head", 0, cut))
            if end > begin
        ]
        name = node.name if k + 1 == len(moves) else f"{node.name}__{k}"
        refs = [{"ref": part.name} for part in parts]
        found += [*parts, GraphNode(name, "call", "aten.cat.default", (refs, dim), {}, shape, node.dtype)]
        source = {"ref": name}
    return found


def _slice(
    name: str, source: Any, shape: tuple[int, ...], dim: int, begin: int, end: int, dtype: str | None
) -> GraphNode:
    cut = (*shape[:dim], end - begin, *shape[dim + 1 :])
    return GraphNode(name, "call", "aten.slice.Tensor", (source, dim, begin, end), {}, cut, dtype)


def _pad(node: GraphNode, nodes: Mapping[str, GraphNode]) -> list[GraphNode]:
    source, widths = node.args[0], node.args[1]
    value = node.args[2] if len(node.args) > 2 else 0.0
    shape = tuple(nodes[source["ref"]].shape or ())
    found: list[GraphNode] = []
    for k in range(len(widths) // 2):
        dim, before, after = len(shape) - 1 - k, widths[2 * k], widths[2 * k + 1]
        begin, end = max(0, -before), shape[dim] - max(0, -after)
        if (begin, end) != (0, shape[dim]):
            found.append(_slice(f"{node.name}__cut{k}", source, shape, dim, begin, end, node.dtype))
            source, shape = {"ref": found[-1].name}, found[-1].shape or ()
        parts = [source]
        for word, width in (("before", before), ("after", after)):
            if width > 0:
                fill = (*shape[:dim], width, *shape[dim + 1 :])
                name = f"{node.name}__{word}{k}"
                found.append(GraphNode(name, "call", "aten.full.default", (list(fill), value), {}, fill, node.dtype))
                parts = [{"ref": name}, *parts] if word == "before" else [*parts, {"ref": name}]
        if len(parts) > 1:
            shape = (*shape[:dim], shape[dim] + max(0, before) + max(0, after), *shape[dim + 1 :])
            name = f"{node.name}__joined{k}"
            found.append(GraphNode(name, "call", "aten.cat.default", (parts, dim), {}, shape, node.dtype))
            source = {"ref": name}
    end_node = GraphNode(node.name, "call", "aten.alias.default", (source,), {}, node.shape, node.dtype)
    return [*found, end_node]


def _copy(node: GraphNode, nodes: Mapping[str, GraphNode]) -> list[GraphNode]:
    """Return the result of ``aten.copy``: the second operand, expanded to the shape of the first."""
    if nodes[node.args[1]["ref"]].dtype != node.dtype:
        return [node]
    return [replace(node, target="aten.expand.default", args=(node.args[1], list(node.shape or ())), kwargs={})]


def _safe_softmax(node: GraphNode, nodes: Mapping[str, GraphNode]) -> list[GraphNode]:
    """Return a plain softmax if the scores are a scaled matrix product. ``_safe_softmax`` differs only for rows that a
    mask hides entirely.
    """
    source = nodes[node.args[0]["ref"]]
    while source.target in _KEEP_SCORES and not any(isinstance(arg, dict) for arg in source.args[1:]):
        source = nodes[source.args[0]["ref"]]
    if source.target != "aten.bmm.default":
        return [node]
    return [replace(node, target="aten._softmax.default", args=(node.args[0], node.args[1], False), kwargs={})]


_REWRITES = {
    "aten._safe_softmax.default": _safe_softmax,
    "aten.copy.default": _copy,
    "aten.stack.default": _stack,
    "aten.roll.default": _roll,
    "aten.constant_pad_nd.default": _pad,
}
