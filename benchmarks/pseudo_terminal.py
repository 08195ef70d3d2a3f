"""A pseudo-terminal with the program in it, and the person in front of it: for benchmarks and tests."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
CLI = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from tui.cli import main; main(sys.argv[1:])"
)
"""Ctrl-C reaches what is started in a terminal, also where these tests run in the background, where it is ignored."""

LEAVE_S = 10.0
"""How long the program may take to leave before it is killed."""


class Terminal:
    """``kernel-tui ARGUMENTS`` in a terminal of ``size`` (columns, lines). ``settings``: the directory of its settings.

    ``extra``: Python that runs before the program. ``inside``: what the program is started by, such as ``tmux new``.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        settings: Path,
        *,
        size: tuple[int, int] = (120, 40),
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        extra: str = "",
        inside: Sequence[str] = (),
    ) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        variables = os.environ | {
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "LC_ALL": "C.UTF-8",
            "XDG_CONFIG_HOME": str(settings),
            "PYTHONPATH": str(ROOT),
            **(environment or {}),
        }
        for name in ("NO_COLOR", "TMUX"):
            if environment is None or name not in environment:
                variables.pop(name, None)
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [*inside, sys.executable, "-c", extra + CLI, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            cwd=directory,
            env=variables,
        )
        os.close(slave)
        self.received = 0
        self.seen = b""
        """The last MiB that was painted."""
        self.record: bytearray | None = None
        """All that is painted, if somebody puts one here."""

    def read_for(self, seconds: float, until: Callable[[bytes], bool] | None = None) -> float | None:
        """Read what is painted; seconds until ``until`` said so, None if it never did."""
        begun = time.monotonic()
        while (left := begun + seconds - time.monotonic()) > 0:
            ready, _, _ = select.select([self.master], [], [], left)
            if not ready:
                break
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:  # the program has ended
                break
            self.received += len(data)
            if self.record is not None:
                self.record += data
            self.seen = (self.seen + data)[-(1 << 20) :]
            if until is not None and until(data):
                return time.monotonic() - begun
        return None

    def wait_for(self, text: str, seconds: float = 30.0) -> float:
        """Seconds from the command until ``text`` was painted. Raises TimeoutError."""
        wanted = text.encode()
        if wanted not in self.seen:
            self.read_for(seconds, lambda _: wanted in self.seen)
        if wanted not in self.seen:
            raise TimeoutError(f"{text!r} was not painted in {seconds:g} s: {self.seen[-2000:]!r}")
        return time.monotonic() - self.started

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def forget(self) -> None:
        """What was painted so far is of no interest any more."""
        self.seen = b""

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        """Leave by the key; kill what is still there after that."""
        with contextlib.suppress(OSError):
            self.type("q")
            deadline = time.monotonic() + LEAVE_S
            while self.process.poll() is None and time.monotonic() < deadline:
                self.read_for(0.1)
            self.read_for(0.2)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.master)


@contextlib.contextmanager
def attached(directory: Path, *, extra: str = "") -> Iterator[Terminal]:
    """A monitor attached to the session in ``directory``, which also holds its settings."""
    terminal = Terminal(["attach", str(directory)], directory / "settings", extra=extra)
    try:
        yield terminal
    finally:
        terminal.close()
