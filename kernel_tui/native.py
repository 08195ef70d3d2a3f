"""Build ``extern "C"`` sources without torch's headers, which take half a minute, and call them with tensors."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from kernel_tui.prototypes import Function, functions_of

Language = Literal["cpp", "cu"]
_DIRECTORY, _BUILDING, _ARCH = "KERNEL_TUI_EXTENSIONS", "KERNEL_TUI_BUILDING", "KERNEL_TUI_ARCH"
_LOG = "failed.log"
_HEADER = "#include <stddef.h>\n#include <stdint.h>\n"


class BuildError(RuntimeError):
    """The compiler refused the source; the text is what it said."""


class Library:
    """The functions with C linkage of one source, as attributes."""

    def __init__(self, path: Path, functions: Sequence[Function]) -> None:
        self.path = path
        library = ctypes.CDLL(str(path))
        for function in functions:
            setattr(self, function.name, _Call(library, function))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self.path.name} defines no function {name} with C linkage")


class _Call:
    """One function: tensors for pointers, numbers for numbers; a trailing ``cudaStream_t`` is PyTorch's current one."""

    def __init__(self, library: ctypes.CDLL, function: Function) -> None:
        self._function = function
        self._entry = getattr(library, function.name)
        self._entry.restype = function.result
        self._entry.argtypes = [parameter.ctype for parameter in function.parameters]
        self._wants_stream = bool(function.parameters) and function.parameters[-1].is_stream

    def __call__(self, *arguments: Any) -> Any:
        """Raises ``TypeError`` for what does not fit, ``RuntimeError`` where a status is not 0."""
        parameters = self._function.parameters
        if self._wants_stream and len(arguments) == len(parameters) - 1:
            arguments = (*arguments, _current_stream())
        if len(arguments) != len(parameters):
            raise TypeError(f"{self._function.name} takes {self._function.signature}, {len(arguments)} were given")
        values = [parameter.convert(value) for parameter, value in zip(parameters, arguments, strict=True)]
        answer = self._entry(*values)
        if self._function.is_status and answer != 0:
            raise RuntimeError(f"{self._function.name} returned {answer}")
        return None if self._function.is_status else answer


def load_c(source: str, language: Language) -> Library:
    """Compile ``source`` ("cpp" or "cu", for this machine's processor or GPU) and load it; cached by content.

    Functions are found by their definitions ``extern "C" TYPE NAME(...) {``. A function that returns ``int`` returns a
    status: 0, or an error that is raised. Raises ``BuildError`` with the compiler's words, ``OSError``, and
    ``ValueError`` where no function with C linkage is defined.
    """
    functions = functions_of(source)
    if not functions:
        raise ValueError('the source defines no function with C linkage: write extern "C" int run(...) { ... }')
    directory = os.environ.get(_DIRECTORY)
    home = (Path(directory) if directory else _cache()) / f"c-{_key(source, language)}"
    library = home / "kernel.so"
    if not library.exists():
        if directory and _BUILDING not in os.environ:
            raise BuildError(
                "this source was not built beforehand: call load_c when the module is imported or in __init__, "
                "without needing a GPU before it"
            )
        _build(source, language, functions[0].name, home)
    return Library(library, functions)


def _build(source: str, language: Language, defines: str, home: Path) -> None:
    from engine.evaluation.build import build

    arch = _arch() if language == "cu" else ""
    built, report = asyncio.run(build(source, language, _HEADER, arch, home.parent, defines))
    home.mkdir(parents=True, exist_ok=True)
    if built is None:
        (home / _LOG).write_text(report.log)
        raise BuildError(report.log)
    target = home / "kernel.so"
    part = home / f"kernel.{os.getpid()}"
    part.write_bytes(built.read_bytes())
    part.rename(target)


def _key(source: str, language: Language) -> str:
    """A directory that kernel-tui prepared holds what is for one device; the user's cache may serve several."""
    device = "" if _DIRECTORY in os.environ else _arch() if language == "cu" else _processor()
    material = "\0".join([source, language, device])
    return hashlib.sha256(material.encode(errors="surrogateescape")).hexdigest()[:24]


def _arch() -> str:
    if arch := os.environ.get(_ARCH):
        return arch
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def _processor() -> str:
    from engine.evaluation.build import host_isa

    return host_isa()


def _cache() -> Path:
    from engine.evaluation.build import default_cache

    return default_cache()


def _current_stream() -> int:
    import torch

    return int(torch.cuda.current_stream().cuda_stream)
