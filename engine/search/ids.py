"""Ids of new ideas and variants, and seeds derived from the session's one."""

from __future__ import annotations

import hashlib

from engine.state import SessionState


class Ids:
    """Counts on from what the session holds: ``i1``, ``i2``, ... and ``v1``, ``v2``, ..."""

    def __init__(self, state: SessionState) -> None:
        self._idea = max((_number(name) for name in state.ideas), default=0)
        self._variant = max((_number(name) for name in state.variants), default=0)

    @property
    def next_idea(self) -> str:
        """What ``idea`` will give."""
        return f"i{self._idea + 1}"

    def idea(self) -> str:
        name = self.next_idea
        self._idea += 1
        return name

    def variant(self) -> str:
        self._variant += 1
        return f"v{self._variant}"


def _number(name: str) -> int:
    return int(name[1:]) if name[1:].isdigit() else 0


def seed_for(session_seed: int, *parts: object) -> int:
    """A seed below 2**32 that depends on the session's seed and on what it is for, not on the order of calls."""
    text = "\x1f".join(map(str, (session_seed, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")
