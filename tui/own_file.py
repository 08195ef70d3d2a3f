"""What compilers and runners say of a kernel, with the name of the person's own file in it. Pure.

Kernels are compiled and run under one name, ``kernel.cpp``, wherever they come from: what is built is then the same for
all of them, and known the next time.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T", bound=Struct)


def in_own_words(text: str, name: str) -> str:
    """``text`` with ``name`` for the file: in ``kernel.cu(3): error``, ``from kernel.cpp:1``, ``(kernel.py, line 4)``
    and in command lines."""
    return re.sub(r"(?<![\w./-])kernel\.(?:cpp|cu|py)(?=[:(\",]| -o )", lambda found: name, text)


def of_own_file(value: T, name: str) -> T:
    """The same for every text in a report or a verdict."""
    return msgspec.convert(_walked(msgspec.to_builtins(value), name), type(value))


def _walked(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return in_own_words(value, name)
    if isinstance(value, dict):
        return {key: _walked(one, name) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_walked(one, name) for one in value]
    return value
