"""What ``kill -9`` of the engine costs a search: nothing but the work in flight.

    python benchmarks/kills.py [--kills 30] [--seed 0] [--directory DIR]

Kills the engine of one short search after a random 0.5 to 6 s, goes on with ``kernel-tui resume``, kills that one, and
in the end lets the search finish. One engine in three is killed so long after its start, the others so long after
their first word about a kernel: a judge takes seconds to start, and kills during those alone would show little. After
every kill the session file, what was done twice and the processes left behind are looked at. Prints one table; the
exit status is 1 if anything was lost, changed, done twice or left behind.
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

from engine import events as ev  # noqa: E402
from engine.events import Recorded  # noqa: E402
from engine.launch import log_tail  # noqa: E402
from engine.session import SessionPaths, SessionReader, engine_liveness  # noqa: E402
from engine.session.lock import Holder, read_holder  # noqa: E402
from engine.state import ProblemState, SessionState, fold  # noqa: E402

ORPHAN_S = 2.0
"""How long a process of a dead engine may still be there."""
HEAT = 3

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
heat = {heat}
[evaluation]
device = "cpu"
max_pairs = 10
torch_compile = false
other_sizes = false
"""

STAGES = ("starting", "opening", "building", "waiting", "checking", "timing", "heat", "choosing")
OF_KERNELS = (ev.VariantStage, ev.VariantWritten, ev.VerdictGiven, ev.HeatFinished, ev.RoundFinished)


@dataclass(frozen=True)
class Kill:
    """One ``kill -9``. ``faults``: all that must not be, one sentence each; ``orphans``: command lines."""

    stages: tuple[str, ...]
    lost: int
    orphans: tuple[str, ...]
    gone_after_s: float
    faults: tuple[str, ...]


class Chain:
    """One small search in ``directory``, started, killed, resumed and finished through the real command.

    ``known`` is what was read of its session so far: whatever is read later must begin with it.
    """

    def __init__(self, directory: Path, *, rounds: int, ideas: int = 2, variants: int = 2) -> None:
        (directory / "small_softmax.py").write_text(PROBLEM)
        config = directory / "config.toml"
        config.write_text(CONFIG.format(rounds=rounds, ideas=ideas, variants=variants, heat=HEAT))
        self._directory = directory
        self.known: list[Recorded] = []
        self.resumed_at = time.time()
        self.command(str(config), "--new", "--detach")
        self.paths = SessionPaths.at(directory / "sessions" / "kills")

    def __enter__(self) -> Chain:
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave no engine behind, however this ended."""
        if engine_liveness(self.paths).running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.engine.pid, signal.SIGKILL)

    def command(self, *arguments: str) -> None:
        """Run ``kernel-tui`` with a build cache of its own, so that kernels are really built. Raises RuntimeError."""
        places = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(self._directory / "cache")}
        done = subprocess.run(
            [sys.executable, "-m", "tui.cli", *arguments],
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

    def wait_for(self, wanted: Callable[[list[Recorded]], bool], within_s: float = 120.0) -> bool:
        """Whether ``wanted(all events)`` came true while the engine lived. Raises TimeoutError."""
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
        raise TimeoutError(f"nothing came within {within_s:g} s:\n{log_tail(self.paths, 30)}")

    def kill(self) -> Kill:
        """Kill the living engine as it stands and look at what is left. Raises psutil.NoSuchProcess."""
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
            *([f"{lost} events that had been read are gone or altered"] if lost else []),
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
        """Resume and let the search come to its end, after ``rounds`` if given: how it stands then, and faults."""
        options = [] if rounds is None else ["--rounds", str(rounds)]
        before = fold(self.known)
        if not fold(self.read()).finished:
            self.command("resume", str(self.paths.directory), "--headless", *options)
        events = self.read()
        state = fold(events)
        lost = missing(self.known, events)
        unjudged = [one.id for one in state.variants.values() if one.verdict is None]
        return state, [
            *([f"{lost} events that had been read are gone or altered"] if lost else []),
            *self.damage(),
            *done_twice(events),
            *changed_rounds(before, state),
            *([f"no verdict: {', '.join(unjudged)}"] if unjudged else []),
            *([] if state.finished else [f"the search did not finish: {log_tail(self.paths)}"]),
            *(f"{problem.id}: its best kernel's file is another" for problem in self._other_best(state)),
            *(f"left behind: {described(one)}" for one in await_end(set(), self.engine, self.paths)[0]),
        ]


# What must not be


def missing(before: Sequence[Recorded], after: Sequence[Recorded]) -> int:
    """How many of the events read ``before`` do not stand at the same place, unaltered, ``after``."""
    return len(before) - sum(one == other for one, other in zip(before, after, strict=False))


def done_twice(events: Iterable[Recorded]) -> list[str]:
    """What the engines of an unsteered search did although it had been recorded: one sentence each.

    A kernel that is judged once more for a reason that stands in the session was not judged twice.
    """
    seen: Counter[Hashable] = Counter()
    judged: set[str] = set()
    asked: set[str] = set()
    """Kernels to be judged once more for a recorded reason."""
    again: dict[str, None] = {}
    for one in events:
        event = one.event
        match event:
            case ev.ProblemAdded():
                keys: list[Hashable] = [("problem added", event.problem.id)]
            case ev.BaselineMeasured():
                keys = [("baseline", event.problem, event.baseline.which)]
            case ev.RoundStarted() | ev.RoundFinished() | ev.HeatFinished():
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
    """Rounds that were finished ``before`` and are not just the same ``after``."""
    changed = []
    for name, problem in before.problems.items():
        now = {one.number: one for one in after.problems[name].rounds} if name in after.problems else {}
        finished = [one for one in problem.rounds if one.finished_at is not None]
        for one in finished:
            after_it = now.get(one.number)
            # Its best factor goes by verdicts, and one of them may have been given anew for a recorded reason.
            if after_it is None or replace(after_it, best=one.best) != one:
                changed.append(f"{one.id} was finished and has changed")
    return changed


def await_end(family: set[psutil.Process], engine: Holder, paths: SessionPaths) -> tuple[list[psutil.Process], float]:
    """Processes of a dead engine that still run after ``ORPHAN_S``, and the seconds until the last one had ended."""
    began = time.monotonic()
    while left := living(family | belonging(engine, paths)):
        if time.monotonic() - began > ORPHAN_S:
            break
        time.sleep(0.01)
    return left, time.monotonic() - began


def belonging(engine: Holder, paths: SessionPaths) -> set[psutil.Process]:
    """Processes of an engine: in its process session, with its marker, or with its session in their command line."""
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
    """Those that run: a dead one that nobody has waited for yet does nothing."""
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


# Where a search stands


def life_of(pid: int, events: list[Recorded]) -> list[Recorded]:
    """The events of the running engine ``pid``, from its start on; none before it has recorded that."""
    starts = [place for place, one in enumerate(events) if isinstance(one.event, ev.EngineStarted)]
    started = events[starts[-1]].event if starts else None
    return events[starts[-1] :] if isinstance(started, ev.EngineStarted) and started.pid == pid else []


def stages(events: list[Recorded], pid: int) -> tuple[str, ...]:
    """What engine ``pid`` was doing, as far as its events say: several things while kernels are evaluated."""
    own = life_of(pid, events)
    if not own:
        return ("starting",)
    if not any(isinstance(one.event, ev.DeviceMeasured) for one in own):
        return ("opening",)
    state = fold(events)
    running = {one.stage for one in state.in_flight()} - {None, "queued"}
    if running:
        return tuple(sorted(str(stage) for stage in running))
    if any(_owes_heat(state, problem) for problem in state.problems.values()):
        return ("heat",)
    return ("choosing",) if any(isinstance(one.event, OF_KERNELS) for one in own) else ("opening",)


def _owes_heat(state: SessionState, problem: ProblemState) -> bool:
    """Every kernel of the open round is judged, and its leaders were not timed side by side yet."""
    round_ = problem.rounds[-1] if problem.rounds else None
    if round_ is None or round_.finished_at is not None or not round_.variants or state.flight:
        return False
    leaders = {one.id for one in state.leaders(problem.id, HEAT)}
    return len(leaders) >= 2 and not leaders <= {standing.variant for standing in problem.standings}


# The benchmark


class Tally:
    """What a chain of kills came to. Times in seconds after ``kernel-tui resume`` was called."""

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
    """Kill and resume ``count`` times, or until the search is over."""
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
                f"the engine ended by itself after {len(tally.kills)} kills: {log_tail(chain.paths, 1)}"
            )
            break
        tally.add(chain, chain.kill(), pid)
        if sys.stderr.isatty():
            print(f"{len(tally.kills)} of {count} kills", end="\r", file=sys.stderr, flush=True)
    return tally


def rows_of(tally: Tally, state: SessionState, events: Sequence[Recorded], wall_s: float) -> list[tuple[str, str]]:
    """The table: what was done, what was lost, what it cost."""
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
        ("verdicts given twice", f"{twice} of {len(judged)}"),
        ("evaluations begun again", f"{begun.total() - len(begun)} of {len(begun)}"),
        (f"processes left after {ORPHAN_S:g} s", str(sum(len(kill.orphans) for kill in kills))),
        ("last process gone after", spread([kill.gone_after_s for kill in kills])),
        ("engine back after", spread(tally.back_s)),
        ("at a kernel again after", spread(tally.searching_s)),
        ("search", f"{len(rounds)} rounds, {len(state.variants)} kernels, {correct} correct, {state.starts} engines"),
        ("wall time", f"{wall_s:.0f} s"),
        ("faults", str(len(tally.faults))),
    ]


def spread(times_s: Sequence[float]) -> str:
    return f"median {statistics.median(times_s):.2f} s, at most {max(times_s):.2f} s" if times_s else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which engines are killed")
    parser.add_argument("--directory", type=Path, default=None, help="where the session goes (a temporary directory)")
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
        print(f"the session is kept: {chain.paths.directory}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
