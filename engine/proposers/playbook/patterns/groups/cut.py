"""Cut a part out of a graph as a separate problem."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from msgspec.structs import replace

from engine.problem.spec import DTYPE_BYTES, GraphNode, ProblemSpec, TensorSpec
from engine.proposers.playbook.base import Unsupported
from engine.proposers.playbook.patterns.groups.graph import COPY, NORM, Graph, is_constant
from engine.proposers.playbook.patterns.groups.plan import ALIGNMENT, Group, Source


def cut(graph: Graph, members: Collection[str], done: Collection[str], results: Iterable[str] = ()) -> Group:
    """Return the group of the nodes ``members``, which may read the tensors ``done``.

    Args:
        results: The nodes to return. By default, the nodes that later groups and the problem's outputs need.
    """
    wanted = tuple(results) or tuple(
        name
        for name in sorted(members, key=graph.order.__getitem__)
        if graph.consumers.get(name, set()) - set(members) and graph.nodes[name].target != COPY
    )
    return _Cut(graph, frozenset(members), done).group(wanted)


def needs_copy(graph: Graph, name: str, done: Collection[str]) -> str | None:
    """Return the view in the chain of ``name`` that a separate group must copy, if any.

    Later views keep the order of the copied elements, unless ``name`` needs several copies.
    """
    base = graph.base(name, done)
    if base not in done or name in done or is_constant(graph.nodes[base]):
        return None
    if graph.offset(name, base) == 0:
        return None
    chain = graph.chain(name, done)
    view = next(one for one in chain if one == name or graph.offset(name, one) == 0)
    if graph.layout(view, base) is not None:
        return view
    return next((one for one in reversed(chain[: chain.index(view)]) if graph.layout(one, base) is not None), view)


class _Cut:
    def __init__(self, graph: Graph, members: frozenset[str], done: Collection[str]) -> None:
        self.graph, self.members, self.done = graph, members, done
        self.names: dict[str, str] = {}
        self.nodes: list[GraphNode] = []
        self.given: dict[tuple[Source, tuple[int, ...]], TensorSpec] = {}
        self.written = _written(graph, members)

    def group(self, results: tuple[str, ...]) -> Group:
        for name in sorted(self.members, key=self.graph.order.__getitem__):
            self._copy(name)
        for name in results:
            self._ensure(name)
        refs = tuple({"ref": self.names[name]} for name in results)
        outputs = [self._output(place, name) for place, name in enumerate(results)]
        given = {name: source for (source, _), name in self.given.items()}
        inputs = [tensor for tensor in given if tensor.role == "input"]
        weights = [tensor for tensor in given if tensor.role != "input"]
        placeholders = [GraphNode(one.name, "placeholder", one.name, shape=one.shape, dtype=one.dtype) for one in given]
        spec = ProblemSpec(
            id="group",
            name="this group",
            path="",
            source="",
            tensors=(*inputs, *weights, *outputs),
            graph=(*placeholders, *self.nodes, GraphNode("output", "output", "output", refs)),
        )
        return Group(spec, tuple(given[one] for one in (*inputs, *weights)), results)

    def _output(self, place: int, name: str) -> TensorSpec:
        node = self.graph.nodes[name]
        if node.shape is None or node.dtype not in DTYPE_BYTES:
            what = f"a {node.dtype} tensor" if node.dtype else "several tensors"
            raise Unsupported(f"one group of operators passes {what} to another group")
        return TensorSpec(f"result{place}", "output", node.dtype, node.shape)

    def _ensure(self, name: str) -> None:
        """Add a node for ``name`` to the group."""
        if name in self.names:
            return
        graph, node = self.graph, self.graph.nodes[name]
        if name in self.done:
            self.names[name] = self._placeholder(Source(name), node)
            return
        if not is_constant(node):
            base = graph.base(name, self.done)
            if base in self.done:
                offset = graph.offset(name, base)
                if offset is not None and offset * DTYPE_BYTES.get(node.dtype or "", 1) % ALIGNMENT == 0:
                    self.names[name] = self._placeholder(Source(base, offset), node)
                    return
            elif not is_constant(graph.nodes[base]) and base not in self.members:
                raise Unsupported(f"a group needs {base} before any group has computed it")
        self._copy(name)

    def _copy(self, name: str) -> None:
        if name in self.names:
            return
        node = self.graph.nodes[name]
        args = tuple(self._mapped(arg) for arg in node.args)
        kwargs = {key: self._mapped(arg) for key, arg in node.kwargs.items()}
        self.names[name] = f"n{len(self.nodes)}"
        self.nodes.append(replace(node, name=self.names[name], args=args, kwargs=kwargs))

    def _mapped(self, arg: Any) -> Any:
        if isinstance(arg, dict) and "ref" in arg:
            self._ensure(arg["ref"])
            return {"ref": self.names[arg["ref"]]}
        return [self._mapped(one) for one in arg] if isinstance(arg, (list, tuple)) else arg

    def _placeholder(self, source: Source, node: GraphNode) -> str:
        key = (source, node.shape or ())
        if key not in self.given:
            own = self.graph.tensor(source.node)
            self.given[key] = TensorSpec(
                name=f"operand{len(self.given)}",
                role=own.role if own is not None else "input",
                dtype=node.dtype or "",
                shape=node.shape or (),
                mutated=source.node in self.written,
            )
        return self.given[key].name


def _written(graph: Graph, members: Collection[str]) -> set[str]:
    """Return the placeholders to which ``members`` write."""
    found: set[str] = set()
    for name in members:
        node = graph.nodes[name]
        if node.target == NORM and node.args[5]:
            found.update(arg["ref"] for arg in node.args[3:5] if isinstance(arg, dict))
        elif node.target == COPY:
            found.add(node.args[0]["ref"])
    return found
