"""Check that the judge finds an unchanged copy of each model correct and equally fast.

    python benchmarks/copies.py PATHS... [--jobs 4] [--results FILE.jsonl] [--full 40 --seed 1]
                                [--tolerance kernelbench] [--device auto] [--deadline 120] [--again wrong,error]
                                [--first-kernels N]

PATHS are problem files in KernelBench's format, or directories of such files (``KernelBench/level1``). The copy is the
file itself plus ``ModelNew = Model``. For copies, the judge runs with ``libraries = "label"``. By default, each copy
gets a quick verdict, as in a search. With ``--full N``, a random sample of N problems gets the thorough verdict of
``kernel-tui eval``. ``--jobs`` processes judge in parallel. Each process has its own evaluator and judge, like several
searches on one device.

The script appends each outcome to ``--results`` as a line of JSON. To continue an interrupted run, repeat the same
command. The script then skips problems with an outcome, unless their file has changed or ``--again`` names their
status. With ``--first-kernels N``, the script judges kernels of the playbook instead of copies. For each problem, it
tries up to N first kernels and a repair of each one that fails. It stops at the first kernel that is correct and at
least half as fast as eager. The final table then counts the solved problems per directory. The exit status ignores the
kernels' verdicts.

``--deadline`` limits the seconds per problem, not counting waits for the device. If a problem runs out of memory, the
script judges it again alone. If the copy is then correct, the status is ``memory``.

The script prints one line per outcome and a final table, even after SIGTERM or Ctrl-C. Exit status 1: the judge wrongly
rejected a copy (wrong, cheating, crashed, memory, ...), or no copy is correct. Exit status 2: this machine cannot judge
the problems. ``not read``, ``deadline`` and ``error`` do not count as rejections.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import hashlib
import os
import platform
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Literal, NoReturn

import msgspec
from msgspec import Struct
from msgspec.structs import replace

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from engine.config.schema import EvaluationConfig  # noqa: E402
from engine.devices.fact import DeviceFact  # noqa: E402
from engine.evaluation.evaluator import EvaluationError  # noqa: E402
from engine.evaluation.local_evaluator import LocalEvaluator  # noqa: E402
from engine.problem.c_header import derive_header  # noqa: E402
from engine.problem.catalog import CatalogError, inspect_files, resolve  # noqa: E402
from engine.problem.failure import ProblemFailure  # noqa: E402
from engine.problem.names import ProblemFile  # noqa: E402
from engine.problem.spec import LANGUAGE_OF_DEVICE, ProblemSpec  # noqa: E402
from engine.proposers.playbook.playbook import FIRST, Playbook  # noqa: E402
from engine.proposers.protocol import Board, IdeaDraft, Kernel, Task, VariantDraft  # noqa: E402
from engine.search.context import demands_of  # noqa: E402
from engine.session.records.verdict import Verdict  # noqa: E402
from engine.system.text_file import UnreadableFile, read_text  # noqa: E402

COPY = "\n\nModelNew = Model\n"
NOT_READ, DEADLINE, MEMORY, NO_TEMPLATE = "not read", "deadline", "memory", "no template"
NEUTRAL = {"correct", NOT_READ, DEADLINE, NO_TEMPLATE, "error", "cancelled"}
"""Statuses that do not count as rejections of a copy."""
FAIR_LOW, FAIR_HIGH = 0.97, 1.03
LEAST_SPEEDUP = 0.5
"""Minimum speedup of a first kernel that solves its problem."""
COMPARED_ABOVE_MS = 0.05
"""Reference time above which the table compares speedups. Shorter times are mostly launch overhead, which varies."""
_GRACE_S = 5.0
"""Seconds that the script waits for a process to stop before it kills the process."""
_LINE_BYTES = 16 << 20
_WORDS = 300
"""Maximum length of a reason in the table, in characters. The results file has the full text."""
_PR_SET_PDEATHSIG = 1
_LACK = re.compile(r"\bmemory\b", re.IGNORECASE)


class Job(Struct, frozen=True):
    """The next problem for a process, as a line on its standard input.

    All jobs of a process share ``device``, ``tolerance``, ``full``, ``scratch`` and ``kernels``. ``peaks`` are the
    device's GB/s and GFLOP/s as measured by an earlier process. ``kernels`` is the value of ``--first-kernels``, or 0.
    """

    id: str
    path: str
    device: str
    tolerance: str | float
    full: bool
    scratch: str
    peaks: tuple[float, float] | None
    kernels: int = 0


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the results file.

    ``source`` is the digest of the problem file. ``kernel`` is the name of the first kernel. ``seconds`` is the
    duration of the job, not counting the wait for the device, ``waited_s``. ``beside`` is the largest number of other
    problems judged at the same time.
    """

    problem: str = ""
    source: str = ""
    full: bool = False
    tolerance: str = ""
    kernels: int = 0
    kernel: str = ""
    status: str
    pattern: str | None = None
    reason: str = ""
    flags: tuple[str, ...] = ()
    failed_checks: tuple[str, ...] = ()
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    reference_ms: float | None = None
    kernel_ms: float | None = None
    pairs: int = 0
    disturbed_pairs: int = 0
    precision: str = ""
    kernelbench: str = ""
    kernelbench_reason: str = ""
    kernelbench_speedup: float | None = None
    seconds: float = 0.0
    waited_s: float = 0.0
    stages_s: dict[str, float] = {}
    device: str = ""
    torch: str = ""
    beside: int = 0

    @property
    def lacks_memory(self) -> bool:
        """Whether this job may have run out of memory because of other jobs."""
        return self.beside > 0 and self.status in (NOT_READ, "error") and _LACK.search(self.reason) is not None

    @property
    def blames_copy(self) -> bool:
        return self.status not in NEUTRAL

    @property
    def solves(self) -> bool:
        """Whether a first kernel is correct, with a speedup of at least ``LEAST_SPEEDUP``."""
        return self.status == "correct" and (self.speedup or 0.0) >= LEAST_SPEEDUP

    @property
    def speedup_words(self) -> str:
        if self.speedup is None:
            return "-"
        return f"{self.speedup:.3f} [{self.speedup_low or 0.0:.3f}, {self.speedup_high or 0.0:.3f}]"

    @property
    def words(self) -> str:
        """The error pattern and the reason, on one line."""
        text = " ".join(": ".join(filter(None, (self.pattern, self.reason))).split())
        return text if len(text) <= _WORDS else f"{text[:_WORDS]}..."


class Said(Struct, frozen=True, omit_defaults=True):
    """A message from a judging process: its stage, whether it waits for the device, or an outcome."""

    stage: str = ""
    device: str = ""
    waits: bool | None = None
    peaks: tuple[float, float] | None = None
    outcome: Outcome | None = None
    unable: str = ""
    """The reason why this machine cannot judge any problem."""


class Unable(Exception):
    """This machine cannot judge any problem. The message says why."""


# The judging process.


async def judge_all(say: IO[bytes]) -> None:
    """Judge the kernels of incoming jobs as a search does, and write the outcomes to ``say``."""

    def tell(said: Said) -> None:
        say.write(msgspec.json.encode(said) + b"\n")
        say.flush()

    jobs = asyncio.StreamReader(limit=_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(jobs), sys.stdin)
    evaluator: LocalEvaluator | None = None
    try:
        while line := await jobs.readline():
            job = msgspec.json.decode(line, type=Job)
            inspection = asyncio.ensure_future(inspect_files([ProblemFile(job.id, Path(job.path))]))
            try:
                if evaluator is None:
                    libraries: Literal["refuse", "label"] = "refuse" if job.kernels else "label"
                    evaluator = LocalEvaluator(
                        EvaluationConfig(device=job.device, tolerance=job.tolerance, libraries=libraries),
                        Path(job.scratch),
                        job.full,
                        on_wait=lambda wait: tell(Said(waits=True)),
                        on_free=lambda device, seconds: tell(Said(waits=False)),
                        modules=not job.kernels,
                    )
                    try:
                        device = (await evaluator.start())[0]
                    except EvaluationError as error:
                        tell(Said(unable=str(error)))
                        return
                tell(Said(stage="inspecting", device=device.name))
                outcome = await _judge_on(evaluator, device, (await inspection)[0], job, tell)
            finally:
                inspection.cancel()
                await asyncio.gather(inspection, return_exceptions=True)
            tell(Said(outcome=replace(outcome, device=device.name, torch=metadata.version("torch"))))
    finally:
        if evaluator is not None:
            await evaluator.close()


async def _judge_on(
    evaluator: LocalEvaluator,
    device: DeviceFact,
    problem: ProblemSpec | ProblemFailure,
    job: Job,
    tell: Callable[[Said], None],
) -> Outcome:
    if not isinstance(problem, ProblemSpec):
        return Outcome(status=NOT_READ, reason=str(problem))
    if not problem.languages:
        return Outcome(status=NOT_READ, reason=f"cannot judge kernels of this problem:  {problem.c_refusal}")
    try:
        tell(Said(stage="measuring the device"))
        if job.peaks is not None:
            device = replace(device, bandwidth_gbs=job.peaks[0], peak_gflops=job.peaks[1])
        device = await evaluator.measure_device(device)
        if device.bandwidth_gbs is not None and device.peak_gflops is not None:
            tell(Said(peaks=(device.bandwidth_gbs, device.peak_gflops)))
        if job.kernels:
            return await _judge_first_kernels(evaluator, device, problem, job, tell)
        tell(Said(stage="opening"))
        await evaluator.open(problem, "")
    except EvaluationError as error:
        return Outcome(status=NOT_READ, reason=str(error))
    verdict = await evaluator.evaluate(problem, "py", problem.source + COPY, lambda stage: tell(Said(stage=stage)))
    return outcome_of(verdict)


async def _judge_first_kernels(
    evaluator: LocalEvaluator, device: DeviceFact, problem: ProblemSpec, job: Job, tell: Callable[[Said], None]
) -> Outcome:
    """Return the outcome of the first kernel that solves the problem, or else of the best kernel. Raises
    EvaluationError.
    """
    language, playbook = LANGUAGE_OF_DEVICE[device.kind], Playbook()
    demands = demands_of(EvaluationConfig(device=job.device, tolerance=job.tolerance), problem)
    if language not in problem.languages:
        return Outcome(status=NO_TEMPLATE, reason=problem.c_refusal or f"the problem accepts no {language} kernels")
    task = Task(problem, derive_header(problem, language), language, device, None, None, demands=demands)
    if (refusal := playbook.refusal(task)) is not None:
        return Outcome(status=NO_TEMPLATE, reason=refusal)
    first: list[tuple[IdeaDraft, VariantDraft]] = []
    for idea in await playbook.ideas(task, None, Board(), job.kernels, 0):
        async for draft in playbook.variants(task, idea, None, Board(), (0,), 0):
            first.append((idea, draft))
    if not first:
        return Outcome(status=NO_TEMPLATE, reason="no first kernel fits the tolerance")
    evaluator.begin_build(problem, task.header, language, first[0][1].source)
    tell(Said(stage="opening"))
    await evaluator.open(problem, task.header)
    found: list[Outcome] = []
    for idea, draft in first:
        made: VariantDraft | None = draft
        name = str(idea.data["move"]).removeprefix(FIRST)
        for turn in range(2):
            if made is None:
                break
            verdict = await evaluator.evaluate(problem, language, made.source, lambda stage: tell(Said(stage=stage)))
            found.append(replace(outcome_of(verdict), kernel=f"{name}, repaired" if turn else name))
            if found[-1].solves:
                return found[-1]
            kernel = Kernel("v1", made.source, language, verdict, playbook.name, made.data)
            made = await playbook.fix(task, idea, kernel, Board(), turn, 0)
    return max(found, key=lambda one: (one.status == "correct", one.speedup or 0.0))


def outcome_of(verdict: Verdict) -> Outcome:
    second = verdict.kernelbench
    return Outcome(
        status=verdict.status,
        pattern=verdict.pattern,
        reason=verdict.reason,
        flags=verdict.flags,
        failed_checks=tuple(f"{check.name}: {check.detail}" for check in verdict.checks if not check.passed),
        speedup=verdict.speedup,
        speedup_low=verdict.speedup_low,
        speedup_high=verdict.speedup_high,
        reference_ms=verdict.reference.median_ms if verdict.reference is not None else None,
        kernel_ms=verdict.kernel.median_ms if verdict.kernel is not None else None,
        pairs=verdict.pairs,
        disturbed_pairs=verdict.disturbed_pairs,
        precision=verdict.precision,
        kernelbench=second.status if second is not None else "",
        kernelbench_reason=second.reason if second is not None else "",
        kernelbench_speedup=second.speedup if second is not None else None,
        stages_s={stage: round(seconds, 3) for stage, seconds in verdict.stage_s.items()},
    )


def run_jobs(scratch: Path, parent: int) -> NoReturn:
    """Run a judging process. On SIGTERM, or if its parent dies, the process closes its evaluator."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # The parent died during the imports.
        shutil.rmtree(scratch, ignore_errors=True)
        sys.exit(1)
    say = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    async def until_told() -> None:
        task = asyncio.ensure_future(judge_all(say))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with contextlib.suppress(asyncio.CancelledError, BrokenPipeError):
            await task

    asyncio.run(until_told())
    if os.getppid() != parent:
        shutil.rmtree(scratch, ignore_errors=True)
    sys.exit(0)


# The main process, which starts the judging processes.


class Benchmark:
    """Judge copies, ``options.jobs`` at a time, and store the outcomes."""

    def __init__(self, options: argparse.Namespace, files: Sequence[ProblemFile], scratch: Path) -> None:
        self._options, self._scratch = options, scratch
        self._files = {name_of(file): file for file in files}
        self._digests = {name: digest_of(file.path) for name, file in self._files.items()}
        self._peaks: tuple[float, float] | None = None
        self._running: dict[str, int] = {}
        self._total = 0
        self._device = ""
        self._started = time.monotonic()
        self.outcomes = self._stored()

    async def run(self) -> None:
        """Judge every problem without an outcome. Raises ``Unable`` in an exception group."""
        names = list(self._files)
        if self._options.full:
            await self._sample(random.Random(self._options.seed).sample(names, len(names)))
        else:
            await self._all(names)

    async def _sample(self, names: list[str]) -> None:
        """Judge the problems in ``names``, in order, until the sample has enough readable problems."""
        wanted, start = self._options.full, 0
        while wanted > 0 and start < len(names):
            chosen = names[start : start + wanted]
            await self._all(chosen)
            start += wanted
            wanted = sum(self.outcomes[name].status == NOT_READ for name in chosen)
        self.outcomes = {name: self.outcomes[name] for name in names[:start]}

    async def _all(self, names: Iterable[str]) -> None:
        """Judge the problems in ``names`` that have no outcome. Then retry problems that ran out of memory."""
        waiting = [name for name in names if name not in self.outcomes]
        self._total = len(self.outcomes) + len(waiting)
        queue = iter(waiting)

        async def work() -> None:
            async with self._process() as process:
                for name in queue:
                    self._keep(await self._judge(name, process))

        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.jobs):
                group.create_task(work())
        for name in names:
            if (beside := self.outcomes[name]).lacks_memory:
                async with self._process() as process:
                    alone = await self._judge(name, process)
                if alone.status == "correct" and not self._options.first_kernels:
                    reason = f"correct when judged alone; with {beside.beside} others: {beside.words}"
                    alone = replace(alone, status=MEMORY, reason=reason)
                self._keep(alone)

    @contextlib.asynccontextmanager
    async def _process(self) -> AsyncIterator[JobProcess]:
        process = JobProcess(self._scratch, self._options.log)
        try:
            yield process
        finally:
            await process.end()

    async def _judge(self, name: str, process: JobProcess) -> Outcome:
        started = time.monotonic()
        self._running[name] = 0
        for other in self._running:
            self._running[other] = max(self._running[other], len(self._running) - 1)
        try:
            outcome, waited_s = await self._ask(name, process)
        finally:
            beside = self._running.pop(name)
        return replace(
            outcome,
            problem=name,
            source=self._digests[name],
            full=bool(self._options.full),
            tolerance=str(self._options.tolerance),
            kernels=self._options.first_kernels,
            seconds=round(time.monotonic() - started - waited_s, 2),
            waited_s=round(waited_s, 2),
            beside=beside,
        )

    async def _ask(self, name: str, process: JobProcess) -> tuple[Outcome, float]:
        """Return the outcome, and the seconds spent waiting for the device."""
        file = self._files[name]
        options = self._options
        job = Job(
            file.id,
            str(file.path),
            options.device,
            options.tolerance,
            bool(options.full),
            str(self._scratch),
            self._peaks,
            options.first_kernels,
        )
        await process.take(job)
        left_s, waited_s, waits, stage = options.deadline, 0.0, False, "starting"
        while True:
            looked = time.monotonic()
            try:
                line = await asyncio.wait_for(process.line(), None if waits else left_s)
            except TimeoutError:
                await process.end()
                reason = f"no verdict within {options.deadline:g} s; last stage: {stage}"
                return Outcome(status=DEADLINE, reason=reason), waited_s
            passed = time.monotonic() - looked
            left_s, waited_s = (left_s, waited_s + passed) if waits else (max(0.0, left_s - passed), waited_s)
            if not line:
                code = await process.end()
                return Outcome(status="error", reason=f"the evaluator's process exited with status {code}"), waited_s
            said = msgspec.json.decode(line, type=Said)
            if said.unable:
                raise Unable(said.unable)
            if said.outcome is not None:
                return said.outcome, waited_s
            if said.device and not self._device:
                self._device = said.device
                print(f"judging on {said.device}; torch {metadata.version('torch')}", flush=True)
            waits = said.waits if said.waits is not None else waits
            stage = said.stage or stage
            self._peaks = self._peaks or said.peaks

    def _keep(self, outcome: Outcome) -> None:
        """Store and print ``outcome``."""
        if self._options.results is not None:
            with self._options.results.open("ab") as results:
                results.write(msgspec.json.encode(outcome) + b"\n")
                results.flush()
                os.fsync(results.fileno())
        self.outcomes[outcome.problem] = outcome
        time_ms = f", {outcome.reference_ms:.3f} ms" if outcome.reference_ms is not None else ""
        speedup = f" {outcome.speedup_words}" if outcome.speedup is not None else ""
        waited = f" and {outcome.waited_s:.0f} s waiting" if outcome.waited_s >= 1 else ""
        words = f": {outcome.words}" if outcome.status != "correct" else ""
        again = "; the script will retry this problem alone" if outcome.lacks_memory else ""
        count = f"[{len(self.outcomes)}/{self._total} {time.monotonic() - self._started:4.0f} s]"
        line = f"{count} {outcome.problem}: {outcome.status}{speedup}{time_ms}, {outcome.seconds:.1f} s{waited}"
        print(f"{line}{words}{again}", flush=True)

    def _stored(self) -> dict[str, Outcome]:
        """Return the stored outcomes that match these options and files."""
        path: Path | None = self._options.results
        if path is None or not path.exists():
            return {}
        stored: dict[str, Outcome] = {}
        text = path.read_bytes()
        if text and not text.endswith(b"\n"):  # An interrupted run left a partial line.
            with path.open("ab") as results:
                results.write(b"\n")
        for line in text.splitlines():
            with contextlib.suppress(msgspec.MsgspecError):
                outcome = msgspec.json.decode(line, type=Outcome)
                options = self._options
                way = (outcome.source, outcome.full, outcome.tolerance, outcome.kernels)
                digest = self._digests.get(outcome.problem)
                wanted = (digest, bool(options.full), str(options.tolerance), options.first_kernels)
                if way == wanted:
                    stored[outcome.problem] = outcome
        return {name: one for name, one in stored.items() if one.status not in self._options.again}


class JobProcess:
    """A judging process, which starts with its first job. If the process has ended, it restarts for the next job."""

    def __init__(self, scratch: Path, log: IO[bytes] | None) -> None:
        self._scratch, self._log = scratch, log
        self._process: asyncio.subprocess.Process | None = None

    async def take(self, job: Job) -> None:
        """Send the process its next job."""
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(Path(__file__).resolve()), "--parent", str(os.getpid())),
                *("--scratch", str(self._scratch)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, "XDG_CACHE_HOME": str(self._scratch / "cache")},
                limit=_LINE_BYTES,
                process_group=0,
            )
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # The process has ended; ``line`` reports that.
            self._process.stdin.write(msgspec.json.encode(job) + b"\n")
            await self._process.stdin.drain()

    async def line(self) -> bytes:
        """Return the process's next message, or an empty one after the process has ended."""
        assert self._process is not None and self._process.stdout is not None
        return await self._process.stdout.readline()

    async def end(self) -> int:
        """Stop the process and return its exit code. If the process takes too long, kill it and its children."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            return await asyncio.wait_for(process.wait(), _GRACE_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            return await process.wait()


def name_of(file: ProblemFile) -> str:
    """Return a problem's name in the results, without KernelBench's path: ``level1/19_ReLU.py``."""
    return f"{file.path.parent.name}/{file.path.name}"


def digest_of(path: Path) -> str:
    try:
        return hashlib.sha256(read_text(path).encode(errors="surrogateescape")).hexdigest()[:16]
    except UnreadableFile as error:
        return error.reason


def in_natural_order(files: Iterable[ProblemFile]) -> list[ProblemFile]:
    """Sort by name, with ``2_...`` before ``10_...``."""
    return sorted(files, key=lambda file: [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", name_of(file))])


# The table.


def show(outcomes: Sequence[Outcome], found: int, options: argparse.Namespace) -> int:
    """Print the table; return the exit status."""
    devices = " and ".join(sorted({one.device for one in outcomes if one.device})) or "no device"
    versions = " and ".join(sorted({one.torch for one in outcomes if one.torch})) or "-"
    kind = f"thorough verdicts on a sample (seed {options.seed})" if options.full else "quick verdicts"
    print(
        f"\n{devices}; torch {versions}; Python {platform.python_version()}; {kind}, {options.jobs} parallel;",
        end=" ",
    )
    libraries = "refuse" if options.first_kernels else "label"
    print(f'tolerance "{options.tolerance}"; libraries "{libraries}"; baseline: eager')
    if options.full:
        print(f"{sum(one.status != NOT_READ for one in outcomes)} of {options.full} sampled problems were readable\n")
    else:
        print(f"{len(outcomes)} of {found} problems have an outcome\n")
    for status, count in Counter(one.status for one in outcomes).most_common():
        print(f"{status:14} {count:4}")
    for status in sorted({one.status for one in outcomes} - {"correct"}, key=lambda s: (s in NEUTRAL, s)):
        print(f"\n{status}")
        for one in outcomes:
            if one.status == status:
                print(f"  {one.problem}: {one.words}")
    if options.first_kernels:
        _show_coverage(outcomes)
        return 0
    _show_speedups([one for one in outcomes if one.status == "correct" and one.speedup is not None])
    second = Counter(one.kernelbench for one in outcomes if one.kernelbench)
    if second:
        print(
            "\nunder KernelBench's rules: " + ", ".join(f"{status} {count}" for status, count in second.most_common())
        )
        for one in outcomes:
            if one.kernelbench == "wrong":
                print(f"  {one.problem}: {' '.join(one.kernelbench_reason.split())[:_WORDS]} (here {one.status})")
    blamed = sum(one.blames_copy for one in outcomes)
    right = sum(one.status == "correct" for one in outcomes)
    print(f"\n{right} correct, {blamed} wrongly rejected")
    return int(blamed > 0 or right == 0)


def _show_coverage(outcomes: Sequence[Outcome]) -> None:
    slow = [one for one in outcomes if one.status == "correct" and not one.solves]
    if slow:
        print(f"\ncorrect, but with a speedup below {LEAST_SPEEDUP}")
    for one in slow:
        print(f"  {one.problem}: {one.speedup_words}, reference {one.reference_ms:.4f} ms, {one.kernel}")
    print(f"\ndirectory      problems  correct  correct with a speedup of at least {LEAST_SPEEDUP}")
    for directory in dict.fromkeys(one.problem.split("/")[0] for one in outcomes):
        here = [one for one in outcomes if one.problem.split("/")[0] == directory]
        correct, solved = sum(one.status == "correct" for one in here), sum(one.solves for one in here)
        print(f"{directory:14} {len(here):8} {correct:8} {solved:8}")


def _show_speedups(timed: Sequence[Outcome]) -> None:
    compared = [one for one in timed if (one.reference_ms or 0.0) > COMPARED_ABOVE_MS]
    if not compared:
        return
    speedups = [one.speedup for one in compared if one.speedup is not None]
    apart = [one for one in compared if not FAIR_LOW <= (one.speedup or 0.0) <= FAIR_HIGH]
    share = 1.0 - len(apart) / len(compared)
    print(f"\nspeedups of the {len(compared)} correct copies whose reference takes more than {COMPARED_ABOVE_MS} ms:")
    print(f"  {share:.1%} within {FAIR_LOW} to {FAIR_HIGH}; median {statistics.median(speedups):.4f}", end=", ")
    print(f"minimum {min(speedups):.3f}, maximum {max(speedups):.3f}")
    for one in apart:
        pairs = f"{one.pairs} of {one.pairs + one.disturbed_pairs} pairs"
        times = f"reference {one.reference_ms:.4f} ms, copy {one.kernel_ms or 0.0:.4f} ms, {pairs}"
        flags = "".join(f"; {flag}" for flag in one.flags)
        print(f"  outlier {one.problem}: {one.speedup_words}, {times}{flags}")


# The command line.


async def until_signal(benchmark: Benchmark) -> int | None:
    """Run ``benchmark``. Return the signal that ended the run early, if any."""
    task = asyncio.ensure_future(benchmark.run())
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return received[0] if received else None


def number_or_name(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", metavar="PATHS", help="problem files, or directories of problem files")
    parser.add_argument("--jobs", type=int, default=4, help="number of processes that judge at the same time")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE.jsonl",
        help="append outcomes to this file; skip problems with an outcome in it",
    )
    parser.add_argument("--full", type=int, default=0, metavar="N", help="thorough verdicts on a sample of N problems")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the sample")
    parser.add_argument("--tolerance", type=number_or_name, default="kernelbench", help="value of evaluation.tolerance")
    parser.add_argument("--device", default="auto", help="value of evaluation.device")
    parser.add_argument("--deadline", type=float, default=120.0, metavar="S", help="time limit per problem, in seconds")
    parser.add_argument("--again", default="", metavar="STATUS,...", help="judge problems with these statuses again")
    parser.add_argument(
        "--first-kernels", type=int, default=0, metavar="N", help="judge up to N first kernels of the playbook"
    )
    parser.add_argument("--log", type=Path, help="append the output of judges and problems to this file")
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scratch is not None:
        run_jobs(options.scratch, options.parent)
    if not options.paths:
        parser.error("no PATHS: name problem files, or directories of problem files")
    if options.jobs < 1 or min(options.full, options.first_kernels) < 0:
        parser.error("--jobs must be at least 1, and --full and --first-kernels must not be negative")
    options.again = set(filter(None, options.again.split(",")))
    try:
        EvaluationConfig(device=options.device, tolerance=options.tolerance)
        files = in_natural_order(resolve(options.paths, Path.cwd()))
    except (CatalogError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if twice := [name for name, count in Counter(map(name_of, files)).items() if count > 1]:
        print(f"{twice[0]}: several PATHS contain a file with this name; judge them in separate runs", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernel-tui-copies-")))
        options.log = stack.enter_context((options.log or Path(os.devnull)).open("ab"))
        benchmark = Benchmark(options, files, scratch)
        if benchmark.outcomes:
            print(f"{len(benchmark.outcomes)} outcomes found in {options.results}", flush=True)
        received: int | None = None
        unable: BaseException | None = None
        try:
            received = asyncio.run(until_signal(benchmark))
        except* Unable as errors:
            unable = errors.exceptions[0]
        if unable is not None:
            print(unable, file=sys.stderr)
            return 2
        chosen = [benchmark.outcomes[name] for name in map(name_of, files) if name in benchmark.outcomes]
        status = show(chosen, len(files), options)
        return status if received is None else 128 + received


if __name__ == "__main__":
    sys.exit(main())
