"""Kernel sources by digest: written through the engine's writer, read back from the session file once."""

from __future__ import annotations

import hashlib

from engine.session import EventWriter, SessionReader
from engine.state import SessionState


class Sources:
    """Also knows which sources a problem has already, so that none is judged twice under two names."""

    def __init__(self, writer: EventWriter, reader: SessionReader, state: SessionState) -> None:
        self._writer = writer
        self._reader = reader
        self._texts: dict[str, str] = {}
        self._claimed = {(variant.problem, variant.source) for variant in state.variants.values()}

    def claim(self, problem: str, text: str) -> str | None:
        """Store a new source of ``problem`` and return its digest, or None where it has it. Raises SessionError."""
        digest = self._writer.put_blob(text)
        if (problem, digest) in self._claimed:
            return None
        self._claimed.add((problem, digest))
        self._texts[digest] = text
        return digest

    def has(self, problem: str, text: str) -> bool:
        """Whether it is a source of ``problem`` already, judged or not."""
        return (problem, hashlib.sha256(text.encode()).hexdigest()) in self._claimed

    def text(self, digest: str) -> str:
        """Raises SessionError."""
        if digest not in self._texts:
            self._texts[digest] = self._reader.text(digest)
        return self._texts[digest]
