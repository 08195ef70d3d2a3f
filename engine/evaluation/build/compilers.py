"""Compile one kernel into a shared library, without using the device, and cache the library by content.

A ``.cpp`` kernel targets this machine's processor; a ``.cu`` kernel targets a single real architecture. The compiler
includes the derived header but no PyTorch headers, so a build takes about a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

import msgspec

from engine.evaluation.build.code_hash import code_hash
from engine.evaluation.build.instruction_counts import instruction_counts
from engine.evaluation.inspect import elf
from engine.evaluation.judge_policy import POLICY
from engine.problem.spec import Language
from engine.session.records.verdict import BuildReport
from engine.system.cache_directory import cache_home
from engine.system.child import Overrun, run_bounded
from engine.system.tool_paths import NoCompiler as NoCompiler
from engine.system.tool_paths import find_cpp_compiler, find_nvcc

_CONFINED = Path(__file__).parent.parent / "sandbox" / "inside" / "confinement" / "confined.py"
NVCC_VARIABLES = ("NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
"""Environment variables that select nvcc's C++ compiler and add flags."""
_KEPT = (
    *("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"),
    *NVCC_VARIABLES,
)
"""Environment variables that compilers need. The builder removes all other variables, because a kernel's source could
print them to the log.
"""
_BUILD = POLICY.build

CPP_FLAGS = (
    *("-std=c++20", "-O3", "-march=native", "-fopenmp", "-ffp-contract=fast", "-fno-math-errno"),
    *("-fno-trapping-math", "-fPIC", "-shared", "-Wall"),
)
STACK_FLAGS = ("-mpreferred-stack-boundary=6", "-mincoming-stack-boundary=4")
"""Flags that align the stack to 64 bytes in functions whose callers guarantee only the ABI's 16 bytes."""
CUDA_FLAGS = ("-std=c++17", "-O3", "-lineinfo", "-Xptxas", "-v", "-no-compress", "-Xcompiler", "-fPIC", "-shared")

# The runner reads launch errors through this function, because each kernel's library links a separate CUDA runtime.
_CUDA_HARNESS = """\
#include <cuda_runtime.h>
extern "C" __attribute__((visibility("default"))) int kernel_tui_last_error(void) {
    return static_cast<int>(cudaGetLastError());
}
"""


def compiler_of(language: Language) -> str:
    """Return the compiler's path. Raises ``NoCompiler``."""
    return find_nvcc() if language == "cu" else find_cpp_compiler()


def default_cache() -> Path:
    """Return the build directory that all sessions share, which is ``$XDG_CACHE_HOME/kernel-tui/builds``."""
    return cache_home() / "builds"


def flags_of(language: Language) -> tuple[str, ...]:
    """Return a language's compiler flags without the architecture flags, or () for modules."""
    return {"cu": CUDA_FLAGS, "cpp": CPP_FLAGS}.get(language, ())


def stack_flags(compiler: str) -> tuple[str, ...]:
    """Return the flags that align the stack for vectors, or () if ``compiler`` does not accept them.

    Without these flags, GCC 12.2 for x86 sometimes misaligns vectors of 32 bytes or more. A kernel with a misaligned
    vector crashes in some runs.
    """
    return STACK_FLAGS if _aligns_the_stack(compiler, _version(compiler)) else ()


def nvcc_settings() -> tuple[str, ...]:
    """Return the nonempty ``NVCC_VARIABLES``, each as ``NAME=VALUE``."""
    return tuple(f"{name}={os.environ[name]}" for name in NVCC_VARIABLES if os.environ.get(name))


def exported_flags() -> tuple[str, ...]:
    """Return this machine's compiler flags for C++ kernels, for a build elsewhere."""
    with contextlib.suppress(NoCompiler):
        return (*CPP_FLAGS, *stack_flags(compiler_of("cpp")))
    return CPP_FLAGS


@cache
def _aligns_the_stack(compiler: str, version: str) -> bool:
    """Return whether ``compiler`` accepts ``STACK_FLAGS``. ``version`` identifies the compiler's file."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = [compiler, *STACK_FLAGS, "-Werror", "-fsyntax-only", "-x", "c++", os.devnull]
        return subprocess.run(command, capture_output=True, timeout=_BUILD.compile_s, check=False).returncode == 0
    return False


def command_line(
    language: Language,
    compiler: str,
    arch: str,
    source: Path,
    library: Path,
    includes: list[Path],
    flags: tuple[str, ...] | None = None,
) -> list[str]:
    """Return the complete compiler command.

    ``arch``: a CUDA architecture such as ``sm_90a``; ignored for C++. ``flags``: a replacement for the language's
    flags.
    """
    options = list(flags_of(language) if flags is None else flags)
    if language == "cpp":
        options += stack_flags(compiler)
    if language == "cu":
        compute = arch.replace("sm_", "compute_")
        options.insert(0, f"-gencode=arch={compute},code={arch}")
    for include in includes:
        options += ["-include", str(include)]
    return [compiler, *options, str(source), "-o", str(library)]


async def build(
    source: str,
    language: Language,
    header: str,
    arch: str,
    directory: Path,
    defines: str = "launch",
    flags: tuple[str, ...] | None = None,
) -> tuple[Path | None, BuildReport]:
    """Compile ``source``, preceded by ``header``.

    Return the library (None if compilation failed) and the compiler's report.

    ``directory``: the cache. ``defines``: a function with C linkage that the library must define. ``flags``: a
    replacement for the language's flags. Canceling kills the compiler. Raises ``NoCompiler`` if the compiler is
    missing, and ``OSError`` if the cache is not writable.
    """
    flags = flags_of(language) if flags is None else flags
    made = entry(source, language, header, arch, directory, flags)
    return await made.make(lambda work: _compile(source, language, header, arch, work, defines, flags))


class CacheEntry:
    """One kernel in the cache ``directory``: a folder with the built file ``product`` and the build report.

    ``material``: all inputs that determine the product.
    """

    def __init__(self, directory: Path, product: str, *material: str) -> None:
        self._directory, self._product = directory, product
        digest = hashlib.sha256("\0".join(material).encode(errors="surrogateescape")).hexdigest()
        self._home = directory / digest[:32]

    def find(self) -> tuple[Path, BuildReport] | None:
        """Return the product and report of an earlier :meth:`make`, or None."""
        product = self._home / self._product
        # Another process may delete the cache at any time, so an incomplete entry counts as missing.
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            report = msgspec.json.decode((self._home / "report.json").read_bytes(), type=BuildReport)
            os.utime(self._home)
            if product.stat().st_size > 0:  # A power loss can leave an empty file.
                return product, msgspec.structs.replace(report, cached=True, seconds=0.0)
        return None

    async def make(self, fill: Callable[[Path], Awaitable[BuildReport]]) -> tuple[Path | None, BuildReport]:
        """Return the product (None if its build failed) and the build report. If the product is missing, call ``fill``
        to build it in an empty folder.
        """
        if (found := self.find()) is not None:
            return found
        self._directory.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="build-", dir=self._directory))
        try:
            report = await fill(work)
            if not report.ok:
                return None, report
            (work / "report.json").write_bytes(msgspec.json.encode(report))
            self._store(work)
            return self._home / self._product, report
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _store(self, work: Path) -> None:
        """Make the folder ``work`` the entry, unless another build of the same kernel finished first."""
        with contextlib.suppress(OSError):
            work.rename(self._home)
            return
        if self.find() is None:
            with contextlib.suppress(FileNotFoundError):  # Another process moved the incomplete entry first.
                self._home.rename(tempfile.mkdtemp(prefix="build-", dir=self._directory))
            with contextlib.suppress(OSError):  # Another process replaced the incomplete entry first.
                work.rename(self._home)


def remove_leftovers(directory: Path) -> None:
    """Remove files that killed builders left behind in the cache ``directory``. Never raises."""
    with contextlib.suppress(OSError):
        for work in directory.glob("build-*"):
            if time.time() - work.stat().st_mtime > 2 * max(_BUILD.compile_s, _BUILD.module_s):
                shutil.rmtree(work, ignore_errors=True)


def entry(
    source: str, language: Language, header: str, arch: str, directory: Path, flags: tuple[str, ...]
) -> CacheEntry:
    """Return the cache entry that :func:`build` uses. Raises ``NoCompiler``."""
    compiler = compiler_of(language)
    own = stack_flags(compiler) if language == "cpp" else nvcc_settings()
    material = (source, header, language, arch, compiler, _version(compiler), *flags, *own, host_isa())
    return CacheEntry(directory, "kernel.so", *material)


async def _compile(
    source: str,
    language: Language,
    header: str,
    arch: str,
    work: Path,
    defines: str,
    flags: tuple[str, ...],
) -> BuildReport:
    file, library = work / f"kernel.{language}", work / "kernel.so"
    file.write_text(source, errors="surrogateescape")
    includes = [work / "problem.h"]
    includes[0].write_text(header)
    if language == "cu":
        includes.append(work / "harness.h")
        includes[1].write_text(_CUDA_HARNESS)
    command = command_line(language, compiler_of(language), arch, file, library, includes, flags)
    start = time.monotonic()
    code, log = await run_compiler(command, work)
    seconds = time.monotonic() - start
    shown = " ".join(Path(part).name if part.startswith(str(work)) else part for part in command)
    log = log.replace(str(work) + "/", "")
    if code == 0 and not _defines(library, defines):
        log = f'no function "{defines}" with C linkage; expected: {_signature(header, defines)}\n{log}'
        code = 1
    if code != 0 and "conflicting declaration of C function" in log:
        log = f'no function "{defines}" with this signature; expected: {_signature(header, defines)}\n{log}'
    if code != 0:
        return BuildReport(False, seconds, shown, False, trimmed(log), *_resources(log))
    counts = await instruction_counts(library, language, run_compiler)
    resources = _resources(log)
    return BuildReport(
        True, seconds, shown, False, trimmed(log), *resources, code=code_hash(library), instructions=counts
    )


def _signature(header: str, function: str) -> str:
    return next((line for line in header.splitlines() if f" {function}(" in line), function).strip()


async def run_compiler(command: list[str], work: Path) -> tuple[int, str]:
    """Run a compiler or a disassembler in ``work`` with limits on time, memory, file sizes and visible files.

    Returns the command's exit code and output.
    """
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # A compiler on PATH may be ccache, which needs a home directory even if it caches nothing.
    environment |= {"TMPDIR": str(work), "HOME": str(work), "LC_ALL": "C", "CCACHE_DISABLE": "1"}
    programs = [command[0], *_host_compiler()]
    trees = [sys.prefix, sys.base_prefix, *(str(Path(program).resolve().parents[1]) for program in programs)]
    trees += [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    confined = [sys.executable, "-I", "-S", str(_CONFINED), str(work), os.pathsep.join(trees), *command]
    limits = {resource.RLIMIT_AS: _BUILD.memory_bytes, resource.RLIMIT_FSIZE: _BUILD.file_bytes}
    try:
        return await run_bounded(
            confined, work, environment, limit_s=_BUILD.compile_s, most_bytes=_BUILD.output_bytes, limits=limits
        )
    except Overrun as overrun:
        return 1, f"the builder stopped the compiler, because it {overrun}\n{overrun.output[: _BUILD.log_chars]}"


def _host_compiler() -> list[str]:
    """Return the C++ compiler that ``NVCC_CCBIN`` names, either directly or by its directory, or [] if none exists."""
    named = os.environ.get("NVCC_CCBIN", "")
    found = shutil.which(named) or shutil.which("g++", path=named)
    return [found] if found else []


def _defines(library: Path, function: str) -> bool:
    try:
        return function in elf.symbols(library.read_bytes()).defined
    except elf.FAULTS:
        return False


def _resources(log: str) -> tuple[int | None, int | None, int | None]:
    """Return the largest numbers of registers, spilled bytes and bytes of static shared memory in a ``ptxas -v``
    report.
    """
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
    spills = [int(a) + int(b) for a, b in re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)]
    shared = [int(n) for n in re.findall(r"(\d+) bytes smem", log)]
    return max(registers, default=None), max(spills, default=None), max(shared, default=0 if registers else None)


def trimmed(log: str) -> str:
    """Shorten ``log`` to its start, which contains the first errors, and its end, which contains the outcome."""
    log = log.strip()
    if len(log) <= _BUILD.log_chars:
        return log
    cut = len(log) - _BUILD.log_chars
    return f"{log[: _BUILD.log_chars * 3 // 4]}\n[... {cut} characters left out ...]\n{log[-_BUILD.log_chars // 4 :]}"


@cache
def _version(compiler: str) -> str:
    """Identify a compiler by its file's path, size and modification time."""
    status = Path(compiler).resolve().stat()
    return f"{Path(compiler).resolve()}:{status.st_size}:{status.st_mtime_ns}"


@cache
def host_isa() -> str:
    """Return a hash of the processor's features, which determine the code that ``-march=native`` produces."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return hashlib.sha256(line.encode()).hexdigest()
    return ""
