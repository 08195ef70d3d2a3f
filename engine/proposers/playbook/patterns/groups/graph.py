"""A problem's graph for partitioning: only the nodes that the outputs need, with views separate from computation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.problem.spec import GraphNode, ProblemSpec, TensorSpec
from engine.proposers.playbook.analysis.analyze import needed_nodes
from engine.proposers.playbook.analysis.aten import FILLS
from engine.proposers.playbook.analysis.layouts import VIEW_TARGETS, Layout, contiguous, layout_of
from engine.proposers.playbook.base import Unsupported
from engine.proposers.playbook.patterns.groups.rewrites import references_of, simplified

COPY = "aten.copy_.default"
NORM = "aten.native_batch_norm.default"
OUTPUT = "output"
"""The name of the consumer that represents the problem's outputs."""


class Graph:
    """The nodes that a problem's outputs and buffers need.

    A **view** is a node without computation, and a **constant** is a tensor of one number. Every group that needs a
    view or a constant contains its own copy. All other calls are **steps**. Each step belongs to one group. ``writes``
    maps buffers to their final values, except the statistics and counters of batch norms.
    """

    def __init__(self, spec: ProblemSpec) -> None:
        assert spec.graph is not None
        written = [node for node in spec.graph if node.target == COPY]
        ends = [node for node in spec.graph if node.op == "output"]
        plain = simplified(_needed(spec.graph, written))
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
        """Return the problem's tensor behind the placeholder ``name``, or None for a computed node."""
        return self._tensors.get(self.nodes[name].target) if self.nodes[name].op == "placeholder" else None

    def is_view(self, name: str) -> bool:
        node = self.nodes[name]
        return node.op == "call" and node.target in VIEW_TARGETS and bool(node.args) and isinstance(node.args[0], dict)

    def base(self, name: str, stop: Iterable[str] = ()) -> str:
        """Return the tensor that ``name`` views, directly or through other views. Nodes in ``stop`` count as tensors,
        not as views.
        """
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
        """Return the tensors that the unit of step ``name`` needs from other steps, not counting constants."""
        own = self.unit(name)
        found = {self.base(ref, stop) for one in own for ref in references_of(self.nodes[one])}
        return {one for one in found if one not in own and not is_constant(self.nodes[one])}

    def unit(self, name: str) -> frozenset[str]:
        """Return the unit of step ``name``: the step, its ``getitem`` nodes and its batch counter."""
        return self._units.get(name, frozenset({name}))

    def layout(self, name: str, base: str) -> Layout | None:
        """Return the layout of ``name`` in the contiguous tensor ``base``, or None if no layout can express it."""
        if self.base(name, (base,)) != base:
            return None
        nodes = {one: self.nodes[one] for one in self.chain(name, (base,))}
        nodes[base] = GraphNode(base, "placeholder", base, shape=self.nodes[base].shape)
        try:
            return layout_of(name, nodes)
        except Unsupported:
            return None

    def offset(self, name: str, base: str) -> int | None:
        """Return the offset of ``name`` in the contiguous ``base``, in elements, or None if the elements of ``name``
        are not contiguous.
        """
        layout, shape = self.layout(name, base), self.nodes[name].shape
        if layout is None or shape is None or layout.dims != contiguous(base, shape).dims:
            return None
        return layout.offset

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
            raise Unsupported("the model counts its calls in one of its buffers")
        found = {name: frozenset(unit) for name, unit in units.items()}
        inner = {one for name, unit in found.items() for one in unit if one != name}
        self.steps = tuple(name for name in self.steps if name not in inner and self.nodes[name].target != COPY)
        return found

    def _counters(self) -> list[set[str]]:
        """Return the nodes that count batches, one set per buffer, in the model's order."""
        found = []
        for node in self.nodes.values():
            if node.target == COPY:
                buffer, value = (self.nodes[arg["ref"]] for arg in node.args[:2])
                if value.target == "aten.add.Tensor" and value.args == (node.args[0], 1) and buffer.dtype == "int64":
                    found.append((self.order[value.name], {node.name, value.name}))
                else:
                    self.writes[buffer.name] = value.name
        if any(self.base(value) in self.writes for value in self.writes.values()):
            raise Unsupported("the model copies one of its buffers to another")
        return [names for _, names in sorted(found, key=lambda one: one[0])]


def is_constant(node: GraphNode) -> bool:
    """Return whether ``node`` creates a tensor of one number."""
    return node.op == "call" and node.target in FILLS and not list(references_of(node))


def _flat(args: Iterable[Any]) -> list[Any]:
    return [one for arg in args for one in (arg if isinstance(arg, (list, tuple)) else [arg])]


def _needed(graph: tuple[GraphNode, ...], written: list[GraphNode]) -> list[GraphNode]:
    """Return the nodes that the outputs and the writes to buffers need."""
    end = GraphNode("output__", "output", "output", tuple({"ref": node.name} for node in written))
    wanted = needed_nodes(graph) | needed_nodes((*graph, end))
    return [node for node in graph if node.name in wanted and node.op != "output"]
