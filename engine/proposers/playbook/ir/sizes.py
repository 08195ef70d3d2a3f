"""Sizes with names: the playbook makes choices based on a size's value, but its kernels use the header's constant.

A kernel with ``x_dim1`` instead of 3000 is also correct at other sizes. This kernel is equally fast, because the
compiler knows the value of ``x_dim1``. A :class:`Size` is an ``int`` that also records the tensor dimensions in its
numerator and denominator. Arithmetic on sizes therefore preserves the header's names. In a kernel, a size without a
name appears as a number. An assertion (``codegen.size_assertions``) then stops the build at sizes for which that number
would be wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import SupportsIndex


class Size(int):
    """A size equal to ``times`` x product of ``over`` / (``by`` x product of ``under``), with the names of header
    constants.
    """

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
        """Return the C expression, of type ``long long``."""
        top = " * ".join([*self.over, *([str(self.times)] if self.times != 1 or not self.over else [])])
        bottom = " * ".join([*self.under, *([str(self.by)] if self.by != 1 else [])])
        if not bottom:
            return top
        return f"{top} / {bottom}" if " * " not in bottom else f"{top} / ({bottom})"


def _plain(size: Size) -> int:
    """Return ``size``, or a plain number if the size has no name."""
    return size if size.over or size.under else int(size)


def text(size: int) -> str:
    """Return ``size`` in C: an expression in the header's constants if ``size`` has names, otherwise a number."""
    return size.text if isinstance(size, Size) else str(size)


def factor(size: int) -> str:
    """Return ``size`` in C like :func:`text`, but in parentheses if the expression has more than one word."""
    words = text(size)
    return words if " " not in words else f"({words})"


def stride(size: int) -> str:
    """Return ``size`` in C like :func:`factor`, but as a ``long long``, for addresses."""
    return factor(size) if isinstance(size, Size) else f"{size}LL"


def named(tensor: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of a tensor's dimensions, with their names. A dimension of size 1 is broadcast and stays a
    number.
    """
    return tuple(size if size == 1 else Size(size, (f"{tensor}_dim{dim}",)) for dim, size in enumerate(shape))


def viewed(source: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """Return ``wanted``, another shape of the same elements, with the names from ``source`` that determine its sizes.

    If a view splits a dimension, it is unclear which part is fixed at other sizes, so both parts stay numbers.
    """
    waiting = [size for size in source if size > 1]
    found: list[int] = []
    for size in reversed(wanted):
        left, made = int(size), 1
        while left > 1 and waiting and left % waiting[-1] == 0:
            have = waiting.pop()
            left //= int(have)
            made = made * have
        if left > 1 and waiting and waiting[-1] % left == 0:  # The view splits a dimension.
            waiting.append(int(waiting.pop()) // left)
            if waiting[-1] == 1:
                waiting.pop()
        found.append(size if isinstance(size, Size) else made * left)
    return tuple(reversed(found))


def expanded(source: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """Return ``wanted``, the shape to which ``source`` is broadcast, with the names from ``source`` for equal sizes."""
    padded = [1] * (len(wanted) - len(source)) + list(source)
    return tuple(have if have == size else size for have, size in zip(padded, wanted, strict=True))
