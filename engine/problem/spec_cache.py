"""Cache the specifications of inspected problems, so that a second run need not import torch.

The key covers the source text, the problem's id, this package, Python and PyTorch. The cache omits sources that may
depend on other files or modules. A lost cache costs only seconds.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import platform
import stat
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path

import msgspec
from msgspec.structs import replace

from engine.problem.spec import ProblemSpec
from engine.system.cache_directory import cache_home

MOST_KEPT = 1000
_SELF_CONTAINED = frozenset(
    (
        *("__future__", "abc", "collections", "dataclasses", "einops", "enum", "functools", "itertools", "math"),
        *("numbers", "numpy", "operator", "torch", "typing"),
    )
)
"""Modules whose behavior depends only on their version."""
_READS = frozenset(("open", "exec", "eval", "compile", "__import__", "__file__", "globals", "input"))
_READS_OF = frozenset(("load", "fromfile", "hub", "utils", "genfromtxt", "loadtxt", "memmap"))
"""Attributes that may read files; ``torch.utils`` covers extensions and data sets."""


class SpecCache:
    """A cache of specifications in one directory, by default the user's cache. Every failure counts as a cache miss."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or cache_home() / "specs"

    def get(self, problem: str, path: str, source: str) -> ProblemSpec | None:
        """Return the cached specification of this source, id and file name, or None. The specification contains
        ``path``.
        """
        # Deeply nested JSON raises RecursionError.
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            file = self._file(problem, path, source)
            if file.is_file():  # Reading a pipe would block.
                return replace(msgspec.json.decode(file.read_bytes(), type=ProblemSpec), path=path)
        return None

    def put(self, problem: str, path: str, source: str, spec: ProblemSpec) -> None:
        """Store ``spec`` if the source does not depend on other files."""
        if not is_self_contained(source):
            return
        with contextlib.suppress(OSError, UnicodeEncodeError):
            self._directory.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._directory, suffix=".new")
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(spec))
            Path(temporary).replace(self._file(problem, path, source))
            self._forget_oldest()

    def _file(self, problem: str, path: str, source: str) -> Path:
        text = "\0".join((_readers(), problem, Path(path).name, source))
        return self._directory / f"{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}.json"

    def _forget_oldest(self) -> None:
        kept: list[tuple[float, Path]] = []
        for file in self._directory.iterdir():
            with contextlib.suppress(OSError):
                status = file.lstat()
                if not stat.S_ISDIR(status.st_mode):  # Directories are not cache entries.
                    kept.append((status.st_mtime, file))
        if len(kept) > MOST_KEPT:
            for _, file in sorted(kept)[: len(kept) - MOST_KEPT // 2]:
                with contextlib.suppress(OSError):
                    file.unlink()


def is_self_contained(source: str) -> bool:
    """Return whether the source depends only on its own text and on modules in ``_SELF_CONTAINED``."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or "."] if node.level == 0 else ["."]
        else:
            modules = []
        if any(module.partition(".")[0] not in _SELF_CONTAINED for module in modules):
            return False
        if isinstance(node, ast.Name) and node.id in _READS:
            return False
        if isinstance(node, ast.Attribute) and node.attr in _READS_OF:
            return False
    return True


@cache
def _readers() -> str:
    """Hash everything that affects how a source becomes a specification: this package, Python, and the modules that
    problems use.
    """
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    versions = [platform.python_version()]
    for name in ("torch", "numpy", "einops"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return f"{digest.hexdigest()} {' '.join(versions)}"
