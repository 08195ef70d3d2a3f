"""torch's C++ headers precompiled: they take most of the time of every C++ extension. Imports no torch.

Built by the engine itself, never by a process that runs a kernel's code, since all kernels share them. GCC only: it
takes ``extension.h.gch`` from the first include directory, and ignores it wherever its flags do not fit. Building them
takes as long as they save in four extensions (two cores, GCC 12: 50 s, 12 s each), so the first four go without.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import sysconfig
import time
from importlib import metadata, util
from pathlib import Path

from engine.child import end_group
from engine.evaluation.build import NoCompiler, host_isa
from engine.toolkit import find_cpp_compiler

_DEADLINE_S = 240.0
_KEPT = 2
_STANDARD = ("-std=c++20", "-std=c++17")
WITHOUT = 4
_HARMLESS = re.compile(
    r"-O\w*|-g\d?|-w|-pthread|-std=[\w+]+|-W[a-z-]+(=\d+)?|-m[\w.=+-]+|-[DU]\w+(=[\w.+-]*)?|-fno-[a-z-]+|-ffp-contract=\w+"
    r"|-f(PIC|openmp|openmp-simd|fast-math|finite-math-only|associative-math|reciprocal-math|unsafe-math-optimizations"
    r"|tree-vectorize|unroll-loops|unroll-all-loops|inline-functions|omit-frame-pointer|strict-aliasing|permissive)"
)
"""Flags come from a kernel, and no sandbox is around this compiler, which others (``-wrapper``, ``-fplugin``, ``-o``)
make run programs and read and write files."""


async def precompiled(flags: tuple[str, ...], directory: Path) -> Path | None:
    """The include directory with the precompiled header for these compiler flags, built if it is not there.

    None for the first ``WITHOUT`` who ask, for flags that may do more than compile, and where it cannot be had. Others
    wait for it, but not for ever.
    """
    if not all(_HARMLESS.fullmatch(flag) for flag in flags):
        return None
    try:
        compiler = find_cpp_compiler()
    except NoCompiler:
        return None
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    torch = Path(spec.origin).parent
    material = "\0".join([metadata.version("torch"), compiler, host_isa(), sysconfig.get_path("include"), *flags])
    _remove_old(directory)
    home = directory / f"headers-{hashlib.sha256(material.encode()).hexdigest()[:24]}"
    target = home / "torch" / "extension.h.gch"
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        with (home / "asked").open("ab", buffering=0) as asked:
            asked.write(b".")
            if asked.tell() <= WITHOUT:
                return None
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + _DEADLINE_S
    try:
        while not target.exists() and not (home / "failed").exists():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return None  # who builds them stands still: without them it only takes longer
                await asyncio.sleep(0.1)
                continue
            if not target.exists() and not await _compile(compiler, torch, flags, target):
                (home / "failed").touch()
    finally:
        os.close(lock)
    if not target.exists():
        return None
    os.utime(target)  # file systems that note no access times
    return home


def _remove_old(directory: Path) -> None:
    """Each takes most of a gigabyte: keep those that were used last, and any that is being built."""
    found = sorted(directory.glob("headers-*/torch/extension.h.gch"), key=lambda path: path.stat().st_atime)
    for header in found[:-_KEPT]:
        with contextlib.suppress(OSError):
            shutil.rmtree(header.parents[1])


async def _compile(compiler: str, torch: Path, flags: tuple[str, ...], target: Path) -> bool:
    includes = [torch / "include", torch / "include" / "torch" / "csrc" / "api" / "include"]
    header = includes[1] / "torch" / "extension.h"
    header = header if header.exists() else includes[0] / "torch" / "extension.h"
    command = [compiler, "-x", "c++-header", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    command += [f"-isystem{include}" for include in (*includes, sysconfig.get_path("include"))]
    part = target.with_suffix(".part")
    command += ["-fPIC", _standard(torch), *flags, str(header), "-o", str(part)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, process_group=0
    )
    try:
        code = await asyncio.wait_for(process.wait(), _DEADLINE_S)
    except TimeoutError:
        return False
    finally:
        if process.returncode is None:
            await end_group(process)
    if code == 0:
        part.rename(target)
    return code == 0


def _standard(torch: Path) -> str:
    """The language standard that this version of torch builds extensions with."""
    text = (torch / "utils" / "cpp_extension.py").read_text(errors="replace")
    return next((standard for standard in _STANDARD if f"'{standard}'" in text), _STANDARD[0])
