"""Build ``extern "C"`` sources and call them with tensors. Omitting PyTorch's headers saves half a minute per build."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import os
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

from kernel_tui.c_prototypes import Function, functions_of
from kernel_tui.own_packages import own_packages

Language = Literal["cpp", "cu"]
"""A language's name in the engine's builders. ``load_c`` also accepts "cuda"."""
T = TypeVar("T")
_DIRECTORY, _BUILDING, _ARCH = "KERNEL_TUI_EXTENSIONS", "KERNEL_TUI_BUILDING", "KERNEL_TUI_ARCH"
_LOG = "failed.log"
_HEADER = "#include <stddef.h>\n#include <stdint.h>\n"


class BuildError(RuntimeError):
    """The compiler rejected the source; the message is the compiler's output."""


class Library:
    """A loaded shared library. Each of its functions with C linkage is an attribute of this object."""

    def __init__(self, path: Path, functions: Sequence[Function]) -> None:
        self.path = path
        library = ctypes.CDLL(str(path))
        for function in functions:
            setattr(self, function.name, _Call(library, function))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self.path.name} defines no function {name} with C linkage")


class _Call:
    """A callable C function. Tensors become pointers; a final ``cudaStream_t`` defaults to PyTorch's current stream."""

    def __init__(self, library: ctypes.CDLL, function: Function) -> None:
        self._function = function
        self._entry = getattr(library, function.name)
        self._entry.restype = function.result
        self._entry.argtypes = [parameter.ctype for parameter in function.parameters]
        self._wants_stream = bool(function.parameters) and function.parameters[-1].is_stream

    def __call__(self, *arguments: Any) -> Any:
        """Call the function.

        Raises ``TypeError`` for an argument of the wrong type, and ``RuntimeError`` for a nonzero status.
        """
        parameters = self._function.parameters
        if self._wants_stream and len(arguments) == len(parameters) - 1:
            arguments = (*arguments, _current_stream())
        if len(arguments) != len(parameters):
            raise TypeError(
                f"{self._function.name} takes {self._function.signature}; the call has {len(arguments)} arguments"
            )
        values = [parameter.convert(value) for parameter, value in zip(parameters, arguments, strict=True)]
        try:
            answer = self._entry(*values)
        except ctypes.ArgumentError as error:
            raise TypeError(f"{self._function.name} takes {self._function.signature}: {error}") from error
        if self._function.is_status and answer != 0:
            raise RuntimeError(f"{self._function.name} returned {answer}")
        return None if self._function.is_status else answer


def load_c(source: str, language: Literal["cpp", "cuda", "cu"]) -> Library:
    """Compile ``source`` for this machine's processor ("cpp") or GPU ("cuda" or "cu"), and load the library.

    A cache stores the library for later calls with the same source.

    Each definition ``extern "C" TYPE NAME(...) {`` becomes a function of the library. An ``int`` result is a status:
    the call raises ``RuntimeError`` if the status is not 0.

    Raises ``BuildError`` with the compiler's output, ``OSError``, or ``ValueError`` if the source defines no function
    with C linkage.
    """
    compiled: Language = "cu" if language == "cuda" else language
    functions = functions_of(source)
    if not functions:
        raise ValueError('the source defines no function with C linkage: write extern "C" int run(...) { ... }')
    directory = os.environ.get(_DIRECTORY)
    with own_packages():
        home = (Path(directory) if directory else _cache()) / f"c-{_key(source, compiled)}"
        library = home / "kernel.so"
        if not library.exists():
            if directory and _BUILDING not in os.environ:
                raise BuildError(
                    "kernel-tui has not built this source in advance. Call load_c at import or in __init__, before "
                    "any code that needs a GPU"
                )
            _build(source, compiled, functions[0].name, home)
    return Library(library, functions)


def _build(source: str, language: Language, defines: str, home: Path) -> None:
    from engine.evaluation.build.compilers import build

    arch = _arch() if language == "cu" else ""
    built, report = _finish(build(source, language, _HEADER, arch, home.parent, defines))
    home.mkdir(parents=True, exist_ok=True)
    if built is None:
        (home / _LOG).write_text(report.log)
        raise BuildError(report.log)
    target = home / "kernel.so"
    part = home / f"kernel.{os.getpid()}.{threading.get_ident()}"
    part.write_bytes(built.read_bytes())
    part.rename(target)


def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``, in a separate thread if this thread already runs an event loop, as in Jupyter."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _key(source: str, language: Language) -> str:
    """Return the cache key of a build. The key names the device, since one cache can serve several devices."""
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
    from engine.evaluation.build.compilers import host_isa

    return host_isa()


def _cache() -> Path:
    from engine.evaluation.build.compilers import default_cache

    return default_cache()


def _current_stream() -> int:
    import torch

    return int(torch.cuda.current_stream().cuda_stream)
