"""Trace a model to ATen operators over fake tensors, which have shapes but no data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct
from torch import fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.func import functional_call, functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from engine.problem.model import OnDevice, build_model, flatten, named_weights, output_leaves
from engine.problem.source import ProblemFileError, ProblemModule

DATA_DEPENDENT = (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode)
_ALIASES = frozenset(
    {torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh_copy.default}
)


_MAX_OPERATORS = 5_000


class TooLongToTraceError(Exception):
    """The model runs more operators than a graph may contain, for example in an unrolled recurrent network."""

    def __init__(self) -> None:
        super().__init__(f"the model runs more than {_MAX_OPERATORS} operators")


class _Limit(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._left = _MAX_OPERATORS

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._left -= 1
        if self._left < 0:
            raise TooLongToTraceError
        return func(*args, **(kwargs or {}))


class _Watched(nn.Module):
    """A wrapper for a model. ``replaced`` lists the names of the buffers that ``forward`` replaced with new tensors.

    The wrapper ignores a replacement with a different dtype, because models convert constants that way.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.replaced: list[str] = []

    def forward(self, *arguments: Any) -> Any:
        before = dict(self.model.named_buffers())
        result = self.model(*arguments)
        for name, tensor in self.model.named_buffers():
            if name in before and tensor is not before[name] and tensor.dtype == before[name].dtype:
                self.replaced.append(name)
        return result


def _refuse_replaced(name: str) -> ProblemFileError:
    attribute = name.rpartition(".")[2]
    return ProblemFileError(
        f"forward replaces the buffer `{name}`", f"write the new value in place: `self.{attribute}.copy_(...)`"
    )


class Built(Struct, frozen=True):
    """A model and its inputs, built from fake tensors. ``leaves``: flattened inputs; ``weights``: (name, tensor,
    is_parameter).
    """

    model: nn.Module
    init_arguments: list[Any]
    leaves: list[Any]
    structure: pytree.TreeSpec
    weights: list[tuple[str, torch.Tensor, bool]]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    @property
    def memory(self) -> list[torch.Tensor]:
        """All tensors among the inputs and weights."""
        return [*self.tensors, *(tensor for _, tensor, _ in self.weights)]


class Traced(Struct, frozen=True):
    """A traced model whose placeholders are ``inputs + weights``, in that order.

    ``graph`` is None for a model that PyTorch cannot trace. ``outputs``: the leaves that ``forward`` returned.
    ``mutated``: positions of placeholders that the model writes. ``random``: the first operator that draws random
    numbers, or None.
    """

    graph: fx.Graph | None
    outputs: list[Any]
    mutated: frozenset[int]
    random: str | None


def build_fake(module: ProblemModule, mode: FakeTensorMode) -> Built:
    """Build the model and its inputs without allocating their memory.

    A constructor or ``get_inputs`` that reads tensor values runs on real tensors. ``build_fake`` then converts these
    tensors to fake tensors.
    """
    with OnDevice("cpu"):
        try:
            with mode:
                model, arguments = build_model(module)
        except RuntimeError:  # The errors in DATA_DEPENDENT derive from this class, and ``Tensor.numpy()`` raises it.
            model, arguments = build_model(module)
            _convert(model, mode)
        try:
            with mode:
                leaves, structure = flatten(module.get_inputs())
        except RuntimeError:
            leaves, structure = flatten(module.get_inputs())
    seen: set[int] = set()
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            fake = mode.fake_tensor_converter.from_real_tensor(mode, leaf) if not _is_fake(leaf) else leaf
            if id(fake) in seen:
                # A tensor that is passed twice counts as two kernel arguments.
                with mode:
                    fake = fake.clone()
            seen.add(id(fake))
            leaves[position] = fake.detach()
    return Built(model, arguments, leaves, structure, named_weights(model))


def _is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch._subclasses.FakeTensor)


def _convert(model: nn.Module, mode: FakeTensorMode) -> None:
    memo: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in memo:
            converted = mode.from_tensor(tensor.detach())
            parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(converted, tensor.requires_grad) if parameter else converted
        return memo[id(tensor)]

    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = fake(tensor)


def trace(built: Built, mode: FakeTensorMode) -> Traced:
    """Run ``forward`` once over fake tensors, in training mode as KernelBench does.

    Raises whatever ``forward`` raises, ``TooLongToTraceError``, and ``ProblemFileError`` if the model reads and
    replaces a buffer.
    """
    names = [name for name, _, _ in built.weights]
    count = len(built.tensors)
    outputs: list[Any] = []
    watched = _Watched(built.model)

    def forward(*values: torch.Tensor) -> Any:
        given = iter(values[:count])
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in built.leaves]
        arguments = pytree.tree_unflatten(leaves, built.structure)
        state = {f"model.{name}": value for name, value in zip(names, values[count:], strict=True)}
        result = functional_call(watched, state, tuple(arguments))
        leaves = output_leaves(result)
        outputs[:] = leaves
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    weights = [tensor.detach() for _, tensor, _ in built.weights]
    with mode, OnDevice("cpu"), _Limit(), torch.no_grad():
        functional: Callable[..., Any] = functionalize(forward, remove="mutations")
        graph = make_fx(functional)(*built.tensors, *weights).graph
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    random = next((str(node.target) for node in graph.nodes if _draws(node)), None)
    mutated = _mutated(graph, placeholders)
    _tidy(graph)
    for name, placeholder in zip(names, placeholders[count:], strict=True):
        if name in watched.replaced and _is_read(placeholder):
            raise _refuse_replaced(name)
    values = iter(node.meta["val"] for node in graph.find_nodes(op="output")[0].args[0])
    returned = [next(values) if isinstance(leaf, torch.Tensor) else leaf for leaf in outputs]
    return Traced(graph, returned, mutated, random)


def run_small(module: ProblemModule) -> Traced:
    """Run a small model once on real tensors, because PyTorch cannot trace it. Return the same result as :func:`trace`,
    without a graph.

    Raises whatever ``forward`` raises, and ``ProblemFileError`` if the model keeps state in a buffer that it
    replaces.
    """
    with OnDevice("cpu"), torch.no_grad(), torch.compiler.set_stance("force_eager"):
        model, _ = build_model(module)
        leaves, structure = flatten(module.get_inputs())
        watched = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        watched += [tensor for _, tensor, _ in named_weights(model)]
        versions, generator = [tensor._version for tensor in watched], torch.get_rng_state()
        run = _Watched(model)
        outputs = output_leaves(run(*pytree.tree_unflatten(leaves, structure)))
        # Layers such as weight_norm replace a tensor without reading the old one, so the second run below returns
        # equal outputs.
        if replaced := list(run.replaced):
            stored = [name for name in replaced if name in model.state_dict()]
            torch.set_rng_state(generator)
            again = output_leaves(run(*pytree.tree_unflatten(leaves, structure)))
            if stored or not _are_equal(outputs, again):
                raise _refuse_replaced((stored or replaced)[0])
    mutated = frozenset(i for i, tensor in enumerate(watched) if tensor._version != versions[i])
    drawn = None if torch.equal(generator, torch.get_rng_state()) else "the random generator's state changed"
    return Traced(None, outputs, mutated, drawn)


def _draws(node: fx.Node) -> bool:
    if node.target is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
        # PyTorch tags this operator as random because of its dropout, whose probability is the fourth argument.
        return bool(len(node.args) > 3 and node.args[3])
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _mutated(graph: fx.Graph, placeholders: list[fx.Node]) -> frozenset[int]:
    written: set[fx.Node] = set()
    for node in graph.nodes:
        if node.target is torch.ops.aten.copy_.default:
            written.add(node.args[0])
        # In training mode, these operators update the running statistics, although their schemas do not declare it.
        elif node.target is torch.ops.aten.native_batch_norm.default and node.args[5]:
            written.update(arg for arg in node.args[3:5] if isinstance(arg, fx.Node))
    return frozenset(index for index, node in enumerate(placeholders) if node in written)


def _are_equal(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(
        torch.equal(one, other) if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) else True
        for one, other in zip(some, others, strict=True)
    )


def _is_read(placeholder: fx.Node) -> bool:
    """Return whether the model reads a tensor, rather than only overwriting it."""
    copies = (torch.ops.aten.copy.default, torch.ops.aten.copy_.default)
    return any(user.target not in copies or placeholder in user.args[1:] for user in placeholder.users)


def _tidy(graph: fx.Graph) -> None:
    """Remove all work that a kernel does not need to do: aliases, dead nodes and in-place updates of temporaries."""
    for node in list(graph.nodes):
        if node.target in _ALIASES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.op == "call_function":
            _make_functional(node)
    graph.eliminate_dead_code()


def _make_functional(node: fx.Node) -> None:
    """Turn ``aten.add_.Scalar(t, 1)`` into ``aten.add.Scalar(t, 1)`` if nothing else reads ``t``."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return
    packet, overload = node.target._schema.name.split("::")[1], node.target._overloadname
    first = node.args[0] if node.args else None
    if packet.endswith("_") and isinstance(first, fx.Node) and first.op != "placeholder" and len(first.users) == 1:
        functional = getattr(getattr(torch.ops.aten, packet[:-1], None), overload, None)
        if functional is not None:
            node.target = functional
