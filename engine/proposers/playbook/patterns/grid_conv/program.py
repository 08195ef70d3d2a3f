"""Recognize and describe convolutions over one to three dimensions, transposed or not, with an elementwise epilogue."""

from __future__ import annotations

from math import prod

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analysis.epilogue import calls, epilogue, graph_of
from engine.proposers.playbook.base import Program, Unsupported
from engine.proposers.playbook.ir.program import PointwiseProgram
from engine.proposers.playbook.patterns.conv.program import CONVOLUTION, operands_of

MOST_DIMENSIONS = 3

Triple = tuple[int, int, int]
"""One number per dimension, in the order depth, height, width. Missing dimensions have size 1."""


class GridConvProgram(Program, frozen=True):
    """A convolution of images with ``channels`` channels of ``image`` elements by ``filters`` filters, in ``groups``
    groups. Each filter yields ``size`` outputs.

    Element (c, z, y, x) of input image i has the address ``offset + i * strides[0] + c * strides[1] + ...``, in
    elements. Weights are contiguous, in the order (filter, channel of the group, taps), or (channel, filter of the
    group, taps) if ``transposed``. ``chain`` computes the problem's outputs from a sum.
    """

    x: str
    w: str
    dtype: str
    images: int
    channels: int
    filters: int
    groups: int
    transposed: bool
    image: Triple
    kernel: Triple
    stride: Triple
    padding: Triple
    dilation: Triple
    size: Triple
    offset: int
    strides: tuple[int, int, int, int, int]
    chain: PointwiseProgram

    @property
    def group_channels(self) -> int:
        return self.channels // self.groups

    @property
    def group_filters(self) -> int:
        return self.filters // self.groups

    @property
    def plane(self) -> int:
        """Number of outputs per filter and image."""
        return prod(self.size)

    @property
    def multiplications(self) -> int:
        sums = self.images * prod(self.image if self.transposed else self.size)
        return sums * prod(self.kernel) * self.groups * self.group_channels * self.group_filters


def recognize_grid_conv(spec: ProblemSpec) -> GridConvProgram | None:
    """Return the program for ``spec``, or None if the problem contains no convolution. Raises ``Unsupported``."""
    if spec.graph is None or not calls(spec.graph, CONVOLUTION):
        return None
    graph = graph_of(spec)
    found = calls(graph, CONVOLUTION)
    if len(found) != 1:
        raise Unsupported(f"the model has {len(found)} convolutions, and the playbook fuses only one")
    node = found[0]
    nodes = {each.name: each for each in graph}
    shape = node.shape or ()
    rank = len(shape) - 2
    if rank > MOST_DIMENSIONS:
        raise Unsupported(f"the model's convolution has {rank} spatial dimensions; the playbook supports up to three")
    x, w, dtype = operands_of(spec, node, nodes)
    known = [x.stride(dim) or 0 for dim in range(len(x.dims))]
    return GridConvProgram(
        x=x.tensor,
        w=w.tensor,
        dtype=dtype,
        images=shape[0],
        channels=x.shape[1],
        filters=shape[1],
        groups=node.args[8],
        transposed=bool(node.args[6]),
        image=_triple(x.shape[2:], 1),
        kernel=_triple(w.shape[2:], 1),
        stride=_triple(node.args[3], 1, rank),
        padding=_triple(node.args[4], 0, rank),
        dilation=_triple(node.args[5], 1, rank),
        size=_triple(shape[2:], 1),
        offset=x.offset,
        strides=(known[0], known[1], *_triple(known[2:], 0)),
        chain=epilogue(spec, graph, node.name, shape),
    )


def as_grid_conv(program: Program) -> GridConvProgram:
    assert isinstance(program, GridConvProgram), "the grid_conv templates support only grid_conv programs"
    return program


def _triple(values: tuple[int, ...] | list[int], neutral: int, rank: int = 0) -> Triple:
    """Return one number per dimension. ATen may give a single number for all ``rank`` dimensions."""
    given = [int(value) for value in values]
    if len(given) == 1 and rank > 1:
        given *= rank
    depth, height, width = [neutral] * (MOST_DIMENSIONS - len(given)) + given
    return (depth, height, width)
