"""How an emitted C++ kernel reaches the elements of its tensors."""

from __future__ import annotations

from dataclasses import dataclass

from engine.proposers.playbook.ir import Access
from engine.proposers.playbook.sizes import factor, text

PICK = """\
// Elements (i / inner) % count of p, for one i or for kLanes of them.
template <long long inner, long long count>
[[gnu::always_inline]] inline float pick(One, const float* p, long long i) {
  return p[i / inner % count];
}
template <long long inner, long long count>
[[gnu::always_inline]] inline vec pick(Wide, const float* p, long long i) {
  constexpr bool kWhole = $whole;  // whether i is a multiple of kLanes
  if constexpr (kWhole && inner == 1 && count % kLanes == 0) {
    return load(Wide{}, p + i % count);
  } else if constexpr (kWhole && inner % kLanes == 0) {
    return splat(p[i / inner % count]);
  } else {
    vec result = {};
    for (int lane = 0; lane < kLanes; ++lane) result[lane] = p[(i + lane) / inner % count];
    return result;
  }
}
"""


def pick_helper(whole: str) -> str:
    """``pick``. ``whole``: the C condition under which vectors start at multiples of the lanes."""
    return PICK.replace("$whole", whole)


@dataclass(frozen=True)
class Loaded:
    """The expression of one load. ``row_base``: the pointer expression that ``<tensor>_row`` must hold, or None."""

    text: str
    row_base: str | None = None


def row_element(tensor: str, access: Access, rows: int, cols: int, lanes: int) -> Loaded:
    """A per-element load in row ``r`` at column ``c``."""
    inner, count = access.inner, access.count
    if inner == 1 and count % cols == 0:
        here = count // cols
        base = (
            tensor
            if here == 1
            else f"{tensor} + r * kCols"
            if here == rows
            else f"{tensor} + r % {factor(here)} * kCols"
        )
        pointer = tensor if here == 1 else f"{tensor}_row"
        words = f"{pointer}[c]" if lanes == 1 else f"load(width, {pointer} + c)"
        return Loaded(words, None if here == 1 else base)
    return _indexed(tensor, access, "r * kCols + c", lanes)


def flat_element(tensor: str, access: Access, numel: int, lanes: int) -> Loaded:
    """A load at flat index ``i``."""
    if access.count == 1:
        return Loaded(f"{tensor}[0]")
    if access.inner == 1 and access.count == numel:
        return Loaded(f"{tensor}[i]" if lanes == 1 else f"load(width, {tensor} + i)")
    return _indexed(tensor, access, "i", lanes)


def _indexed(tensor: str, access: Access, index: str, lanes: int) -> Loaded:
    inner, count = access.inner, access.count
    if lanes > 1:
        return Loaded(f"pick<{text(inner)}, {text(count)}>(width, {tensor}, {index})")
    whole = index if " " not in index else f"({index})"
    position = f"{whole} % {factor(count)}" if inner == 1 else f"{whole} / {factor(inner)} % {factor(count)}"
    return Loaded(f"{tensor}[{position}]")


def row_number(tensor: str, access: Access, cols: int, rows: int) -> str:
    """A load that is the same for a whole row ``r``."""
    if access.count == 1:
        return f"{tensor}[0]"
    step = access.inner // cols
    index = "r" if step == 1 else f"r / {factor(step)}"
    return f"{tensor}[{index}]" if step * access.count == rows else f"{tensor}[{index} % {factor(access.count)}]"
