"""Convert a traced graph to plain data, and count its memory traffic and operations. Imports torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from engine.problem.spec import GraphNode

_aten = torch.ops.aten
# A kernel reads only the elements that these operators select from their source.
_SELECTING = frozenset(
    {
        _aten.embedding.default,
        _aten.gather.default,
        _aten.index.Tensor,
        _aten.index_select.default,
        _aten.select.int,
        _aten.slice.Tensor,
    }
)
# Each of these operators makes one pass over its largest operand. The list exists because older PyTorch has no tag for
# reductions.
_PASS_NAMES = """
_log_softmax _softmax all amax amin any argmax argmin avg_pool1d avg_pool2d avg_pool3d cumprod cumsum
linalg_vector_norm logsumexp max max_pool2d_with_indices max_pool3d_with_indices mean min native_batch_norm
native_group_norm native_layer_norm norm prod std std_mean sum var var_mean
"""
_PASSES = frozenset(_PASS_NAMES.split())


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def nodes_of(graph: fx.Graph, placeholder_names: list[str]) -> tuple[GraphNode, ...] | None:
    """Return the graph as :class:`GraphNode` records, or None if the graph contains a constant tensor with several
    elements.

    Placeholders have the names of the specification's tensors. ``inf``, ``-inf`` and ``nan`` become strings, because
    JSON cannot represent them as numbers. A write to a buffer is an ``aten.copy_.default`` whose first argument is the
    buffer's placeholder.
    """
    names: dict[fx.Node, str] = {}
    taken = set(placeholder_names)
    wanted = iter(placeholder_names)
    found: list[GraphNode] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            names[node] = next(wanted)
        else:
            name = node.name
            while name in taken:
                name += "_"
            taken.add(name)
            names[node] = name
        converted = _convert(node, names, graph)
        if converted is None:
            return None
        found.append(converted)
    return tuple(found)


def _convert(node: fx.Node, names: dict[fx.Node, str], graph: fx.Graph) -> GraphNode | None:
    name = names[node]
    value = node.meta.get("val")
    shape = tuple(int(size) for size in value.shape) if isinstance(value, torch.Tensor) else None
    dtype = dtype_name(value.dtype) if isinstance(value, torch.Tensor) else None
    if node.op == "placeholder":
        return GraphNode(name, "placeholder", name, shape=shape, dtype=dtype)
    if node.op == "get_attr":
        constant = getattr(graph.owning_module, str(node.target))
        constant = (
            getattr(constant, "constant", None) if isinstance(constant, torch._subclasses.FakeTensor) else constant
        )
        if constant is None or constant.numel() != 1:
            return None
        kind = dtype_name(constant.dtype)
        number = _plain(constant.item(), names)
        return GraphNode(
            name,
            "call",
            "aten.full.default",
            (list(constant.shape), number),
            {"dtype": kind},
            tuple(constant.shape),
            kind,
        )
    if node.op == "output":
        return GraphNode(name, "output", "output", tuple(_plain(arg, names) for arg in node.args[0]))
    args = tuple(_plain(arg, names) for arg in node.args)
    if node.target is operator.getitem:
        return GraphNode(name, "getitem", "getitem", args, shape=shape, dtype=dtype)
    kwargs = {key: _plain(arg, names) for key, arg in node.kwargs.items()}
    return GraphNode(name, "call", str(node.target), args, kwargs, shape, dtype)


def _plain(value: Any, names: dict[fx.Node, str]) -> Any:
    if isinstance(value, fx.Node):
        return {"ref": names[value]}
    if isinstance(value, list | tuple):
        return [_plain(item, names) for item in value]
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value).removeprefix("torch.")


def read_bytes(graph: fx.Graph) -> list[int]:
    """Return the number of bytes that a kernel must read from each placeholder, in order: 0 for an unused
    placeholder.
    """
    sizes = []
    for node in graph.nodes:
        if node.op == "placeholder":
            users = [user for user in node.users if user.target is not _aten.copy_.default or user.args[1] is node]
            whole = _nbytes(node.meta["val"])
            selecting = all(user.target in _SELECTING and user.args[0] is node for user in users)
            selected = sum(_nbytes(user.meta["val"]) for user in users) if selecting else whole
            sizes.append(min(whole, selected) if users else 0)
    return sizes


def _nbytes(value: torch.Tensor) -> int:
    return int(value.numel()) * int(value.element_size())


def count_flops(graph: fx.Graph) -> int:
    """Count floating-point operations.

    Matrix products, convolutions and attention use PyTorch's flop formulas. A pointwise operator counts as one
    operation per output element. A reduction, normalization or pooling operator counts as one operation per element
    that it reads.
    """
    total = 0
    for node in graph.nodes:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            continue
        value = node.meta.get("val")
        packet = target.overloadpacket
        if target is _aten._scaled_dot_product_flash_attention_for_cpu.default:
            shapes = [tuple(arg.meta["val"].shape) for arg in node.args[:3]]
            total += int(sdpa_flop_count(*shapes))
        elif packet in flop_registry:
            args, kwargs = pytree.tree_map_only(fx.Node, lambda n: n.meta.get("val"), (node.args, node.kwargs))
            total += int(flop_registry[packet](*args, **kwargs, out_val=value))
        elif torch.Tag.pointwise in target.tags:
            total += sum(int(tensor.numel()) for tensor in _tensors([value]))
        elif packet.__name__ in _PASSES:
            operands = [arg.meta.get("val") for arg in node.all_input_nodes]
            total += max((int(tensor.numel()) for tensor in _tensors(operands)), default=0)
    return total


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(list(values)) if isinstance(leaf, torch.Tensor)]
