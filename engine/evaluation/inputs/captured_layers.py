"""Find functions in a model's attributes that use the model's own layers or weights.

``copy.deepcopy`` copies layers but not functions. A lambda such as ``self.mlp = lambda x: layers.out(layers.act(x))``
would therefore use the original's layers and weights, even in a copy of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn


def has_captured_layers(model: nn.Module) -> bool:
    """Return whether a function in an attribute of ``model`` or of its submodules captures a module or tensor."""
    attributes = [value for module in model.modules() for value in vars(module).values()]
    shared = [value for value in _reachable(attributes) if isinstance(value, FunctionType | BuiltinMethodType)]
    captured = (part for function in shared for part in _captured(function))
    return any(isinstance(value, nn.Module | torch.Tensor) for value in _reachable(captured, into_functions=True))


def _reachable(values: Iterable[Any], into_functions: bool = False) -> Iterator[Any]:
    """Yield ``values`` and the contents of containers and plain objects among them.

    The function does not look inside modules, tensors and classes. ``into_functions``: whether to also yield the
    objects that functions capture.
    """
    seen: set[int] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, nn.Module | torch.Tensor | ModuleType | type):
            continue
        if isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, FunctionType | BuiltinMethodType):
            waiting += _captured(value) if into_functions else ()
        elif isinstance(value, MethodType):
            waiting += [value.__self__, value.__func__] if into_functions else ()
        elif isinstance(own := getattr(value, "__dict__", None), dict):
            waiting += own.values()


def _captured(function: FunctionType | BuiltinMethodType) -> list[Any]:
    """Return the contents of a function's closure and its default arguments, or the object of a built-in method."""
    if isinstance(function, BuiltinMethodType):
        return [function.__self__]
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    return [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
