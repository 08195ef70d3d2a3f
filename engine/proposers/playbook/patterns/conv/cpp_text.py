"""Source text of C++ convolution kernels: constants, taps, packing and pooling."""

from __future__ import annotations

from engine.proposers.playbook.codegen.text import function, indent
from engine.proposers.playbook.patterns.conv.program import ConvProgram


def constants(program: ConvProgram) -> list[str]:
    """Return constants for the sizes of images, filters and outputs."""
    lines = [
        f"constexpr long long kM = {program.m}, kN = {program.n}, kK = {program.k};"
        "  // filters of a group, pixels, taps",
        f"constexpr long long kOutWide = {program.size[1]};",
    ]
    if program.pool is not None:
        lines.append(f"constexpr long long kPoolHigh = {program.pool.size[0]};")
    return lines


def image_pointer(program: ConvProgram) -> str:
    """Return the address of the first channel in matrix ``b``, which is an image or one group of its channels."""
    parts = [f"t.{program.x}", str(program.offset) if program.offset else ""]
    image = "b" if program.groups == 1 else f"b / {program.groups}"
    parts.append(f"({image}) * {program.strides[0]}LL")
    if program.groups > 1:
        parts.append(f"(b % {program.groups}) * {program.channels // program.groups * program.strides[1]}LL")
    return " + ".join(part for part in parts if part)


def weight_pointer(program: ConvProgram) -> str:
    """Return the address of the first filter in matrix ``b``."""
    return f"t.{program.w}" + (f" + (b % {program.groups}) * (kM * kK)" if program.groups > 1 else "")


def taps(program: ConvProgram, each: list[str]) -> list[str]:
    """Return loops over the taps of pixel (``y``, ``x``). ``each`` can use ``tap`` and ``at``, the tap's index in the
    image.
    """
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = program.kernel, program.stride, program.padding, program.dilation
    return [
        "for (long long tap = 0; tap < kK; ++tap) {",
        f"  const long long from_y = y * {sh} - {ph} + tap / {kw} % {kh} * {dh};",
        f"  const long long from_x = x * {sw} - {pw} + tap % {kw} * {dw};",
        f"  if (from_y < 0 || from_y >= {program.image[0]} || from_x < 0 || from_x >= {program.image[1]}) continue;",
        f"  const long long at = tap / {kh * kw} * {program.strides[1]} + from_y * {program.strides[2]} "
        f"+ from_x * {program.strides[3]};",
        *indent(each),
        "}",
    ]


def tap_rows(program: ConvProgram, each: list[str]) -> list[str]:
    """Return loops over the taps of row ``y``.

    ``each`` can use ``tap``, the range [``low``, ``high``) of x inside the image, and ``from``. Pixel x reads element
    ``x * kStep`` of ``from``.
    """
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = program.kernel, program.stride, program.padding, program.dilation
    step = sw * program.strides[3]
    return [
        f"constexpr long long kStep = {step};",
        "for (long long tap = 0; tap < kK; ++tap) {",
        f"  const long long from_y = y * {sh} - {ph} + tap / {kw} % {kh} * {dh};",
        f"  const long long from_x = tap % {kw} * {dw} - {pw};  // of x = 0",
        f"  if (from_y < 0 || from_y >= {program.image[0]} || from_x >= {program.image[1]}) continue;",
        f"  const long long low = from_x < 0 ? (-from_x + {sw - 1}) / {sw} : 0;",
        f"  const long long last = ({program.image[1] - 1} - from_x) / {sw} + 1;",
        "  const long long high = last < kOutWide ? last : kOutWide;",
        f"  const float* from = image + tap / {kh * kw} * {program.strides[1]} + from_y * {program.strides[2]} "
        f"+ from_x * {program.strides[3]};",
        *indent(each),
        "}",
    ]


def pack_panel(program: ConvProgram) -> list[str]:
    """Return statements that write ``kCols`` pixels per tap contiguously, with zeros outside the image and in columns
    ``n1`` and above.
    """
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = program.kernel, program.stride, program.padding, program.dilation
    return [
        f"const float* image = {image_pointer(program)};",
        "for (long long k = 0; k < depth; ++k) {",
        "  const long long tap = k0 + k;",
        f"  const long long down = tap / {kw} % {kh} * {dh} - {ph}, right = tap % {kw} * {dw} - {pw};",
        f"  const float* plane = image + tap / {kh * kw} * {program.strides[1]};",
        "  float* row = panel + k * kCols;",
        "  long long j = 0;",
        "  while (j < kCols && n + j < n1) {  // a run of pixels in one row of results",
        "    const long long y = (n + j) / kOutWide, x = (n + j) % kOutWide;",
        "    long long run = kOutWide - x < kCols - j ? kOutWide - x : kCols - j;",
        "    if (run > n1 - n - j) run = n1 - n - j;",
        f"    const long long from_y = y * {sh} + down, from_x = x * {sw} + right;",
        "    long long low = 0, high = 0;  // the part inside the image",
        f"    if (from_y >= 0 && from_y < {program.image[0]} && from_x < {program.image[1]}) {{",
        f"      low = from_x < 0 ? (-from_x + {sw - 1}) / {sw} : 0;",
        f"      high = ({program.image[1] - 1} - from_x) / {sw} + 1;",
        "      if (high > run) high = run;",
        "      if (low > high) low = high;",
        "    }",
        f"    const float* from = plane + from_y * {program.strides[2]} + from_x * {program.strides[3]};",
        "    for (long long u = 0; u < low; ++u) row[j + u] = 0.0f;",
        f"    for (long long u = low; u < high; ++u) row[j + u] = from[u * {sw * program.strides[3]}];",
        "    for (long long u = high; u < run; ++u) row[j + u] = 0.0f;",
        "    j += run;",
        "  }",
        "  for (; j < kCols; ++j) row[j] = 0.0f;",
        "}",
    ]


def pool_function(program: ConvProgram) -> list[str]:
    """Return the function ``pool``, which computes pooled rows [r0, r1) of a plane. Row ``top`` of the plane begins at
    ``from``.
    """
    pool = program.pool
    assert pool is not None
    (wh, ww), (sh, sw), (ph, pw), (dh, dw) = pool.window, pool.stride, pool.padding, pool.dilation
    larger = "value > best || value != value ? value : best"
    body = [
        "for (long long r = r0; r < r1; ++r) {",
        "  float highest[kOutWide];  // in each column of the window",
        "  for (long long x = 0; x < kOutWide; ++x) highest[x] = -INFINITY;",
        f"  for (long long i = 0; i < {wh}; ++i) {{",
        f"    const long long y = r * {sh} - {ph} + i * {dh};",
        f"    if (y < 0 || y >= {program.size[0]}) continue;",
        "    const float* row = from + (y - top) * kOutWide;",
        "    for (long long x = 0; x < kOutWide; ++x) {",
        "      const float value = row[x], best = highest[x];",
        f"      highest[x] = {larger};",
        "    }",
        "  }",
        f"  for (long long q = 0; q < {pool.size[1]}; ++q) {{",
        "    float best = -INFINITY;",
        f"    for (long long j = 0; j < {ww}; ++j) {{",
        f"      const long long x = q * {sw} - {pw} + j * {dw};",
        "      if (x < 0 || x >= kOutWide) continue;",
        "      const float value = highest[x];",
        f"      best = {larger};",
        "    }",
        f"    finish(t, (plane * kPoolHigh + r) * {pool.size[1]} + q, r * {pool.size[1]} + q, best);",
        "  }",
        "}",
    ]
    whole = [("long long", name) for name in ("plane", "r0", "r1")]
    return function(
        "Pooled rows [r0, r1) of a plane whose row `top` begins at `from`.",
        "void",
        "pool",
        [("const Tensors&", "t"), *whole, ("const float*", "from"), ("long long", "top")],
        body,
    )


def fused_block(program: ConvProgram, rows: int, step_m: str, m_end: str, tiled: bool) -> list[str]:
    """Return statements that compute pooled rows through a buffer, starting at row ``r0`` and filter ``m0``."""
    pool = program.pool
    assert pool is not None
    high = min(program.size[0], (rows - 1) * pool.stride[0] + pool.reach[0])
    chunk = "kColBlock" if tiled else "kOutWide"
    return [
        f"alignas(64) static thread_local float results[{step_m} * {high} * kOutWide];",
        f"const long long m1 = {m_end}, r1 = r0 + {rows} < kPoolHigh ? r0 + {rows} : kPoolHigh;",
        f"long long top = r0 * {pool.stride[0]} - {pool.padding[0]};",
        f"long long end = (r1 - 1) * {pool.stride[0]} - {pool.padding[0]} + {pool.reach[0]};",
        "if (top < 0) top = 0;",
        f"if (end > {program.size[0]}) end = {program.size[0]};",
        "const long long first = top * kOutWide, last = end * kOutWide, pitch = last - first;",
        f"for (long long n0 = first; n0 < last; n0 += {chunk})",
        f"  block(t, b, m0, m1, n0, n0 + {chunk} < last ? n0 + {chunk} : last, results + (n0 - first), pitch);",
        "for (long long m = m0; m < m1; ++m)",
        "  pool(t, b * kM + m, r0, r1, results + (m - m0) * pitch, top);",
    ]
