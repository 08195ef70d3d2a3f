"""Build ``.py`` kernels: execute the module, which compiles its extensions.

The module runs in a process that cannot access the network or the user's files. If a module has no extensions, the
builder does not run it.

The cache has the same layout as for compiled languages, but ``kernel.py`` and ``extensions/`` replace the library.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
from importlib import metadata
from pathlib import Path

import engine
from engine.evaluation.build.compilers import NVCC_VARIABLES, CacheEntry, NoCompiler, host_isa, nvcc_settings, trimmed
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.inside.python_kernel.extensions import BUILDING_VARIABLE, DIRECTORY_VARIABLE, failures
from engine.problem.spec import imports_triton
from engine.session.records.verdict import BuildReport
from engine.system.child import Overrun, run_bounded
from engine.system.python_process import python_command, python_path
from engine.system.tool_paths import cuda_home, find_cpp_compiler

EXTENSIONS, CACHE = "extensions", "compiled"
_BUILD = POLICY.build
_ROOT = Path(engine.__file__).parent.parent
_BUILDS = ("cpp_extension", "load_inline", "kernel_tui")
_NOISE = re.compile(
    r"^\[\d+/\d+\] .*$\n?|^ninja: .*$\n?|^FAILED: .*$\n?|^Error building extension .*$\n?", re.MULTILINE
)
_TORCH_COMPILE = re.compile(r"\btorch\.compile\b")


def starts_compilers(source: str, kind: str, *, libraries: bool) -> bool:
    """Return whether a module starts compilers at its first call, as Triton and ``torch.compile`` do.

    The runner must let this module start compilers. ``libraries``: whether kernels may call libraries. If they may not,
    the function returns False for a CPU, where Triton does not run.
    """
    compiles_when_called = imports_triton(source) or _TORCH_COMPILE.search(source) is not None
    return (kind == "cuda" or libraries) and compiles_when_called


async def build_module(
    source: str, problem_source: str, kind: str, arch: str, directory: Path, isolate: bool
) -> tuple[Path | None, BuildReport]:
    """Return the path of ``kernel.py`` with compiled extensions (None if compilation failed), and the compilers'
    report.

    ``kind``: "cpu" or "cuda". ``arch``: the GPU's architecture, such as ``sm_90a``. Canceling kills the compilers.
    Raises ``OSError`` if the cache is not writable.
    """

    async def fill(work: Path) -> BuildReport:
        started = time.monotonic()
        (work / EXTENSIONS).mkdir()
        (work / CACHE).mkdir()
        log = ""
        if any(word in source for word in _BUILDS):
            log = await _execute(source, problem_source, kind, arch, work, isolate)
        failed = failures(work / EXTENSIONS)
        seconds = time.monotonic() - started
        if failed or log:
            return BuildReport(False, seconds, "load_inline", False, trimmed(_readable(failed, log)))
        # Write this text only after the module has run, so that the module cannot alter what the judge loads.
        (work / "kernel.py").write_text(source, errors="surrogateescape")
        return BuildReport(True, seconds, "python: module with its extensions", False, "")

    return await entry(source, problem_source, kind, arch, directory).make(fill)


def entry(source: str, problem_source: str, kind: str, arch: str, directory: Path) -> CacheEntry:
    """Return the cache entry that :func:`build_module` uses."""
    versions = (sys.version, metadata.version("torch"), host_isa(), str(_ROOT), *nvcc_settings())
    return CacheEntry(directory, "kernel.py", source, problem_source, kind, arch, *versions)


async def _execute(source: str, problem_source: str, kind: str, arch: str, work: Path, isolate: bool) -> str:
    """Run the module in a process that may start compilers. Return the reason why the process itself failed, or "" if
    it succeeded.
    """
    module, problem = work / "kernel.py", work / "problem.py"
    module.write_text(source, errors="surrogateescape")
    problem.write_text(problem_source, errors="surrogateescape")
    scratch = work / EXTENSIONS / "tmp"
    scratch.mkdir()
    environment = _environment(kind, arch, work, scratch)
    command = python_command("engine.evaluation.sandbox.inside.python_kernel.module_builder")
    command += [str(module), str(problem), str(work / EXTENSIONS), "1" if isolate else "0"]
    try:
        code, output = await run_bounded(
            command, work, environment, limit_s=_BUILD.module_s, most_bytes=_BUILD.output_bytes
        )
    except Overrun as overrun:
        return f"the builder stopped the module, because it {overrun}"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        problem.unlink()
        module.unlink()
    return "" if code == 0 else output or f"the module exited with code {code}"


def _environment(kind: str, arch: str, work: Path, scratch: Path) -> dict[str, str]:
    """Return an environment that contains only the variables that compilers need, and hides the GPUs."""
    kept = ("LANG", "LD_LIBRARY_PATH", "CXX", "CC", "NVCC", *NVCC_VARIABLES, "CUDA_HOME", "OMP_NUM_THREADS")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    path = [str(Path(sys.executable).parent), os.environ.get("PATH", "/usr/bin:/bin")]
    with contextlib.suppress(NoCompiler):
        environment.setdefault("CXX", find_cpp_compiler())
    if kind == "cuda":
        with contextlib.suppress(NoCompiler):
            environment["CUDA_HOME"] = str(cuda_home())
            path.insert(1, str(cuda_home() / "bin"))
        number = arch.removeprefix("sm_")
        digits = number.rstrip("abcdefghijklmnopqrstuvwxyz")
        environment["TORCH_CUDA_ARCH_LIST"] = f"{digits[:-1]}.{digits[-1]}{number[len(digits) :]}"
    return environment | {
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": python_path(),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "LC_ALL": "C.UTF-8",
        "MAX_JOBS": "2",
        "OPENBLAS_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "KERNEL_TUI_ARCH": arch if kind == "cuda" else "",
        DIRECTORY_VARIABLE: str(work / EXTENSIONS),
        BUILDING_VARIABLE: "1",
    }


def _readable(failed: list[str], log: str) -> str:
    """Return the compilers' output without ninja's command lines."""
    words = [_NOISE.sub("", text).strip() for text in failed]
    return "\n".join([*(word for word in words if word), log]).strip() or "\n".join(failed)
