"""Several kernels in one translation unit: what a compiler does before it reads the first line is done once for all."""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

_INCLUDE = re.compile(r"^#include .*$", re.M)


@dataclass(frozen=True)
class Kernel:
    """One kernel of a shared library; ``suffix`` is behind the names of its functions."""

    library: Path
    suffix: str = ""

    def launch(self, *pointers: ctypes.c_void_p) -> int:
        """What ``launch`` returns."""
        return int(getattr(ctypes.CDLL(str(self.library)), f"launch{self.suffix}")(*pointers))

    def workspace_bytes(self) -> int:
        """What ``workspace_bytes`` returns; 0 where the kernel has none."""
        function = getattr(ctypes.CDLL(str(self.library)), f"workspace_bytes{self.suffix}", None)
        if function is None:
            return 0
        function.restype = ctypes.c_size_t
        return int(function())


def in_one_unit(kernels: Sequence[tuple[str, str, str]]) -> str:
    """A source with all of ``kernels`` (name, header, source), each in a namespace. Number N defines ``launch_N``.

    The compiler's messages call a kernel, or its header, by its name.
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


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """A folder that ``make`` filled: once for all the processes that share the tests of a run."""
    place = _shared_folder() / name
    with (_shared_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            half = Path(tempfile.mkdtemp(dir=_shared_folder()))
            make(half)
            half.rename(place)
    return place


@cache
def _shared_folder() -> Path:
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(tempfile.gettempdir()) / f"made-once-{run}"
    folder.mkdir(mode=0o700, exist_ok=True)
    users = (folder / "users").open("w")
    fcntl.flock(users, fcntl.LOCK_SH)
    atexit.register(_leave, folder, users)
    return folder


def _leave(folder: Path, users: IO[str]) -> None:
    """The last one removes the folder."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    shutil.rmtree(folder, ignore_errors=True)
