"""Resolve the choices of a convolution that builds its image operand from octets in shared memory (``conv_octets``).

An octet is 8 adjacent elements along k: a block of channels x rows x columns of the image. The kernel packs filters in
the same order, so that tensor cores see an ordinary product. Octets may overlap in the image, for example where the
stride is 1.
"""

from __future__ import annotations

from math import gcd

from msgspec import Struct

from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.patterns.conv.program import ConvProgram, Pair
from engine.proposers.playbook.patterns.gemm.tiles.cuda_plan import shared_limit

STRUCTURE = "octets"
_OCTETS = ((8, 1, 1), (4, 2, 1), (4, 1, 2), (2, 4, 1), (2, 2, 2), (2, 1, 4), (1, 8, 1), (1, 4, 2), (1, 2, 4), (1, 1, 8))
_MOST_STEPS = 40
"""Maximum number of steps (each 16 elements along k) in a chunk of several octets, because the kernel unrolls the
steps.
"""
_MOST_PRODUCTS = 2048
"""Maximum number of tensor-core instructions in a chunk of several octets, because the kernel unrolls its loops."""
_OTHER_REGISTERS = 44
"""Registers per thread, not counting accumulators and fragments. With fewer registers, the compiler spills."""
_TEAM_REGISTERS = 40
"""Registers of each thread that does not load patches, not counting accumulators and fragments."""
_LOADER_REGISTERS = 56
"""Registers of each thread that only loads patches."""


class OctetPlan(Struct, frozen=True):
    """The sizes of a kernel with octets. ``conv_octets.cu.j2`` explains the algorithm."""

    type: str
    parts: int
    wgmma: bool
    octet: tuple[int, int, int]
    grain: Pair
    taps: Pair
    tap_step: Pair
    pixel_step: Pair
    pair: str
    chunk: int
    chunks: int
    steps: int
    lines: int
    filter_tiles: int
    fragments: int
    teams: int
    team_threads: int
    buffers: int
    resident: bool
    flat: bool
    tile: Pair
    tiles_x: int
    tiles: int
    tile_step: Pair
    tile_offset: Pair
    pooled: Pair
    patch: Pair
    vector: int
    batch: int
    stage_filters: int
    blocks: int
    blocks_per_sm: int
    packed_bytes: int
    pack_blocks: int
    shared_bytes: int
    prefetch: bool
    overlap: bool
    vector_stores: bool
    loader_threads: int
    loader_registers: int
    team_registers: int


class _Geometry(Struct, frozen=True):
    """The pixels of a tile, and the patch of the image that the tile needs."""

    flat: bool
    tile: Pair
    tiles: Pair
    step: Pair
    offset: Pair
    pooled: Pair


def first_choices(sms: int, *, wgmma: bool) -> Choices:
    """Return the choices of the first kernel with octets, for a device with ``sms`` multiprocessors."""
    return {
        "structure": STRUCTURE, "product": "wgmma" if wgmma else "mma", "arithmetic": "bf16x3", "lines": 96,
        "fragments": 2, "teams": 3, "team_warps": 4, "buffers": 2, "batch": 8,
        "stage_filters": 16, "blocks_per_sm": 1, "prefetch": wgmma, "loaders": False, "tile_rows": 0,
        "sms": sms,
    }  # fmt: skip


def refusal(conv: ConvProgram, arch: int) -> str | None:
    """Return why a kernel with octets does not support ``conv`` on the device, or None if it does."""
    if arch < 80:
        return "the device has no tensor cores for bf16"
    if conv.k < 16 or conv.m < 8:
        return "the convolution is too small for tensor cores"
    if conv.channels * max(conv.strides[1], 1) >= 2**31 or conv.image[0] * max(conv.strides[2], 1) >= 2**31:
        return "the convolution's images are too large for 32-bit addresses"
    if conv.images * conv.n >= 2**30 or _packed_elements(conv) >= 2**27:
        return "the convolution is too large for 32-bit counters"
    return None


def _packed_elements(conv: ConvProgram) -> int:
    return 16 * conv.filters * conv.k


def resolve(conv: ConvProgram, choices: Choices) -> OctetPlan | None:
    """Return the plan for ``choices``, with every knob clamped to a legal value. Return None if no plan fits the
    device.
    """
    arch, sms = int(choices["arch"]), max(1, int(choices["sms"]))
    single = conv.dtype != "float32" or choices["arithmetic"] == "fp16"
    kind = "f16" if conv.dtype == "float16" or (conv.dtype == "float32" and single) else "bf16"
    parts = 1 if single else 2
    wgmma = choices["product"] == "wgmma" and arch == 90
    per_sm = int(choices["blocks_per_sm"])
    limit = min(shared_limit(arch), (shared_limit(arch) + 1024) // per_sm - 1024)
    warps = max(4, int(choices["team_warps"]) // 4 * 4) if wgmma else int(choices["team_warps"])
    for most in (int(choices["lines"]), 64, 32, 16):
        lines = filter_lines(conv.m, most)
        for fragments in (4, 2, 1):
            for teams in range(int(choices["teams"]), 0, -1):
                if fragments <= int(choices["fragments"]) and most <= int(choices["lines"]):
                    found = _fitted(
                        conv, kind, parts, wgmma, lines, fragments, teams, warps, limit, sms * per_sm, choices
                    )
                    if found is not None:
                        return found
    return None


def _fitted(
    conv: ConvProgram, kind: str, parts: int, wgmma: bool, lines: int, fragments: int, teams: int, warps: int,
    limit: int, blocks: int, choices: Choices,
) -> OctetPlan | None:  # fmt: skip
    geometry = geometry_of(conv, 16 * warps * fragments, int(choices["tile_rows"]))
    per_sm = int(choices["blocks_per_sm"])
    # setmaxnreg moves registers from the loaders to the teams.
    team_registers = (65536 // 128 - _LOADER_REGISTERS) // teams // 8 * 8
    loads = bool(choices["loaders"]) and wgmma and per_sm == 1 and warps == 4 and teams in (2, 3)
    kept = team_registers - _TEAM_REGISTERS - (4 if conv.pool is not None else 0)
    loads = loads and _buffers(kept, lines, fragments, parts) > 0
    registers = min(255, 65536 // (32 * warps * teams * per_sm) // 8 * 8) - _OTHER_REGISTERS
    most = _buffers(kept if loads else registers, lines, fragments, parts)
    if geometry is None or teams * warps > 32 or most < 1:
        return None
    buffers = min(int(choices["buffers"]), most)
    octet = octet_of(conv)
    grain = tuple(
        gcd(stride, dilation) if size == 1 else gcd(stride, size)
        for stride, dilation, size in zip(conv.stride, conv.dilation, octet[1:], strict=True)
    )
    taps = tuple(-(-size // part) for size, part in zip(conv.kernel, octet[1:], strict=True))
    tap_step = tuple(
        (dilation if size == 1 else size) // step
        for dilation, size, step in zip(conv.dilation, octet[1:], grain, strict=True)
    )
    pixel_step = tuple(stride // step for stride, step in zip(conv.stride, grain, strict=True))
    span = (_flat_rows(conv, 16 * warps * fragments), conv.size[1]) if geometry.flat else geometry.tile
    patch = tuple(
        (many - 1) * pixel + (tap - 1) * step + 1
        for many, pixel, tap, step in zip(span, pixel_step, taps, tap_step, strict=True)
    )
    depth = -(-conv.channels // conv.groups // octet[0])
    filter_tiles = -(-conv.m // lines)
    stage_filters = next(n for n in (int(choices["stage_filters"]), 8) if lines % n == 0)
    width = 16 * warps * fragments + 4 if conv.pool is not None else warps * (16 * fragments + 4)
    vectors = geometry.flat and len(conv.chain.stores) == 1
    stage = 4 * stage_filters * width
    for chunks in range(1, depth + 1):
        chunk = -(-depth // chunks)
        if -(-depth // chunk) != chunks:
            continue
        steps = -(-chunk * taps[0] * taps[1] // 2)
        products = steps * (2 * parts - 1) * fragments * (1 if wgmma else lines // 8)
        if chunk > 1 and (steps > _MOST_STEPS or products > _MOST_PRODUCTS):
            continue
        filters, image = steps * 2 * lines * 16 * parts, chunk * patch[0] * patch[1] * 16 * parts
        for resident in (True, False):
            size = (chunks * filters if resident else teams * filters) + teams * (image + stage)
            if size > limit:
                continue
            sets = filter_tiles * conv.groups
            loaders = 128 if loads and resident else 0
            batch = max(1, min(int(choices["batch"]), 4 // parts if loaders else 8 if wgmma else 4))
            tiles = geometry.tiles[0] * geometry.tiles[1]
            many = max(1, min(blocks // sets, -(-conv.images * tiles // teams)))
            even = (("y", taps[0]), ("x", taps[1]), ("c", chunk))
            packed = sets * chunks * steps * 2 * lines
            vector = _vector(conv, octet, (grain[0], grain[1]), geometry)
            return OctetPlan(
                type=kind,
                parts=parts,
                wgmma=wgmma,
                octet=octet,
                grain=(grain[0], grain[1]),
                taps=(taps[0], taps[1]),
                tap_step=(tap_step[0], tap_step[1]),
                pixel_step=(pixel_step[0], pixel_step[1]),
                pair=next((name for name, size in even if size % 2 == 0), ""),
                chunk=chunk,
                chunks=chunks,
                steps=steps,
                lines=lines,
                filter_tiles=filter_tiles,
                fragments=fragments,
                teams=teams,
                team_threads=32 * warps,
                buffers=buffers,
                resident=resident,
                flat=geometry.flat,
                tile=geometry.tile,
                tiles_x=geometry.tiles[1],
                tiles=tiles,
                tile_step=geometry.step,
                tile_offset=geometry.offset,
                pooled=geometry.pooled,
                patch=(patch[0], patch[1]),
                vector=vector,
                batch=batch,
                stage_filters=stage_filters,
                blocks=many,
                blocks_per_sm=per_sm,
                packed_bytes=packed * 16 * parts,
                pack_blocks=-(-packed // 128),
                shared_bytes=size,
                prefetch=bool(choices["prefetch"]),
                overlap=wgmma,
                vector_stores=vectors,
                loader_threads=loaders,
                loader_registers=_LOADER_REGISTERS,
                team_registers=team_registers,
            )
    return None


def _buffers(registers: int, lines: int, fragments: int, parts: int) -> int:
    """Return the number of steps whose fragments fit in ``registers`` together with the accumulators."""
    return (registers - fragments * lines // 2) // (4 * fragments * parts)


def filter_lines(filters: int, most: int) -> int:
    """Return the number of filters per tile, at most ``most``, that divides the filters most evenly."""
    step = 16
    tiles = -(-filters // most)
    each = -(-filters // tiles)
    return -(-each // step) * step


def octet_of(conv: ConvProgram) -> tuple[int, int, int]:
    """Return the octet shape with the least padding along k. Among shapes with equal padding, prefer few bank
    conflicts, small patches and wide rows.
    """

    def cost(octet: tuple[int, int, int]) -> tuple[float, ...]:
        deep, high, wide = octet
        channels = conv.channels // conv.groups
        terms = -(-channels // deep) * -(-conv.kernel[0] // high) * -(-conv.kernel[1] // wide)
        overlap = (high / gcd(conv.stride[0], high)) * (wide / gcd(conv.stride[1], wide))
        conflicts = 1 - conv.stride[1] // gcd(conv.stride[1], wide) % 2
        return terms, conflicts, overlap, -wide

    fitting = [
        octet
        for octet in _OCTETS
        if all(size == 1 or step == 1 for size, step in zip(octet[1:], conv.dilation, strict=True))
    ]
    return min(fitting, key=cost)


def geometry_of(conv: ConvProgram, pixels: int, rows: int) -> _Geometry | None:
    """Return tiles of at most ``pixels`` pixels, or None if no pooling window fits.

    Args:
        rows: The number of rows per tile, or 0 for tiles of adjacent pixels if the image is narrow enough.
    """
    if conv.pool is None:
        if not rows and conv.size[1] <= pixels // 2:
            return _Geometry(True, (0, 0), (-(-conv.n // pixels), 1), (0, 0), (0, 0), (0, 0))
        high = min(conv.size[0], rows or 8)
        wide = pixels // high
        tiles = (-(-conv.size[0] // high), -(-conv.size[1] // wide))
        return _Geometry(False, (high, wide), tiles, (high, wide), (0, 0), (0, 0))
    pool = conv.pool
    best: tuple[int, int, _Geometry] | None = None
    for wide in range(1, pool.size[1] + 1):
        across = (wide - 1) * pool.stride[1] + pool.reach[1]
        if pixels // across < pool.reach[0]:
            break
        high = min(pool.size[0], (pixels // across - pool.reach[0]) // pool.stride[0] + 1)
        down = (high - 1) * pool.stride[0] + pool.reach[0]
        tiles = (-(-pool.size[0] // high), -(-pool.size[1] // wide))
        step = (high * pool.stride[0], wide * pool.stride[1])
        key = (tiles[0] * tiles[1], down + across)
        if best is None or key < best[:2]:
            best = (*key, _Geometry(False, (down, across), tiles, step, pool.padding, (high, wide)))
    return None if best is None else best[2]


def _flat_rows(conv: ConvProgram, pixels: int) -> int:
    """Return the maximum number of rows that ``pixels`` adjacent pixels touch if they start at a multiple of
    ``pixels``.
    """
    wide = conv.size[1]
    return max((min(first + pixels, conv.n) - 1) // wide - first // wide + 1 for first in range(0, conv.n, pixels))


def _vector(conv: ConvProgram, octet: tuple[int, int, int], grain: Pair, geometry: _Geometry) -> int:
    """Return the number of elements per load of an octet's row. All elements of a load are inside the image, or all are
    outside.
    """
    if conv.strides[3] != 1:
        return 1
    width = min(octet[2], 16 // conv.element_bytes)
    first = 0 if geometry.flat else geometry.step[1] * conv.stride[1]
    start = conv.padding[1] + (0 if geometry.flat else geometry.offset[1] * conv.stride[1])
    numbers = (conv.image[1], *conv.strides[:3], conv.offset, grain[1], first, start)
    while any(number % width for number in numbers):
        width //= 2
    return width
