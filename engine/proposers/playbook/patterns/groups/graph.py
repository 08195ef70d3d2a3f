"""The graph of a problem as the partition reads it: only what the outputs need, with views apart from computation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from engine.problem.spec import GraphNode, ProblemSpec, TensorSpec
from engine.proposers.playbook.analysis.analyze import needed_nodes, references
from engine.proposers.playbook.analysis.aten import FILLS, RULES
from engine.proposers.playbook.analysis.layouts import VIEW_TARGETS, Layout, contiguous, layout_of
from engine.proposers.playbook.base import Unsupported
from engine.proposers.playbook.ir.sizes import named

COPY = "aten.copy_.default"
NORM = "aten.native_batch_norm.default"
_SPLITS = frozenset(
    {"aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default", "aten.unbind.int"}
)
OUTPUT = "output"
"""The name under which the problem's outputs count as a consumer."""


class Graph:
    """The nodes that the outputs and the buffers need.

    A **view** is a node without computation, and a **constant** is a tensor of one number. Every group that needs a
    view or a constant contains a copy of it. All other calls are **steps**, of which each belongs to one group.
    ``writes`` maps buffers to the values that they hold afterward, except statistics and counters of batch norms.
    """

    def __init__(self, spec: ProblemSpec) -> None:
        assert spec.graph is not None
        written = [node for node in spec.graph if node.target == COPY]
        ends = [node for node in spec.graph if node.op == "output"]
        plain = _simplified(_needed(spec.graph, written))
        self.spec = spec
        self._tensors = {tensor.name: tensor for tensor in spec.tensors}
        self.nodes: dict[str, GraphNode] = {node.name: node for node in plain}
        self.order = {node.name: place for place, node in enumerate(plain)}
        self.returned = tuple(arg["ref"] for arg in _flat(ends[0].args) if isinstance(arg, dict))
        self.steps = tuple(
            node.name for node in plain if node.op == "call" and not self.is_view(node.name) and not is_constant(node)
        )
        self.writes: dict[str, str] = {}
        self._units = self._find_units()
        self.consumers: dict[str, set[str]] = {}
        for name in self.steps:
            for base in self.bases(name):
                self.consumers.setdefault(base, set()).add(name)
        for name in (*self.returned, *self.writes.values()):
            self.consumers.setdefault(self.base(name), set()).add(OUTPUT)

    def tensor(self, name: str) -> TensorSpec | None:
        """Return the problem's tensor behind placeholder ``name``; None for a computed node."""
        return self._tensors.get(self.nodes[name].target) if self.nodes[name].op == "placeholder" else None

    def is_view(self, name: str) -> bool:
        node = self.nodes[name]
        return node.op == "call" and node.target in VIEW_TARGETS and bool(node.args) and isinstance(node.args[0], dict)

    def base(self, name: str, stop: Iterable[str] = ()) -> str:
        """Return the tensor that ``name`` views, directly or through other views. Nodes in ``stop`` count as bases."""
        while name not in stop and self.is_view(name):
            name = self.nodes[name].args[0]["ref"]
        return name

    def chain(self, name: str, stop: Iterable[str]) -> list[str]:
        """Return the views between the base of ``name`` and ``name`` itself, outermost last."""
        found = []
        while name not in stop and self.is_view(name):
            found.append(name)
            name = self.nodes[name].args[0]["ref"]
        return found[::-1]

    def bases(self, name: str, stop: Iterable[str] = ()) -> set[str]:
        """Return the tensors that step ``name`` and its unit need from others, without constants."""
        own = self.unit(name)
        found = {self.base(ref, stop) for one in own for ref in references_of(self.nodes[one])}
        return {one for one in found if one not in own and not is_constant(self.nodes[one])}

    def unit(self, name: str) -> frozenset[str]:
        """Return step ``name`` with the nodes that belong to it: ``getitem`` nodes and a counter of batches."""
        return self._units.get(name, frozenset({name}))

    def layout(self, name: str, base: str) -> Layout | None:
        """Return the layout of ``name`` in the contiguous tensor ``base``; None if a layout cannot express it."""
        nodes = dict(self.nodes)
        nodes[base] = GraphNode(base, "placeholder", base, shape=self.nodes[base].shape)
        try:
            return layout_of(name, nodes)
        except Unsupported:
            return None

    def offset(self, name: str, base: str) -> int | None:
        """Return where in the contiguous ``base`` the elements of ``name`` begin; None if they are not contiguous."""
        layout, shape = self.layout(name, base), self.nodes[name].shape
        if layout is None or shape is None:
            return None
        same = layout.dims == contiguous(base, named(base, shape)).dims or _plain(layout) == _plain(
            contiguous(base, shape)
        )
        return layout.offset if same else None

    def _find_units(self) -> dict[str, frozenset[str]]:
        units: dict[str, set[str]] = {}
        for node in self.nodes.values():
            if node.op == "getitem":
                source = node.args[0]["ref"]
                units.setdefault(source, {source}).add(node.name)
        counters = self._counters()
        for name in self.steps:
            if counters and self.nodes[name].target == NORM and self.nodes[name].args[5]:
                units.setdefault(name, {name}).update(counters.pop(0))
        if counters:
            raise Unsupported("it counts its calls in one of its buffers")
        found = {name: frozenset(unit) for name, unit in units.items()}
        inner = {one for name, unit in found.items() for one in unit if one != name}
        self.steps = tuple(name for name in self.steps if name not in inner and self.nodes[name].target != COPY)
        return found

    def _counters(self) -> list[set[str]]:
        """Return the nodes that count batches, a set per buffer, in the order in which the model counts."""
        found = []
        for node in self.nodes.values():
            if node.target == COPY:
                buffer, value = (self.nodes[arg["ref"]] for arg in node.args[:2])
                if value.target == "aten.add.Tensor" and value.args == (node.args[0], 1) and buffer.dtype == "int64":
                    found.append((self.order[value.name], {node.name, value.name}))
                else:
                    self.writes[buffer.name] = value.name
        return [names for _, names in sorted(found, key=lambda one: one[0])]


def is_constant(node: GraphNode) -> bool:
    """Whether ``node`` creates a tensor of one number."""
    return node.op == "call" and node.target in FILLS and not list(references_of(node))


def references_of(node: GraphNode) -> Iterator[str]:
    """Yield the names of the nodes that ``node`` uses."""
    return references([*node.args, *node.kwargs.values()])


def _plain(layout: Layout) -> tuple[tuple[tuple[int, int], ...], ...]:
    return tuple(tuple((int(size), int(stride)) for size, stride in atoms) for atoms in layout.dims)


def _flat(args: Iterable[Any]) -> list[Any]:
    return [one for arg in args for one in (arg if isinstance(arg, (list, tuple)) else [arg])]


def _needed(graph: tuple[GraphNode, ...], written: list[GraphNode]) -> list[GraphNode]:
    """Return the nodes that the outputs and the writes to buffers need."""
    end = GraphNode("output__", "output", "output", tuple({"ref": node.name} for node in written))
    wanted = needed_nodes(graph) | needed_nodes((*graph, end))
    return [node for node in graph if node.name in wanted and node.op != "output"]


def _simplified(graph: list[GraphNode]) -> list[GraphNode]:
    """Rewrite operators that only move elements as slices and concatenations."""
    nodes = {node.name: node for node in graph}
    found: list[GraphNode] = []
    for node in graph:
        source = nodes[node.args[0]["ref"]] if node.op == "getitem" else None
        if node.target in _SPLITS:
            continue
        if source is not None and source.target in _SPLITS:
            found.append(_part(node, source, nodes))
        elif node.target in FILLS and list(references_of(node)):  # such as ``zeros_like``
            value = FILLS[node.target]
            number = value if value is not None else node.args[1]
            made = replace(node, target="aten.full.default", args=(list(node.shape or ()), number), kwargs={})
            found.append(made)
        elif (rewrite := _REWRITES.get(node.target)) is not None:
            found += rewrite(node, nodes)
        else:
            found += _with_expansions(node, nodes)
    return found


def _with_expansions(node: GraphNode, nodes: Mapping[str, GraphNode]) -> list[GraphNode]:
    """Return an elementwise operator, after views that expand operands over a dimension between two others.

    A kernel can't index such an operand. A group of its own can copy a view.
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
    """Whether a broadcast of ``shape`` to ``wide`` repeats elements between two dimensions that it keeps."""
    padded = (1,) * (len(wide) - len(shape)) + shape
    kept = [dim for dim, size in enumerate(padded) if size != 1]
    return any(wide[dim] != 1 and padded[dim] == 1 for dim in range(kept[0], kept[-1])) if kept else False


def _part(node: GraphNode, split: GraphNode, nodes: Mapping[str, GraphNode]) -> GraphNode:
    """Return element ``node`` of a split tensor as a slice."""
    source, at = split.args[0], node.args[1]
    shape = nodes[source["ref"]].shape or ()
    dim = (split.args[1 if split.target == "aten.unbind.int" else 2] if len(split.args) > 2 or (
        split.target == "aten.unbind.int" and len(split.args) > 1) else split.kwargs.get("dim", 0)) % len(shape)  # fmt: skip
    if split.target == "aten.unbind.int":
        return replace(node, op="call", target="aten.select.int", args=(source, dim, at))
    given = split.args[1]
    sizes = given if isinstance(given, list) else None
    if sizes is None:
        step = given if split.target == "aten.split.Tensor" else -(-shape[dim] // given)
        begin = at * step
    else:
        begin = sum(sizes[:at])
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
    """Return what ``aten.copy`` yields: its second operand, expanded to the shape of the first."""
    if nodes[node.args[1]["ref"]].dtype != node.dtype:
        return [node]
    return [replace(node, target="aten.expand.default", args=(node.args[1], list(node.shape or ())), kwargs={})]


_REWRITES = {
    "aten.copy.default": _copy,"aten.stack.default": _stack, "aten.roll.default": _roll, "aten.constant_pad_nd.default": _pad}
