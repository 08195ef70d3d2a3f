"""What the judge tells the runner of a ``.py`` kernel: the problem without its reference. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Slotted:
    """Stands for input number ``index`` (in the order of the specification) among the arguments of ``forward``."""

    index: int


@dataclass(frozen=True)
class BufferOrder:
    """One shared buffer: role and dtype as in a problem's specification; ``source_name`` is PyTorch's.

    ``strides``: of an output that the reference leaves as a permuted view, None for any other.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    source_name: str
    mutated: bool
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ModuleOrder:
    """Load ``path``, build ``ModelNew(*init_arguments)`` and call it with ``arguments``.

    ``slots``: byte offsets of ``buffers`` in the arena. ``saved``: names of the reference's ``state_dict``.
    ``readable`` and ``writable``: directories beside the system's. ``compiles``: the module starts compilers when it
    is first called (Triton, ``torch.compile``).
    """

    path: str
    extensions: str
    cache: str
    arena_bytes: int
    slots: list[list[int]]
    buffers: list[BufferOrder]
    saved: list[str]
    init_arguments: list[Any]
    arguments: list[Any]
    seed: int
    threads: int
    data_bytes: int
    readable: list[str]
    writable: list[str]
    compiles: bool
