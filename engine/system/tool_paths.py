"""Find compilers and CUDA tools on this machine, or in the wheels that ``pip install 'kernel-tui[cuda]'`` installs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

INSTALL_CUDA = "pip install 'kernel-tui[cuda]' (from a checkout: '.[cuda]'), or install NVIDIA's CUDA toolkit"
_WHERE = "on PATH, in $CUDA_HOME, /usr/local/cuda or the Python environment"


SYSTEM_TOOLKIT = Path("/usr/local/cuda")


class NoCompiler(Exception):
    """The compiler for a language is missing. The message says what to install."""


class NoTool(Exception):
    """A tool for displaying or profiling kernels is missing. The message says what to install."""


def find_cpp_compiler() -> str:
    """Find ``$CXX``, or the first of g++, clang++ and c++ on PATH. Raises ``NoCompiler``."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else ("g++", "clang++", "c++"):
        if path := shutil.which(name):
            return path
    asked = f"CXX={wanted} is not an executable" if wanted else "no g++, clang++ or c++ on PATH"
    raise NoCompiler(f"no C++ compiler: {asked}; install a C++ compiler (Debian, Ubuntu: apt-get install g++)")


def find_nvcc() -> str:
    """Find ``$NVCC``, or nvcc on PATH, in ``$CUDA_HOME``, /usr/local/cuda or the wheels. Raises ``NoCompiler``."""
    wanted = os.environ.get("NVCC")
    for candidate in ([wanted] if wanted else []) + [str(path) for path in _places("nvcc")]:
        if path := shutil.which(candidate):
            return path
    raise NoCompiler(f"no CUDA compiler: nvcc is not {_WHERE}; {INSTALL_CUDA}")


def find_cuda_tool(name: str) -> str:
    """Find a CUDA tool (``cuobjdump``, ``nvdisasm``, ``ncu``), preferably in nvcc's directory. Raises ``NoTool``."""
    try:
        beside = [Path(find_nvcc()).resolve().parent / name]
    except NoCompiler:
        beside = []
    for candidate in (*beside, *_places(name)):
        if path := shutil.which(str(candidate)):
            return path
    raise NoTool(f"{name} is neither in nvcc's directory nor {_WHERE}; {INSTALL_CUDA}")


def cuda_home() -> Path:
    """Return the directory of nvcc's toolkit, for ``CUDA_HOME``. Raises ``NoCompiler``."""
    return Path(find_nvcc()).resolve().parents[1]


def wheel_toolkits() -> list[Path]:
    """List CUDA toolkits that pip installed on ``sys.path`` (``nvidia/cu13``), newest first."""
    found = {home for place in sys.path for home in (Path(place) / "nvidia").glob("cu[0-9]*")}
    return sorted(found, reverse=True)


def _places(name: str) -> Iterator[Path]:
    yield Path(name)
    if home := os.environ.get("CUDA_HOME"):
        yield Path(home) / "bin" / name
    for toolkit in (SYSTEM_TOOLKIT, *wheel_toolkits()):
        yield toolkit / "bin" / name
