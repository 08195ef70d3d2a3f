"""Recognize and describe pooling with an elementwise epilogue."""

from __future__ import annotations

from math import prod
from typing import Any, Literal

from engine.problem.spec import GraphNode, ProblemSpec
from engine.proposers.playbook.analysis.epilogue import calls, epilogue, graph_of, is_acc
from engine.proposers.playbook.analysis.layouts import contiguous, layout_of
from engine.proposers.playbook.base import Program, Unsupported
from engine.proposers.playbook.codegen.size_assertions import fixed_sizes, program_assertions, size_assertion, whole
from engine.proposers.playbook.ir.program import PointwiseProgram
from engine.proposers.playbook.ir.sizes import named

MAXIMA = frozenset(f"aten.max_pool{n}d_with_indices.default" for n in (2, 3))
AVERAGES = frozenset(f"aten.avg_pool{n}d.default" for n in (2, 3))
HEAVY = frozenset({"aten.convolution.default", "aten.mm.default", "aten.bmm.default", "aten.addmm.default"})

Triple = tuple[int, int, int]


class PoolProgram(Program, frozen=True):
    """Pooling of ``planes`` volumes of ``image`` elements. Triples are (depth, height, width); unused sizes are 1.

    Attributes:
        divisor: The divisor of a window's sum; 0 means the number of the window's elements inside the image.
        rounds_up: Whether the last window of a row or column may reach beyond the image (``ceil_mode``).
        chain: The program that computes the outputs from a pooled value.
    """

    x: str
    kind: Literal["max", "average"]
    planes: int
    image: Triple
    window: Triple
    stride: Triple
    padding: Triple
    dilation: Triple
    size: Triple
    divisor: int
    rounds_up: bool
    chain: PointwiseProgram


def as_pooling(program: Program) -> PoolProgram:
    """Return ``program``, whose type must be :class:`PoolProgram`."""
    assert isinstance(program, PoolProgram), "the analysis chose the wrong pattern"
    return program


def recognize_pooling(spec: ProblemSpec) -> PoolProgram | None:
    """Return the program for ``spec``, or None if the problem contains no pooling. Raises ``Unsupported``."""
    if spec.graph is None or not calls(spec.graph, MAXIMA | AVERAGES):
        return None
    graph = graph_of(spec)
    found = calls(graph, MAXIMA | AVERAGES)
    if len(found) != 1:
        raise Unsupported(f"the model has {len(found)} pooling operators, and the playbook fuses only one")
    if heavy := calls(graph, HEAVY):
        raise Unsupported(f"the model combines pooling with {heavy[0].target.removeprefix('aten.').split('.')[0]}")
    node = found[0]
    spatial = 3 if "3d" in node.target else 2
    nodes = {each.name: each for each in graph}
    layout = layout_of(node.args[0]["ref"], nodes)
    if layout is None:
        raise Unsupported("the model pools a computed value instead of an input")
    if layout.offset or layout.dims != contiguous(layout.tensor, layout.shape).dims:
        raise Unsupported(f"the model slices or permutes `{layout.tensor}` before pooling")
    dtype = next(tensor.dtype for tensor in spec.tensors if tensor.name == layout.tensor)
    if dtype != "float32":
        raise Unsupported(f"`{layout.tensor}` is {dtype}, and pooling kernels support only float32")
    result = _result(node, graph)
    shape, size = layout.shape, (result.shape or ())[-spatial:]
    window = _triple(node.args[1], spatial, 1)
    args = [*node.args, *(None,) * (7 - len(node.args))]
    average = node.target in AVERAGES
    stride = _triple(args[2], spatial, 1) if args[2] else window
    padding = _triple(args[3] or 0, spatial, 0)
    dilation = (1, 1, 1) if average else _triple(args[4] or 1, spatial, 1)
    rounds_up = bool(args[4 if average else 5])
    if average and rounds_up:
        raise Unsupported("the model uses average pooling with ceil_mode")
    includes_padding = args[5] is None or bool(args[5])
    divisor = (args[6] or (prod(window) if includes_padding else 0)) if average else 1
    output = spec.outputs[0]
    chain = epilogue(spec, graph, result.name, result.shape or (), prod(named(output.name, output.shape)))
    return PoolProgram(
        x=layout.tensor,
        kind="average" if average else "max",
        planes=prod(shape[:-spatial]),
        image=_padded(shape[-spatial:]),
        window=window,
        stride=stride,
        padding=padding,
        dilation=dilation,
        size=_padded(size),
        divisor=divisor,
        rounds_up=rounds_up,
        chain=chain,
    )


def pool_assertions(program: PoolProgram, spec: ProblemSpec) -> list[str]:
    """Assert the sizes at which a pooling kernel is correct. The kernel computes the output's sizes from the
    input's.
    """
    tensors = {tensor.name: tensor for tensor in spec.tensors}
    chain = program.chain
    loads = {
        chain.values[k].tensor for k in chain.order if chain.values[k].op == "load" and not is_acc(chain.values[k])
    }
    if loads or program.rounds_up:
        used = {program.x, *loads, *(store.tensor for store in chain.stores)}
        return fixed_sizes(tensor for tensor in spec.tensors if tensor.name in used)
    lines = whole(tensors[program.x], program.planes * program.image[0] * program.image[1] * program.image[2])
    for store in chain.stores:
        needs = f"{store.tensor} to have one element per window"
        lines.append(size_assertion(f"{store.tensor}_numel == outputs", needs))
    return [*lines, *program_assertions(chain, [k for k in chain.order if not is_acc(chain.values[k])], spec)]


def _result(node: GraphNode, graph: tuple[GraphNode, ...]) -> GraphNode:
    """Return the node of the pooled values. Raises ``Unsupported`` if the model also uses the values' positions."""
    if node.target in AVERAGES:
        return node
    picked = [each for each in graph if each.op == "getitem" and each.args[0]["ref"] == node.name]
    if [each.args[1] for each in picked] != [0]:
        raise Unsupported("the model uses the indices that max pooling returns")
    return picked[0]


def _triple(value: Any, spatial: int, neutral: int) -> Triple:
    values = [value] * spatial if isinstance(value, int) else list(value)
    values = values * spatial if len(values) == 1 else values
    return _padded(tuple(values), neutral)


def _padded(values: tuple[int, ...], neutral: int = 1) -> Triple:
    depth, height, width = (neutral,) * (3 - len(values)) + values
    return (depth, height, width)
