"""Run ``kernel-tui`` in a pseudo-terminal and act as its user, for benchmarks and tests."""

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
    "from tui.cli.main import main; main(sys.argv[1:])"
)
"""Code that starts the program with Ctrl-C enabled, since background processes ignore Ctrl-C by default."""
INSTALLED = "import sys; from kernel_tui.command import main; sys.argv[0] = 'kernel-tui'; main()"

LEAVE_S = 10.0
"""Seconds that the benchmark waits for the program to exit before it kills the program."""


class Terminal:
    """``kernel-tui ARGUMENTS`` running in a terminal of ``size`` (columns, lines).

    ``settings`` is the directory of the monitor's settings. ``extra`` is Python code to run before the program.
    ``inside`` is a command that starts the program, such as ``tmux new``. ``python`` is the interpreter of an
    installation to start instead of this checkout.
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
        python: str = "",
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
        started = [python, "-I", "-c", INSTALLED] if python else [sys.executable, "-c", extra + CLI]
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [*inside, *started, *arguments],
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
        """The last MiB of output."""
        self.record: bytearray | None = None
        """A buffer that receives all output, if set."""

    def read_for(self, seconds: float, until: Callable[[bytes], bool] | None = None) -> float | None:
        """Read output. Return the seconds until ``until`` returned true; None if it never did."""
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
        """Return the seconds from the start of the command until ``text`` appeared. Raises TimeoutError."""
        wanted = text.encode()
        if wanted not in self.seen:
            self.read_for(seconds, lambda _: wanted in self.seen)
        if wanted not in self.seen:
            raise TimeoutError(f"{text!r} did not appear within {seconds:g} s: {self.seen[-2000:]!r}")
        return time.monotonic() - self.started

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def forget(self) -> None:
        """Discard the output so far."""
        self.seen = b""

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        """Press q, then kill the process if it is still running."""
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
def attached(directory: Path, *, extra: str = "", size: tuple[int, int] = (120, 40)) -> Iterator[Terminal]:
    """Yield a monitor of the session in ``directory``. The monitor's settings are in the same directory."""
    terminal = Terminal(["attach", str(directory)], directory / "settings", extra=extra, size=size)
    try:
        yield terminal
    finally:
        terminal.close()
