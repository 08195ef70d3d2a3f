"""One host's built kernels, keyed by source."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from engine.evaluation.build import compilers, python_modules
from engine.evaluation.build.kernel_source import KernelSource
from engine.session.records.verdict import BuildReport


class Built(Struct, frozen=True):
    """A build's result on this host.

    ``library``: the shared library or prepared ``.py`` file in the host's cache, or None if the build failed.
    """

    library: Path | None
    report: BuildReport


class BuildCache:
    """Build a :class:`KernelSource`, or find an earlier build in ``directory``, which belongs to this host.

    Several processes may share the directory. ``isolate``: whether to execute ``.py`` kernels in a sandbox while they
    compile.
    """

    def __init__(self, directory: Path, isolate: bool) -> None:
        self.directory, self._isolate = directory, isolate

    def find(self, kernel: KernelSource) -> Built | None:
        """Return an earlier build of the kernel, or None if the cache contains none. Raises ``NoCompiler``."""
        entry = (
            python_modules.entry(kernel.source, kernel.problem, kernel.kind, kernel.arch, self.directory)
            if kernel.language == "py"
            else compilers.entry(
                kernel.source, kernel.language, kernel.header, kernel.arch, self.directory, kernel.flags
            )
        )
        found = entry.find()
        return Built(*found) if found is not None else None

    async def build(self, kernel: KernelSource) -> Built:
        """Return an earlier build of the kernel, or build the kernel now. Canceling kills the compiler.

        Raises ``NoCompiler`` if the compiler is missing, and ``OSError`` if the cache is not writable.
        """
        if kernel.language == "py":
            return Built(
                *await python_modules.build_module(
                    kernel.source, kernel.problem, kernel.kind, kernel.arch, self.directory, self._isolate
                )
            )
        return Built(
            *await compilers.build(
                kernel.source, kernel.language, kernel.header, kernel.arch, self.directory, flags=kernel.flags
            )
        )


def first_error(report: BuildReport) -> str:
    """Return the compiler's first error. If no line contains an error, return the last line, which often says why the
    compiler did not start.
    """
    lines = [line.strip() for line in report.log.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or line.startswith("no function")]
    return errors[0] if errors else lines[-1] if lines else "the compiler failed silently; run kernel-tui doctor"
