"""Search a fixed sample of KernelBench in several calls, each with a time limit.

    python benchmarks/kernelbench_table.py KERNELBENCH SESSIONS --minutes 9 --device cuda

``KERNELBENCH`` is the directory that contains ``level1``, and ``SESSIONS`` receives one session per level. The script
stops cleanly before the end of ``--minutes``. To continue, repeat the command, on this host or on another host with the
same GPU model. The paths of both directories may change. Exit code 0: the tables are complete. Exit code 75: run the
script again.

With ``--one-turn``, a level ends when each problem has had its turn. Otherwise, minutes that a problem does not need go
to other problems. With ``--level``, the exit code applies to this level, and the GPUs of a host can search different
levels at the same time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from engine.session.state.session_state import SessionState  # noqa: E402
from engine.session.store import SessionPaths, SessionReader  # noqa: E402

SAMPLES = {"level1": 25, "level2": 25, "level3": 15}
SEED = 1
STOP_S = 30.0
"""Time to reserve for a clean stop and the report, in seconds."""
LEAST_S = 60.0
"""Minimum time left to start a level, in seconds. The level's first problem must open in this time."""
AGAIN = 75
POLL_S = 1.0
"""Polling interval of the running session, in seconds."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernelbench", type=Path)
    parser.add_argument("sessions", type=Path)
    parser.add_argument("--minutes", type=float, required=True, help="time limit of this call")
    parser.add_argument("--level", choices=tuple(SAMPLES), help="only this level [default: all three]")
    parser.add_argument("--sample", type=int, help="number of problems per level [default: 25, 25 and 15]")
    parser.add_argument("--minutes-per-problem", type=float, default=1.0)
    parser.add_argument("--one-turn", action="store_true", help="give no problem a second turn")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--config", type=Path, help="config file for kernel-tui bench")
    options = parser.parse_args()
    until = time.monotonic() + options.minutes * 60 - STOP_S
    complete = True
    for level in [options.level] if options.level else SAMPLES:
        sample = options.sample or SAMPLES[level]
        if until - time.monotonic() < LEAST_S:
            complete = False
            break
        turns = FirstTurns(options.sessions / level)
        is_done = turns.are_over if options.one_turn else lambda: False
        if is_done():
            continue
        command = [sys.executable, "-m", "tui.cli.main", "bench", str(options.kernelbench.resolve() / level)]
        command += ["--sample", str(sample), "--seed", str(SEED), "--name", level, "--headless"]
        command += ["--minutes-per-problem", f"{options.minutes_per_problem:g}", "--device", options.device]
        command += ["--sessions", str(options.sessions.resolve())]
        command += ["--config", str(options.config.resolve())] if options.config is not None else []
        code = run_until(command, until, is_done)
        if (code == -signal.SIGINT or code == 130) and is_done():
            continue
        if code == -signal.SIGINT or code == 130:
            complete = False
            break
        if code:
            return code
    say_progress(options.sessions)
    print("complete" if complete else "the tables are not complete; run the same command again", flush=True)
    return 0 if complete else AGAIN


class FirstTurns:
    """Follow the session in ``directory`` until each problem has had its first turn."""

    def __init__(self, directory: Path) -> None:
        self._paths = SessionPaths.at(directory)
        self._state = SessionState()

    def are_over(self) -> bool:
        if not self._paths.exists:
            return False
        with SessionReader(self._paths) as reader:
            self._state.apply_all(reader.read(self._state.seq))
        phases, turn = self._state.phases(), self._state.turn
        is_first = turn is not None and self._state.problems[turn.problem].turns == 1
        return bool(phases) and "waiting" not in phases.values() and not is_first


def run_until(command: list[str], until: float, is_done: Callable[[], bool]) -> int:
    """Run ``command``. Interrupt the command at ``until`` (monotonic), or when ``is_done()`` is true. Return the
    command's exit code.
    """
    child = subprocess.Popen(command, cwd=ROOT)
    try:
        while time.monotonic() < until and not is_done():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(POLL_S)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            child.wait()
    return child.returncode


def say_progress(sessions: Path) -> None:
    for file in sorted(sessions.glob("*/report/report.json")):
        report = json.loads(file.read_text())
        searched = sum(row["minutes"] is not None and row["minutes"] > 0 for row in report["problems"])
        totals = {name: total["fast"] for name, total in report["totals"].items()}
        print(f"{report['session']}: {searched} of {report['count']} searched, {report['correct']} correct, {totals}")


if __name__ == "__main__":
    sys.exit(main())
