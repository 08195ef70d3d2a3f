"""Layouts: the addresses of a tensor's elements after transposes, views, slices and broadcasts, without copies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from engine.problem.spec import GraphNode
from engine.proposers.playbook.base import Unsupported
from engine.proposers.playbook.ir.sizes import named

Atom = tuple[int, int]
"""(size, stride in elements) of a run of equally spaced elements."""
Atoms = tuple[Atom, ...]

_COPIES = frozenset(f"aten.{name}.default" for name in ("clone", "contiguous", "detach", "alias", "lift_fresh_copy"))
_VIEWS = frozenset(
    f"aten.{name}"
    for name in ("view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default", "squeeze.dim",
                 "squeeze.dims", "squeeze.default", "flatten.using_ints", "view_as.default")
)  # fmt: skip
_END = 1 << 62


@dataclass(frozen=True)
class Layout:
    """The address of element (i0, i1, ...) of ``tensor`` through views: ``offset`` plus a term for each index.

    ``dims`` lists each dimension's atoms, outermost first. A dimension has several atoms if a view joined dimensions
    that are not adjacent in memory.
    """

    tensor: str
    offset: int
    dims: tuple[Atoms, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(prod(size for size, _ in atoms) for atoms in self.dims)

    def stride(self, dim: int) -> int | None:
        """Return the stride along ``dim`` in elements: 0 if the size is 1, None if there are several strides."""
        atoms = self.dims[dim]
        return 0 if not atoms else atoms[0][1] if len(atoms) == 1 else None


def contiguous(tensor: str, shape: tuple[int, ...]) -> Layout:
    """Return the layout of a whole contiguous tensor."""
    dims, stride = [], 1
    for size in reversed(shape):
        dims.append(_merged([(size, stride)]))
        stride *= size
    return Layout(tensor, 0, tuple(reversed(dims)))


def layout_of(name: str, nodes: Mapping[str, GraphNode]) -> Layout | None:
    """Return the layout of a node that views an input, parameter or buffer; None for a computed node.

    Raises ``Unsupported`` for a view whose addresses a ``Layout`` cannot express.
    """
    node = nodes[name]
    if node.op == "placeholder":
        return contiguous(node.target, named(node.target, node.shape)) if node.shape is not None else None
    if node.op != "call" or not node.args or not isinstance(node.args[0], dict) or node.shape is None:
        return None
    view = _VIEW_OF.get(node.target)
    if view is None and node.target not in _VIEWS and node.target not in _COPIES:
        return None
    source = layout_of(node.args[0]["ref"], nodes)
    if source is None:
        return None
    if view is not None:
        return view(source, node)
    return source if node.target in _COPIES else viewed(source, node.shape)


def viewed(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout after a view that changes the shape and keeps the elements in row-major order. Raises
    ``Unsupported``.
    """
    waiting = [atom for atoms in layout.dims for atom in atoms]
    dims = []
    for size in reversed(shape):
        taken: list[Atom] = []
        while size > 1:
            have, stride = waiting.pop()
            if size % have == 0:
                taken.append((have, stride))
                size //= have
            elif have % size == 0:
                taken.append((size, stride))
                # Either part may be the named size and the other part a fixed number, so neither part keeps the name.
                waiting.append((int(have) // size, stride * size))
                size = 1
            elif layout.dims == contiguous(layout.tensor, layout.shape).dims:
                return Layout(layout.tensor, layout.offset, contiguous(layout.tensor, tuple(map(int, shape))).dims)
            else:
                raise Unsupported(
                    f"the model views a {list(layout.shape)} tensor as {list(shape)}, which the playbook supports only "
                    "for contiguous tensors"
                )
        dims.append(_merged(reversed(taken)))
    return Layout(layout.tensor, layout.offset, tuple(reversed(dims)))


def _merged(atoms: Iterable[Atom]) -> Atoms:
    found: list[Atom] = []
    for size, stride in atoms:
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return tuple(found)


def _permuted(layout: Layout, order: Iterable[int]) -> Layout:
    rank = len(layout.dims)
    return Layout(layout.tensor, layout.offset, tuple(layout.dims[dim % rank] for dim in order))


def _t(layout: Layout, node: GraphNode) -> Layout:
    return _permuted(layout, reversed(range(len(layout.dims))))


def _transpose(layout: Layout, node: GraphNode) -> Layout:
    order = list(range(len(layout.dims)))
    a, b = node.args[1], node.args[2]
    order[a], order[b] = order[b], order[a]
    return _permuted(layout, order)


def _permute(layout: Layout, node: GraphNode) -> Layout:
    return _permuted(layout, node.args[1])


def _expand(layout: Layout, node: GraphNode) -> Layout:
    wide = node.shape or ()
    narrow = (1,) * (len(wide) - len(layout.dims)) + layout.shape
    dims = ((),) * (len(wide) - len(layout.dims)) + layout.dims
    spread = zip(dims, narrow, wide, strict=True)
    return Layout(layout.tensor, layout.offset, tuple(d if have == want else ((want, 0),) for d, have, want in spread))


def _slice(layout: Layout, node: GraphNode) -> Layout:
    args: list[Any] = [*node.args[1:], *(None,) * (5 - len(node.args))]
    dim, step = (args[0] or 0) % len(layout.dims), args[3] or 1
    size, stride = layout.shape[dim], layout.stride(dim)
    start, _, step = slice(args[1], min(args[2] if args[2] is not None else _END, _END), step).indices(size)
    if stride is None:
        raise Unsupported("the model slices a dimension that has no single stride")
    new = (node.shape or ())[dim]
    dims = (*layout.dims[:dim], _merged([(new, stride * step)]), *layout.dims[dim + 1 :])
    return Layout(layout.tensor, layout.offset + start * stride, dims)


def _select(layout: Layout, node: GraphNode) -> Layout:
    dim, index = node.args[1] % len(layout.dims), node.args[2]
    stride = layout.stride(dim)
    if stride is None:
        raise Unsupported("the model selects from a dimension that has no single stride")
    at = layout.offset + index % max(1, layout.shape[dim]) * stride
    return Layout(layout.tensor, at, (*layout.dims[:dim], *layout.dims[dim + 1 :]))


def _unfold(layout: Layout, node: GraphNode) -> Layout:
    """Return the layout after ``unfold``. The elements of each window become the last dimension."""
    dim, size, step = node.args[1] % len(layout.dims), node.args[2], node.args[3]
    stride = layout.stride(dim)
    if stride is None:
        raise Unsupported("the model unfolds a dimension that has no single stride")
    windows = (node.shape or ())[dim]
    dims = (*layout.dims[:dim], _merged([(windows, stride * step)]), *layout.dims[dim + 1 :], _merged([(size, stride)]))
    return Layout(layout.tensor, layout.offset, dims)


def _as_strided(layout: Layout, node: GraphNode) -> Layout:
    """Return ``layout`` in another shape. Support only the strides of a contiguous tensor, as in the trace of pooling
    to one element.
    """
    shape = tuple(node.args[1])
    dims = tuple(_merged([(size, stride)]) for size, stride in zip(shape, node.args[2], strict=True))
    if dims != contiguous(layout.tensor, shape).dims or (len(node.args) > 3 and node.args[3]):
        raise Unsupported("the model sets strides or an offset that a contiguous tensor does not have")
    return viewed(layout, shape)


_VIEW_OF = {
    "aten.as_strided.default": _as_strided,
    "aten.t.default": _t,
    "aten.numpy_T.default": _t,
    "aten.transpose.int": _transpose,
    "aten.permute.default": _permute,
    "aten.expand.default": _expand,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.unfold.default": _unfold,
}
VIEW_TARGETS = _COPIES | _VIEWS | frozenset(_VIEW_OF)
"""The operators that a ``Layout`` can express."""
