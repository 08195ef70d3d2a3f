"""Compute occupancy: how many warps of a CUDA kernel fit on a multiprocessor, and which resource limits the number. All
functions in this module are pure.

Sources: the tables in the CUDA C++ Programming Guide ("Compute Capabilities") for limits by compute capability, and the
toolkit's ``cuda_occupancy.h`` for allocation granularities.
"""

from __future__ import annotations

import re

from msgspec import Struct

_REGISTERS = 65536
_WARP = 32
_REGISTER_UNIT = 256
"""Number of registers in a unit of allocation. The hardware allocates whole units to a warp."""
_WARP_UNIT = 4
"""Number of partitions of a multiprocessor. Each partition has a quarter of the registers and runs a quarter of the
warps."""
MAX_THREADS_PER_BLOCK = 1024
_SIZES = {
    "char": 1,
    "int8_t": 1,
    "uint8_t": 1,
    "half": 2,
    "__half": 2,
    "__nv_bfloat16": 2,
    "int": 4,
    "float": 4,
    "half2": 4,
    "__half2": 4,
    "float2": 8,
    "double": 8,
    "int4": 16,
    "float4": 16,
}
"""Sizes in bytes of types that kernels pass to ``sizeof``."""


class SmLimits(Struct, frozen=True):
    """Resources of one multiprocessor. For each block, CUDA reserves ``reserved_bytes`` of the ``shared_bytes``."""

    warps: int
    blocks: int
    shared_bytes: int
    shared_unit: int = 128
    reserved_bytes: int = 1024


_LIMITS = {
    "75": SmLimits(32, 16, 64 << 10, 256, 0),
    "80": SmLimits(64, 32, 164 << 10),
    "86": SmLimits(48, 16, 100 << 10),
    "87": SmLimits(48, 16, 164 << 10),
    "89": SmLimits(48, 24, 100 << 10),
    "90": SmLimits(64, 32, 228 << 10),
    "100": SmLimits(64, 32, 228 << 10),
    "103": SmLimits(64, 32, 228 << 10),
    "120": SmLimits(48, 24, 100 << 10),
    "121": SmLimits(48, 24, 100 << 10),
}


class Occupancy(Struct, frozen=True):
    """A kernel's occupancy of a multiprocessor.

    ``share``: resident warps / maximum resident warps. ``limits``: resources that limit the number of resident blocks.
    """

    threads: int
    blocks: int
    warps: int
    share: float
    limits: tuple[str, ...]


def limits_of(arch: str) -> SmLimits | None:
    """Return the limits of an architecture such as ``sm_90a``; None if the architecture is unknown."""
    return _LIMITS.get(re.sub(r"^sm_(\d+)[a-z]?$", r"\1", arch))


def occupancy(arch: str, threads: int, registers: int, shared_bytes: int) -> Occupancy | None:
    """Compute the occupancy of a kernel.

    Args:
        arch: Architecture such as ``sm_90a``.
        threads: Threads per block, 1 to 1024.
        registers: Registers per thread.
        shared_bytes: Shared memory per block, static and dynamic.

    Returns:
        The occupancy, with 0 blocks if one block does not fit; None for an unknown architecture.
    """
    limits = limits_of(arch)
    if limits is None or not 1 <= threads <= MAX_THREADS_PER_BLOCK:
        return None
    warps = -(-threads // _WARP)
    per_warp = -(-registers * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    by: dict[str, int] = {"warps": limits.warps // warps, "blocks": limits.blocks}
    if per_warp:
        by["registers"] = (_REGISTERS // per_warp // _WARP_UNIT * _WARP_UNIT) // warps
    if shared_bytes:
        block = -(-(shared_bytes + limits.reserved_bytes) // limits.shared_unit) * limits.shared_unit
        by["shared memory"] = limits.shared_bytes // block
    blocks = min(by.values())
    return Occupancy(
        threads,
        blocks,
        blocks * warps,
        blocks * warps / limits.warps,
        tuple(name for name, count in by.items() if count == blocks),
    )


class LaunchShape(Struct, frozen=True):
    """A launch configuration in a kernel source. ``dynamic_shared_bytes`` is None if the source computes the size at
    run time.
    """

    threads: int
    dynamic_shared_bytes: int | None


def launch_shapes(source: str) -> tuple[LaunchShape, ...]:
    """Find a source's launches whose block size is a constant, in source order.

    Supported forms: ``<<<grid, 256>>>``, a constant that the source defines, and ``dim3(32, 8)``.
    """
    constants = {
        name: int(value.replace("'", ""))
        for name, value in re.findall(r"(?:constexpr|const)\s+[\w\s]*?\b(\w+)\s*=\s*([\d']+)[uUlL]*\s*;", source)
    }
    constants |= {name: int(value) for name, value in re.findall(r"#define\s+(\w+)\s+(\d+)\b", source)}
    found: dict[LaunchShape, None] = {}
    for launch in re.findall(r"<<<(.*?)>>>", source, re.DOTALL):
        arguments = _split(launch)
        if len(arguments) < 2:
            continue
        written = re.sub(r"^(?:dim3)?\s*[({](.*)[)}]$", r"\1", arguments[1].strip())
        threads = _product(re.split(r"[,*]", written), constants)
        if threads is not None and 1 <= threads <= MAX_THREADS_PER_BLOCK:
            dynamic = _product(arguments[2].split("*"), constants) if len(arguments) > 2 else 0
            found[LaunchShape(threads, dynamic)] = None
    return tuple(found)


def asks_for_dynamic_shared(source: str) -> bool:
    """Return whether a kernel in ``source`` declares dynamic shared memory, whose size the launch sets."""
    return re.search(r"\bextern\s+(?!\")[^;{]*?__shared__|__shared__\s+extern\b", source) is not None


def _product(factors: list[str], constants: dict[str, int]) -> int | None:
    """Multiply numbers, named constants and ``sizeof(float)``; return None if a factor is anything else."""
    product = 1
    for factor in factors:
        word = re.sub(r"(?<=\d)[uUlL]+$", "", factor.strip())
        size = re.fullmatch(r"(?:\(int\)\s*)?sizeof\s*\(\s*([\w ]+?)\s*\)", word)
        value = _SIZES.get(size[1]) if size is not None else int(word) if word.isdecimal() else constants.get(word)
        if value is None:
            return None
        product *= value
    return product


def _split(arguments: str) -> list[str]:
    """Split the arguments of a call at top-level commas."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
