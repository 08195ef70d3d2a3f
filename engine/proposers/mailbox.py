"""The two directories in which prompts wait for a person and replies for the engine. No engine is needed to use them.

``outbox/CALL.md`` is a prompt with a header that says where its reply goes; it disappears once the reply is recorded.
``inbox/CALL.md`` (or ``.txt``, or any other ending) is a reply, the whole text as the model gave it. A half-written
file is not read: it counts once its size and time have stood still between two looks. Paths are all below the session's
directory, so that it can be copied elsewhere and gone on with.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from msgspec import Struct

from engine.models.protocol import Prompt
from engine.session.errors import SessionError, of_os
from engine.session.paths import replace_file

RULER = "-" * 34 + " 8< " + "-" * 34
MAX_READ_BYTES = 8 << 20
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_UNFINISHED = (".tmp", ".part", ".swp")

_WHAT = {
    "ideas": "ideas, as JSON in the form that the prompt asks for",
    "kernel": "one kernel, in one fenced block of code",
    "fix": "the repaired kernel, in one fenced block of code",
}


class FoundReply(Struct, frozen=True):
    """A reply's text. ``whole`` is False where the file holds more than is read."""

    text: str
    whole: bool


class Mailbox:
    """The mailbox of the session in ``directory``. Methods raise SessionError where the disk refuses."""

    def __init__(self, directory: Path) -> None:
        self.outbox = directory / "outbox"
        self.inbox = directory / "inbox"
        self._seen: dict[Path, tuple[int, int]] = {}

    def post(self, call: str, prompt: Prompt) -> Path:
        """Put a prompt in the outbox; the file appears whole or not at all."""
        target = self.outbox / f"{call}.md"
        try:
            self.outbox.mkdir(exist_ok=True)
            self.inbox.mkdir(exist_ok=True)
            replace_file(target, prompt_file(call, prompt).encode())
        except OSError as error:
            raise of_os(error, target) from error
        return target

    def withdraw(self, call: str) -> None:
        """The call is answered, or nobody wants its answer any more."""
        with contextlib.suppress(OSError):
            (self.outbox / f"{call}.md").unlink(missing_ok=True)

    def waiting(self) -> list[str]:
        """Calls whose prompts wait in the outbox, oldest first."""
        with contextlib.suppress(OSError):
            return [file.stem for _, _, file in sorted(_regular(self.outbox)) if _is_prompt(file)]
        return []

    def unanswered(self) -> list[str]:
        """Those of ``waiting`` for which no file of a reply is there: what a person still has to do."""
        replied = self.replied()
        return [call for call in self.waiting() if call not in replied]

    def replied(self) -> set[str]:
        """Calls for which a file of a reply is there, finished or not; every call that a file's name may stand for."""
        with contextlib.suppress(OSError):
            files = [file for _, _, file in _regular(self.inbox) if file.suffix not in _UNFINISHED]
            return {name for file in files for name in (file.stem, file.name)}
        return set()

    def reply(self, call: str) -> FoundReply | None:
        """The reply to a call, once its file stands still; None until then. Look every few hundred milliseconds."""
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
        """Whether a file for the reply is there, finished or not."""
        return bool(self._candidates(call))

    def deliver(self, call: str, text: str) -> Path:
        """Put a reply into the inbox, whole."""
        target = self.inbox / f"{call}.md"
        content = text.encode(errors="replace")
        if len(content) > MAX_READ_BYTES:
            raise SessionError(
                f"{target}: a reply of {len(content):,} bytes is refused; at most {MAX_READ_BYTES:,} are read. Give "
                "the model's reply alone.",
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
    """The regular files of a directory with their times in ns. A link leads anywhere, a pipe keeps who reads it."""
    found = []
    for file in directory.iterdir():
        with contextlib.suppress(OSError):
            status = file.lstat()
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime_ns, file.name, file))
    return found


def _is_prompt(file: Path) -> bool:
    return file.suffix == ".md" and not file.name.startswith(".")


def prompt_file(call: str, prompt: Prompt) -> str:
    """The text of an outbox file: where the reply goes, a line to cut at, and the prompt."""
    return (
        f"Call:    {call}\n"
        f"Wanted:  {_WHAT[prompt.purpose]}\n"
        f"Reply:   save the model's whole reply as inbox/{call}.md in the session's directory,\n"
        f"         or run: kernel-tui reply SESSION {call} FILE\n"
        f"{RULER}\n"
        f"{prompt.system.strip()}\n\n{prompt.user.strip()}\n"
    )
