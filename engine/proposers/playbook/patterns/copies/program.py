"""Recognize and describe problems whose outputs are only copies of input elements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from engine.problem.spec import DTYPE_BYTES, GraphNode, ProblemSpec
from engine.proposers.playbook.analysis.analyze import checked_graph
from engine.proposers.playbook.analysis.aten import FILLS, VIEWS
from engine.proposers.playbook.analysis.layouts import Atoms, layout_of
from engine.proposers.playbook.base import Program, Unsupported

_CAT = "aten.cat.default"
_TRIANGLES = {"aten.triu.default": True, "aten.tril.default": False}
_MAX_BOXES = 512
"""Maximum number of parts of an output, because a kernel contains code for each part."""


class Axis(Struct, frozen=True):
    """One loop of a copy: ``size`` elements, and the strides of these elements in the output and in the source. Strides
    are in elements.
    """

    size: int
    out_stride: int
    in_stride: int


class Box(Struct, frozen=True):
    """A part of the output: elements of ``tensor``, or ``number`` if there is no tensor. Offsets are in elements."""

    tensor: str
    number: float
    in_offset: int
    out_offset: int
    axes: tuple[Axis, ...]

    @property
    def numel(self) -> int:
        return prod(axis.size for axis in self.axes)


class Triangle(Struct, frozen=True):
    """The elements of each ``rows`` x ``cols`` matrix that are not 0: on and above, or on and below ``diagonal``."""

    upper: bool
    diagonal: int
    rows: int
    cols: int


class CopyProgram(Program, frozen=True):
    """A program that copies elements to one output, part by part. The parts do not overlap."""

    output: str
    dtype: str
    boxes: tuple[Box, ...]
    triangle: Triangle | None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that the kernel reads."""
        return tuple(dict.fromkeys(box.tensor for box in self.boxes if box.tensor))

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]


class _Region(Struct, frozen=True):
    """A box that is described per dimension: its start, and the (size, stride) pairs of its source."""

    tensor: str
    number: float
    offset: int
    start: tuple[int, ...]
    sizes: tuple[int, ...]
    atoms: tuple[Atoms, ...]


def as_copies(program: Program) -> CopyProgram:
    """Return ``program``, whose type must be :class:`CopyProgram`."""
    assert isinstance(program, CopyProgram), "the analysis chose the wrong pattern"
    return program


def recognize_copies(spec: ProblemSpec) -> CopyProgram | None:
    """Return the program for ``spec``, or None if the problem does more than copy. Raises ``Unsupported``."""
    graph = checked_graph(spec)
    nodes = {node.name: node for node in graph}
    if len(spec.outputs) != 1 or graph[-1].op != "output":
        return None
    (output,) = spec.outputs
    arg = graph[-1].args[0]
    node = nodes[(arg[0] if isinstance(arg, (list, tuple)) else arg)["ref"]]
    triangle = None
    if node.target in _TRIANGLES:
        rows, cols = (node.shape or ())[-2:]
        diagonal = node.args[1] if len(node.args) > 1 else 0
        triangle = Triangle(_TRIANGLES[node.target], diagonal, rows, cols)
        node = nodes[node.args[0]["ref"]]
    regions = _regions(node, nodes)
    if regions is None:
        return None
    if len(regions) > _MAX_BOXES:
        raise Unsupported(
            f"the model concatenates {len(regions)} tensors, and the playbook supports at most {_MAX_BOXES}"
        )
    types = {tensor.dtype for tensor in spec.tensors if tensor.name in {region.tensor for region in regions}}
    if types - {output.dtype}:
        raise Unsupported(f"the model copies {', '.join(sorted(types))} to {output.dtype}")
    shape = node.shape or ()
    boxes = tuple(_box(region, shape) for region in regions)
    return CopyProgram(output.name, output.dtype, boxes, triangle)


def _regions(node: GraphNode, nodes: Mapping[str, GraphNode]) -> list[_Region] | None:
    """Return the parts of ``node``, or None if ``node`` does more than copy."""
    layout = layout_of(node.name, nodes)
    shape = tuple(int(size) for size in node.shape or ())
    if layout is not None:
        dims = tuple(tuple((int(size), int(stride)) for size, stride in atoms) for atoms in layout.dims)
        return [_Region(layout.tensor, 0.0, layout.offset, (0,) * len(shape), shape, dims)]
    if node.op == "call" and node.target in FILLS:
        value = FILLS[node.target]
        number = float(value if value is not None else node.args[0 if "scalar_tensor" in node.target else 1])
        return [_Region("", number, 0, (0,) * len(shape), shape, tuple(((size, 0),) for size in shape))]
    if node.op == "call" and node.target == _CAT:
        dim = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) % max(1, len(shape))
        found: list[_Region] = []
        begin = 0
        for arg in node.args[0]:
            part = nodes[arg["ref"]]
            if prod(part.shape or ()) == 0:
                continue
            regions = _regions(part, nodes)
            if regions is None:
                return None
            for region in regions:
                start = (*region.start[:dim], region.start[dim] + begin, *region.start[dim + 1 :])
                found.append(replace(region, start=start))
            begin += (part.shape or ())[dim]
        return found
    if node.op == "call" and node.target in VIEWS:
        source = nodes[node.args[0]["ref"]]
        if source.target == _CAT and source.shape != node.shape:
            raise Unsupported("the model changes the shape of a concatenation")
        return _regions(source, nodes)
    return None


def _box(region: _Region, shape: tuple[int, ...]) -> Box:
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= int(size)
    strides.reverse()
    axes: list[Axis] = []
    for size, step, atoms in zip(region.sizes, strides, region.atoms, strict=True):
        inner = size
        for part, in_stride in atoms:
            inner //= part
            axes.append(Axis(part, step * inner, in_stride))
        if not atoms and size != 1:
            axes.append(Axis(size, step, 0))
    start = sum(at * step for at, step in zip(region.start, strides, strict=True))
    return Box(region.tensor, region.number, region.offset, start, _merged(axes))


def _merged(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    found: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        last = found[-1] if found else None
        if last is not None and (last.out_stride, last.in_stride) == (
            axis.out_stride * axis.size,
            axis.in_stride * axis.size,
        ):
            found[-1] = Axis(last.size * axis.size, axis.out_stride, axis.in_stride)
        else:
            found.append(axis)
    return tuple(found) or (Axis(1, 1, 1),)
