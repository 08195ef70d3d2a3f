"""Kernel sources, accessed by digest. The writer stores each source, and the engine reads it back at most once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from engine.session.state.session_state import SessionState
from engine.session.store import EventWriter, SessionReader


class Claim(NamedTuple):
    """A source's ``digest``, and the new or earlier variant with this source."""

    variant: str
    digest: str
    is_new: bool


class Sources:
    """Store sources and detect duplicates, so that the judge never evaluates the same source twice for a problem."""

    def __init__(self, writer: EventWriter, reader: SessionReader, state: SessionState) -> None:
        self._writer = writer
        self._reader = reader
        self._texts: dict[str, str] = {}
        self._claimed = {(one.problem, one.source): one.id for one in reversed(state.variants.values())}

    def claim(self, problem: str, text: str, new_id: Callable[[], str]) -> Claim:
        """Store a source for ``problem``. If the source is new, ``new_id`` creates the variant's id. Raises
        SessionError.
        """
        digest = self._writer.put_blob(text)
        if (known := self._claimed.get((problem, digest))) is not None:
            return Claim(known, digest, is_new=False)
        variant = self._claimed[problem, digest] = new_id()
        self._texts[digest] = text
        return Claim(variant, digest, is_new=True)

    def find(self, problem: str, text: str) -> str | None:
        """Return the variant of ``problem`` with this source, or None."""
        return next((one for digest in _alike(text) if (one := self._claimed.get((problem, digest))) is not None), None)

    def has(self, problem: str, text: str) -> bool:
        """Return whether ``problem`` already has a kernel with this source, judged or not."""
        return (problem, _digest(text)) in self._claimed

    def text(self, digest: str) -> str:
        """Read a source. Raises SessionError."""
        if digest not in self._texts:
            self._texts[digest] = self._reader.text(digest)
        return self._texts[digest]


def same_source(state: SessionState, problem: str, text: str) -> str | None:
    """Return the recorded variant of ``problem`` with this source, or None."""
    alike = _alike(text)
    return next((one.id for one in state.variants_of(problem) if one.source in alike), None)


def _alike(text: str) -> tuple[str, ...]:
    """Return the digests of sources that differ from ``text`` at most in white space at the end."""
    body = text.rstrip()
    return tuple(_digest(one) for one in (text, body + "\n", body))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
