"""Recognize and describe a matmul of two inputs, batched or not, with an elementwise epilogue."""

from __future__ import annotations

from msgspec import Struct

from engine.problem.spec import DTYPE_BYTES, GraphNode, ProblemSpec
from engine.proposers.playbook.analysis.epilogue import FLOATS, calls, epilogue, graph_of
from engine.proposers.playbook.analysis.layouts import Atoms, Layout, layout_of
from engine.proposers.playbook.base import Program, Unsupported
from engine.proposers.playbook.codegen.size_assertions import product_assertions
from engine.proposers.playbook.ir.program import PointwiseProgram
from engine.proposers.playbook.ir.sizes import Size, factor, stride, text

PRODUCTS = frozenset({"aten.mm.default", "aten.bmm.default", "aten.mv.default"})
ALL_PRODUCTS = PRODUCTS | {"aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default"}


class Operand(Struct, frozen=True):
    """The matrices of an operand. Element (row, col) of matrix number ``b`` is
    ``tensor[offset + batch(b) + row * row_stride + col * col_stride]``.

    ``batch`` lists a (size, stride) pair for each part of the batch index, outermost first. Strides are in elements.
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

    @property
    def pointer(self) -> str:
        """C expression for the address of matrix number ``b``, based on a field of ``t``."""
        offset = text(self.offset) if self.offset else ""
        parts = [f"t.{self.tensor}", offset, batch_text(self.batch, "b")]
        return " + ".join(part for part in parts if part)

    def at(self, row: str, col: str) -> str:
        """Return the C expression for an element's index in its matrix."""
        terms = []
        for index, step in ((row, self.row_stride), (col, self.col_stride)):
            if step:
                terms.append(index if step == 1 else f"{index} * {stride(step)}")
        return " + ".join(terms) or "0"


class MatmulProgram(Program, frozen=True):
    """The product of ``a`` (m x k) and ``b`` (k x n) for each of ``batch`` pairs. ``chain`` then computes the problem's
    outputs from the batch x m x n sums.

    ``size_assertions``: lines of C that stop the build at sizes that a kernel does not support.
    """

    batch: int
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    chain: PointwiseProgram
    size_assertions: tuple[str, ...]

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k


def batch_text(atoms: Atoms, index: str) -> str:
    """Return the C expression for the offset that batch ``index`` adds to an address, or "" if the offset is 0."""
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


def recognize_matmul(spec: ProblemSpec) -> MatmulProgram | None:
    """Return the program for ``spec``, or None if the problem contains no matmul. Raises ``Unsupported``."""
    if spec.graph is None or not calls(spec.graph, ALL_PRODUCTS):
        return None
    graph = graph_of(spec)
    products = calls(graph, PRODUCTS)
    if len(products) != 1:
        raise Unsupported(f"the model has {len(products)} matrix products, and the playbook fuses only one")
    node = products[0]
    nodes = {each.name: each for each in graph}
    (a, left), (b, right) = (_operand(spec, node.args[side]["ref"], nodes) for side in (0, 1))
    inner = left.shape[-1]
    if inner == 0:
        raise Unsupported("the inner dimension of the matrix product is 0")
    m, n = left.shape[-2], 1 if node.target == "aten.mv.default" else right.shape[-1]
    batch = max(left.shape[:-2] + right.shape[:-2], key=lambda size: isinstance(size, Size), default=1)
    shape = (m,) if node.target == "aten.mv.default" else (batch, m, n)[-len(node.shape or ()) :]
    chain = epilogue(spec, graph, node.name, shape, positions=True)
    return MatmulProgram(batch, m, n, inner, a, b, chain, tuple(product_assertions(spec, chain, (left, right))))


def _operand(spec: ProblemSpec, name: str, nodes: dict[str, GraphNode]) -> tuple[Operand, Layout]:
    layout = layout_of(name, nodes)
    if layout is None:
        raise Unsupported(
            f"the model computes an operand of its matrix product (by {_origin(name, nodes)}) instead of taking it as "
            "an input"
        )
    tensor = next((one for one in spec.tensors if one.name == layout.tensor), None)
    if tensor is None or tensor.dtype not in FLOATS:
        held = "a number" if tensor is None else tensor.dtype
        raise Unsupported(f"`{layout.tensor}` is {held}, and the playbook supports only {', '.join(FLOATS)}")
    dims = layout.dims if len(layout.dims) == 3 else ((), *layout.dims)
    if len(dims) == 2:  # A vector is one column.
        dims = (*dims, ())
    strides = [0 if not atoms else atoms[0][1] if len(atoms) == 1 else None for atoms in dims[1:]]
    row, col = strides
    if row is None or col is None:
        raise Unsupported(f"the rows or columns of `{layout.tensor}` are not evenly spaced in memory")
    return Operand(tensor.name, tensor.dtype, layout.offset, dims[0], row, col), layout


def _origin(name: str, nodes: dict[str, GraphNode]) -> str:
    """Return the operator that computes node ``name``, ignoring views."""
    node = nodes[name]
    while node.args and isinstance(node.args[0], dict) and "view" in node.target + node.name:
        node = nodes[node.args[0]["ref"]]
    return node.target.removeprefix("aten.").split(".")[0]
