"""Put the name of the user's kernel file into compiler and runner messages.

kernel-tui compiles and runs every kernel under the same name, such as ``kernel.cpp``, so that equal sources share a
cached build.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T", bound=Struct)


def in_own_words(text: str, name: str) -> str:
    """Replace the kernel's internal file name in ``text`` with ``name``.

    The function matches ``kernel.cu(3): error``, ``from kernel.cpp:1``, ``(kernel.py, line 4)`` and command lines.
    """
    return re.sub(r"(?<![\w./-])kernel\.(?:cpp|cu|py)(?=[:(\",]| -o )", lambda found: name, text)


def of_own_file(value: T, name: str) -> T:
    """Return a report or verdict with the internal file name replaced in every text."""
    return msgspec.convert(_walked(msgspec.to_builtins(value), name), type(value))


def _walked(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return in_own_words(value, name)
    if isinstance(value, dict):
        return {key: _walked(one, name) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_walked(one, name) for one in value]
    return value
