"""Products of two given matrices, or of batches of them, with an elementwise epilogue: recognised and described."""

from __future__ import annotations

from msgspec import Struct

from engine.problem.spec import DTYPE_BYTES, GraphNode, ProblemSpec
from engine.proposers.playbook.demands import of_product
from engine.proposers.playbook.epilogue import FLOATS, calls, epilogue, graph_of
from engine.proposers.playbook.ir import PointwiseProgram, Program
from engine.proposers.playbook.layouts import Atoms, Layout, layout_of
from engine.proposers.playbook.sizes import Size, factor, stride
from engine.proposers.playbook.terms import Refused

PRODUCTS = frozenset({"aten.mm.default", "aten.bmm.default", "aten.mv.default"})
ALL_PRODUCTS = PRODUCTS | {"aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default"}


class Operand(Struct, frozen=True):
    """Element (row, col) of matrix ``b``: ``tensor[offset + batch(b) + row * row_stride + col * col_stride]``.

    ``batch``: (size, stride) from the outermost to the innermost part of the batch index. Strides in elements.
    """

    tensor: str
    dtype: str
    offset: int
    batch: Atoms
    row_stride: int
    col_stride: int

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]


class MatmulProgram(Program, frozen=True):
    """``a`` (m x k) times ``b`` (k x n) for each of ``batch``, then ``chain`` over batch x m x n elements.

    ``demands``: lines of C that hold a kernel to sizes at which it is right (``demands``)."""

    batch: int
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    chain: PointwiseProgram
    demands: tuple[str, ...]

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


def batch_text(atoms: Atoms, index: str) -> str:
    """The C expression of what batch ``index`` adds to an address, or "" for nothing."""
    terms: list[str] = []
    inner = 1
    for place, (size, step) in reversed(list(enumerate(atoms))):
        part = index if inner == 1 else f"{index} / {factor(inner)}"
        if place > 0:
            part = f"{part} % {factor(size)}"
        if step:
            terms.append(f"{part} * {stride(step)}" if part == index else f"({part}) * {stride(step)}")
        inner = inner * size
    return " + ".join(reversed(terms))


def recognise_matmul(spec: ProblemSpec) -> MatmulProgram | None:
    """The program of ``spec``, or None if it holds no matrix product. Raises ``Refused``."""
    if spec.graph is None or not calls(spec.graph, ALL_PRODUCTS):
        return None
    graph = graph_of(spec)
    products = calls(graph, PRODUCTS)
    if len(products) != 1:
        raise Refused(f"it multiplies matrices {len(products)} times and its templates fuse one product")
    node = products[0]
    nodes = {each.name: each for each in graph}
    (a, left), (b, right) = (_operand(spec, node.args[side]["ref"], nodes) for side in (0, 1))
    inner = left.shape[-1]
    if inner == 0:
        raise Refused("its product sums over nothing")
    m, n = left.shape[-2], 1 if node.target == "aten.mv.default" else right.shape[-1]
    batch = max(left.shape[:-2] + right.shape[:-2], key=lambda size: isinstance(size, Size), default=1)
    shape = (m,) if node.target == "aten.mv.default" else (batch, m, n)[-len(node.shape or ()) :]
    chain = epilogue(spec, graph, node.name, shape)
    return MatmulProgram(batch, m, n, inner, a, b, chain, tuple(of_product(spec, chain, (left, right))))


def _operand(spec: ProblemSpec, name: str, nodes: dict[str, GraphNode]) -> tuple[Operand, Layout]:
    layout = layout_of(name, nodes)
    if layout is None:
        raise Refused(f"an operand of its product is computed ({_origin(name, nodes)}), not given")
    tensor = next((one for one in spec.tensors if one.name == layout.tensor), None)
    if tensor is None or tensor.dtype not in FLOATS:
        held = "a number" if tensor is None else tensor.dtype
        raise Refused(f"`{layout.tensor}` is {held} and its templates are for {', '.join(FLOATS)}")
    dims = layout.dims if len(layout.dims) == 3 else ((), *layout.dims)
    if len(dims) == 2:  # a vector: one column
        dims = (*dims, ())
    strides = [0 if not atoms else atoms[0][1] if len(atoms) == 1 else None for atoms in dims[1:]]
    row, col = strides
    if row is None or col is None:
        raise Refused(f"rows of `{layout.tensor}` lie in memory in steps of several sizes")
    return Operand(tensor.name, tensor.dtype, layout.offset, dims[0], row, col), layout


def _origin(name: str, nodes: dict[str, GraphNode]) -> str:
    """The operator that computes ``name``, behind views."""
    node = nodes[name]
    while node.args and isinstance(node.args[0], dict) and "view" in node.target + node.name:
        node = nodes[node.args[0]["ref"]]
    return node.target.removeprefix("aten.").split(".")[0]
