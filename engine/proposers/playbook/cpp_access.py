"""How an emitted C++ kernel reaches the elements of its tensors."""

from __future__ import annotations

from dataclasses import dataclass

from engine.proposers.playbook.ir import Access

GATHER = """\
// Element (i / inner) % count of p, for one i or for kLanes of them.
[[gnu::always_inline]] inline float gather(One, const float* p, long long i, long long inner, long long count) {
  return p[i / inner % count];
}
inline vec gather(Wide, const float* p, long long i, long long inner, long long count) {
  vec result = {};
  for (int lane = 0; lane < kLanes; ++lane) result[lane] = p[(i + lane) / inner % count];
  return result;
}
"""


@dataclass(frozen=True)
class Loaded:
    """The expression of one load. ``row_base``: the pointer expression that ``<tensor>_row`` must hold, or None.

    ``lane_aligned``: the expression holds for vectors that start at a multiple of the lanes only.
    """

    text: str
    row_base: str | None = None
    lane_aligned: bool = False


def row_element(tensor: str, access: Access, rows: int, cols: int, lanes: int) -> Loaded:
    """A per-element load in row ``r`` at column ``c``."""
    inner, count = access.inner, access.count
    if inner == 1 and count % cols == 0:
        here = count // cols
        base = tensor if here == 1 else f"{tensor} + r * kCols" if here == rows else f"{tensor} + r % {here} * kCols"
        pointer = tensor if here == 1 else f"{tensor}_row"
        text = f"{pointer}[c]" if lanes == 1 else f"load(width, {pointer} + c)"
        return Loaded(text, None if here == 1 else base)
    return _indexed(tensor, access, "(r * kCols + c)", "r * kCols + c", lanes, cols)


def flat_element(tensor: str, access: Access, numel: int, lanes: int) -> Loaded:
    """A load at flat index ``i``."""
    if access.count == 1:
        return Loaded(f"{tensor}[0]")
    if access.inner == 1 and access.count == numel:
        return Loaded(f"{tensor}[i]" if lanes == 1 else f"load(width, {tensor} + i)")
    return _indexed(tensor, access, "i", "i", lanes, 0)


def _indexed(tensor: str, access: Access, index: str, bare: str, lanes: int, cols: int) -> Loaded:
    inner, count = access.inner, access.count
    position = f"{index} % {count}" if inner == 1 else f"{index} / {inner} % {count}"
    if lanes == 1:
        return Loaded(f"{tensor}[{position}]")
    if cols % lanes == 0:
        if inner == 1 and count % lanes == 0:
            return Loaded(f"load(width, {tensor} + {position})", lane_aligned=True)
        if inner % lanes == 0:
            return Loaded(f"{tensor}[{position}]", lane_aligned=True)
    return Loaded(f"gather(width, {tensor}, {bare}, {inner}, {count})")


def row_number(tensor: str, access: Access, cols: int, rows: int) -> str:
    """A load that is the same for a whole row ``r``."""
    if access.count == 1:
        return f"{tensor}[0]"
    step = access.inner // cols
    index = "r" if step == 1 else f"r / {step}"
    return f"{tensor}[{index}]" if step * access.count == rows else f"{tensor}[{index} % {access.count}]"
