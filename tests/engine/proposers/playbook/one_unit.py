"""Combine several kernels in one translation unit, so that the compiler's fixed cost is paid once."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_INCLUDE = re.compile(r"^#include .*$", re.M)


@dataclass(frozen=True)
class Kernel:
    """One kernel of a shared library. ``suffix`` ends the names of its functions."""

    library: Path
    suffix: str = ""

    def launch(self, *pointers: ctypes.c_void_p) -> int:
        """Return the result of ``launch``."""
        return int(getattr(ctypes.CDLL(str(self.library)), f"launch{self.suffix}")(*pointers))

    def workspace_bytes(self) -> int:
        """Return the result of ``workspace_bytes``, or 0 if the kernel has none."""
        function = getattr(ctypes.CDLL(str(self.library)), f"workspace_bytes{self.suffix}", None)
        if function is None:
            return 0
        function.restype = ctypes.c_size_t
        return int(function())


def in_one_unit(kernels: Sequence[tuple[str, str, str]]) -> str:
    """Return a source with all of ``kernels`` (name, header, source), each in a namespace. Number N defines
    ``launch_N``.

    Compiler messages refer to a kernel or its header by name.
    """
    includes: dict[str, None] = {}
    text = []
    for number, (name, header, source) in enumerate(kernels):
        includes |= dict.fromkeys(_INCLUDE.findall(header) + _INCLUDE.findall(source))
        text += [f"#define {function} {function}_{number}" for function in ("launch", "workspace_bytes")]
        text += [f"namespace kernel_{number} {{"]
        for what, part in (("header", header.replace("#pragma once", "")), ("kernel", source)):
            text += [f'#line 1 "{name}, {what}"', _INCLUDE.sub("", part)]
        text += ["}", "#undef launch", "#undef workspace_bytes"]
    return "\n".join([*includes, *text]) + "\n"
