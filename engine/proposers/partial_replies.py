"""Partial texts of streaming replies, for display.

Each call has one small file in the session's directory. The files are temporary: the engine does not record them as
events or flush them to disk. The engine deletes a file when its call ends. If the engine dies first, the next engine
deletes the file. A file's first line is the number of characters received. The rest of the file is the end of the text.
The engine replaces each file atomically, at most four times a second, and less often with many calls. The engine does
not write a file for a reply that completes within 0.25 s. Reading the files does not require an engine or an SDK.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from engine.session.records.model_calls import CallSite, call_name

SHOWN_CHARS = 6_000
"""Maximum number of characters to keep from the end of a reply, more than a screen of text."""
WRITE_EVERY_S = 0.25
MOST_WRITES_A_SECOND = 40
"""Maximum number of file writes per second for all calls together."""
_READ_BYTES = 64 << 10
_SUFFIX = ".part"

_log = logging.getLogger(__name__)


class Partial(Struct, frozen=True):
    """The received part of a reply. ``characters`` is the number of characters received. ``text`` is the end of the
    received text.
    """

    characters: int
    text: str


def partial_directory(session: Path) -> Path:
    """Return the directory for a session's partial replies."""
    return session / "partial"


def read_partial(session: Path, site: CallSite) -> Partial | None:
    """Read the partial reply to the call for ``site``; None if no file exists."""
    with contextlib.suppress(OSError, ValueError):
        with _file(partial_directory(session), site).open("rb") as file:
            head, _, text = file.read(_READ_BYTES).decode(errors="replace").partition("\n")
        return Partial(int(head), text)
    return None


class Partials:
    """Write a session's partial replies. Not thread-safe. ``clock`` returns seconds."""

    def __init__(self, session: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._directory = partial_directory(session)
        self._streaming = 0
        self._free_at = 0.0
        self._made = self._failed = False

    def sweep(self) -> None:
        """Delete the files that a dead engine left behind."""
        with contextlib.suppress(OSError):
            for file in self._directory.iterdir():
                with contextlib.suppress(OSError):
                    file.unlink()
            self._directory.rmdir()

    @contextlib.contextmanager
    def of(self, site: CallSite) -> Iterator[Callable[[str], None]]:
        """Yield a function that stores a call's partial text. An empty string marks the start of a new attempt."""
        file = _file(self._directory, site)
        due_at: float | None = None
        written = False

        def show(text: str) -> None:
            nonlocal due_at, written
            now = self._clock()
            if not text:
                due_at = None
                if written:
                    _remove(file)
                written = False
            elif due_at is None:  # Delay the first write, because most short replies are complete within the delay.
                due_at = now + WRITE_EVERY_S
            elif now >= max(due_at, self._free_at):
                due_at = now + max(WRITE_EVERY_S, self._streaming / MOST_WRITES_A_SECOND)
                self._free_at = now + 1 / MOST_WRITES_A_SECOND
                written = self._write(file, text)

        self._streaming += 1
        try:
            yield show
        finally:
            self._streaming -= 1
            if written:
                _remove(file)
            if self._made and not self._streaming:
                self._made = False
                with contextlib.suppress(OSError):
                    self._directory.rmdir()

    def _write(self, file: Path, text: str) -> bool:
        if self._failed:
            return False
        content = f"{len(text)}\n{text[-SHOWN_CHARS:]}".encode(errors="replace")
        temporary = file.with_suffix(".tmp")
        try:
            if not self._made:
                self._directory.mkdir(exist_ok=True)
                self._made = True
            temporary.write_bytes(content)
            temporary.replace(file)
        except OSError as error:
            # Log the failure only once, because the monitor still shows the reply when the reply is complete.
            self._failed = True
            _remove(temporary)
            _log.warning("%s: cannot show replies while they are streaming: %s", self._directory, error)
            return False
        return True


def _file(directory: Path, site: CallSite) -> Path:
    return directory / f"{call_name(site)}{_SUFFIX}"


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
