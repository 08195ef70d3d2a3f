"""Resolve the choices of a tiled matrix product in CUDA for a device, so that every knob has a legal value."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.codegen.cuda import compute_capability

Structure = Literal["naive", "tiles", "tensor"]
_SHARED_KB = {70: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
"""Maximum shared memory per block in KiB, by compute capability (CUDA C++ Programming Guide, technical
specifications).
"""
_MOST_THREADS = 1024
_NAIVE_THREADS = 256
PATCH_FLOATS = 16 * 20
"""Size, in floats, of the shared memory that a warp uses to distribute an accumulator fragment to its threads."""
_MOST_FRAGMENTS = 16  # Each fragment uses 8 registers.


class Operand(Struct, frozen=True):
    """The layout of one operand in memory.

    Attributes:
        along: The contiguous direction: ``k``, ``r`` (rows of the left operand, columns of the right operand), or ""
            for neither.
        width: Elements per load.
    """

    along: Literal["k", "r", ""]
    width: int


class Plan(Struct, frozen=True):
    """The sizes of a tiled kernel.

    A block computes ``bm`` x ``bn`` outputs in steps of ``bk``. Either each thread computes ``tm`` x ``tn`` outputs, or
    each warp computes ``wm`` x ``wn`` outputs in fragments of 16 x 16. ``widths``: elements per load of each operand.
    ``copy``: how tiles reach shared memory. ``group``: rows of tiles that neighboring blocks cover together.
    """

    structure: Structure
    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    wm: int
    wn: int
    threads: int
    widths: tuple[int, int]
    copy: Literal["sync", "registers", "async"]
    stages: int
    group: int
    element_bytes: int
    a_along_k: bool
    b_along_k: bool

    @property
    def a_pitch(self) -> int:
        """The distance in elements between lines of the left tile in shared memory."""
        return self._pitch(self.bk if self.a_along_k else self.bm, self.widths[0], self.a_along_k)

    @property
    def b_pitch(self) -> int:
        return self._pitch(self.bk if self.b_along_k else self.bn, self.widths[1], self.b_along_k)

    def _pitch(self, line: int, width: int, along_k: bool) -> int:
        if self.structure == "tensor":  # Fragments need multiples of 16 bytes.
            return line + 16 // self.element_bytes
        # Along k, threads read a column of lines. An odd pitch, if loads allow it, spreads the column over the banks.
        return line + (width if along_k else 16 // self.element_bytes)

    @property
    def a_elements(self) -> int:
        return (self.bm if self.a_along_k else self.bk) * self.a_pitch

    @property
    def b_elements(self) -> int:
        return (self.bn if self.b_along_k else self.bk) * self.b_pitch

    @property
    def patch_bytes(self) -> int:
        """Bytes of shared memory in addition to the tiles: one fragment per warp."""
        return self.wm * self.wn * PATCH_FLOATS * 4 if self.structure == "tensor" else 0

    @property
    def tile_bytes(self) -> int:
        """Bytes of shared memory for the tiles of all stages. Each tile starts at a multiple of 128 bytes."""
        return self.stages * (_up(self.a_elements * self.element_bytes) + _up(self.b_elements * self.element_bytes))


def _up(size: int) -> int:
    return -(-size // 128) * 128


def plain(device: DeviceFact) -> Choices:
    """Return the choices of the first kernel: one output per thread."""
    return {
        "structure": "naive", "bm": 16, "bn": 16, "bk": 16, "tm": 1, "tn": 1, "wm": 2, "wn": 2, "vector": False,
        "copy": "sync", "stages": 2, "group": 1, "math": "precise", "arch": compute_capability(device.arch),
    }  # fmt: skip


def shared_limit(arch: int) -> int:
    """Return the maximum shared memory per block, in bytes."""
    return _SHARED_KB.get(arch, 48) * 1024


def resolve(choices: Choices, a: Operand, b: Operand, element_bytes: int, reserved_per_result: int = 0) -> Plan:
    """Return the plan for ``choices``. Adjust choices that the device or the shapes do not allow.

    Args:
        reserved_per_result: Bytes of shared memory that pooling needs per output of a tile, once the sums are complete.
            Pooling reuses the tiles' memory.
    """
    arch = int(choices["arch"])
    structure: Structure = "tensor" if choices["structure"] == "tensor" else (
        "tiles" if choices["structure"] == "tiles" else "naive"
    )  # fmt: skip
    if structure == "tensor" and arch < 80:
        structure = "tiles"
    bm, bn, bk, tm, tn, wm, wn = (int(choices[key]) for key in ("bm", "bn", "bk", "tm", "tn", "wm", "wn"))
    if structure == "tensor":
        bk = max(16, bk)
        bm, bn = max(16, bm), max(16, bn)
        wm, wn = min(wm, bm // 16), min(wn, bn // 16)
        while (bm // wm // 16) * (bn // wn // 16) > _MOST_FRAGMENTS:
            wm, wn = (wm * 2, wn) if bm // wm >= bn // wn else (wm, wn * 2)
        threads = wm * wn * 32
    elif structure == "naive":
        tm, tn = min(tm, bm), 1
        while bm // tm * bn > _NAIVE_THREADS:
            bm, bn = (bm // 2, bn) if bm // tm >= bn else (bm, bn // 2)
        threads = bm // tm * bn
    else:
        while (bm // tm) * (bn // tn) > _MOST_THREADS:
            tm, tn = (tm * 2, tn) if tm <= tn else (tm, tn * 2)
        while (bm // tm) * (bn // tn) < 32:
            tm, tn = (tm, tn // 2) if tn >= tm else (tm // 2, tn)
        threads = (bm // tm) * (bn // tn)
    vector = bool(choices["vector"])
    widths = (min(a.width, bk if a.along == "k" else bm), min(b.width, bk if b.along == "k" else bn))
    widths = widths if vector else (1, 1)
    copy: Literal["sync", "registers", "async"] = "sync"
    if choices["copy"] == "registers" or (choices["copy"] == "async" and arch < 80):
        copy = "registers"
    elif choices["copy"] == "async":
        copy = "async" if min(widths) * element_bytes >= 4 else "registers"
    stages = {"sync": 1, "registers": 2, "async": max(2, int(choices["stages"]))}[copy]
    # A direct copy keeps the memory order. A copy through registers may transpose a tile, so threads can read vectors.
    native = copy == "async" or structure == "tensor"
    a_along_k, b_along_k = native and a.along == "k", native and b.along == "k"
    plan = Plan(
        structure, bm, bn, bk, tm, tn, wm, wn, threads, widths, copy, stages, max(1, int(choices["group"])),
        element_bytes, a_along_k, b_along_k,
    )  # fmt: skip
    return _fitted(plan, shared_limit(arch), reserved_per_result)


def _fitted(plan: Plan, limit: int, reserved_per_result: int) -> Plan:
    while max(plan.tile_bytes, reserved_per_result * plan.bm * plan.bn) + plan.patch_bytes > limit:
        large = plan.tile_bytes + plan.patch_bytes > limit
        if large and plan.copy == "async" and plan.stages > 2:
            plan = replace(plan, stages=plan.stages - 1)
        elif large and plan.bk > 16:
            plan = replace(plan, bk=plan.bk // 2)
        elif plan.bn >= plan.bm:
            plan = _halved(plan, "n")
        else:
            plan = _halved(plan, "m")
    return plan


def _halved(plan: Plan, side: str) -> Plan:
    """Return the plan with the tile halved on one side, and with matching threads or warps."""
    if plan.structure == "tensor":
        if side == "n":
            wn = max(1, min(plan.wn, plan.bn // 32))
            return replace(plan, bn=plan.bn // 2, wn=wn, threads=plan.wm * wn * 32)
        wm = max(1, min(plan.wm, plan.bm // 32))
        return replace(plan, bm=plan.bm // 2, wm=wm, threads=wm * plan.wn * 32)
    plan = replace(plan, bn=plan.bn // 2) if side == "n" else replace(plan, bm=plan.bm // 2)
    tm, tn = plan.tm, plan.tn
    while (plan.bm // tm) * (plan.bn // tn) < 32:
        tm, tn = (tm, tn // 2) if tn >= tm else (tm // 2, tn)
    return replace(plan, tm=tm, tn=tn, threads=(plan.bm // tm) * (plan.bn // tn))
