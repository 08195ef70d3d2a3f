"""Resolve the choices of a convolution whose blocks stream down the rows of images (``hopper/conv_rows``)."""

from __future__ import annotations

from math import gcd

from msgspec import Struct

from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.patterns.conv.cuda_octets_plan import filter_lines, octet_of
from engine.proposers.playbook.patterns.conv.program import ConvProgram, Pair
from engine.proposers.playbook.patterns.gemm.tiles.cuda_plan import shared_limit

STRUCTURE = "stream"
_TILE = 64
"""Pixels per product: a warpgroup's rows in wgmma."""
_LEAST_USE = 0.4
"""Minimum share of a product's pixels that yield results. Below this share, tiles of adjacent pixels waste less
work.
"""
_MOST_PRODUCTS = 512
"""Maximum number of products per row, because the kernel unrolls the products."""
_OTHER_REGISTERS = 44
"""Registers per consumer thread, not counting accumulators. With fewer registers, the compiler spills."""
_REGISTERS = {(1, 1): (255, 0), (1, 2): (240, 128), (1, 3): (224, 96), (2, 1): (176, 80)}
"""Registers per consumer thread and per producer thread, by (teams, loaders). 0 keeps the compiler's register
count. The block's total must not exceed the registers at launch (per thread: 65536 / threads, rounded down to a
multiple of 8). With a larger total, the block waits forever.
"""
_BARRIERS_BYTES = 512
_TABLE_BYTES = 2048
"""Bytes for epilogue values that depend only on the filter: four values for each of 128 filters."""
_GROUPS = 9
"""Maximum number of groups of products per row. Between the groups, the kernel writes results of the previous row."""


class Octet(Struct, frozen=True):
    """Eight elements along k: octet ``c`` along the channels at tap (``y``, ``x``), and the octet's place in the
    ring.
    """

    c: int
    y: int
    x: int
    real: bool
    plane: int
    shift: int


class Step(Struct, frozen=True):
    """A step of 16 elements along k: two octets in slot ``slot`` of the slots that a row of results needs, the lower
    address first.
    """

    slot: int
    octets: tuple[Octet, Octet]


class Product(Struct, frozen=True):
    """One product of a step. ``left`` and ``right`` are 1 for an operand's remainder and 0 for the rounded operand.
    ``add`` is 0 for the first product.
    """

    step: Step
    number: int
    left: int
    right: int
    add: int


class StreamPlan(Struct, frozen=True):
    """The sizes of the row-streaming kernel. ``conv_rows.cu.j2`` explains the algorithm."""

    type: str
    parts: int
    octet: tuple[int, int, int]
    grain: Pair
    taps: Pair
    tap_step: Pair
    pixel_step: Pair
    depth: int
    window: int
    steps: tuple[Step, ...]
    products: tuple[tuple[Product, ...], ...]
    lines: int
    filter_tiles: int
    teams: int
    loaders: int
    accumulators: int
    blocks: int
    stage_filters: int
    most_slots: int
    slots: int
    vector: int
    batch: int
    prefetch: int
    consumer_registers: int
    producer_registers: int


def first_choices(sms: int) -> Choices:
    """Return the choices of the first kernel that streams down rows, for a device with ``sms`` multiprocessors."""
    return {
        "structure": STRUCTURE, "arithmetic": "bf16x3", "lines": 96, "teams": 2, "loaders": 1, "most_slots": 12,
        "batch": 3, "prefetch": 2, "sms": sms,
    }  # fmt: skip


def refusal(conv: ConvProgram, arch: int) -> str | None:
    """Return why a kernel that streams down rows does not support ``conv`` on the device, or None if it does."""
    if arch != 90:
        return "the device has no wgmma instructions"
    if conv.k < 32 or conv.m < 8:
        return "the convolution is too small for tensor cores"
    if conv.channels * max(conv.strides[1], 1) >= 2**31 or conv.image[0] * max(conv.strides[2], 1) >= 2**31:
        return "the convolution's images are too large for 32-bit addresses"
    pool = conv.pool
    if pool is not None:
        (high, _), (down, _), (rim, _) = pool.window, pool.stride, pool.padding
        if pool.dilation[0] != 1 or high not in (down, down + 1) or rim > max(high - 2, 0):
            return "pooling windows have gaps, excess padding, or more than one shared row"
        if pool.reach[1] > _TILE // 2 or pool.size != _pooled_size(conv):
            return "pooling windows are too wide or extend past the padded image"
    pixels, use = _strip(conv)
    if use < _LEAST_USE:
        return f"rows of {pixels} pixels leave most of a wgmma product empty"
    return None


def _pooled_size(conv: ConvProgram) -> Pair:
    assert conv.pool is not None
    pool = conv.pool
    high, wide = (
        (size + 2 * rim - reach) // step + 1
        for size, rim, reach, step in zip(conv.size, pool.padding, pool.reach, pool.stride, strict=True)
    )
    return high, wide


def _strip(conv: ConvProgram) -> tuple[int, float]:
    """Return the number of pixels in a strip of a row, and the share of a product's pixels that yield results."""
    pool = conv.pool
    if pool is None:
        strips = -(-conv.size[1] // _TILE)
        pixels = -(-conv.size[1] // strips)
        return pixels, conv.size[1] / strips / _TILE
    wide = pool.size[1]
    strips = -(-wide // ((_TILE - pool.reach[1]) // pool.stride[1] + 1))
    pixels = (-(-wide // strips) - 1) * pool.stride[1] + pool.reach[1]
    return pixels, wide * pool.stride[1] / strips / _TILE


def resolve(conv: ConvProgram, choices: Choices) -> StreamPlan | None:
    """Return the plan for ``choices``, with every knob clamped to a legal value. Return None if no plan fits the
    device.
    """
    for lines in dict.fromkeys((int(choices["lines"]), 96, 64, 48, 32)):
        if lines <= int(choices["lines"]):
            for teams in (2, 1):
                if teams <= int(choices["teams"]):
                    found = _fitted(conv, choices, teams, filter_lines(conv.m, lines))
                    if found is not None:
                        return found
    return None


def _fitted(conv: ConvProgram, choices: Choices, teams: int, lines: int) -> StreamPlan | None:
    single = conv.dtype != "float32" or choices["arithmetic"] == "fp16"
    kind = "f16" if conv.dtype == "float16" or (conv.dtype == "float32" and single) else "bf16"
    parts = 1 if single else 2
    loaders = 1 if teams == 2 else max(1, min(int(choices["loaders"]), 3))
    consumer, producer = _REGISTERS[teams, loaders]
    accumulators = 1 if teams == 2 else 2
    sums = (lines // 2) * (accumulators + (1 if conv.pool is not None else 0))
    if sums > consumer - _OTHER_REGISTERS:
        return None
    octet = octet_of(conv)
    grain, taps, tap_step, pixel_step = _lattice(conv, octet)
    depth = -(-conv.channels // conv.groups // octet[0])
    window = (taps[0] - 1) * tap_step[0] // pixel_step[0] + 1
    steps = _steps(depth, taps, tap_step, pixel_step, window)
    if steps is None or len(steps) * (2 * parts - 1) > _MOST_PRODUCTS:
        return None
    pixels, _ = _strip(conv)
    row = (pixels - 1) * pixel_step[1] + (taps[1] - 1) * tap_step[1] + 1
    planes = depth * pixel_step[0] * pixel_step[1]
    phase_row = -(-row // pixel_step[1])
    pitch = 68 if conv.pool is not None else 68 + conv.n % 4
    for stage in (lines, 64, 32, 16):
        if accumulators == 1 and stage != lines:
            continue  # The next products need the accumulators' registers.
        if lines % stage or (stage % 32 and stage != lines and lines % 32 == 0):
            continue
        left = (shared_limit(90) - len(steps) * 2 * lines * 16 * parts - _BARRIERS_BYTES - _TABLE_BYTES) // teams
        left -= (stage * pitch + 4) * 4
        slots = window + 2
        while planes * _plane(slots, phase_row, pixel_step[1]) * 16 * parts <= left:
            slots += 1
        slots = min(slots - 1, int(choices["most_slots"]))
        if slots < window + 2:
            continue
        sets = -(-conv.m // lines) * conv.groups
        return StreamPlan(
            type=kind,
            parts=parts,
            octet=octet,
            grain=grain,
            taps=taps,
            tap_step=tap_step,
            pixel_step=pixel_step,
            depth=depth,
            window=window,
            steps=steps,
            products=_products(steps, parts),
            lines=lines,
            filter_tiles=-(-conv.m // lines),
            teams=teams,
            loaders=loaders,
            accumulators=accumulators,
            blocks=max(1, int(choices["sms"]) // sets),
            stage_filters=stage,
            most_slots=max(int(choices["most_slots"]), window + 2),
            slots=slots,
            vector=_vector(conv, octet, grain),
            batch=max(1, min(int(choices["batch"]), 4)),
            prefetch=int(choices["prefetch"]),
            consumer_registers=consumer if producer else 0,
            producer_registers=producer,
        )
    return None


def _plane(slots: int, phase_row: int, pixel_x: int) -> int:
    """Return the number of octets in a plane of the ring."""
    return slots * phase_row if pixel_x == 1 else -(-slots * phase_row // 8) * 8 + 4


def _lattice(conv: ConvProgram, octet: tuple[int, int, int]) -> tuple[Pair, Pair, Pair, Pair]:
    """Return the distance between octets in the image (in pixels), the number of octets per filter, and the distances
    between taps and between pixels (in octets).
    """
    grain, taps, tap_step, pixel_step = [], [], [], []
    for size, part, stride, dilation in zip(conv.kernel, octet[1:], conv.stride, conv.dilation, strict=True):
        step = gcd(stride, dilation) if part == 1 else gcd(stride, part)
        grain.append(step)
        taps.append(-(-size // part))
        tap_step.append((dilation if part == 1 else part) // step)
        pixel_step.append(stride // step)
    return (
        (grain[0], grain[1]),
        (taps[0], taps[1]),
        (tap_step[0], tap_step[1]),
        (pixel_step[0], pixel_step[1]),
    )


def _steps(depth: int, taps: Pair, tap_step: Pair, pixel_step: Pair, window: int) -> tuple[Step, ...] | None:
    """Pair the octets of each slot, so that the distance within a pair is the same everywhere in the ring. Return None
    if a slot has only one octet.
    """
    found = []
    for slot in range(window):
        octets = [
            Octet(c, y, x, True, (c * pixel_step[0] + sub) * pixel_step[1] + phase, shift)
            for x in range(taps[1])
            for phase, shift in [(x * tap_step[1] % pixel_step[1], x * tap_step[1] // pixel_step[1])]
            for c in range(depth)
            for y in range(taps[0])
            for at, sub in [divmod(y * tap_step[0], pixel_step[0])]
            if at == slot
        ]
        if len(octets) == 1:
            return None
        if len(octets) % 2:
            first = octets[0]  # Filters are 0 for the added octet, so it may read any elements.
            octets.append(Octet(first.c, first.y, first.x, False, first.plane, first.shift))
        for left, right in zip(octets[::2], octets[1::2], strict=True):
            low, high = sorted((left, right), key=lambda one: (one.plane, one.shift))
            found.append(Step(slot, (low, high)))
    return tuple(found)


def _products(steps: tuple[Step, ...], parts: int) -> tuple[tuple[Product, ...], ...]:
    """Return a row's products in groups. Small terms come first, because tensor cores truncate sums."""
    kinds = ((1, 0), (0, 1), (0, 0)) if parts == 2 else ((0, 0),)
    found = [
        Product(step, number, left, right, int(bool(at or number)))
        for at, (left, right) in enumerate(kinds)
        for number, step in enumerate(steps)
    ]
    size = -(-len(found) // _GROUPS)
    return tuple(tuple(found[first : first + size]) for first in range(0, len(found), size))


def _vector(conv: ConvProgram, octet: tuple[int, int, int], grain: Pair) -> int:
    """Return the maximum number of elements per load of an octet's row that is legal for every image size."""
    if conv.strides[3] != 1:
        return 1
    rim = 0 if conv.pool is None else conv.pool.padding[1] * conv.stride[1]
    return gcd(octet[2], 16 // conv.element_bytes, grain[1], conv.padding[1] + rim)
