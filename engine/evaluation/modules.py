"""Build ``.py`` kernels: a process without network or files executes the module, so that what it compiles is there.

Cached by content, like the C forms; the same directory layout, but for ``kernel.py`` and ``extensions/`` in place of a
library. A module that compiles nothing needs no process.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from functools import cache
from importlib import metadata
from pathlib import Path

import msgspec

from engine.child import end_group
from engine.evaluation.build import NoCompiler, host_isa, trimmed
from engine.evaluation.headers import precompiled
from engine.evaluation.runner.extensions import BUILDING_VARIABLE, DIRECTORY_VARIABLE, failures
from engine.toolkit import cuda_home, find_cpp_compiler
from engine.verdict import BuildReport

EXTENSIONS, CACHE = "extensions", "compiled"
DEADLINE_S = 300.0
_OUTPUT_BYTES = 1 << 20
_ROOT = Path(__file__).parents[2]
_BUILDS = ("cpp_extension", "load_inline", "kernel_tui")
_COMPILES_WHEN_CALLED = re.compile(r"^\s*(?:import|from)\s+triton\b|\btorch\.compile\b", re.MULTILINE)


def starts_compilers(source: str, kind: str, *, libraries: bool) -> bool:
    """Whether a module compiles at its first call, as Triton and ``torch.compile`` do: its runner must permit that.

    On a CPU there is no Triton, and ``torch.compile`` only where ``libraries`` may be called.
    """
    return (kind == "cuda" or libraries) and _COMPILES_WHEN_CALLED.search(source) is not None


async def build_module(
    source: str, problem_source: str, kind: str, arch: str, directory: Path, isolate: bool
) -> tuple[Path | None, BuildReport]:
    """``kernel.py`` with all that it compiles beside it (None if that failed), and what compilers said.

    ``kind``: "cpu" or "cuda"; ``arch``: the GPU's, such as ``sm_90a``. Cancelling kills the compilers. Raises
    ``OSError`` when the cache cannot be written.
    """
    home = directory / _name(source, problem_source, kind, arch)
    kernel, saved = home / "kernel.py", home / "report.json"
    if kernel.exists() and saved.exists():
        with contextlib.suppress(msgspec.MsgspecError):
            report = msgspec.json.decode(saved.read_bytes(), type=BuildReport)
            os.utime(home)
            return kernel, msgspec.structs.replace(report, cached=True, seconds=0.0)
    directory.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="build-", dir=directory))
    try:
        started = time.monotonic()
        (work / EXTENSIONS).mkdir()
        (work / CACHE).mkdir()
        log = ""
        if any(word in source for word in _BUILDS):
            log = await _execute(source, problem_source, kind, arch, work, directory, isolate)
        failed = failures(work / EXTENSIONS)
        seconds = time.monotonic() - started
        if failed or log:
            return None, BuildReport(False, seconds, "load_inline", False, trimmed(_readable(failed, log)))
        report = BuildReport(True, seconds, "python: module with what it compiles", False, "")
        # Written after the module has run: what is judged is what was handed in.
        (work / "kernel.py").write_text(source, errors="surrogateescape")
        (work / "report.json").write_bytes(msgspec.json.encode(report))
        with contextlib.suppress(OSError):  # another build of the same kernel was first
            work.rename(home)
        return kernel, report
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _name(source: str, problem_source: str, kind: str, arch: str) -> str:
    versions = [sys.version, metadata.version("torch"), host_isa(), str(_ROOT)]
    material = "\0".join([source, problem_source, kind, arch, *versions])
    return hashlib.sha256(material.encode(errors="surrogateescape")).hexdigest()[:32]


async def _execute(
    source: str, problem_source: str, kind: str, arch: str, work: Path, directory: Path, isolate: bool
) -> str:
    """Run the module where it may compile; "" or why that process failed as a whole."""
    module, problem = work / "kernel.py", work / "problem.py"
    module.write_text(source, errors="surrogateescape")
    problem.write_text(problem_source, errors="surrogateescape")
    scratch = work / EXTENSIONS / "tmp"
    scratch.mkdir()
    environment = _environment(kind, arch, work, scratch)
    if _wants_headers(source) and (headers := await precompiled(extra_flags(source), directory)) is not None:
        environment["KERNEL_TUI_PCH"] = str(headers)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "engine.evaluation.runner.module_builder"),
        *(str(module), str(problem), str(work / EXTENSIONS), "1" if isolate else "0"),
        cwd=work,
        env=environment,
        start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    output = b""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while chunk := await process.stdout.read(1 << 16):
                output = (output + chunk)[-_OUTPUT_BYTES:]
            code = await process.wait()
    except TimeoutError:
        return f"compiling did not end within {DEADLINE_S:g} s"
    finally:
        await end_group(process)  # also what a module that has ended left behind
        shutil.rmtree(scratch, ignore_errors=True)
        problem.unlink()
        module.unlink()
    return "" if code == 0 else output.decode(errors="replace") or f"the module ended its process with code {code}"


def _environment(kind: str, arch: str, work: Path, scratch: Path) -> dict[str, str]:
    """Compilers and no more: nothing of the user's environment, no GPU."""
    kept = ("LANG", "LD_LIBRARY_PATH", "CXX", "CC", "NVCC", "CUDA_HOME", "OMP_NUM_THREADS")
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
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
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


def _wants_headers(source: str) -> bool:
    """Whether precompiled headers pay: beside CUDA code, nvcc takes longer than the C++ that goes with it."""
    return "load_inline" in source and "cuda_sources" not in source and "no_implicit_headers" not in source


def extra_flags(source: str) -> tuple[str, ...]:
    """``extra_cflags`` of the first ``load_inline`` call, where they are written out; () otherwise."""
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.keyword) and node.arg == "extra_cflags":
                flags = ast.literal_eval(node.value)
                return tuple(flags) if all(isinstance(flag, str) for flag in flags) else ()
    return ()


@cache
def _noise() -> re.Pattern[str]:
    return re.compile(
        r"^\[\d+/\d+\] .*$\n?|^ninja: .*$\n?|^FAILED: .*$\n?|^Error building extension .*$\n?", re.MULTILINE
    )


def _readable(failed: list[str], log: str) -> str:
    """Compilers' words without the command lines that ninja repeats."""
    words = [_noise().sub("", text).strip() for text in failed]
    return "\n".join([*(word for word in words if word), log]).strip() or "\n".join(failed)
