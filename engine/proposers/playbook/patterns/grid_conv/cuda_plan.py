"""Resolve the choices of a grid convolution on tensor cores (``grid_conv.cu.j2``)."""

from __future__ import annotations

from math import prod

from msgspec import Struct

from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.patterns.gemm.tiles.cuda_plan import shared_limit
from engine.proposers.playbook.patterns.grid_conv.grid import Grid, Tap, grid_of
from engine.proposers.playbook.patterns.grid_conv.program import GridConvProgram

STRUCTURE = "grid"
PIECES = 8
"""Number of 16-byte pieces per line of a tile in shared memory. A swizzle of 128 bytes covers one line."""
_OCTET = 8
_MOST_OCTETS = 12000
"""Maximum number of octets per sum. Shared memory must have room for the distances of all octets."""
_STATIC_BYTES = 1024
_MOST_SPAN = 4
"""Reciprocal of the maximum growth of an image tile due to taps along x: 4 allows a quarter of the tile."""
_LEAST_BLOCKS = 1024
"""Minimum number of blocks if a block computes several tiles: enough for a few waves on all multiprocessors."""
_OTHER_REGISTERS = 80
"""Registers per thread, not counting the accumulators."""


class GridPlan(Struct, frozen=True):
    """The sizes of a tensor-core kernel. ``grid_conv.cu.j2`` explains them."""

    grid: Grid
    type: str
    parts: int
    wgmma: bool
    fold: int
    octets: int
    taps: tuple[tuple[tuple[tuple[int, int, tuple[int, ...]], ...], ...], ...]
    shared_taps: bool
    steps: tuple[int, ...]
    image_slots: int
    image_lines: int
    table_bytes: int
    bm: int
    bn: int
    warps_m: int
    warps_n: int
    stages: int
    ahead: int
    repeat: int
    per_sm: int
    before: int
    rows: int
    tiles: int
    filter_tiles: int
    shared_bytes: int
    grid_bytes: int
    weight_bytes: int

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def per_chunk(self) -> int:
        """Number of octets per chunk, which fills a line of a tile."""
        return PIECES // self.parts

    @property
    def blocks(self) -> int:
        return -(-self.tiles // self.repeat) * self.filter_tiles * self.grid.phases

    @property
    def first_steps(self) -> tuple[int, ...]:
        """The number of steps before each phase, followed by the total number of steps."""
        found = [0]
        for many in self.steps:
            found.append(found[-1] + many)
        return tuple(found)

    @property
    def workspace_bytes(self) -> int:
        return self.grid_bytes + self.weight_bytes


def first_choices(conv: GridConvProgram, wgmma: bool) -> Choices:
    """Return the choices of the first kernel on tensor cores."""
    lines = _lines(conv.group_filters, 128 if wgmma else 64)
    return {
        "structure": STRUCTURE, "product": "wgmma" if wgmma else "mma", "arithmetic": "bf16x3",
        "bm": 128 if lines > 32 else 256, "bn": lines, "warps_n": 2 if lines >= 32 and not wgmma else 1,
        "stages": 3, "repeat": 8,
    }  # fmt: skip


def refusal(conv: GridConvProgram, arch: int) -> str | None:
    """Return why the kernel on tensor cores does not support ``conv`` on the device, or None if it does."""
    if arch < 80:
        return "the device has no tensor cores for bf16"
    grid = grid_of(conv)
    octets = _octets(conv, grid)
    if octets[1] > _MOST_OCTETS:
        return f"a sum has more than {8 * _MOST_OCTETS} terms"
    if grid.residues * conv.groups * octets[0] * (grid.positions + 4 * sum(grid.reach)) >= 2**30:
        return "the convolution's images are too large for 32-bit addresses"
    return None


def _octets(conv: GridConvProgram, grid: Grid) -> tuple[int, int]:
    """Return the number of octets per position, and an upper bound on the number of octets per sum."""
    channels = -(-conv.group_channels // _OCTET)
    return channels, channels * prod(max(map(len, axis.phases)) for axis in grid.axes)


def _lines(filters: int, most: int) -> int:
    """Return the number of filters per tile: a multiple of 16 that divides the filters most evenly."""
    even = -(-filters // -(-filters // most))
    return -(-even // 16) * 16


def resolve(conv: GridConvProgram, choices: Choices) -> GridPlan:
    """Return the plan for ``choices``, with every knob clamped to a legal value."""
    arch = int(choices["arch"])
    grid = grid_of(conv)
    single = conv.dtype != "float32" or choices["arithmetic"] == "fp16"
    kind = "f16" if conv.dtype == "float16" or (conv.dtype == "float32" and single) else "bf16"
    parts = 1 if single else 2
    wgmma = choices["product"] == "wgmma" and arch == 90
    wide = grid.axes[2]
    fold = 1
    if len(wide.residues) == 1 and conv.group_channels < _OCTET:
        fold = max(1, min(_OCTET // conv.group_channels, max(map(len, wide.phases))))
    octets = -(-conv.group_channels * fold // _OCTET)
    taps = (
        tuple(tuple((tap.shift, tap.residue, (tap.at,)) for tap in phase) for phase in grid.axes[0].phases),
        tuple(tuple((tap.shift, tap.residue, (tap.at,)) for tap in phase) for phase in grid.axes[1].phases),
        tuple(_folded(phase, fold) for phase in wide.phases),
    )
    per_chunk = PIECES // parts
    bn = max(16, min(_lines(conv.group_filters, int(choices["bn"])), 256))
    warps_n = int(choices["warps_n"]) if not wgmma and bn % (16 * int(choices["warps_n"])) == 0 else 1
    bm = max(128, int(choices["bm"]))
    warps_m = max(2, bm // (64 if bn // warps_n <= 32 else 32))
    warps_m = (8 if bm >= 256 else 4) if wgmma else min(warps_m, 8 // warps_n)
    span = max((phase[-1][0] - phase[0][0] for phase in taps[2] if phase), default=0)
    shared_taps = len(wide.residues) == 1 and span <= bm // _MOST_SPAN
    inner = [len(x) if shared_taps else 1 for _ in taps[0] for _ in taps[1] for x in taps[2]]
    chunks = [
        -(-len(z) * len(y) * (1 if shared_taps else len(x)) * octets // per_chunk)
        for z in taps[0] for y in taps[1] for x in taps[2]
    ]  # fmt: skip
    steps = tuple(many * each for many, each in zip(chunks, inner, strict=True))
    before, after = grid.reach
    after += (fold - 1) * wide.spacing
    tiles = -(-grid.positions // bm)
    image_lines = bm + (-(-span // PIECES) * PIECES if shared_taps else 0)
    rows = -(-(before + tiles * bm + image_lines - bm + after) // PIECES) * PIECES
    table = -(-4 * (max(chunks) * per_chunk + bm) // 1024) * 1024
    limit = shared_limit(arch) - _STATIC_BYTES
    filter_tiles = -(-conv.group_filters // bn) * conv.groups
    repeat = max(1, min(int(choices["repeat"]), tiles * filter_tiles * grid.phases // _LEAST_BLOCKS))
    stages = max(2, min(int(choices["stages"]), max(steps)))
    results = 4 * bn * (bm + 4)
    least = min((many for many in inner if many), default=1)
    while True:
        slots = (stages - 2) // least + 2
        images, line = 16 * PIECES * slots * image_lines, 16 * PIECES * bn
        shared = table + max(images + stages * line, results)
        kept = table + max(steps) * line + max(images, results)
        if kept <= limit // 2 and repeat > 1:
            break
        repeat = 1
        if shared <= limit or stages == 2:
            break
        stages -= 1
    if repeat == 1 and shared > limit:
        return resolve(conv, {**choices, "bm": 128, "bn": bn if bm > 128 else bn // 2})
    ahead = stages - 1
    if repeat > 1:
        shared, stages = kept, max(steps)
    threads = 32 * warps_m * warps_n
    registers = bm * bn // threads + _OTHER_REGISTERS
    per_sm = max(1, min(limit // shared, 65536 // (threads * registers), 2048 // threads))
    return GridPlan(
        grid=grid,
        type=kind,
        parts=parts,
        wgmma=wgmma,
        fold=fold,
        octets=octets,
        taps=taps,
        shared_taps=shared_taps,
        steps=steps,
        image_slots=slots,
        image_lines=image_lines,
        table_bytes=table,
        bm=bm,
        bn=bn,
        warps_m=warps_m,
        warps_n=warps_n,
        stages=stages,
        ahead=ahead,
        repeat=repeat,
        per_sm=per_sm,
        before=before,
        rows=rows,
        tiles=tiles,
        filter_tiles=filter_tiles,
        shared_bytes=shared,
        grid_bytes=16 * parts * conv.groups * octets * grid.residues * rows,
        weight_bytes=16 * PIECES * sum(steps) * filter_tiles * bn,
    )


def _folded(taps: tuple[Tap, ...], fold: int) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Return taps in groups of ``fold``: the shift and residue of the first tap, and the weights of all taps."""
    return tuple(
        (group[0].shift, group[0].residue, tuple(tap.at for tap in group))
        for group in (taps[first : first + fold] for first in range(0, len(taps), fold))
    )
