"""Builders: compile one kernel into a shared library, off the device, cached by content.

A ``.cpp`` kernel is compiled for this machine's processor, a ``.cu`` kernel for one real architecture. No torch
headers: the derived header is all that is included, so a build takes well under a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import msgspec

from engine.cache import cache_home
from engine.child import end_group
from engine.evaluation.code_hash import code_hash
from engine.problem.spec import Form
from engine.toolkit import NoCompiler as NoCompiler
from engine.toolkit import find_cpp_compiler, find_nvcc
from engine.verdict import BuildReport

_CONFINED = Path(__file__).parent / "runner" / "confined.py"
_KEPT = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
"""What a compiler needs to know of the environment; a source could make it print the rest."""
DEADLINE_S = 60.0
LOG_KEPT_CHARS = 8000
_MEMORY_BYTES = 8 << 30
_FILE_BYTES = 1 << 30
_OUTPUT_BYTES = 8 << 20

CPP_FLAGS = (
    *("-std=c++20", "-O3", "-march=native", "-fopenmp", "-ffp-contract=fast", "-fno-math-errno"),
    *("-fno-trapping-math", "-fPIC", "-shared", "-Wall"),
)
CUDA_FLAGS = ("-std=c++17", "-O3", "-lineinfo", "-Xptxas", "-v", "-no-compress", "-Xcompiler", "-fPIC", "-shared")

# The runner asks for launch errors here: the CUDA runtime is linked into the kernel's own library.
_CUDA_HARNESS = """\
#include <cuda_runtime.h>
extern "C" __attribute__((visibility("default"))) int kernel_tui_last_error(void) {
    return static_cast<int>(cudaGetLastError());
}
"""


def compiler_of(form: Form) -> str:
    """The compiler's path. Raises ``NoCompiler``."""
    return find_nvcc() if form == "cu" else find_cpp_compiler()


def default_cache() -> Path:
    """Where builds are kept between sessions: ``$XDG_CACHE_HOME/kernel-tui/builds``."""
    return cache_home() / "builds"


def command_line(form: Form, compiler: str, arch: str, source: Path, library: Path, includes: list[Path]) -> list[str]:
    """The whole command; ``arch`` is an ``sm_..`` name for CUDA and ignored for C++."""
    flags: list[str] = list(CPP_FLAGS)
    if form == "cu":
        compute = arch.replace("sm_", "compute_")
        flags = [f"-gencode=arch={compute},code={arch}", *CUDA_FLAGS]
    for include in includes:
        flags += ["-include", str(include)]
    return [compiler, *flags, str(source), "-o", str(library)]


async def build(
    source: str, form: Form, header: str, arch: str, directory: Path, defines: str = "launch"
) -> tuple[Path | None, BuildReport]:
    """Compile ``source`` with ``header`` in front; the library (None if it failed) and what the compiler said.

    ``directory`` is the cache; each kernel has a directory of its own below it. ``defines``: the function with C
    linkage without which the build counts as failed. Cancelling kills the compiler.
    Raises ``NoCompiler``, and ``OSError`` when the cache cannot be written.
    """
    compiler = compiler_of(form)
    flags = CUDA_FLAGS if form == "cu" else CPP_FLAGS
    material = "\0".join([source, header, form, arch, compiler, _version(compiler), *flags, host_isa()])
    home = directory / hashlib.sha256(material.encode(errors="surrogateescape")).hexdigest()[:32]
    library, saved = home / "kernel.so", home / "report.json"
    if library.exists() and saved.exists():
        with contextlib.suppress(msgspec.MsgspecError):
            report = msgspec.json.decode(saved.read_bytes(), type=BuildReport)
            os.utime(home)
            identity = report.code or code_hash(library)  # builds of earlier versions have none
            return library, msgspec.structs.replace(report, cached=True, seconds=0.0, code=identity)
    directory.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="build-", dir=directory))
    try:
        report = await _compile(source, form, header, arch, compiler, work, defines)
        if not report.ok:
            return None, report
        (work / "report.json").write_bytes(msgspec.json.encode(report))
        with contextlib.suppress(OSError):  # another build of the same kernel was first
            work.rename(home)
        return library, report
    finally:
        shutil.rmtree(work, ignore_errors=True)


def remove_leftovers(directory: Path) -> None:
    """Remove what builders that were killed left in the cache ``directory``. Never raises."""
    with contextlib.suppress(OSError):
        for work in directory.glob("build-*"):
            if time.time() - work.stat().st_mtime > 2 * DEADLINE_S:
                shutil.rmtree(work, ignore_errors=True)


async def _compile(
    source: str, form: Form, header: str, arch: str, compiler: str, work: Path, defines: str
) -> BuildReport:
    file, library = work / f"kernel.{form}", work / "kernel.so"
    file.write_text(source, errors="surrogateescape")
    includes = [work / "problem.h"]
    includes[0].write_text(header)
    if form == "cu":
        includes.append(work / "harness.h")
        includes[1].write_text(_CUDA_HARNESS)
    command = command_line(form, compiler, arch, file, library, includes)
    start = time.monotonic()
    code, log = await run_compiler(command, work)
    seconds = time.monotonic() - start
    shown = " ".join(Path(part).name if part.startswith(str(work)) else part for part in command)
    log = log.replace(str(work) + "/", "")
    if code == 0 and not await _defines(library, defines):
        log = f'no function "{defines}" with C linkage is defined; expected: {_signature(header, defines)}\n{log}'
        code = 1
    if code != 0 and "conflicting declaration of C function" in log:
        log = f'no function "{defines}" with this signature; expected: {_signature(header, defines)}\n{log}'
    identity = code_hash(library) if code == 0 else ""
    return BuildReport(code == 0, seconds, shown, False, trimmed(log), *_resources(log), code=identity)


def _signature(header: str, function: str) -> str:
    return next((line for line in header.splitlines() if f" {function}(" in line), function).strip()


async def run_compiler(command: list[str], work: Path) -> tuple[int, str]:
    """Run a compiler in ``work``, bounded in time, memory, size of files and which it sees.

    Its exit code and what it said.
    """
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment |= {"TMPDIR": str(work), "LC_ALL": "C"}
    trees = [sys.prefix, sys.base_prefix, str(Path(command[0]).resolve().parents[1])]
    trees += [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(_CONFINED), str(work), os.pathsep.join(trees)),
        *command,
        cwd=work,
        env=environment,
        process_group=0,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    with contextlib.suppress(ProcessLookupError, PermissionError):
        resource.prlimit(process.pid, resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    output = bytearray()
    assert process.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            while len(output) <= _OUTPUT_BYTES and (chunk := await process.stdout.read(1 << 16)):
                output += chunk
            if len(output) <= _OUTPUT_BYTES:
                await process.wait()
    except TimeoutError:
        return 1, f"the compiler did not end within {DEADLINE_S:g} s"
    finally:
        if process.returncode is None:
            await end_group(process)
    said = output.decode(errors="replace")
    if len(output) > _OUTPUT_BYTES:
        return 1, f"the compiler was ended: it printed more than {_OUTPUT_BYTES >> 20} MiB\n{said[:LOG_KEPT_CHARS]}"
    return process.returncode or 0, said


async def _defines(library: Path, function: str) -> bool:
    process = await asyncio.create_subprocess_exec(
        *("nm", "-D", "--defined-only", str(library)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        process_group=0,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    except TimeoutError:
        return False
    finally:
        if process.returncode is None:
            await end_group(process)
    return any(line.split()[-1:] == [function.encode()] for line in output.splitlines())


def _resources(log: str) -> tuple[int | None, int | None, int | None]:
    """Registers, spilled bytes and static shared memory: the largest over the kernels of a ``ptxas -v`` report."""
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
    spills = [int(a) + int(b) for a, b in re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)]
    shared = [int(n) for n in re.findall(r"(\d+) bytes smem", log)]
    return max(registers, default=None), max(spills, default=None), max(shared, default=0 if registers else None)


def trimmed(log: str) -> str:
    """First errors matter most; the end tells what the build came to."""
    log = log.strip()
    if len(log) <= LOG_KEPT_CHARS:
        return log
    cut = len(log) - LOG_KEPT_CHARS
    return f"{log[: LOG_KEPT_CHARS * 3 // 4]}\n[... {cut} characters left out ...]\n{log[-LOG_KEPT_CHARS // 4 :]}"


@cache
def _version(compiler: str) -> str:
    """What identifies this very compiler: path, size and time of its file."""
    status = Path(compiler).resolve().stat()
    return f"{Path(compiler).resolve()}:{status.st_size}:{status.st_mtime_ns}"


@cache
def host_isa() -> str:
    """Processor features, since ``-march=native`` means another thing on another machine."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return hashlib.sha256(line.encode()).hexdigest()
    return ""
