"""Resolve the choices of a CUDA attention recipe for a device, so that every knob has a legal value."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from engine.devices.fact import DeviceFact
from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.codegen.cuda import compute_capability
from engine.proposers.playbook.patterns.attention.program import AttentionProgram
from engine.proposers.playbook.patterns.gemm.tiles.cuda_plan import shared_limit

COLUMNS = 16
"""Threads that share a row of scores in ``tiles``: half a warp, so that the threads can use shuffles."""

MOST_TENSOR_WIDTH = 256
"""Maximum number of elements per row of q, k or v for which a warp's tensor-core fragments fit in registers."""


class Plan(Struct, frozen=True):
    """A kernel's sizes.

    The structure ``warps`` gives each query a warp. ``tiles`` computes ``queries`` x ``keys`` scores at a time, and
    each thread computes ``rows`` x (keys / 16) of these scores. ``tensor`` uses tensor cores for 16 queries per warp.
    ``width`` and ``values`` are the padded sizes of the problem. ``vector``: elements per load of a row of q, k and v.
    """

    structure: Literal["warps", "tiles", "tensor"]
    queries: int
    keys: int
    rows: int
    threads: int
    width: int
    values: int
    vector: tuple[int, int, int]
    shared_bytes: int


def plain(device: DeviceFact) -> Choices:
    """Return the choices of the first kernel: a warp per query."""
    return {
        "structure": "warps", "queries": 64, "keys": 32, "threads": 128, "vector": False, "math": "precise",
        "arch": compute_capability(device.arch),
    }  # fmt: skip


def _up(size: int, by: int) -> int:
    return -(-size // by) * by


def resolve(program: AttentionProgram, choices: Choices) -> Plan:
    """Return the attention plan for ``choices``. Adjust choices that the device or the shapes do not allow."""
    arch, limit = int(choices["arch"]), shared_limit(int(choices["arch"]))
    vector = _vectors(program) if choices["vector"] else (1, 1, 1)
    threads, queries, keys = (int(choices[key]) for key in ("threads", "queries", "keys"))
    structure = choices["structure"]
    if structure == "tensor" and (
        arch < 80 or program.element_bytes != 2 or max(program.width, program.value_width) > MOST_TENSOR_WIDTH
    ):
        structure = "tiles"
    if structure == "tensor":
        width, values = _up(program.width, 16), _up(program.value_width, 16)
        warps = threads // 32
        while True:
            size = 2 * (max(16 * warps, keys) * (width + 8) + values * (keys + 8))
            if size <= limit:
                return Plan("tensor", 16 * warps, keys, 16, 32 * warps, width, values, vector, size)
            warps, keys = (warps, keys // 2) if keys > 16 else (max(1, warps // 2), keys)
    if structure == "tiles":
        width, values = program.width, _up(program.value_width, COLUMNS)
        while keys >= 16:
            rows = max(1, queries * COLUMNS // threads)
            queries = rows * threads // COLUMNS
            size = 4 * (queries * (width + 1) + keys * (width + 1) + keys * values + queries * (keys + 1))
            if size <= limit and rows * (keys + values) // COLUMNS <= 192:
                return Plan("tiles", queries, keys, rows, threads, width, values, vector, size)
            if keys >= queries or queries <= threads // COLUMNS:
                keys //= 2
            else:
                queries //= 2
    return Plan("warps", threads // 32, 32, 1, threads, program.width, program.value_width, (1, 1, 1), 0)


def _vectors(program: AttentionProgram) -> tuple[int, int, int]:
    """Return the number of elements per load of a row of q, k and v. Loads are 16 bytes wide if all addresses
    allow it.
    """
    found = []
    for operand, width in ((program.q, program.width), (program.k, program.width), (program.v, program.value_width)):
        many = 16 // operand.element_bytes if operand.col_stride == 1 else 1
        addresses = (width, operand.row_stride, operand.offset, *(stride for _, stride in operand.batch))
        while any(number % many for number in addresses):
            many //= 2
        found.append(many)
    return (found[0], found[1], found[2])
