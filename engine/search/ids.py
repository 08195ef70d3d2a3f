"""Ids for new ideas and variants, and seeds derived from the session's seed."""

from __future__ import annotations

import hashlib

from engine.session.state.session_state import SessionState


class Ids:
    """Counters of ids, which continue from the session's last ids: ``i1``, ``i2``, ... and ``v1``, ``v2``, ..."""

    def __init__(self, state: SessionState) -> None:
        self._idea = max((_number(name) for name in state.ideas), default=0)
        self._variant = max((_number(name) for name in state.variants), default=0)

    @property
    def next_idea(self) -> str:
        """Return the id that the next call to ``idea`` will return."""
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
    """Derive a seed below 2**32 from the session's seed and ``parts``, which name the purpose. The result does not
    depend on the order of calls.
    """
    text = "\x1f".join(map(str, (session_seed, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")
