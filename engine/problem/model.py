"""Prepare a problem's model, weights and inputs for inspection and judging on any device. Imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from engine.problem.source import ProblemFileError, ProblemModule

SEED = 42
"""The seed that KernelBench sets for init arguments, weights and inputs."""


class OnDevice(TorchFunctionMode):
    """Redirect every explicit CUDA device to ``device``, so that problem files with the device ``cuda`` run on any
    device.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0].to(self._device)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": self._redirect(kwargs["device"])}
        if func is torch.Tensor.to:
            args = (args[0], *(self._redirect(arg) for arg in args[1:]))
        return func(*args, **kwargs)

    def _redirect(self, value: Any) -> Any:
        if isinstance(value, str | torch.device) and str(value).startswith("cuda"):
            return self._device
        return value


@contextlib.contextmanager
def defaults_kept() -> Iterator[None]:
    """Keep a problem file's settings from affecting other files: afterward, restore PyTorch's default dtype and
    gradient mode, and reset the default device.
    """
    dtype, has_gradients = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None)
        torch.set_grad_enabled(has_gradients)


def build_model(module: ProblemModule, seed: int = SEED) -> tuple[nn.Module, list[Any]]:
    """Create the init arguments and then the model, and return both. As in KernelBench, reset the seed before each
    step.
    """
    torch.manual_seed(seed)
    arguments = list(module.get_init_inputs())
    torch.manual_seed(seed)
    model = module.model_class(*arguments)
    if not isinstance(model, nn.Module):
        raise ProblemFileError("`Model` is not a torch.nn.Module", "derive Model from torch.nn.Module")
    _adopt_tensor_attributes(model)
    return model, arguments


def _adopt_tensor_attributes(model: nn.Module) -> None:
    """Register plain tensor attributes as buffers, because kernels need their data and ``Model.to(device)`` must move
    them.
    """
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                delattr(module, name)
                module.register_buffer(name, value, persistent=False)


def named_weights(model: nn.Module) -> list[tuple[str, torch.Tensor, bool]]:
    """Return ``(name, tensor, is_parameter)`` for each tensor of the state dict, in its order, then for other weights.

    A tensor registered twice (tied weights) appears once, under its first name.
    """
    found: list[tuple[str, torch.Tensor, bool]] = []
    seen: set[int] = set()
    saved = {name: value for name, value in model.state_dict(keep_vars=True).items() if torch.is_tensor(value)}
    for name, value in [*saved.items(), *model.named_parameters(), *model.named_buffers()]:
        if id(value) not in seen:
            seen.add(id(value))
            found.append((name, value, isinstance(value, nn.Parameter)))
    return found


def flatten(values: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """Flatten the result of ``get_inputs()``. Return the tensors and scalars with their pytree structure."""
    leaves, structure = pytree.tree_flatten(list(values))
    return leaves, structure


def output_leaves(result: Any) -> list[Any]:
    """Return the leaves of the result of ``forward``, in pytree order."""
    leaves: list[Any] = pytree.tree_flatten(result)[0]
    return leaves
