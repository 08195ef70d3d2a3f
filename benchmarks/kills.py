"""Check that ``kill -9`` of the engine costs a search only its work in flight.

    python benchmarks/kills.py [--kills 30] [--seed 0] [--directory DIR]

The script repeatedly kills the engine of a short search, each time after a random delay of 0.5 to 6 s. After each kill,
it resumes the search with ``kernel-tui resume``. Finally, it lets the search finish. For about a third of the engines,
the delay counts from the start; for the others, from the first event about a kernel. If all delays counted from the
start, most kills would hit the judge's start, which takes seconds.

After every kill, the script checks the session file, repeated work and leftover processes. The script prints one table.
Exit status 1: the search lost or changed an event, repeated work, or left a process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from msgspec.structs import replace

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from engine.daemon.launch import log_tail  # noqa: E402
from engine.session.records import events as ev  # noqa: E402
from engine.session.records.events import Recorded  # noqa: E402
from engine.session.state.session_state import ProblemState, SessionState, fold  # noqa: E402
from engine.session.store import SessionPaths, SessionReader, engine_liveness  # noqa: E402
from engine.session.store.lock import Holder, read_holder  # noqa: E402

ORPHAN_S = 2.0
"""Seconds within which a dead engine's processes must end."""
RUNOFF = 3

PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)
def get_inputs():
    return [torch.randn(256, 2048)]
def get_init_inputs():
    return []
"""

CONFIG = """
name = "kills"
problems = ["small_softmax.py"]
[search]
rounds = {rounds}
ideas = {ideas}
variants = {variants}
runoff = {runoff}
[evaluation]
device = "cpu"
max_pairs = 10
torch_compile = false
other_sizes = false
"""

STAGES = ("starting", "opening", "building", "waiting", "checking", "timing", "runoff", "choosing")
OF_KERNELS = (ev.VariantStage, ev.VariantWritten, ev.VerdictGiven, ev.RunoffFinished, ev.RoundFinished)


@dataclass(frozen=True)
class Kill:
    """A ``kill -9``. ``faults`` contains a sentence for each violation, and ``orphans`` contains the leftover
    processes' command lines."""

    stages: tuple[str, ...]
    lost: int
    orphans: tuple[str, ...]
    gone_after_s: float
    faults: tuple[str, ...]


class Chain:
    """A small search in ``directory``. The real command starts and resumes it, and the benchmark kills its engine.

    ``tables`` is additional text for the config. ``known`` contains the events read so far. Every later read must begin
    with these events.
    """

    def __init__(self, directory: Path, *, rounds: int, ideas: int = 2, variants: int = 2, tables: str = "") -> None:
        (directory / "small_softmax.py").write_text(PROBLEM)
        config = directory / "config.toml"
        config.write_text(CONFIG.format(rounds=rounds, ideas=ideas, variants=variants, runoff=RUNOFF) + tables)
        self._directory = directory
        self.known: list[Recorded] = []
        self.resumed_at = time.time()
        self.command(str(config), "--new", "--detach")
        self.paths = SessionPaths.at(directory / "sessions" / "kills")

    def __enter__(self) -> Chain:
        return self

    def __exit__(self, *exception: object) -> None:
        """Kill the engine, even if the benchmark failed."""
        if engine_liveness(self.paths).running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.engine.pid, signal.SIGKILL)

    def command(self, *arguments: str) -> None:
        """Run ``kernel-tui`` with a separate build cache, so that it builds every kernel. Raises RuntimeError."""
        places = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(self._directory / "cache")}
        done = subprocess.run(
            [sys.executable, "-m", "tui.cli.main", *arguments],
            capture_output=True,
            text=True,
            cwd=self._directory,
            env={**os.environ, **places},
            timeout=600,
        )
        if done.returncode != 0:
            raise RuntimeError(f"kernel-tui {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")

    @property
    def engine(self) -> Holder:
        holder = read_holder(self.paths.lock)
        assert holder is not None
        return holder

    def read(self) -> list[Recorded]:
        with SessionReader(self.paths) as reader:
            return list(reader.read())

    def wait_for(self, wanted: Callable[[list[Recorded]], bool], within_s: float = 300.0) -> bool:
        """Return whether ``wanted(all events)`` became true while the engine was running. Raises TimeoutError."""
        deadline = time.monotonic() + within_s
        events: list[Recorded] = []
        with SessionReader(self.paths) as reader:
            while time.monotonic() < deadline:
                alive = engine_liveness(self.paths, reader).running
                if reader.changed():
                    events += reader.read(events[-1].seq if events else 0)
                    if wanted(events):
                        return True
                if not alive:
                    return False
                time.sleep(0.01)
        raise TimeoutError(f"the expected event did not occur within {within_s:g} s:\n{log_tail(self.paths, 30)}")

    def kill(self) -> Kill:
        """Kill the running engine, and check the session file and the processes. Raises psutil.NoSuchProcess."""
        engine = self.engine
        process = psutil.Process(engine.pid)
        family = {process, *process.children(recursive=True)}
        before = self.read()
        os.kill(engine.pid, signal.SIGKILL)
        left, gone_after_s = await_end(family, engine, self.paths)
        after = self.read()
        lost = missing(self.known, before) + missing(before, after)
        orphans = tuple(map(described, left))
        faults = [
            *([f"{lost} recorded events are missing or changed"] if lost else []),
            *self.damage(),
            *done_twice(after),
            *changed_rounds(fold(self.known), fold(after)),
            *(f"left behind: {orphan}" for orphan in orphans),
        ]
        for survivor in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                survivor.kill()
        self.known = after
        return Kill(stages(after, engine.pid), lost, orphans, gone_after_s, tuple(faults))

    def _other_best(self, state: SessionState) -> list[ProblemState]:
        with SessionReader(self.paths) as reader:
            return [
                problem
                for problem in state.problems.values()
                if problem.best is not None
                and self.paths.best(problem.id, ".cpp").read_text() != reader.text(state.variants[problem.best].source)
            ]

    def damage(self) -> list[str]:
        with SessionReader(self.paths) as reader:
            found = reader.quick_check()
        return [] if found is None else [f"quick_check: {found}"]

    def resume(self) -> None:
        self.resumed_at = time.time()
        self.command("resume", str(self.paths.directory), "--detach")

    def finish(self, rounds: int | None = None) -> tuple[SessionState, list[str]]:
        """Resume the search and let it finish, after ``rounds`` rounds if given. Return the state and all faults."""
        options = [] if rounds is None else ["--rounds", str(rounds)]
        before = fold(self.known)
        if not fold(self.read()).finished:
            self.command("resume", str(self.paths.directory), "--headless", *options)
        events = self.read()
        state = fold(events)
        lost = missing(self.known, events)
        unjudged = [one.id for one in state.variants.values() if one.verdict is None]
        return state, [
            *([f"{lost} recorded events are missing or changed"] if lost else []),
            *self.damage(),
            *done_twice(events),
            *changed_rounds(before, state),
            *([f"no verdict: {', '.join(unjudged)}"] if unjudged else []),
            *([] if state.finished else [f"the search did not finish: {log_tail(self.paths)}"]),
            *(
                f"{problem.id}: the best kernel's file differs from the recorded source"
                for problem in self._other_best(state)
            ),
            *(f"left behind: {described(one)}" for one in await_end(set(), self.engine, self.paths)[0]),
        ]


# Violations


def missing(before: Sequence[Recorded], after: Sequence[Recorded]) -> int:
    """Count the events read ``before`` that are missing or changed ``after``."""
    return len(before) - sum(one == other for one, other in zip(before, after, strict=False))


def done_twice(events: Iterable[Recorded]) -> list[str]:
    """Return a sentence for each piece of recorded work that a search repeated.

    The result excludes kernels that the engine judged again for a recorded reason.
    """
    seen: Counter[Hashable] = Counter()
    judged: set[str] = set()
    asked: set[str] = set()
    """Kernels that the engine must judge again for a recorded reason."""
    again: dict[str, None] = {}
    for one in events:
        event = one.event
        match event:
            case ev.ProblemAdded():
                keys: list[Hashable] = [("problem added", event.problem.id)]
            case ev.BaselineMeasured():
                keys = [("baseline", event.problem, event.baseline.which)]
            case ev.RoundStarted() | ev.RoundFinished() | ev.RunoffFinished():
                keys = [(ev.kind_of(event), event.problem, event.round)]
            case ev.IdeaProposed():
                keys = [("idea", event.idea), ("the same idea", event.problem, event.parent, event.text)]
            case ev.VariantWritten():
                keys = [("kernel", event.variant), ("the same source", event.problem, event.source)]
            case ev.VerdictGiven(why="") if event.variant not in asked:
                keys = [("verdict", event.variant)]
                judged.add(event.variant)
            case ev.VerdictGiven():
                asked.discard(event.variant)
                judged.add(event.variant)
                continue
            case ev.VariantStage() if event.why:
                asked.add(event.variant)
                judged.discard(event.variant)
                continue
            case ev.VariantStage() if event.variant in judged:
                again[f"{event.variant} is {event.stage} although it has a verdict"] = None
                continue
            case _:
                continue
        seen.update(keys)
    return [f"twice: {key}" for key, count in seen.items() if count > 1] + list(again)


def changed_rounds(before: SessionState, after: SessionState) -> list[str]:
    """Return the rounds that were finished ``before`` but differ ``after``."""
    changed = []
    for name, problem in before.problems.items():
        now = {one.number: one for one in after.problems[name].rounds} if name in after.problems else {}
        finished = [one for one in problem.rounds if one.finished_at is not None]
        for one in finished:
            after_it = now.get(one.number)
            # Ignore the best speedup, since verdicts can change for a recorded reason.
            if after_it is None or replace(after_it, best=one.best) != one:
                changed.append(f"{one.id} changed after it ended")
    return changed


def await_end(family: set[psutil.Process], engine: Holder, paths: SessionPaths) -> tuple[list[psutil.Process], float]:
    """Return a dead engine's processes that are still running after ``ORPHAN_S``, and the seconds until the last one
    ended.
    """
    began = time.monotonic()
    while left := living(family | belonging(engine, paths)):
        if time.monotonic() - began > ORPHAN_S:
            break
        time.sleep(0.01)
    return left, time.monotonic() - began


def belonging(engine: Holder, paths: SessionPaths) -> set[psutil.Process]:
    """Return an engine's processes, found by process session, marker, or session path in the command line."""
    found = set()
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            command = process.cmdline()
            named = engine.marker in command or any(str(paths.directory) in word for word in command)
            if named or os.getsid(process.pid) == engine.pid or engine.marker in process.environ().values():
                found.add(process)
    return found


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the running processes. Zombies do not count."""
    alive = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return alive


def described(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {' '.join(process.cmdline()) or process.name()}"
    return str(process.pid)


# State of a search


def life_of(pid: int, events: list[Recorded]) -> list[Recorded]:
    """Return the events of the running engine ``pid`` since its recorded start."""
    starts = [place for place, one in enumerate(events) if isinstance(one.event, ev.EngineStarted)]
    started = events[starts[-1]].event if starts else None
    return events[starts[-1] :] if isinstance(started, ev.EngineStarted) and started.pid == pid else []


def stages(events: list[Recorded], pid: int) -> tuple[str, ...]:
    """Return the activities of engine ``pid`` according to its events. Several can overlap."""
    own = life_of(pid, events)
    if not own:
        return ("starting",)
    if not any(isinstance(one.event, ev.DeviceMeasured) for one in own):
        return ("opening",)
    state = fold(events)
    running = {one.stage for one in state.in_flight()} - {None, "queued"}
    if running:
        return tuple(sorted(str(stage) for stage in running))
    if any(_owes_runoff(state, problem) for problem in state.problems.values()):
        return ("runoff",)
    return ("choosing",) if any(isinstance(one.event, OF_KERNELS) for one in own) else ("opening",)


def _owes_runoff(state: SessionState, problem: ProblemState) -> bool:
    """Return whether all kernels of the open round are judged, but the runoff is not finished."""
    round_ = problem.rounds[-1] if problem.rounds else None
    if round_ is None or round_.finished_at is not None or not round_.variants or state.flight:
        return False
    leaders = {one.id for one in state.leaders(problem.id, RUNOFF)}
    return len(leaders) >= 2 and not leaders <= {standing.variant for standing in problem.standings}


# The benchmark


class Tally:
    """The results of repeated kills. Times are in seconds after ``kernel-tui resume`` started."""

    def __init__(self) -> None:
        self.kills: list[Kill] = []
        self.faults: list[str] = []
        self.back_s: list[float] = []
        self.searching_s: list[float] = []

    def add(self, chain: Chain, kill: Kill, pid: int) -> None:
        own = life_of(pid, chain.known)
        if self.kills and own:  # the first engine was not resumed
            self.back_s.append(own[0].time - chain.resumed_at)
            self.searching_s += [one.time - chain.resumed_at for one in own if isinstance(one.event, OF_KERNELS)][:1]
        self.kills.append(kill)
        self.faults += [f"kill {len(self.kills)} ({', '.join(kill.stages)}): {fault}" for fault in kill.faults]


def run(chain: Chain, count: int, draw: random.Random) -> Tally:
    """Kill the engine and resume the search ``count`` times, or until the search is finished."""
    tally = Tally()
    while len(tally.kills) < count:
        if tally.kills:
            chain.resume()
        pid = chain.engine.pid
        if draw.random() > 1 / 3:
            chain.wait_for(lambda events, pid=pid: any(isinstance(e.event, OF_KERNELS) for e in life_of(pid, events)))  # type: ignore[misc]
        time.sleep(draw.uniform(0.5, 6.0))
        if not engine_liveness(chain.paths).running:
            tally.faults.append(
                f"the engine ended without a kill after {len(tally.kills)} kills: {log_tail(chain.paths, 1)}"
            )
            break
        tally.add(chain, chain.kill(), pid)
        if sys.stderr.isatty():
            print(f"{len(tally.kills)} of {count} kills", end="\r", file=sys.stderr, flush=True)
    return tally


def rows_of(tally: Tally, state: SessionState, events: Sequence[Recorded], wall_s: float) -> list[tuple[str, str]]:
    """Return the rows of the table: work done, events lost, time."""
    kills = tally.kills
    hit = Counter(stage for kill in kills for stage in kill.stages)
    begun = Counter(
        e.event.variant for e in events if isinstance(e.event, ev.VariantStage) and e.event.stage == "building"
    )
    judged = {e.event.variant for e in events if isinstance(e.event, ev.VerdictGiven)}
    twice = sum(fault.startswith("twice: ('verdict',") for fault in done_twice(events))
    rounds = [round_ for problem in state.problems.values() for round_ in problem.rounds]
    correct = sum(variant.correct for variant in state.variants.values())
    return [
        ("kills", str(len(kills))),
        *((f"  {stage}", str(hit[stage])) for stage in STAGES if hit[stage]),
        ("events lost", f"{sum(kill.lost for kill in kills)} of {len(events)}"),
        ("repeated verdicts", f"{twice} of {len(judged)}"),
        ("restarted evaluations", f"{begun.total() - len(begun)} of {len(begun)}"),
        (f"processes left after {ORPHAN_S:g} s", str(sum(len(kill.orphans) for kill in kills))),
        ("last process ended after", spread([kill.gone_after_s for kill in kills])),
        ("engine running after", spread(tally.back_s)),
        ("first kernel after", spread(tally.searching_s)),
        ("search", f"{len(rounds)} rounds, {len(state.variants)} kernels, {correct} correct, {state.starts} engines"),
        ("wall time", f"{wall_s:.0f} s"),
        ("faults", str(len(tally.faults))),
    ]


def spread(times_s: Sequence[float]) -> str:
    return f"median {statistics.median(times_s):.2f} s, at most {max(times_s):.2f} s" if times_s else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random kill times")
    parser.add_argument(
        "--directory", type=Path, default=None, help="parent directory of the session (default: a temporary directory)"
    )
    arguments = parser.parse_args()
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="kills-", dir=arguments.directory))
    with Chain(directory, rounds=100, ideas=3, variants=3) as chain:
        tally = run(chain, arguments.kills, random.Random(arguments.seed))
        open_rounds = [one.rounds[-1].number for one in fold(chain.known).problems.values() if one.rounds]
        state, faults = chain.finish(max(1, *open_rounds))
        tally.faults += faults
        events = chain.read()
    for name, value in rows_of(tally, state, events, time.monotonic() - began):
        print(f"{name:<28} {value}")
    for fault in tally.faults:
        print(fault)
    if not tally.faults:
        shutil.rmtree(directory)
    else:
        print(f"session kept: {chain.paths.directory}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
