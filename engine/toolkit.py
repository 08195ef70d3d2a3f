"""Where compilers and CUDA's tools lie: on this machine, or in the wheels of ``pip install 'kernel-tui[cuda]'``."""

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
    """The compiler for a form is absent; the text says what to install."""


class NoTool(Exception):
    """A program that shows or measures kernels is absent; the text says what to install."""


def find_cpp_compiler() -> str:
    """``$CXX`` or the first of g++, clang++, c++ on the path. Raises ``NoCompiler``."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else ("g++", "clang++", "c++"):
        if path := shutil.which(name):
            return path
    asked = f"CXX={wanted} is not an executable" if wanted else "no g++, clang++ or c++ on PATH"
    raise NoCompiler(f"no C++ compiler: {asked}; install one (Debian, Ubuntu: apt-get install g++)")


def find_nvcc() -> str:
    """``$NVCC``, or nvcc of the path, ``$CUDA_HOME``, /usr/local/cuda or the wheels. Raises ``NoCompiler``."""
    wanted = os.environ.get("NVCC")
    for candidate in ([wanted] if wanted else []) + [str(path) for path in _places("nvcc")]:
        if path := shutil.which(candidate):
            return path
    raise NoCompiler(f"no CUDA compiler: nvcc is not {_WHERE}; {INSTALL_CUDA}")


def find_cuda_tool(name: str) -> str:
    """A program of the CUDA toolkit (``cuobjdump``, ``nvdisasm``, ``ncu``), best beside nvcc. Raises ``NoTool``."""
    try:
        beside = [Path(find_nvcc()).resolve().parent / name]
    except NoCompiler:
        beside = []
    for candidate in (*beside, *_places(name)):
        if path := shutil.which(str(candidate)):
            return path
    raise NoTool(f"{name} is not beside nvcc, nor {_WHERE}; {INSTALL_CUDA}")


def cuda_home() -> Path:
    """The directory of the toolkit that nvcc belongs to, as ``CUDA_HOME`` names it. Raises ``NoCompiler``."""
    return Path(find_nvcc()).resolve().parents[1]


def wheel_toolkits() -> list[Path]:
    """Toolkits that pip installed where this Python imports from (``nvidia/cu13``), newest first."""
    found = {home for place in sys.path for home in (Path(place) / "nvidia").glob("cu[0-9]*")}
    return sorted(found, reverse=True)


def _places(name: str) -> Iterator[Path]:
    yield Path(name)
    if home := os.environ.get("CUDA_HOME"):
        yield Path(home) / "bin" / name
    for toolkit in (SYSTEM_TOOLKIT, *wheel_toolkits()):
        yield toolkit / "bin" / name
