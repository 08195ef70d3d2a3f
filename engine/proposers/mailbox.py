"""Directories for prompts to a person and for the person's replies. This module works without an engine.

``outbox/CALL.md`` contains a prompt, with a header that says where to save the reply. The engine deletes the prompt
file once the session contains the reply. ``inbox/CALL.md`` contains a model's whole reply. Its suffix may also be
``.txt`` or any other, except ``.tmp``, ``.part`` and ``.swp``. The engine reads a reply file once the file's size and
modification time stay the same between two checks. All paths are below the session's directory, so you can copy the
session and resume it elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from msgspec import Struct

from engine.proposers.llm.model_protocol import Prompt
from engine.session.store.errors import SessionError, of_os
from engine.session.store.paths import replace_file, session_argument

RULER = "-" * 34 + " 8< " + "-" * 34
MAX_READ_BYTES = 8 << 20
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_UNFINISHED = (".tmp", ".part", ".swp")

_WHAT = {
    "ideas": "ideas, as JSON in the format that the prompt describes",
    "kernel": "one kernel, in one fenced code block",
    "fix": "the repaired kernel, in one fenced code block",
}


class FoundReply(Struct, frozen=True):
    """A reply from a file. ``whole`` is False if the file exceeds the size limit."""

    text: str
    whole: bool


class Mailbox:
    """The mailbox for the session in ``directory``. Methods raise ``SessionError`` if a file operation fails."""

    def __init__(self, directory: Path) -> None:
        self.outbox = directory / "outbox"
        self.inbox = directory / "inbox"
        self._seen: dict[Path, tuple[int, int]] = {}

    def post(self, call: str, prompt: Prompt) -> Path:
        """Write a prompt to the outbox atomically."""
        target = self.outbox / f"{call}.md"
        try:
            self.outbox.mkdir(exist_ok=True)
            self.inbox.mkdir(exist_ok=True)
            replace_file(target, prompt_file(call, prompt, session_argument(self.outbox.parent)).encode())
        except OSError as error:
            raise of_os(error, target) from error
        return target

    def withdraw(self, call: str) -> None:
        """Delete the prompt of an answered or canceled call."""
        with contextlib.suppress(OSError):
            (self.outbox / f"{call}.md").unlink(missing_ok=True)

    def waiting(self) -> list[str]:
        """List the calls with a prompt in the outbox, oldest first."""
        with contextlib.suppress(OSError):
            return [file.stem for _, _, file in sorted(_regular(self.outbox)) if _is_prompt(file)]
        return []

    def unanswered(self) -> list[str]:
        """List the calls in ``waiting`` that have no reply file. A person still has to answer these calls."""
        replied = self.replied()
        return [call for call in self.waiting() if call not in replied]

    def replied(self) -> set[str]:
        """Return the calls with a reply file, complete or not. If a file name matches several calls, return all of
        them.
        """
        with contextlib.suppress(OSError):
            files = [file for _, _, file in _regular(self.inbox) if file.suffix not in _UNFINISHED]
            return {name for file in files for name in (file.stem, file.name)}
        return set()

    def reply(self, call: str) -> FoundReply | None:
        """Return the reply to a call once the reply file has stopped changing, otherwise None. Call this method every
        few hundred milliseconds.
        """
        for file in self._candidates(call):
            with contextlib.suppress(OSError):
                status = file.lstat()
                now = (status.st_size, status.st_mtime_ns)
                before, self._seen[file] = self._seen.get(file), now
                if now == before and status.st_size > 0:
                    with os.fdopen(os.open(file, _READ), "rb") as opened:
                        content = opened.read(MAX_READ_BYTES + 1)
                    text = content[:MAX_READ_BYTES].decode(errors="replace")
                    return FoundReply(text, whole=len(content) <= MAX_READ_BYTES)
        return None

    def has_reply(self, call: str) -> bool:
        """Return whether a call's reply file exists, complete or not."""
        return bool(self._candidates(call))

    def deliver(self, call: str, text: str) -> Path:
        """Write a reply to the inbox atomically."""
        target = self.inbox / f"{call}.md"
        content = text.encode(errors="replace")
        if len(content) > MAX_READ_BYTES:
            raise SessionError(
                f"{target}: the reply has {len(content):,} bytes; the limit is {MAX_READ_BYTES:,} bytes. Pass only the "
                "model's reply.",
                target,
            )
        try:
            self.inbox.mkdir(exist_ok=True)
            replace_file(target, content)
        except OSError as error:
            raise of_os(error, target) from error
        return target

    def _candidates(self, call: str) -> list[Path]:
        with contextlib.suppress(OSError):
            names = [file for _, _, file in _regular(self.inbox) if call in (file.stem, file.name)]
            return sorted(file for file in names if file.suffix not in _UNFINISHED)
        return []


def _regular(directory: Path) -> list[tuple[int, str, Path]]:
    """Return a directory's regular files with their modification times in ns. Skip pipes and links."""
    found = []
    for file in directory.iterdir():
        with contextlib.suppress(OSError):
            status = file.lstat()
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime_ns, file.name, file))
    return found


def _is_prompt(file: Path) -> bool:
    return file.suffix == ".md" and not file.name.startswith(".")


def prompt_file(call: str, prompt: Prompt, session: str) -> str:
    """Build the text of an outbox file: a header with instructions, a cut line, and the prompt. ``session`` is the
    command-line argument that identifies the session.
    """
    return (
        f"Call:    {call}\n"
        f"Wanted:  {_WHAT[prompt.purpose]}\n"
        f"Reply:   save the model's whole reply as inbox/{call}.md in the session's directory,\n"
        f"         or run: kernel-tui reply {session} {call} FILE\n"
        f"{RULER}\n"
        f"{prompt.system.strip()}\n\n{prompt.user.strip()}\n"
    )
