"""Sizes that know where they come from: numbers for the playbook's decisions, the header's constants in what it writes.

A kernel in which ``x_dim1`` stands instead of 3000 is right at other sizes too, and as fast: both are constants to the
compiler. A :class:`Size` is an ``int`` that keeps the header's name of every tensor dimension that it is a product or a
quotient of, so that lowering a graph carries names along without knowing of them. A size that has lost its name, or
that nothing ties to the header, is written as a number; then an assertion in the kernel
(``demands``) holds it to the sizes at which that number is right, so that elsewhere it does not compile and says why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import SupportsIndex


class Size(int):
    """``times`` x the product of ``over`` / (``by`` x the product of ``under``), names of the header's constants."""

    over: tuple[str, ...]
    under: tuple[str, ...]
    times: int
    by: int

    def __new__(cls, value: int, over: Iterable[str], under: Iterable[str] = (), times: int = 1, by: int = 1) -> Size:
        self = super().__new__(cls, value)
        top, bottom = Counter(over), Counter(under)
        shared = math.gcd(times, by)
        self.over, self.under = tuple((top - bottom).elements()), tuple((bottom - top).elements())
        self.times, self.by = times // shared, by // shared
        return self

    def __mul__(self, other: SupportsIndex) -> Size:
        value = int(self) * int(other)
        if isinstance(other, Size):
            return Size(value, self.over + other.over, self.under + other.under, self.times * other.times,
                        self.by * other.by)  # fmt: skip
        return Size(value, self.over, self.under, self.times * int(other), self.by)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int:
        value = int(self) // int(other)
        if int(self) % int(other):
            return value
        if isinstance(other, Size):
            return _plain(Size(value, self.over + other.under, self.under + other.over, self.times * other.by,
                               self.by * other.times))  # fmt: skip
        return _plain(Size(value, self.over, self.under, self.times, self.by * other))

    def __rfloordiv__(self, other: int) -> int:
        return int(other) // int(self)

    @property
    def text(self) -> str:
        """The C expression of type ``long long``."""
        top = " * ".join([*self.over, *([str(self.times)] if self.times != 1 or not self.over else [])])
        bottom = " * ".join([*self.under, *([str(self.by)] if self.by != 1 else [])])
        if not bottom:
            return top
        return f"{top} / {bottom}" if " * " not in bottom else f"{top} / ({bottom})"


def _plain(size: Size) -> int:
    """``size``, as a number where no name is left."""
    return size if size.over or size.under else int(size)


def text(size: int) -> str:
    """``size`` in C: in the header's constants where it knows them."""
    return size.text if isinstance(size, Size) else str(size)


def factor(size: int) -> str:
    """:func:`text`, in brackets where it is no single word."""
    words = text(size)
    return words if " " not in words else f"({words})"


def stride(size: int) -> str:
    """:func:`factor` for an address: a ``long long``."""
    return factor(size) if isinstance(size, Size) else f"{size}LL"


def named(tensor: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The sizes of a tensor's dimensions under their names; a dimension of 1 is broadcast, and stays a number."""
    return tuple(size if size == 1 else Size(size, (f"{tensor}_dim{dim}",)) for dim, size in enumerate(shape))


def viewed(source: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """``wanted``, another shape of the same elements, under the names of ``source`` as far as they tell it.

    Where a dimension of ``source`` is cut, which part of it is a size and which a fixed number cannot be known: the
    parts stay numbers.
    """
    waiting = [size for size in source if size > 1]
    found: list[int] = []
    for size in reversed(wanted):
        left, made = int(size), 1
        while left > 1 and waiting and left % waiting[-1] == 0:
            have = waiting.pop()
            left //= int(have)
            made = made * have
        if left > 1 and waiting and waiting[-1] % left == 0:  # cut
            waiting.append(int(waiting.pop()) // left)
            if waiting[-1] == 1:
                waiting.pop()
        found.append(size if isinstance(size, Size) else made * left)
    return tuple(reversed(found))


def expanded(source: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """``wanted``, to which ``source`` is broadcast, under the names of ``source`` where it is not."""
    padded = [1] * (len(wanted) - len(source)) + list(source)
    return tuple(have if have == size else size for have, size in zip(padded, wanted, strict=True))
