"""Measure the judge's figures on this machine's GPUs, one lane of steps per GPU.

    python benchmarks/judge_figures.py CHECKOUT RESULTS [--minutes 9] [--gpus 0,1] [--steps copies-3,exploits] [--list]

CHECKOUT is a clone of https://github.com/ScalingIntelligence/KernelBench, and RESULTS a directory for logs and results.
Each step is a separate script or test run, with its own build cache and its share of the cores. Each free GPU runs the
next step, in order of importance. Steps that measure PyTorch against the judge run last, alone.

After ``--minutes``, the script ends the running steps and prints the table. To continue, repeat the command. It skips
steps that have ended. It continues runs of ``copies.py``, which stores each outcome, and test runs, without the tests
that passed before. Delete RESULTS after a change to the judge. To repeat a step, delete all files RESULTS/STEP.*. Exit
status 1: a step failed. Exit status 3: steps are left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine.devices.hardware import discover

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = 40
"""Number of problems with a thorough verdict."""
GRACE_S = 20.0
"""Seconds that a step has to store its results after SIGTERM."""
LEFT = 3
"""Exit status if steps are left."""
NO_TESTS = 5
"""Exit status of pytest if it ran no tests. All tests of a continued step may have passed before."""


class Step(NamedTuple):
    """A step. ``alone``: whether no other step may run at the same time."""

    name: str
    command: list[str]
    alone: bool = False


class Ended(msgspec.Struct, frozen=True):
    """The outcome of a step, as stored in RESULTS."""

    status: int
    seconds: float


def steps_of(checkout: Path, results: Path) -> list[Step]:
    """Return all steps, the most important first."""

    def copies(name: str, files: list[Path], *more: str) -> Step:
        stored = ["--results", str(results / f"{name}.jsonl"), "--tolerance", "kernelbench", *more]
        return Step(name, ["benchmarks/copies.py", *map(str, files), *stored])

    def tests(name: str, *arguments: str) -> Step:
        passed = [f"--deselect={test}" for test in passed_tests(results / f"{name}.log")]
        return Step(name, ["-m", "pytest", "-v", "-n", "0", "-m", "gpu", *arguments, *passed])

    levels = {level: sorted((checkout / "KernelBench" / f"level{level}").glob("*.py")) for level in (1, 2, 3)}
    everything = [file for files in levels.values() for file in files]
    return [
        copies("copies-3-even", levels[3][1::2]),
        copies("copies-3-odd", levels[3][::2]),
        tests("exploits", "tests/exploits/test_exploits.py"),
        tests("exploits-again", "tests/exploits/test_exploits.py"),
        copies("copies-1", levels[1]),
        copies("copies-2", levels[2]),
        tests("honest", "tests/exploits/test_honest.py"),
        copies("copies-full", everything, "--full", str(SAMPLE), "--seed", "1"),
        tests("judge-tests", "tests/engine/evaluation/judge"),
        Step("agreement", ["benchmarks/kernelbench_agreement.py", str(checkout)], alone=True),
        Step("repeatability", ["benchmarks/repeatability.py", "--language", "cu"], alone=True),
    ]


def passed_tests(log: Path) -> list[str]:
    """Return the tests that passed in earlier runs of a step, from the output of ``pytest -v``."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return re.findall(r"^(tests/\S.*?) (?:PASSED|XFAIL)\b", text, flags=re.MULTILINE)


class Lane:
    """One GPU with its share of the cores, and the step that runs there."""

    def __init__(self, gpu: str, place: int, lanes: int, results: Path) -> None:
        cores = sorted(os.sched_getaffinity(0))
        share = max(1, len(cores) // lanes)
        self._cores = set(cores[place * share : (place + 1) * share]) or set(cores)
        cache = str(results / f"cache-{gpu}")
        self._environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": gpu,
            "XDG_CACHE_HOME": cache,
            "PYTHONUNBUFFERED": "1",
        }
        self._results = results
        self.step: Step | None = None

    def start(self, step: Step) -> None:
        self.step, self._began = step, time.monotonic()
        with (self._results / f"{step.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *step.command],
                cwd=ROOT,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, self._cores),
            )

    def collect(self) -> bool:
        """Store the outcome of the step if it has ended. Return whether the lane is free."""
        if self.step is not None and (status := self._process.poll()) is not None:
            passed_before = any(word.startswith("--deselect=") for word in self.step.command)
            status = 0 if status == NO_TESTS and passed_before else status
            ended = Ended(status, round(time.monotonic() - self._began, 1))
            (self._results / f"{self.step.name}.json").write_bytes(msgspec.json.encode(ended))
            self.step = None
        return self.step is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the processes of the running step, if any."""
        if self.step is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def wait(self, ends: float) -> None:
        """Wait for the running step until the time ``ends``, without storing its outcome, so that it runs again."""
        if self.step is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, ends - time.monotonic()))


def run(steps: list[Step], lanes: list[Lane], ends: float) -> None:
    """Run ``steps`` on ``lanes`` until the time ``ends``."""
    waiting = list(steps)
    try:
        while time.monotonic() < ends:
            free = [lane for lane in lanes if lane.collect()]
            if not waiting and len(free) == len(lanes):
                return
            for lane in free:
                idle = all(one.step is None for one in lanes)
                if waiting and (not waiting[0].alone or idle) and not _runs_alone(lanes):
                    lane.start(waiting.pop(0))
            time.sleep(0.2)
    finally:
        for lane in lanes:
            lane.collect()
        for number in (signal.SIGTERM, signal.SIGKILL):
            grace_ends = time.monotonic() + GRACE_S
            for lane in lanes:
                lane.send(number)
            for lane in lanes:
                lane.wait(grace_ends)


def _runs_alone(lanes: list[Lane]) -> bool:
    return any(lane.step is not None and lane.step.alone for lane in lanes)


def ended_of(step: Step, results: Path) -> Ended | None:
    file = results / f"{step.name}.json"
    return msgspec.json.decode(file.read_bytes(), type=Ended) if file.exists() else None


def table(steps: list[Step], results: Path) -> Iterator[str]:
    """Yield a line per step: its exit status, its seconds, and the last line of its log."""
    yield f"{'step':<16} {'status':>6} {'seconds':>8}  last line of its log"
    for step in steps:
        ended, log = ended_of(step, results), results / f"{step.name}.log"
        text = log.read_text(errors="replace").strip() if log.exists() else ""
        status, seconds = ("left", "") if ended is None else (str(ended.status), f"{ended.seconds:.0f}")
        yield f"{step.name:<16} {status:>6} {seconds:>8}  {text.splitlines()[-1][:90] if text else ''}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a clone of KernelBench")
    parser.add_argument("results", type=Path, help="directory for logs and results; to continue a run, pass it again")
    parser.add_argument("--minutes", type=float, default=60.0, help="time limit; a later run continues")
    parser.add_argument(
        "--gpus", help="indices of the GPUs to use, separated by commas; none: rehearse without a GPU  [default: all]"
    )
    parser.add_argument("--steps", help="names of the steps to run, separated by commas  [default: all]")
    parser.add_argument("--list", action="store_true", help="print the steps and their outcomes, and exit")
    given = parser.parse_args()
    if not (given.checkout / "KernelBench" / "level1").is_dir():
        parser.error(f"{given.checkout} is not a clone of KernelBench: it has no KernelBench/level1")
    results = given.results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    steps = steps_of(given.checkout.resolve(), results)
    if given.steps is not None:
        wanted = given.steps.split(",")
        if unknown := set(wanted) - {step.name for step in steps}:
            parser.error(
                f"unknown steps: {', '.join(sorted(unknown))}; choose from {', '.join(one.name for one in steps)}"
            )
        steps = [step for step in steps if step.name in wanted]
    if not given.list:
        found = [device.id for device in discover() if device.kind == "cuda"]
        if given.gpus == "none":
            found, given.gpus = [""], "0"
        if not found:
            parser.error("this machine has no NVIDIA GPU; to rehearse the script: --gpus none")
        indices = given.gpus.split(",") if given.gpus else [str(index) for index in range(len(found))]
        if absent := [one for one in indices if not one.isdecimal() or int(one) >= len(found)]:
            parser.error(f"no GPU {', '.join(absent)}; this machine has {len(found)}, with indices from 0")
        gpus = [found[int(index)] for index in indices]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(LEFT))
        lanes = [Lane(gpu, place, len(gpus), results) for place, gpu in enumerate(gpus)]
        left = [step for step in steps if ended_of(step, results) is None]
        run(left, lanes, time.monotonic() + 60.0 * given.minutes)
    print("\n".join(table(steps, results)))
    ends = [ended_of(step, results) for step in steps]
    if any(ended is None for ended in ends):
        return LEFT
    return int(any(ended is not None and ended.status for ended in ends))


if __name__ == "__main__":
    sys.exit(main())
