"""The text so far of replies that stream, for whoever watches: a small file for each call beside the session.

Volatile by design: no event, never flushed to disk, gone when the call ends, and swept away by the next engine. A file
holds the number of characters so far in its first line and the end of the text below it. It is replaced whole, at most
four times a second, and less often the more calls stream at once, so that writing never takes time from the search.
A reply that is whole within a quarter of a second has none.
No engine is needed to read one, and no model's SDK.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from engine.models.protocol import CallSite, call_name

SHOWN_CHARS = 6_000
"""Characters of the end that are kept: more than a screen of text."""
WRITE_EVERY_S = 0.25
MOST_WRITES_A_SECOND = 40
"""Over all calls together."""
_READ_BYTES = 64 << 10
_SUFFIX = ".part"

_log = logging.getLogger(__name__)


class Partial(Struct, frozen=True):
    """``characters``: how many the reply has so far; ``text``: its end."""

    characters: int
    text: str


def partial_directory(session: Path) -> Path:
    """Where the session in directory ``session`` keeps them."""
    return session / "partial"


def read_partial(session: Path, site: CallSite) -> Partial | None:
    """What the call for ``site`` has said so far, None where it says nothing now."""
    with contextlib.suppress(OSError, ValueError):
        with _file(partial_directory(session), site).open("rb") as file:
            head, _, text = file.read(_READ_BYTES).decode(errors="replace").partition("\n")
        return Partial(int(head), text)
    return None


class Partials:
    """Writes them for the session in directory ``session``. For one thread."""

    def __init__(self, session: Path) -> None:
        self._directory = partial_directory(session)
        self._streaming = 0
        self._free_at = 0.0
        self._made = self._failed = False

    def sweep(self) -> None:
        """Take away what an engine that died has left."""
        with contextlib.suppress(OSError):
            for file in self._directory.iterdir():
                with contextlib.suppress(OSError):
                    file.unlink()
            self._directory.rmdir()

    @contextlib.contextmanager
    def of(self, site: CallSite) -> Iterator[Callable[[str], None]]:
        """What to give the text so far to, while a call is under way; an empty one where an attempt begins anew."""
        file = _file(self._directory, site)
        due_at: float | None = None
        written = False

        def show(text: str) -> None:
            nonlocal due_at, written
            now = time.monotonic()
            if not text:
                due_at = None
                if written:
                    _remove(file)
                written = False
            elif due_at is None:  # its first words: most that is said in a moment is over in a moment
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
            # Said once: the reply itself is not touched by this, and what it says will be shown when it is whole.
            self._failed = True
            _remove(temporary)
            _log.warning("%s: replies are not shown while they stream: %s", self._directory, error)
            return False
        return True


def _file(directory: Path, site: CallSite) -> Path:
    return directory / f"{call_name(site)}{_SUFFIX}"


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
