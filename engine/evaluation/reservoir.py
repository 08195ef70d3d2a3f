"""A few of many, each as likely as any other, also where nobody knows beforehand how many there will be."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Reservoir(Generic[T]):
    """Keeps up to ``most`` of what it is offered (Vitter's algorithm R)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._offered = 0
        self._kept: list[T] = []

    def offer(self, make: Callable[[], T]) -> None:
        """``make`` is asked for what is kept only."""
        self._offered += 1
        if len(self._kept) < self._most:
            self._kept.append(make())
        elif (place := secrets.randbelow(self._offered)) < self._most:
            self._kept[place] = make()

    def kept(self) -> list[T]:
        """In random order."""
        return random.sample(self._kept, len(self._kept))

    def clear(self) -> None:
        self._offered = 0
        self._kept.clear()
