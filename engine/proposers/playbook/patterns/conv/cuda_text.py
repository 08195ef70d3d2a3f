"""Source text of CUDA convolution kernels: pixels, taps and pooling."""

from __future__ import annotations

from msgspec import Struct

from engine.proposers.playbook.codegen.text import fill
from engine.proposers.playbook.patterns.conv.program import ConvProgram, Pair
from engine.proposers.playbook.patterns.gemm.tiles.cuda_load import Source
from engine.proposers.playbook.patterns.gemm.tiles.cuda_plan import Operand


class Patch(Struct, frozen=True):
    """A tile's columns as a patch of ``size`` pixels, which yields ``pooled`` outputs. ``tiles`` is the number of tiles
    that cover the image.
    """

    pooled: Pair
    size: Pair
    tiles: Pair


def patch_of(program: ConvProgram, columns: int) -> Patch | None:
    """Return the patch of at most ``columns`` pixels that needs the fewest tiles, or None if no pooling window fits."""
    pool = program.pool
    if pool is None:
        return None
    best: tuple[int, Patch] | None = None
    for wide in range(1, pool.size[1] + 1):
        across = (wide - 1) * pool.stride[1] + pool.reach[1]
        room = columns // across
        if room < pool.reach[0]:
            break
        high = min(pool.size[0], (room - pool.reach[0]) // pool.stride[0] + 1)
        down = (high - 1) * pool.stride[0] + pool.reach[0]
        tiles = (-(-pool.size[0] // high), -(-pool.size[1] // wide))
        work = tiles[0] * tiles[1]
        if best is None or work < best[0]:
            best = (work, Patch((high, wide), (down, across), tiles))
    return None if best is None else best[1]


_PIXEL = """\
// Finds the place of pixel r in the image of results. Returns false past the end.
__device__ __forceinline__ bool pixel(int r, int& y, int& x) {
    y = r / $wide;
    x = r % $wide;
    return r < N;
}
"""
_PIXEL_OF_PATCH = """\
// A tile's columns are a patch of $down x $across pixels, which yields $high x $wide pooled pixels. Finds the place
// of pixel r of all patches in the image of results. Returns false outside the image.
__device__ __forceinline__ bool pixel(int r, int& y, int& x) {
    const int patch = r / BN, local = r % BN;
    y = patch / $tiles_x * $step_y - $pad_y + local / $across;
    x = patch % $tiles_x * $step_x - $pad_x + local % $across;
    return local < $pixels && y >= 0 && y < $rows && x >= 0 && x < $cols;
}
"""


def pixel_function(program: ConvProgram, patch: Patch | None) -> str:
    """Return the function ``pixel``, which maps a column of the implicit GEMM to a pixel."""
    if patch is None or program.pool is None:
        return fill(_PIXEL, wide=program.size[1])
    pool = program.pool
    return fill(
        _PIXEL_OF_PATCH,
        down=patch.size[0],
        across=patch.size[1],
        high=patch.pooled[0],
        wide=patch.pooled[1],
        pixels=patch.size[0] * patch.size[1],
        tiles_x=patch.tiles[1],
        step_y=patch.pooled[0] * pool.stride[0],
        step_x=patch.pooled[1] * pool.stride[1],
        pad_y=pool.padding[0],
        pad_x=pool.padding[1],
        rows=program.size[0],
        cols=program.size[1],
    )


def image_source(program: ConvProgram) -> Source:
    """Return the right operand, whose element (k, r) is tap k of pixel r, or zero outside the image."""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = program.kernel, program.stride, program.padding, program.dilation
    _, of_channel, of_row, of_pixel = program.strides
    group = "b" if program.groups == 1 else f"b / {program.groups}"
    parts = [f"t.{program.x}", str(program.offset) if program.offset else "", f"({group}) * {program.strides[0]}LL"]
    if program.groups > 1:
        parts.append(f"(b % {program.groups}) * {program.channels // program.groups * of_channel}LL")
    locate = (
        "int y, x;",
        "const bool real = pixel(r, y, x);",
        f"const int from_y = y * {sh} - {ph} + k / {kw} % {kh} * {dh}, from_x = x * {sw} - {pw} + k % {kw} * {dw};",
        f"const bool inside = real && k < K && from_y >= 0 && from_y < {program.image[0]} && from_x >= 0 && "
        f"from_x < {program.image[1]};",
        f"const Element* from = inside ? base + (k / {kh * kw} * {of_channel}LL + from_y * {of_row}LL "
        f"+ from_x * {of_pixel}LL) : base;",
    )
    return Source(" + ".join(part for part in parts if part), Operand("r", 1), locate)


_POOL = """\
// The second pass: a thread per pooled pixel.
__global__ void __launch_bounds__(256) pool(Tensors t) {
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= $numel) return;
    const int n = int(i % $plane);
    const float* from = t.results + i / $plane * N;
    float best = $lowest;
    for (int j = 0; j < $window; ++j) {
        const int y = n / $wide * $step_y - $pad_y + j / $window_x * $dilation_y;
        const int x = n % $wide * $step_x - $pad_x + j % $window_x * $dilation_x;
        if (y < 0 || y >= $rows || x < 0 || x >= $cols) continue;
        const float value = from[y * $cols + x];
        best = value > best || value != value ? value : best;
    }
    finish(t, i, n, best);
}
"""
LOWEST = "__int_as_float(0xff800000)"  # minus infinity


def pool_kernel(program: ConvProgram) -> str:
    """Return the kernel ``pool``, the second pass, which reads convolution outputs from scratch memory."""
    pool = program.pool
    assert pool is not None
    return fill(
        _POOL,
        numel=f"{program.chain.numel}LL",
        plane=program.columns,
        lowest=LOWEST,
        window=pool.window[0] * pool.window[1],
        window_x=pool.window[1],
        wide=pool.size[1],
        step_y=pool.stride[0],
        step_x=pool.stride[1],
        pad_y=pool.padding[0],
        pad_x=pool.padding[1],
        dilation_y=pool.dilation[0],
        dilation_x=pool.dilation[1],
        rows=program.size[0],
        cols=program.size[1],
    )


def pool_patch(program: ConvProgram, patch: Patch) -> tuple[str, ...]:
    """Return lines that pool each filter's patch in shared memory."""
    pool = program.pool
    assert pool is not None
    high, wide = patch.pooled
    return (
        f"for (int e = threadIdx.x; e < BM * {high * wide}; e += threads) {{",
        f"    const int row = e / {high * wide}, down = e / {wide} % {high}, right = e % {wide}, m = m0 + row;",
        f"    const int y = n0 / BN / {patch.tiles[1]} * {high} + down;",
        f"    const int x = n0 / BN % {patch.tiles[1]} * {wide} + right;",
        f"    if (m >= M || y >= {pool.size[0]} || x >= {pool.size[1]}) continue;",
        f"    const float* from = results + row * BN + down * {pool.stride[0] * patch.size[1]} "
        f"+ right * {pool.stride[1]};",
        f"    float best = {LOWEST};",
        f"    for (int i = 0; i < {pool.window[0]}; ++i)",
        f"        for (int j = 0; j < {pool.window[1]}; ++j) {{",
        f"            const float value = from[i * {pool.dilation[0] * patch.size[1]} + j * {pool.dilation[1]}];",
        "            best = value > best || value != value ? value : best;",
        "        }",
        f"    const int n = y * {pool.size[1]} + x;",
        f"    finish(t, (b * M + m) * {program.columns} + n, n, best);",
        "}",
    )
