"""Measure the speed of the session file: writing, following, reading, requests, listing.

Usage: python benchmarks/session_file.py [--events 160000] [--directory DIR]

The large session has a search's mix of events: for each kernel, a source, four stages, and a verdict of about 1 kB.
"Acknowledged" means committed with synchronous=FULL. The script prints one table.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.session.records.events import CommandHandled, LogLine, VariantStage, VariantWritten, VerdictGiven, encode
from engine.session.records.requests import Pause
from engine.session.records.verdict import BuildReport, CheckResult, Stage, Timing, Verdict
from engine.session.state.session_state import fold
from engine.session.store import (
    EventWriter,
    RequestInbox,
    SessionPaths,
    SessionReader,
    create_session,
    list_sessions,
    send_request,
    wait_handled,
)

POLL_S = 0.05
STAGES: tuple[Stage, ...] = ("building", "waiting", "checking", "timing")

FOLLOWER = """
import sys, time
from pathlib import Path
from engine.session.store import SessionPaths, SessionReader
reader = SessionReader(SessionPaths(Path(sys.argv[1])))
seq = reader.last_seq()
print("ready", flush=True)
while True:
    if reader.changed():
        for recorded in reader.read(seq):
            seq = recorded.seq
            print(time.time() - float(recorded.event.text), flush=True)
            if seq >= int(sys.argv[2]):
                sys.exit()
    time.sleep(float(sys.argv[3]))
"""


def verdict(number: int) -> VerdictGiven:
    """Return a typical verdict, about 0.9 kB of JSON."""
    timing = Timing(1.25 + number * 1e-6, 1.2, 1.4, 200)
    checks = tuple(CheckResult(f"trial {n}: normal, scale 1", True) for n in range(8))
    build = BuildReport(True, 0.31, "g++ -O3 -march=native -fopenmp -shared -fPIC -include header.h kernel.cpp")
    return VerdictGiven(
        variant=f"v{number}",
        verdict=Verdict(
            status="correct",
            device="cpu",
            speedup=1.73,
            speedup_low=1.71,
            speedup_high=1.75,
            pairs=120,
            kernel=timing,
            reference=timing,
            max_abs_error=1.2e-7,
            checks=checks,
            build=build,
            stage_s={"queue": 0.1, "build": 0.31, "start": 0.02, "check": 0.2, "timing": 0.5},
            sandbox="user, net, pid namespaces; Landlock; seccomp",
        ),
    )


def seconds(job: Callable[[], object]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def write_many(paths: SessionPaths, count: int) -> None:
    writer = EventWriter(paths)
    for number in range(count // 6):
        name = f"v{number}"
        writer.append(
            VariantWritten(
                variant=name,
                idea=f"i{number // 3}",
                problem="softmax",
                round=1,
                parent="v0" if number else None,
                language="cpp",
                source=writer.put_blob(f"// kernel {number}"),
                proposer="playbook",
                note="unroll 4",
                data={"unroll": 4, "vector": 8},
            )
        )
        for stage in STAGES:
            writer.append(VariantStage(variant=name, stage=stage))
        writer.append(verdict(number))
    writer.close()


def write_one_by_one(paths: SessionPaths, count: int) -> list[float]:
    writer = EventWriter(paths)
    took = [seconds(lambda n=number: writer.append(verdict(n)).result()) for number in range(count)]  # type: ignore[misc]
    writer.close()
    return took


def follow(paths: SessionPaths, count: int) -> list[float]:
    """Return the seconds from ``append`` until another process, which polls every 50 ms, has read the event."""
    with SessionReader(paths) as reader:
        last = reader.last_seq() + count
    command = [sys.executable, "-c", FOLLOWER, str(paths.directory), str(last), str(POLL_S)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[1]
    ) as follower:
        assert follower.stdout is not None
        follower.stdout.readline()
        writer = EventWriter(paths)
        for _ in range(count):
            writer.append(LogLine(level="info", text=str(time.time())))
            time.sleep(0.037)
        writer.close()
        return [float(line) for line in follower.stdout]


def command_round_trips(paths: SessionPaths, count: int) -> list[float]:
    """Return the seconds from sending a request to reading the answer, with an engine that only answers requests."""
    writer = EventWriter(paths)
    inbox = RequestInbox(paths)
    ending = threading.Event()

    def answer() -> None:
        while not ending.wait(POLL_S):
            for sent in inbox.poll():
                writer.append(CommandHandled(command=sent.id, ok=True, message=""))

    engine = threading.Thread(target=answer)
    engine.start()
    took = [seconds(lambda: wait_handled(paths, send_request(paths, Pause(), "bench"), 10)) for _ in range(count)]
    ending.set()
    engine.join()
    inbox.close()
    writer.close()
    return took


def spread(times: Iterable[float]) -> str:
    ordered = sorted(time * 1000 for time in times)
    return f"median {statistics.median(ordered):.1f} ms, p95 {ordered[int(len(ordered) * 0.95)]:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=160_000, help="number of events in the large session")
    parser.add_argument(
        "--directory", type=Path, default=None, help="parent directory of the sessions (default: a temporary directory)"
    )
    arguments = parser.parse_args()
    count: int = arguments.events
    root = Path(tempfile.mkdtemp(prefix="session-file-", dir=arguments.directory))
    try:
        large = create_session(root, "large", "", "config.toml", 0)
        small = create_session(root, "small", "", "config.toml", 0)
        rows = [
            ("SQLite", sqlite3.sqlite_version),
            ("one verdict as JSON", f"{len(encode(verdict(1)))} bytes"),
        ]
        took = seconds(lambda: write_many(large, count))
        rows.append((f"write {count} events, group commit", f"{took:.2f} s, {count / took:,.0f} events/s"))
        rows.append(("one event, acknowledged before the next", spread(write_one_by_one(small, 200))))
        with SessionReader(large) as reader:
            took = seconds(lambda: sum(1 for _ in reader.read()))
            rows.append((f"read and decode {count} events", f"{took:.2f} s"))
            rows.append((f"fold {count} events", f"{seconds(lambda: fold(reader.read())):.2f} s"))
            polls = 10_000
            took = seconds(lambda: [reader.changed() for _ in range(polls)])
            rows.append(("check for changes", f"{took / polls * 1e6:.1f} µs"))
        rows.append(("time until a process that polls every 50 ms reads an event", spread(follow(small, 60))))
        rows.append(("request and answer", spread(command_round_trips(small, 30))))
        rows.append(("list of two sessions, one large", f"{seconds(lambda: list_sessions(root)):.2f} s"))
        size = sum(file.stat().st_size for file in large.directory.glob("session.db*"))
        rows.append(("size of the large session", f"{size / 1e6:.0f} MB"))
    finally:
        shutil.rmtree(root)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


if __name__ == "__main__":
    main()
