"""How light the monitor is, measured in a real pseudo-terminal of 120 columns and 40 lines. Prints one table.

Usage: python benchmarks/monitor.py [--seconds 20] [--only busy,open,keys,paint,idle,imports]

busy     5,000 kernels and 50 events/s from another process: share of a core, bytes to the terminal
open     a session of 20,000 kernels and about 160,000 events: from the command to the tree on the screen
keys     from a key written to the terminal to the first byte painted, while 50 events/s come in
paint    from the command to the first paint
idle     a finished session, nobody at the keys: share of a core
imports  what the process must not have imported
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.synthetic_session import GPU, Shape, write_session  # noqa: E402
from engine.session import SessionPaths  # noqa: E402

COLUMNS, LINES = 120, 40
FORBIDDEN = ("torch", "numpy", "openai", "google.genai", "pydantic")
COMMAND = (
    "import sys; from pathlib import Path; from engine.session import SessionPaths; from tui.app import run_monitor; "
    "sys.exit(run_monitor(SessionPaths.at(Path(sys.argv[1]))))"
)


class Terminal:
    """A monitor in a pseudo-terminal, and the person in front of it."""

    def __init__(self, paths: SessionPaths, *, extra: str = "") -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        environment = os.environ | {
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "XDG_CONFIG_HOME": str(paths.directory / "settings"),
            "PYTHONPATH": str(ROOT),
        }
        environment.pop("NO_COLOR", None)
        self.master = master
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-c", extra + COMMAND, str(paths.directory)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=environment,
        )
        os.close(slave)
        self.received = 0
        self.seen = b""

    def read_for(self, seconds: float, until: Callable[[bytes], bool] | None = None) -> float | None:
        """Read what is painted; seconds until ``until`` said so, None if it never did."""
        begun = time.monotonic()
        while (left := begun + seconds - time.monotonic()) > 0:
            ready, _, _ = select.select([self.master], [], [], left)
            if not ready:
                break
            data = os.read(self.master, 1 << 16)
            self.received += len(data)
            self.seen = (self.seen + data)[-(1 << 20) :]
            if until is not None and until(data):
                return time.monotonic() - begun
        return None

    def wait_for(self, text: str, seconds: float = 30.0) -> float:
        """Seconds from the command until ``text`` was painted."""
        wanted = text.encode()
        if wanted not in self.seen:
            self.read_for(seconds, lambda _: wanted in self.seen)
        if wanted not in self.seen:
            raise SystemExit(f"{text!r} was not painted in {seconds:g} s: {self.seen[-2000:]!r}")
        return time.monotonic() - self.started

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self.master, b"q")
        with contextlib.suppress(OSError):
            self.read_for(2.0)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.master)


@contextlib.contextmanager
def monitor(paths: SessionPaths, *, extra: str = "") -> Iterator[Terminal]:
    terminal = Terminal(paths, extra=extra)
    try:
        yield terminal
    finally:
        terminal.close()


@contextlib.contextmanager
def live_session(directory: Path, rate: float) -> Iterator[SessionPaths]:
    """5,000 kernels, and an engine of its own process that records ``rate`` events a second."""
    command = [sys.executable, str(ROOT / "benchmarks" / "synthetic_session.py"), str(directory), "--name", "busy"]
    command += ["--variants", "5000", "--device", "cuda", "--live", "--rate", str(rate), "--seconds", "600"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield SessionPaths.at(Path(process.stdout.readline().strip()))
    finally:
        process.kill()
        process.wait()


def busy(directory: Path, seconds: float) -> list[tuple[str, str, str]]:
    with live_session(directory, 50) as paths, monitor(paths) as terminal:
        terminal.wait_for("softmax")
        terminal.read_for(3.0)
        os.write(terminal.master, b"G")  # to the rows that change
        terminal.read_for(1.0)
        before, received, begun = terminal.cpu_seconds(), terminal.received, time.monotonic()
        terminal.read_for(seconds)
        elapsed = time.monotonic() - begun
        share = (terminal.cpu_seconds() - before) / elapsed * 100
        rate = (terminal.received - received) / elapsed / 1000
        rows = [
            ("5,000 kernels, 50 events/s: share of a core", f"{share:.1f} %", "15 %"),
            ("5,000 kernels, 50 events/s: to the terminal", f"{rate:.1f} kB/s", "100 kB/s"),
        ]
        return [*rows, *_keys(terminal, 60)]


def _keys(terminal: Terminal, count: int) -> list[tuple[str, str, str]]:
    delays = []
    for number in range(count):
        terminal.read_for(0.23)
        os.write(terminal.master, b"k" if number % 8 < 6 else b"j")
        if (delay := terminal.read_for(1.0, lambda _: True)) is not None:
            delays.append(delay * 1000)
    delays.sort()
    p95 = delays[int(len(delays) * 0.95)]
    median = statistics.median(delays)
    return [(f"key to paint, p95 of {len(delays)} (median {median:.0f} ms)", f"{p95:.0f} ms", "50 ms")]


def opening(directory: Path, seconds: float) -> list[tuple[str, str, str]]:
    shape = Shape(variants=20_000, problems=8, rounds=10, device=GPU)
    paths = write_session(directory, "large", shape, ended=True)
    with monitor(paths) as terminal:  # once to warm the page cache, as a session that was just written is
        terminal.wait_for("attention")
    times = []
    for _ in range(3):
        with monitor(paths) as terminal:
            times.append(terminal.wait_for("attention"))
    import sqlite3

    with sqlite3.connect(paths.database) as db:
        events = db.execute("SELECT count(*) FROM event").fetchone()[0]
    db.close()
    return [(f"open 20,000 kernels, {events:,} events", f"{statistics.median(times):.2f} s", "2 s")]


def paint(directory: Path, seconds: float) -> list[tuple[str, str, str]]:
    paths = write_session(directory, "paint", Shape(variants=200, device=GPU), ended=True)
    first, full = [], []
    for _ in range(6):
        with monitor(paths) as terminal:
            first.append(terminal.wait_for("Tree"))
            full.append(terminal.wait_for("softmax"))
    return [
        ("first paint after the command", f"{statistics.median(first[1:]):.2f} s", "0.6 s"),
        ("small session on the screen after the command", f"{statistics.median(full[1:]):.2f} s", ""),
    ]


def idle(directory: Path, seconds: float) -> list[tuple[str, str, str]]:
    paths = write_session(directory, "idle", Shape(variants=5000, device=GPU), ended=True)
    with monitor(paths) as terminal:
        terminal.wait_for("softmax")
        terminal.read_for(3.0)
        before, begun = terminal.cpu_seconds(), time.monotonic()
        terminal.read_for(seconds)
        share = (terminal.cpu_seconds() - before) / (time.monotonic() - begun) * 100
    return [("idle: share of a core", f"{share:.1f} %", "2 %")]


def imports(directory: Path, seconds: float) -> list[tuple[str, str, str]]:
    paths = write_session(directory, "imports", Shape(variants=50, device=GPU), ended=True)
    listing = directory / "modules"
    extra = f"import atexit, sys; atexit.register(lambda: open({str(listing)!r}, 'w').write(' '.join(sys.modules))); "
    with monitor(paths, extra=extra) as terminal:
        terminal.wait_for("softmax")
        terminal.read_for(0.5)
    modules = set(listing.read_text().split())
    found = [name for name in FORBIDDEN if name in modules]
    return [("forbidden imports", ", ".join(found) or "none", "none")]


PARTS = {"busy": busy, "open": opening, "paint": paint, "idle": idle, "imports": imports}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args()
    rows: list[tuple[str, str, str]] = []
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory(prefix="kernel-tui-bench-") as directory:
            rows += PARTS[name](Path(directory), options.seconds)
    width = max(len(row[0]) for row in rows)
    print(f"{'':{width}}  {'measured':>12}  {'at most':>10}")
    for what, value, bound in rows:
        print(f"{what:{width}}  {value:>12}  {bound:>10}")


if __name__ == "__main__":
    main()
