"""Find functions in a model's attributes that call the model's own layers.

``copy.deepcopy`` copies layers but not functions. A lambda such as ``self.mlp = lambda x: layers.out(layers.act(x))``
would therefore call the original's layers, with the original's weights, also in a copy of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn


def has_captured_layers(model: nn.Module) -> bool:
    """Return whether a function in an attribute of ``model`` or of its submodules captures a module or tensor."""
    return any(
        _captures(function)
        for module in model.modules()
        for value in vars(module).values()
        for function in _functions(value)
    )


def _functions(value: Any) -> Iterator[FunctionType]:
    if isinstance(value, FunctionType):
        yield value
    elif isinstance(value, partial):
        yield from _functions(value.func)
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _functions(item)


def _captures(function: FunctionType) -> bool:
    """Return whether the function's closure or default arguments contain a module or tensor."""
    seen: set[int] = set()
    waiting: list[Any] = [function]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (nn.Module, torch.Tensor)):
            return True
        waiting += _parts(value)
    return False


def _parts(value: Any) -> list[Any]:
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, (list, tuple, set)):
        return list(value)
    return list(value.values()) if isinstance(value, dict) else []


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
