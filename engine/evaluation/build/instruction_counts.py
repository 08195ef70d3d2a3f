"""Count the instructions of a built kernel by kind, from its machine code.

The counts are static: an instruction in a loop counts once. The counts show how wide the loads are, whether the kernel
uses tensor cores or asynchronous copies, and which math functions it calls. Counting requires neither a device nor
special permissions, only nvdisasm (``.cu``) or objdump (``.cpp``).
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from engine.evaluation.inspect import elf
from engine.problem.spec import Language
from engine.system.tool_paths import NoTool, find_cuda_tool

Run = Callable[[list[str], Path], Awaitable[tuple[int, str]]]
"""A function that runs a command in a directory, and returns the command's exit code and output."""

_SASS = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
SASS_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in {
        "tensor core operations": r"(?:[HIDQBO]G?MMA|UTC\w*MMA)\b",
        "bulk copies (TMA)": r"UBLKCP|UTMALDG|UTMASTG|UBLKRED",
        "asynchronous copies (cp.async)": r"LDGSTS",
        "global loads": r"LDG|LD\.",
        "global stores": r"STG|ST\.",
        "shared memory accesses": r"LDS|STS|LDSM|STSM",
        "local memory accesses (spills)": r"LDL|STL",
        "atomic operations": r"ATOM|RED\b|REDG|REDUX",
        "fp32 operations": r"F(?:FMA|ADD|MUL)2?\b",
        "half-precision operations": r"H(?:FMA|ADD|MUL)2",
        "fp64 operations": r"D(?:FMA|ADD|MUL)\b",
        "special functions (exp, log, rsqrt)": r"MUFU",
        "warp shuffles": r"SHFL",
        "barriers": r"BAR\b|SYNCS",
    }.items()
)
_WIDTH = re.compile(r"\.(64|128|256)\b")
_WIDE = {"global loads", "global stores"}
"""Instruction kinds that the counts distinguish by width in bits."""

_X86 = re.compile(r"^\s*[0-9a-f]+:\t(?:lock )?(\S+)\s*(.*)$", re.MULTILINE)
_FLOAT = re.compile(r"v?(?:add|sub|mul|div|max|min|sqrt|f?n?m(?:add|sub)\d*)(p[sd]|s[sd])$")
_VECTORS = {"zmm": "512-bit", "ymm": "256-bit", "xmm": "128-bit"}
_CALL = re.compile(r"<(\w+)(?:@[\w.]+)*@plt>")
_MOST_CALLED = 3
"""Maximum number of called functions to list."""


async def instruction_counts(library: Path, language: Language, run: Run) -> dict[str, int]:
    """Return the number of instructions of each kind that occurs in ``library``.

    For CUDA, the counts cover the library's largest kernel; for C++, the whole library. Returns {} if the disassembler
    is missing or fails.
    """
    try:
        if language == "cu":
            return await _cuda(library, run)
        return await _cpp(library, run)
    except (NoTool, OSError, *elf.FAULTS):
        return {}


async def _cuda(library: Path, run: Run) -> dict[str, int]:
    disassembler = find_cuda_tool("nvdisasm")
    (fatbin,) = (one.content for one in elf.sections(library.read_bytes()) if one.name == ".nv_fatbin")
    largest: list[str] = []
    for number, code in enumerate(elf.device_code(fatbin)):
        if not any(one.name.startswith(".text.") for one in elf.sections(code)):
            continue  # nvcc also links code that contains no kernel.
        cubin = library.with_name(f"device{number}.cubin")
        cubin.write_bytes(code)
        status, listing = await run([disassembler, "-c", str(cubin)], library.parent)
        cubin.unlink()
        if status == 0:
            kernels = (_SASS.findall(part) for part in re.split(r"(?m)^\.text\.", listing))
            largest = max(largest, *kernels, key=len)
    return dict(sorted(_sass_kinds(largest).items()))


def _sass_kinds(operations: list[str]) -> Counter[str]:
    counts = Counter(instructions=len(operations)) if operations else Counter[str]()
    for operation in operations:
        kind = next((kind for kind, pattern in SASS_KINDS if pattern.match(operation)), None)
        if kind in _WIDE:
            width = _WIDTH.search(operation)
            kind = f"{kind} of {width[1] if width else '32'} bits"
        if kind is not None:
            counts[kind] += 1
    return counts


async def _cpp(library: Path, run: Run) -> dict[str, int]:
    if (objdump := shutil.which("objdump")) is None:
        return {}
    status, listing = await run([objdump, "-d", "--no-show-raw-insn", "--section=.text", str(library)], library.parent)
    return dict(sorted(_x86_kinds(listing).items())) if status == 0 else {}


def _x86_kinds(listing: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    called: Counter[str] = Counter()
    for name, operands in _X86.findall(listing):
        counts["instructions"] += 1
        if name == "call" and (target := _CALL.search(operands)) and not target[1].startswith(("GOMP", "omp_", "__")):
            called[target[1]] += 1
        if "gather" in name:
            counts["gathers"] += 1
        if (kind := _FLOAT.match(name)) is None:
            continue
        if kind[1].startswith("s"):
            counts["scalar floating-point operations"] += 1
        else:
            width = next((bits for register, bits in _VECTORS.items() if register in operands), "other")
            counts[f"{width} vector operations"] += 1
        if "madd" in name or "msub" in name:
            counts["fused multiply-adds"] += 1
        if "div" in name or "sqrt" in name:
            counts["divisions and square roots"] += 1
    counts.update({f"calls of {name}": count for name, count in called.most_common(_MOST_CALLED)})
    return counts
