"""The running statistics of batch normalization, which a model in training mode updates."""

from __future__ import annotations

from engine.problem.spec import GraphNode, ProblemSpec
from engine.proposers.playbook.analysis import terms as t
from engine.proposers.playbook.analysis.analyze import terms_of
from engine.proposers.playbook.analysis.terms import Term
from engine.proposers.playbook.base import Unsupported
from engine.proposers.playbook.ir.sizes import named

_NORM = "aten.native_batch_norm.default"
_COPY = "aten.copy_.default"
_ADD = "aten.add.Tensor"


def running_statistics(spec: ProblemSpec, graph: tuple[GraphNode, ...]) -> tuple[dict[str, Term], tuple[str, ...]]:
    """Return the new value of each running mean and variance, by buffer, and the buffers that count batches. Raises
    ``Unsupported`` if the model writes to any other buffer.
    """
    nodes = {node.name: node for node in graph}
    found: dict[str, Term] = {}
    counters = []
    for node in graph:
        if node.target == _NORM and node.args[5] and node.args[3] is not None and node.args[4] is not None:
            found |= _updates(spec, graph, node, nodes)
        elif node.target == _COPY:
            buffer, value = nodes[node.args[0]["ref"]], nodes[node.args[1]["ref"]]
            if value.target == _ADD and value.args == (node.args[0], 1) and buffer.dtype == "int64":
                counters.append(buffer.target)
    if any(tensor.mutated and tensor.name not in {*found, *counters} for tensor in spec.tensors):
        raise Unsupported("the model writes to one of its buffers")
    return found, tuple(counters)


def _updates(
    spec: ProblemSpec, graph: tuple[GraphNode, ...], node: GraphNode, nodes: dict[str, GraphNode]
) -> dict[str, Term]:
    """Return the running statistics after the batch norm ``node``, by buffer."""
    source, momentum = node.args[0]["ref"], node.args[6]
    if not isinstance(momentum, float):
        raise Unsupported("the model updates its running statistics without a fixed momentum")
    upto = next(place for place, each in enumerate(graph) if each.name == source) + 1
    (x,) = terms_of(spec, (*graph[:upto], GraphNode("output__", "output", "output", ({"ref": source},))))
    dims = [dim for dim in range(len(x.shape)) if dim != 1]
    found = {}
    for argument, batch in ((node.args[3], t.mean(x, dims, False)), (node.args[4], t.variance(x, dims, 1.0, False))):
        buffer = nodes[argument["ref"]]
        if buffer.op != "placeholder" or buffer.shape is None:
            raise Unsupported("the model updates running statistics that are not buffers")
        old = t.load(buffer.target, named(buffer.target, buffer.shape))
        kept = t.apply("mul", old, 1.0 - momentum)
        found[buffer.target] = t.apply("add", kept, t.apply("mul", batch, momentum))
    return found
