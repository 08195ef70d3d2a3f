"""Recognize and describe convolutions with an elementwise epilogue, which may include max pooling."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from engine.problem.spec import DTYPE_BYTES, GraphNode, ProblemSpec, TensorSpec
from engine.proposers.playbook.analysis.epilogue import FLOATS, between, calls, epilogue, graph_of
from engine.proposers.playbook.analysis.layouts import Layout, contiguous, layout_of
from engine.proposers.playbook.base import Program, Unsupported
from engine.proposers.playbook.ir.program import PointwiseProgram

CONVOLUTION = frozenset({"aten.convolution.default"})
POOLING = frozenset({"aten.max_pool2d_with_indices.default"})

FEW_FILTERS = 8
"""Number of filters below which a group leaves most of a tile idle. Depthwise convolutions have one filter per
group.
"""

Pair = tuple[int, int]


class Pool(Struct, frozen=True):
    """Max pooling after a convolution. Pairs are (vertical, horizontal). ``size`` is the size of the pooled image."""

    window: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    size: Pair

    @property
    def reach(self) -> Pair:
        """The extent of a pooling window in pixels."""
        (high, wide), (down, across) = self.window, self.dilation
        return ((high - 1) * down + 1, (wide - 1) * across + 1)


class ConvProgram(Program, frozen=True):
    """A convolution of images with ``channels`` channels of ``image`` pixels by ``filters`` filters, in ``groups``
    groups. Each filter yields ``size`` pixels.

    Pixel (c, y, x) of input image i has the address ``offset + i * strides[0] + c * strides[1] + ...``, in elements.
    Weights are contiguous, in the order (filter, channel of the group, y, x). ``before`` computes the input of the
    pooling from a sum. ``before`` stores only to ``ACC``. ``chain`` computes the outputs from a pooled value or,
    without pooling, from a sum.
    """

    x: str
    w: str
    dtype: str
    images: int
    channels: int
    filters: int
    groups: int
    image: Pair
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    size: Pair
    offset: int
    strides: tuple[int, int, int, int]
    before: PointwiseProgram | None
    pool: Pool | None
    chain: PointwiseProgram

    # For each image and group, the implicit GEMM multiplies filters x (channel, y, x) by (channel, y, x) x pixels.

    @property
    def batch(self) -> int:
        return self.images * self.groups

    @property
    def m(self) -> int:
        return self.filters // self.groups

    @property
    def n(self) -> int:
        return self.size[0] * self.size[1]

    @property
    def k(self) -> int:
        return self.channels // self.groups * self.kernel[0] * self.kernel[1]

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def columns(self) -> int:
        """Number of elements in one plane of the output."""
        return self.n if self.pool is None else self.pool.size[0] * self.pool.size[1]

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def workspace_bytes(self) -> int:
        """Size in bytes of all convolution outputs before pooling, in fp32."""
        return 4 * self.batch * self.m * self.n


def recognize_conv(spec: ProblemSpec) -> ConvProgram | None:
    """Return the program for ``spec``, or None if the problem contains no convolution. Also return None for transposed
    and three-dimensional convolutions, which ``grid_conv`` supports. Raises ``Unsupported``.
    """
    if spec.graph is None or not calls(spec.graph, CONVOLUTION):
        return None
    if any(each.args[6] or len(each.shape or ()) > 4 for each in calls(spec.graph, CONVOLUTION)):
        return None
    graph = graph_of(spec)
    found = calls(graph, CONVOLUTION)
    if len(found) != 1:
        raise Unsupported(f"the model has {len(found)} convolutions, and the playbook fuses only one")
    node = found[0]
    nodes = {each.name: each for each in graph}
    shape = node.shape or ()
    x, w, dtype = operands_of(spec, node, nodes)
    flat = len(shape) == 3
    known = [x.stride(dim) or 0 for dim in range(len(x.dims))]
    pools = calls(graph, POOLING)
    before, pool, chain = None, None, None
    if pools:
        before, pool, chain = _pooled(spec, graph, node, pools)
    return ConvProgram(
        x=x.tensor,
        w=w.tensor,
        dtype=dtype,
        images=x.shape[0],
        channels=x.shape[1],
        filters=shape[1],
        groups=node.args[8],
        image=_sizes(x.shape, flat),
        kernel=_sizes(w.shape, flat),
        stride=_pair(node.args[3], flat, 1),
        padding=_pair(node.args[4], flat, 0),
        dilation=_pair(node.args[5], flat, 1),
        size=_sizes(shape, flat),
        offset=x.offset,
        strides=(known[0], known[1], 0 if flat else known[2], known[-1]),
        before=before,
        pool=pool,
        chain=chain or epilogue(spec, graph, node.name, shape),
    )


def operands_of(spec: ProblemSpec, node: GraphNode, nodes: dict[str, GraphNode]) -> tuple[Layout, Layout, str]:
    """Return the layouts of a convolution's input and contiguous weights, and the dtype of both. Raises
    ``Unsupported``.
    """
    x, tensor = _given(spec, node.args[0]["ref"], nodes)
    w, weights = _given(spec, node.args[1]["ref"], nodes)
    if w.offset or w.dims != contiguous(w.tensor, w.shape).dims:
        raise Unsupported(f"the convolution's weights `{w.tensor}` are not contiguous")
    if tensor.dtype != weights.dtype:
        raise Unsupported(f"the convolution's operands differ in data type ({tensor.dtype}, {weights.dtype})")
    if any(x.stride(dim) is None for dim in range(len(x.dims))):
        raise Unsupported(f"a dimension of `{x.tensor}` does not have a single stride in memory")
    return x, w, tensor.dtype


def _given(spec: ProblemSpec, name: str, nodes: dict[str, GraphNode]) -> tuple[Layout, TensorSpec]:
    layout = layout_of(name, nodes)
    tensor = None if layout is None else next((one for one in spec.tensors if one.name == layout.tensor), None)
    if layout is None or tensor is None:
        raise Unsupported("the model computes an operand of its convolution instead of taking it as an input")
    if tensor.dtype not in FLOATS:
        raise Unsupported(f"`{layout.tensor}` is {tensor.dtype}, and the playbook supports only {', '.join(FLOATS)}")
    return layout, tensor


def _pooled(
    spec: ProblemSpec, graph: tuple[GraphNode, ...], node: GraphNode, pools: list[GraphNode]
) -> tuple[PointwiseProgram, Pool, PointwiseProgram]:
    if len(pools) != 1:
        raise Unsupported(f"the model has {len(pools)} pooling operators, and the playbook fuses only one")
    pooling = pools[0]
    picked = [each for each in graph if each.op == "getitem" and each.args[0]["ref"] == pooling.name]
    if [each.args[1] for each in picked] != [0] or picked[0].shape is None or node.shape is None:
        raise Unsupported("the model uses the indices that max pooling returns")
    source = next(each for each in graph if each.name == pooling.args[0]["ref"])
    if source.shape != node.shape:
        raise Unsupported("the model changes the shape of the convolution's result before pooling")
    window = _two(pooling.args[1])
    stride = _two(pooling.args[2]) if len(pooling.args) > 2 and pooling.args[2] else window
    padding = _two(pooling.args[3]) if len(pooling.args) > 3 else (0, 0)
    dilation = _two(pooling.args[4]) if len(pooling.args) > 4 else (1, 1)
    pool = Pool(window, stride, padding, dilation, (picked[0].shape[-2], picked[0].shape[-1]))
    before = between(spec, graph, node.name, node.shape, source.name)
    return before, pool, epilogue(spec, graph, picked[0].name, picked[0].shape)


def _two(value: Any) -> Pair:
    values = [value] if isinstance(value, int) else list(value)
    return (values[0], values[-1])


def _sizes(shape: tuple[int, ...], flat: bool) -> Pair:
    return (1, shape[-1]) if flat else (shape[-2], shape[-1])


def _pair(values: Any, flat: bool, neutral: int) -> Pair:
    one, other = _two(values)
    return (neutral, other) if flat else (one, other)
