"""The judge's order to the runner of a ``.py`` kernel: the problem without its reference. This module does not import
torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.problem.spec import TensorSpec


@dataclass(frozen=True)
class InputPlaceholder:
    """Placeholder in the arguments of ``forward`` for the specification's input at ``index``."""

    index: int


@dataclass(frozen=True)
class ModuleOrder:
    """Load ``path``, build ``ModelNew(*init_arguments)`` and call it with ``arguments``.

    ``extensions``: directory of compiled extensions. ``cache``: directory for code compiled in the first call.
    ``tensors``: the tensors' specifications, in the order of each slot's offsets. ``strides``: the strides of each
    output that the reference permutes; None for other outputs. ``saved``: names in the reference's ``state_dict``.
    """

    path: str
    extensions: str
    cache: str
    tensors: tuple[TensorSpec, ...]
    strides: list[tuple[int, ...] | None]
    saved: list[str]
    init_arguments: list[Any]
    arguments: list[Any]
    seed: int
    threads: int
