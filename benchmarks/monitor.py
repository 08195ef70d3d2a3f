"""Measure the cost of the monitor in a real pseudo-terminal of 120 columns and 40 lines. The script prints one table.

Usage: python benchmarks/monitor.py [--seconds 20] [--only busy,charts,stream,open,paint,idle,imports,steer]

busy     a session of 5,000 kernels and 50 events/s, with the tree by round and by lineage: share of a core, bytes sent
         to the terminal, and time from a key press to the first painted byte
charts   the same session with the charts on the screen, at three terminal sizes
stream   the same session, with four model replies streaming into the Calls tab
open     a session of 20,000 kernels and over 160,000 events, including model calls and requests: time from the command
         to the tree on the screen
paint    time from the command to the first paint of a new search (kernel-tui config.toml), of a resumed search, and of
         a saved session (kernel-tui attach)
idle     a finished session without input: share of a core
imports  modules that the process must not import
steer    a real search on this machine: time from the key that pins or unpins a kernel to the row that shows it,
         including the engine's confirmation
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.pseudo_terminal import Terminal, attached  # noqa: E402
from benchmarks.synthetic_session import GPU, Shape, write_session  # noqa: E402
from engine.proposers.llm.model_protocol import Prompt  # noqa: E402
from engine.proposers.partial_replies import Partials  # noqa: E402
from engine.session.records.events import ModelCallStarted  # noqa: E402
from engine.session.records.model_calls import CallSite  # noqa: E402
from engine.session.store import EventWriter, SessionPaths, engine_liveness  # noqa: E402

FORBIDDEN = ("torch", "numpy", "openai", "google.genai", "pydantic")
KEYS = 60
STEERED = 20
SEARCH = """
name = "steered"
sessions = "sessions"
problems = ["builtin:quickstart/rmsnorm", "builtin:quickstart/softmax"]
[search]
rounds = 50
ideas = 2
variants = 2
[budget]
minutes = 5
[evaluation]
torch_compile = false
[[models]]
provider = "playbook"
"""


class Figure(NamedTuple):
    """A row of the table. ``bound`` is the project's limit for the figure, if any."""

    what: str
    value: float | str
    unit: str = ""
    bound: float | str = ""

    def line(self, width: int) -> str:
        shown = [
            f"{value:.{0 if self.unit == 'ms' else 2 if self.unit == 's' else 1}f} {self.unit}"
            if isinstance(value, float)
            else value
            for value in (self.value, self.bound)
        ]
        missed = (
            self.value > self.bound
            if isinstance(self.value, float) and isinstance(self.bound, float)
            else self.bound != "" and self.value != self.bound
        )
        return f"{self.what:{width}}  {shown[0]:>12}  {shown[1]:>12}{'  MISSED' if missed else ''}"


@contextlib.contextmanager
def live_session(directory: Path, rate: float) -> Iterator[SessionPaths]:
    """Yield a session of 5,000 kernels. Its engine, a separate process, records ``rate`` events per second."""
    command = [sys.executable, str(ROOT / "benchmarks" / "synthetic_session.py"), str(directory), "--name", "busy"]
    command += ["--variants", "5000", "--device", "cuda", "--live", "--rate", str(rate), "--seconds", "600"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield SessionPaths.at(Path(process.stdout.readline().strip()))
    finally:
        process.kill()
        process.wait()


def busy(directory: Path, seconds: float) -> list[Figure]:
    figures = []
    with live_session(directory, 50) as paths:
        for view, keys in (("by round", "G"), ("by lineage", "tG")):
            with attached(paths.directory) as terminal:
                terminal.wait_for("softmax")
                terminal.read_for(3.0)
                for key in keys:  # G jumps to the rows that change
                    terminal.type(key)
                    terminal.read_for(1.0)
                what = f"5,000 kernels, 50 events/s, tree {view}"
                share, rate = _load(terminal, seconds)
                figures += [
                    Figure(f"{what}: share of a core", share, "%", 15.0),
                    Figure(f"{what}: to the terminal", rate, "kB/s", 100.0),
                ]
                delays = _keys(terminal, KEYS)
                figures.append(Figure(f"{what}: key to paint, median", statistics.median(delays), "ms"))
                figures.append(Figure(f"{what}: key to paint, p95", _p95(delays), "ms", 50.0))
    return figures


def charts(directory: Path, seconds: float) -> list[Figure]:
    figures = []
    with live_session(directory, 50) as paths:
        for size, keys in (((200, 60), "G"), ((120, 40), "G[["), ((80, 24), "8")):
            with attached(paths.directory, size=size) as terminal:
                terminal.wait_for("softmax")
                terminal.read_for(3.0)
                for key in keys:
                    terminal.type(key)
                    terminal.read_for(1.0)
                share, rate = _load(terminal, seconds)
                what = f"charts on, 5,000 kernels, 50 events/s, {size[0]}x{size[1]}"
                figures += [
                    Figure(f"{what}: share of a core", share, "%", 15.0),
                    Figure(f"{what}: to the terminal", rate, "kB/s", 100.0),
                ]
    return figures


def stream(directory: Path, seconds: float) -> list[Figure]:
    with live_session(directory, 50) as paths, _writing(paths), attached(paths.directory) as terminal:
        terminal.wait_for("softmax")
        terminal.read_for(3.0)
        terminal.type("g")
        terminal.read_for(1.0)
        terminal.type("v")
        terminal.wait_for("characters so far")
        share, rate = _load(terminal, seconds)
    what = "4 streamed replies, 5,000 kernels, 50 events/s"
    return [
        Figure(f"{what}: share of a core", share, "%", 15.0),
        Figure(f"{what}: to the terminal", rate, "kB/s", 100.0),
    ]


@contextlib.contextmanager
def _writing(paths: SessionPaths) -> Iterator[None]:
    """Keep four calls for ``softmax`` in flight. Each reply grows by 2,000 characters per second."""
    writer, partials, over = EventWriter(paths), Partials(paths.directory), threading.Event()
    sites = [CallSite("softmax", 0, "ideas", "", number) for number in range(4)]
    prompt = writer.put_blob(Prompt("ideas", "", "").encode())
    for number, site in enumerate(sites):
        writer.append(
            ModelCallStarted(
                call=f"c{number}",
                attempt=1,
                provider="openai",
                model="m",
                site=site,
                prompt=prompt,
                tokens=1,
                dollars=0.0,
            )
        )
    writer.flush(5)

    def write() -> None:
        text = ""
        with contextlib.ExitStack() as calls:
            shows = [calls.enter_context(partials.of(site)) for site in sites]
            while not over.wait(0.05):
                text += f"const float sum{len(text)} = warp_sum(value) * {len(text)}.0f;  // one line of a kernel\n"
                for show in shows:
                    show(text)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        writer.close()


def _load(terminal: Terminal, seconds: float) -> tuple[float, float]:
    """Return the CPU load in percent of a core, and the painted kB/s, over ``seconds``."""
    before, received, begun = terminal.cpu_seconds(), terminal.received, time.monotonic()
    terminal.read_for(seconds)
    elapsed = time.monotonic() - begun
    share = (terminal.cpu_seconds() - before) / elapsed * 100
    return share, (terminal.received - received) / elapsed / 1000


def _keys(terminal: Terminal, count: int) -> list[float]:
    delays = []
    for number in range(count):
        terminal.read_for(0.23)
        terminal.type("k" if number % 8 < 6 else "j")
        if (delay := terminal.read_for(1.0, lambda _: True)) is not None:
            delays.append(delay * 1000)
    return delays


def _p95(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


def opening(directory: Path, seconds: float) -> list[Figure]:
    shape = Shape(variants=20_000, problems=8, rounds=10, device=GPU, attended=True)
    paths = write_session(directory, "large", shape, ended=True)
    times = []
    for _ in range(4):  # the first run brings the file into the page cache, where a recently written session would be
        with attached(paths.directory) as terminal:
            times.append(terminal.wait_for("attention"))
    with contextlib.closing(sqlite3.connect(paths.database)) as db:
        events = db.execute("SELECT count(*) FROM event").fetchone()[0]
    return [Figure(f"open 20,000 kernels, {events:,} events", statistics.median(times[1:]), "s", 2.0)]


def paint(directory: Path, seconds: float) -> list[Figure]:
    paths = write_session(directory, "paint", Shape(variants=200, device=GPU), ended=True)
    first, full = [], []
    for _ in range(6):
        with attached(paths.directory) as terminal:
            first.append(terminal.wait_for("Tree"))
            full.append(terminal.wait_for("softmax"))
    return [
        *_paint_of_searches(directory),
        Figure("attach: first paint after the command", statistics.median(first[1:]), "s", 0.6),
        Figure("attach: small session on the screen after the command", statistics.median(full[1:]), "s"),
    ]


def _paint_of_searches(directory: Path) -> list[Figure]:
    """Start new searches in separate directories, detach from them immediately, resume them, and kill their engines."""
    _compile_engine()
    new, runs, resumed = [], [], []
    for number in range(6):
        place = directory / str(number)
        place.mkdir()
        (place / "config.toml").write_text(SEARCH)
        paths = SessionPaths.at(place / "sessions" / "steered")
        for words, times in ((["config.toml"], new), (["resume", "steered"], resumed)):
            terminal = Terminal(words, place / "settings", directory=place)
            try:
                times.append(terminal.wait_for("Tree"))
                if times is new:
                    runs.append(terminal.wait_for("live"))
                terminal.read_for(1.0, lambda _, paths=paths: engine_liveness(paths).running)  # type: ignore[misc]
            finally:
                terminal.close()
                _kill_engine(paths)
    return [
        Figure("new search: first paint after the command", statistics.median(new[1:]), "s", 0.6),
        Figure("new search: engine shown as running", statistics.median(runs[1:]), "s"),
        Figure("resumed search: first paint after the command", statistics.median(resumed[1:]), "s", 0.6),
    ]


def _compile_engine() -> None:
    """Compile the engine's imports to bytecode, so that no measured search spends time on compilation."""
    modules = (
        "engine.config.schema",
        "engine.doctor",
        "engine.daemon.service",
        "tui.monitor.app",
        "tui.cli.search.begin",
    )
    warm = f"import torch, {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", warm], cwd=ROOT, check=True)


def _kill_engine(paths: SessionPaths) -> None:
    while (living := engine_liveness(paths)).running:
        if living.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(living.pid, 9)
        time.sleep(0.05)


def idle(directory: Path, seconds: float) -> list[Figure]:
    paths = write_session(directory, "idle", Shape(variants=5000, device=GPU), ended=True)
    with attached(paths.directory) as terminal:
        terminal.wait_for("softmax")
        terminal.read_for(3.0)
        share, _ = _load(terminal, seconds)
    return [Figure("idle: share of a core", share, "%", 2.0)]


def imports(directory: Path, seconds: float) -> list[Figure]:
    paths = write_session(directory, "imports", Shape(variants=50, device=GPU), ended=True)
    listing = directory / "modules"
    extra = f"import atexit, sys; atexit.register(lambda: open({str(listing)!r}, 'w').write(' '.join(sys.modules))); "
    with attached(paths.directory, extra=extra) as terminal:
        terminal.wait_for("softmax")
        # These keys open every tab and the help.
        for keys in ("?", "\x1b", "1G", "4]", "]", "]", "]", "]", "]", "]", "v", "6", "1"):
            terminal.type(keys)
            terminal.read_for(0.4)
    modules = set(listing.read_text().split())
    found = [name for name in FORBIDDEN if name in modules]
    return [Figure("forbidden imports", ", ".join(found) or "none", "", "none")]


def steer(directory: Path, seconds: float) -> list[Figure]:
    config = directory / "c.toml"
    config.write_text(SEARCH)
    paths = SessionPaths.at(directory / "sessions" / "steered")
    _compile_engine()
    terminal = Terminal([str(config)], directory / "settings", directory=directory)
    try:
        terminal.wait_for("★ v", 120)
        delays = []
        for _ in range(STEERED):
            terminal.type("B")
            terminal.read_for(0.6)
            for shown in (
                "▪".encode(),
                b"unpinned",
            ):  # a pin shows as a glyph in the row, an unpin as the engine's answer
                terminal.forget()
                terminal.type("b")
                delay = terminal.read_for(5.0, lambda _, wanted=shown: wanted in terminal.seen)  # type: ignore[misc]
                if delay is None:
                    raise TimeoutError(f"{shown.decode()!r} did not appear: {terminal.seen[-2000:]!r}")
                delays.append(delay * 1000)
                terminal.read_for(0.7)
        terminal.type("Q")
        terminal.read_for(0.5)
        terminal.type("y")
        terminal.read_for(30.0, lambda _: not engine_liveness(paths).running)
    finally:
        terminal.close()
        _kill_engine(paths)
    return [
        Figure(f"key to the confirmed row, real search, median of {len(delays)}", statistics.median(delays), "ms"),
        Figure("key to the confirmed row, real search, p95", _p95(delays), "ms", 300.0),
        Figure("key to the confirmed row, real search, longest", max(delays), "ms"),
    ]


PARTS = {
    "busy": busy,
    "charts": charts,
    "stream": stream,
    "open": opening,
    "paint": paint,
    "idle": idle,
    "imports": imports,
    "steer": steer,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args()
    figures: list[Figure] = []
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="kernel-tui-bytecode-") as bytecode:
        # Store bytecode like an installation does, even if the environment or a read-only checkout prevents that.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        for name in options.only.split(","):
            with tempfile.TemporaryDirectory(prefix="kernel-tui-bench-") as directory:
                figures += PARTS[name](Path(directory), options.seconds)
    width = max(len(figure.what) for figure in figures)
    print(f"{'':{width}}  {'measured':>12}  {'at most':>12}")
    for figure in figures:
        print(figure.line(width))
    print(f"load average of this machine: {before:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
