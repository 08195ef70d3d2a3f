"""Build a kernel's library and a package's wheel."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from engine.evaluation.build.compilers import build, default_cache
from engine.export import ExportError
from engine.export.package.tree import CPU_FEATURES
from engine.problem.c_header import derive_header
from engine.problem.spec import Language, ProblemSpec

WHEEL_S = 120.0
"""Time limit in seconds for setuptools, which only packs files."""
_BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


async def built_library(problem: ProblemSpec, language: Language, source: str, arch: str) -> bytes:
    """Compile a kernel with the flags that a search uses, and return its library. Raises ``ExportError`` and
    ``NoCompiler``.
    """
    library, report = await build(source, language, derive_header(problem, language), arch, default_cache())
    if library is None:
        raise ExportError(f"{problem.id}: this machine's compiler cannot build the kernel:\n{report.log}")
    return library.read_bytes()


def processor_features() -> frozenset[str]:
    """Return the features of this processor that a kernel built here may need."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(one for one in line.partition(":")[2].split() if CPU_FEATURES.match(one))
    return frozenset()


def write_wheel(tree: Mapping[str, bytes], directory: Path) -> Path:
    """Pack a package's files as a wheel in ``directory``, and return the wheel's path. Raises ``ExportError`` and
    ``OSError``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kernel-tui-package-") as place:
        for path, content in tree.items():
            file = Path(place) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        command = [sys.executable, "-c", _BUILD, str(directory.resolve())]
        try:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=WHEEL_S, check=False)
        except subprocess.TimeoutExpired:
            raise ExportError(
                f"setuptools did not pack the wheel within {WHEEL_S:g} s; try again when the machine is less busy"
            ) from None
    if done.returncode:
        raise ExportError(f"setuptools could not pack the wheel: {done.stderr.strip()[-2000:]}")
    return directory / done.stdout.strip().splitlines()[-1]
