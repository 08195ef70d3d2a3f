"""Judge kernels on other hosts: the :class:`~engine.evaluation.evaluator.Evaluator` of a cluster.

The engine chooses the device of each kernel, and sends a kernel only if it can start now or next. If a device goes
silent, hangs or fails, another device takes over its work. Each kernel has one attempt at a time, so that it gets only
one verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from engine.cluster import messages as m
from engine.cluster.comparability import Comparability
from engine.cluster.link import Link
from engine.cluster.roster import SILENT_S, Device, Roster
from engine.cluster.ssh_hosts import SshHosts
from engine.config.schema import ClusterConfig, EvaluationConfig
from engine.devices.fact import DeviceFact
from engine.devices.sample import DeviceSample
from engine.devices.waiting_line import Waiting, first_in_line, leave_line
from engine.evaluation.build.build_cache import first_error
from engine.evaluation.device_waits import Wait
from engine.evaluation.evaluator import CountersUnavailable, EvaluationError, JudgeKilled, Known, Opened
from engine.problem.spec import Language, ProblemSpec
from engine.session.records.counters import KernelCounters
from engine.session.records.verdict import Baseline, BuildReport, Stage, Standing, Verdict

START_S = 120.0
"""Maximum wait for the first worker, in seconds."""
SETTLE_S = 1.5
"""Time to wait for further workers after the first, in seconds. The engine then chooses the device model."""
MOST_TRIES = 4
"""Maximum number of attempts at a task, if devices or their hosts are at fault."""
UNSTARTED_S = 20.0
"""Seconds after which a task counts as lost if an idle worker has not started it."""
UNREPORTED_S = 1.0
"""A worker counts as dead if its report has not arrived this many seconds after the end of its Dask task."""
MOST_SENT = 2
"""Maximum number of kernels at a device's host, not counting builds: one is judged, and one waits."""
DEADLINE_S = 900.0
"""Time limit of a task in seconds, not counting waits for the device. Judges have shorter limits."""
SLOW, SLOW_S = 10.0, 120.0
"""A task is too slow if it takes more than ``SLOW`` times the median time of its kind and more than ``SLOW_S`` seconds.
Another device then takes over.
"""
OPENING = 1.5
"""Expected time to open a problem on a device, relative to the time for a verdict."""
_LOOK_S = 0.25
_KEPT = 50

_T = TypeVar("_T")


class DeviceLost(Exception):
    """The device or its host is at fault, so another device may succeed. The message says what happened."""


class Doubted(DeviceLost):
    """The work failed, perhaps because of the device. If another device succeeds, the first one is at fault."""


class _Attempt:
    """A task in flight. ``answer``: its final report. ``task``: the Dask future, which has no result.

    ``ran_s``: seconds of work on the task, not counting waits for the device. ``idle_s``: seconds during which the
    worker ran nothing. ``ended_s``: seconds since Dask ended the task.
    """

    def __init__(self, device: Device, kind: type, on_stage: Callable[[Stage], None]) -> None:
        self.device, self.kind, self.on_stage = device, kind, on_stage
        self.answer: asyncio.Future[m.AnyFinal] = asyncio.get_running_loop().create_future()
        self.task: Any = None
        self.looked_at = time.monotonic()
        self.idle_s = self.ran_s = self.ended_s = 0.0

    def lose(self, why: str) -> None:
        self.device.waiting = False  # A judging process that is killed does not report the end of its wait.
        if not self.answer.done():
            self.answer.set_exception(DeviceLost(why))


class _Turn(NamedTuple):
    """A device that a task occupies."""

    device: Device


@dataclass
class _Job:
    """A kernel that waits for its verdict, possibly on several devices in turn.

    - ``ticket``: its place in the queues
    - ``device``: where it is now
    - ``begun``: when it got the device
    - ``follows``: whether the engine sent it to the device's host behind another kernel
    - ``doubted``: devices on which it failed, without proof that they are at fault; ``doubts``: the reasons by device
    - ``failed``: the verdict of its first failure, and ``why`` the last failure in words
    """

    place: m.Place
    kernel: m.Kernel
    ticket: int
    on_stage: Callable[[Stage], None]
    on_device: Callable[[str], None] | None
    known: Known | None
    on_verdict: Callable[[Verdict], None] | None
    queued: float = field(default_factory=time.monotonic)
    begun: float = 0.0
    follows: bool = False
    device: Device = field(init=False)
    doubted: list[Device] = field(default_factory=list)
    doubts: dict[str, str] = field(default_factory=dict)
    failed: Verdict | None = None
    why: str = ""
    _stage: Stage | None = None

    def move(self, device: Device) -> None:
        self.device = device
        if self.on_device is not None:
            self.on_device(device.id)

    def tell(self, stage: Stage) -> None:
        if stage != self._stage:
            self._stage = stage
            self.on_stage(stage)

    def tell_judging(self, stage: Stage) -> None:
        if stage not in ("building", "waiting"):  # The worker's judge enters these stages only to look up the build.
            if self.follows and self._stage == "waiting":
                self.begun = time.monotonic()
            self.tell(stage)

    def queued_s(self, build: BuildReport) -> float:
        """Return the seconds from the start of the job to the start of the evaluation, not counting the build."""
        return max(0.0, self.begun - self.queued - build.seconds)

    def wait_again(self) -> None:
        self._stage = None
        self.tell("waiting")

    def doubt(self, failed: Verdict) -> None:
        self.failed, self.why = failed, f"{self.device.host}: {failed.reason}"
        self.doubted.append(self.device)
        self.doubts[self.device.id] = self.why


def _check(device: Device) -> None:
    """Raise ``DeviceLost`` if the device has left the search."""
    if device.lost or device.refusal:
        raise DeviceLost(f"{device.host} left")


@contextlib.contextmanager
def _in_line(line: list[int], ticket: int) -> Iterator[None]:
    line.append(ticket)
    try:
        yield
    finally:
        line.remove(ticket)


class ClusterEvaluator:
    """Judge kernels on the workers that join a scheduler.

    - ``known``: devices of an earlier engine of this session, which determine the device model
    - ``on_wait``: called when another process on a host occupies a device
    - ``on_free``: called when the device is free again, with the length of the wait in seconds
    - ``on_join``, ``on_leave``: called when a device joins or leaves the search, with the reason
    - ``on_measured``: called when a device's peaks are known
    - ``say``: called with a line for the log, and whether it is a warning
    - ``directory``: for certificates, if the config names hosts to start over SSH; it need not exist
    - ``samples``: receives the latest readings of all devices, by id
    - ``on_late_marks``: called with a problem's id and a function that marks verdicts of slow hosts, when earlier
      verdicts may need the mark
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        evaluation: EvaluationConfig,
        known: Iterable[DeviceFact],
        on_wait: Callable[[Wait], None],
        on_free: Callable[[DeviceFact, float], None],
        on_join: Callable[[DeviceFact], None],
        on_leave: Callable[[DeviceFact, str], None],
        on_measured: Callable[[DeviceFact], None],
        say: Callable[[str, bool], None],
        directory: Path,
        samples: dict[str, DeviceSample],
        on_late_marks: Callable[[str, Callable[[Verdict], Verdict]], None] = lambda problem, mark: None,
    ) -> None:
        self._cluster, self._directory = cluster, directory
        self._ssh: SshHosts | None = None
        self._join_command = f"kernel-tui worker --scheduler {cluster.scheduler or 'tls://...'}"
        self._address = cluster.scheduler or f"the hosts {', '.join(cluster.hosts)}"
        self._evaluation = evaluation.model_dump(mode="json", exclude={"device", "builders"})
        self._on_wait, self._on_free, self._say = on_wait, on_free, say
        self._on_join, self._on_leave, self._on_measured = on_join, on_leave, on_measured
        self._samples, self._on_late_marks = samples, on_late_marks
        self._comparability = Comparability()
        self._engine = uuid.uuid4().hex[:12]
        known = [device for device in known if device.host]
        kinds = {"cpu"} if evaluation.device == "cpu" else {"cuda"} if evaluation.device == "cuda" else {"cpu", "cuda"}
        self._roster = Roster(
            frozenset(kinds),
            cluster.gpu or (known[0].name if known else ""),
            known,
            self._joined,
            self._left,
            lambda why: self._say(why, True),
            self._join_command,
        )
        self._link: Any = None
        self._down: str | None = None
        self._started = False
        self._attempts: dict[str, _Attempt] = {}
        self._counter = 0
        self._changed = asyncio.Condition()
        self._claims: list[list[Device]] = []
        """For each task that waits for one of several devices: the devices that could run it. Kernels cannot occupy
        these devices, because a late opening or runoff delays its whole problem.
        """
        self._headers: dict[str, str] = {}
        self._homes: dict[str, str] = {}
        """The device that runs each problem's runoffs, by problem id."""
        self._durations: dict[type, list[float]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._warming: set[asyncio.Task[None]] = set()
        self._sandbox = ""

    async def start(self) -> tuple[DeviceFact, ...]:
        """Connect to the scheduler, and wait for workers. Raises ``EvaluationError`` and ``CertificateError``."""
        cluster = self._cluster
        if cluster.hosts:
            self._ssh = SshHosts(cluster, self._directory, lambda why: self._say(why, True))
            cluster = await self._ssh.start()
        assert cluster.scheduler is not None and cluster.certificates is not None  # The config requires both settings.
        self._link = Link(
            cluster.scheduler,
            cluster.certificates,
            self._engine,
            self._hear_beat,
            self._roster.hear_leaving,
            self._roster.hear_strange,
            self._hear_report,
            self._hear_link,
        )
        self._link.start()
        self._watching = asyncio.create_task(self._watch())
        deadline = time.monotonic() + START_S
        heard_at: float | None = None
        while not self._roster.admitted() and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
            if self._roster.devices and heard_at is None:
                heard_at = time.monotonic()
            if heard_at is not None and time.monotonic() - heard_at >= SETTLE_S:
                self._roster.settle()
        devices = self._roster.admitted()
        if not devices:
            why = self._down or "no worker that can judge has joined"
            if self._down is None and (refusals := self._roster.refusals):
                raise EvaluationError(f"{self._address}: {why}, after {START_S:g} s. {'. '.join(refusals)}")
            remedy = f"kernel-tui worker --scheduler {self._address}"
            start = f"Start the scheduler: kernel-tui cluster scheduler. Start a worker on each host: {remedy}"
            if cluster.hosts or self._ssh is not None:
                start = (
                    "Read the output of ssh in the session's engine.log, and check the hosts: kernel-tui doctor CONFIG"
                )
            raise EvaluationError(f"{self._address}: {why}, after {START_S:g} s. {start}")
        self._sandbox = devices[0].beat.sandbox
        self._started = True
        self._compare_software(devices)
        for device in devices:
            self._welcome(device)
        return tuple(device.fact for device in devices)

    @property
    def sandbox(self) -> str:
        return self._sandbox if self._evaluation["sandbox"] != "off" else "off (as configured)"

    @property
    def width(self) -> int:
        """Number of evaluations in flight that keeps all builders and devices busy."""
        return max(2, sum(device.beat.builders + MOST_SENT for device in self._roster.admitted()))

    async def measure_device(self, device: DeviceFact) -> DeviceFact:
        try:
            async with self._any_device(wanted=device.id) as turn:
                return await self._measure(turn.device)
        except DeviceLost as lost:
            raise EvaluationError(str(lost)) from None

    async def open(self, problem: ProblemSpec, header: str, sol_ms: float | None = None) -> Opened:
        """Open a problem on one device. Other devices open the problem when they judge their first kernel of the
        problem.

        Each device computes the SOL from its own measured peaks, so ``sol_ms`` has no effect.
        """
        self._headers[problem.id] = header

        doubted: list[Device] = []

        async def on(device: Device) -> Opened:
            try:
                answer = await self._ask(device, m.Open(m.Place(problem, header)), m.DEVICE)
            except EvaluationError as error:
                if doubted:  # Two devices agree, so the problem is at fault.
                    raise
                doubted.append(device)
                raise Doubted(f"{device.host}: cannot open {problem.id}: {error}") from None
            assert isinstance(answer, m.OpenedProblem)
            device.kept.add(problem.id)
            for other in doubted:
                self._roster.blame(other, f"it cannot open {problem.id}, but {device.host} can")
            return answer.opened

        return await self._somewhere(on, problem.id)

    def begin_build(self, problem: ProblemSpec, header: str, language: Language, source: str) -> None:
        """Do nothing: the host that judges a kernel also builds it, and no host has the kernel yet."""

    async def evaluate(
        self,
        problem: ProblemSpec,
        language: Language,
        source: str,
        on_stage: Callable[[Stage], None],
        known: Known | None = None,
        on_verdict: Callable[[Verdict], None] | None = None,
        on_device: Callable[[str], None] | None = None,
    ) -> Verdict:
        self._counter += 1
        kernel = m.Kernel(language, source)
        job = _Job(self._place(problem), kernel, self._counter, on_stage, on_device, known, on_verdict)
        for again in range(MOST_TRIES):
            job.move(await self._assign(problem.id, avoid=job.doubted))
            if again:
                job.wait_again()
            try:
                return await self._build_and_judge(job)
            except DeviceLost as lost:
                job.why = str(lost)
                self._redo(job.device, lost)
            except EvaluationError as error:  # For example, the device cannot open the problem.
                failed = Verdict(status="error", reason=str(error), device=job.device.fact.name, host=job.device.host)
                if job.failed is not None:
                    return failed
                job.doubt(failed)
                self._redo(job.device, Doubted(job.why))
            finally:
                job.device.assigned -= 1
                await self._wake()
        reason = f"the evaluation of the kernel failed {MOST_TRIES} times. The last failure: {job.why}"
        return job.failed or Verdict(status="error", reason=reason)

    async def _build_and_judge(self, job: _Job) -> Verdict:
        """Build the kernel on ``job.device``, and judge it there or on a device that becomes free earlier.

        Raises ``DeviceLost`` and ``EvaluationError``.
        """
        async with self._builder(job) as built_on:
            answer = await self._ask(built_on, m.Build(job.place, job.kernel), m.BUILDER, job.tell)
        assert isinstance(answer, m.Built)
        report = answer.report
        spent_s = {"queue": max(0.0, time.monotonic() - job.queued - report.seconds), "build": report.seconds}
        if not report.ok:
            return Verdict(
                status="build_error",
                reason=first_error(report),
                build=report,
                device=built_on.fact.name,
                host=built_on.host,
                device_id=built_on.id,
                stage_s=spent_s,
            )
        job.tell("waiting")
        job.move(await self._take(built_on, job.ticket, job.place.problem.id, report.code))
        job.follows = len(job.device.sent) > 1
        try:
            job.begun = time.monotonic()
            if job.known is not None and report.code and (verdict := job.known(report.code)) is not None:
                spent_s["queue"] = job.queued_s(report)
                return replace(verdict, build=report, stage_s=spent_s)
            answer = await self._ask(job.device, m.Judge(job.place, job.kernel), m.DEVICE, job.tell_judging)
            assert isinstance(answer, m.Judged)
            job.device.kept.add(job.place.problem.id)
            verdict = answer.verdict
            build = report if job.device is built_on else verdict.build or report
            judged_s = {name: s for name, s in verdict.stage_s.items() if name not in ("queue", "build")}
            spent_s["queue"] = job.queued_s(report)
            verdict = replace(verdict, build=build, stage_s={**spent_s, **judged_s})
            self._settle_doubts(job, verdict)
            verdict = self._with_marks(job, verdict)
            if job.on_verdict is not None:
                job.on_verdict(verdict)
            return verdict
        finally:
            await self._release(job.device, report.code)

    def _with_marks(self, job: _Job, verdict: Verdict) -> Verdict:
        """Return the verdict, with a remark if its host is slow or has unusual software. Also mark earlier verdicts."""
        problem = job.place.problem.id
        verdict, lines = self._comparability.judged(problem, job.device.fact, verdict)
        for line in lines:
            self._say(line, True)
        if self._comparability.has_late_marks(problem):
            self._on_late_marks(problem, self._comparability.marker(problem))
        return verdict

    def _settle_doubts(self, job: _Job, verdict: Verdict) -> None:
        """Raise ``Doubted`` at a kernel's first error, or at its first timeout on a device that may be slow. After a
        verdict, blame the devices that failed.
        """
        late = verdict.status == "timeout" and len(self._roster.usable()) > 1
        late = late and not self._comparability.keeps_pace(job.place.problem.id, job.device.id)
        if verdict.status == "error" or (late and job.failed is None):
            if job.failed is None:
                job.doubt(verdict)
                raise Doubted(job.why)
            return
        self._roster.praise(job.device)
        for other in job.doubted:
            self._roster.blame(other, f"{job.doubts[other.id]}, but {job.device.host} judged the kernel")

    async def runoff(self, problem: ProblemSpec, kernels: Mapping[str, tuple[Language, str]]) -> tuple[Standing, ...]:
        place = self._place(problem)
        work = m.Runoff(place, {name: m.Kernel(*kernel) for name, kernel in kernels.items()})

        async def on(device: Device) -> tuple[Standing, ...]:
            self._homes[problem.id] = device.id
            answer = await self._ask(device, work, m.DEVICE)
            assert isinstance(answer, m.RunoffTimed)
            device.kept.add(problem.id)
            return answer.standings

        return await self._somewhere(on, problem.id, home=self._homes.get(problem.id))

    async def compile_baseline(self, problem: ProblemSpec) -> Baseline:
        place = self._place(problem)

        async def on(device: Device) -> Baseline:
            answer = await self._ask(device, m.Compile(place), m.DEVICE)
            assert isinstance(answer, m.Compiled)
            return answer.baseline

        return await self._somewhere(on, problem.id, home=self._homes.get(problem.id))

    async def counters(
        self, problem: ProblemSpec, language: Language, source: str, report: Path
    ) -> tuple[KernelCounters, ...]:
        raise CountersUnavailable(
            "ncu can profile kernels only on the engine's host, but this search judges them on other hosts",
            lasting=True,
        )

    async def evict(self) -> None:
        for device in [one for one in self._roster.admitted() if one.kept]:
            with contextlib.suppress(DeviceLost, EvaluationError):  # A lost device keeps nothing in memory.
                async with self._any_device(wanted=device.id) as turn:
                    await self._ask(turn.device, m.Evict(), m.DEVICE)
                    turn.device.kept.clear()

    async def close(self) -> None:
        tasks = [*self._warming, *([self._watching] if self._watching is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watching = None
        if self._link is not None:
            await self._link.close()
        if self._ssh is not None:
            await self._ssh.close()

    # Devices

    def _welcome(self, device: Device) -> None:
        """Start the device's judge and measure its peaks, before the first kernel needs them."""
        self._counter += 1
        order = m.Order(f"{self._engine}-{self._counter}", self._engine, {}, m.Presence())
        with contextlib.suppress(ConnectionError):
            device.presence = self._link.submit(order, device.beat.address, None)

        async def measure() -> None:
            with contextlib.suppress(DeviceLost, EvaluationError):  # The first kernel will report the same fault.
                async with self._any_device(wanted=device.id) as turn:
                    self._on_measured(await self._measure(turn.device))

        task = asyncio.create_task(measure())
        self._warming.add(task)
        task.add_done_callback(self._warming.discard)

    async def _measure(self, device: Device) -> DeviceFact:
        """Measure the device's peaks, or send its judge the peaks of an earlier measurement. The caller must occupy the
        device.
        """
        if not device.measured:
            answer = await self._ask(device, m.Measure(), m.DEVICE)
            assert isinstance(answer, m.Measured)
            self._roster.measured(device, answer.bandwidth_gbs, answer.peak_gflops)
            device.measured = True
        return device.fact

    async def _assign(self, problem: str, avoid: Sequence[Device] = ()) -> Device:
        """Wait for a device and choose the one with the least work, preferably one with the problem open. Devices in
        ``avoid`` are the last choice.
        """
        async with self._changed:
            while not (usable := self._roster.usable()):
                await self._wait()
            usable = [one for one in usable if one not in avoid] or usable
            device = min(usable, key=lambda one: self._cost(one, problem))
            device.assigned += 1
            return device

    def _cost(self, device: Device, problem: str) -> tuple[float, bool]:
        """Return a sort key for devices, by how soon each would finish a new kernel of ``problem``."""
        opening = OPENING if problem not in device.kept else 0.0
        work = (device.assigned + bool(device.sent) + 1 + opening) * self._comparability.pace(device.id)
        return work, self._comparability.is_odd(device.fact)

    @contextlib.asynccontextmanager
    async def _builder(self, job: _Job) -> AsyncIterator[Device]:
        """Occupy a builder of the job's device. Older tickets come first. If another device is idle, move the kernel to
        it.
        """
        device = job.device
        async with self._changed:
            with _in_line(line := device.build_line, job.ticket):
                while device.building >= device.beat.builders or min(line) < job.ticket:
                    _check(device)
                    idle = [one for one in self._idle(device) if not one.building and one not in job.doubted]
                    if idle and min(line) == job.ticket:
                        device.assigned -= 1
                        device = idle[0]
                        device.assigned += 1
                        job.move(device)
                        break
                    await self._wait()
            _check(device)
            device.building += 1
        try:
            yield device
        finally:
            device.building -= 1
            await self._wake()

    async def _take(self, device: Device, ticket: int, problem: str, code: str = "") -> Device:
        """Wait until ``device`` has room, and occupy it. If another device is idle, move the kernel to it.

        ``code``: digest of the kernel's machine code, or "". :mod:`engine.devices.waiting_line` decides which kernel
        comes first, and which kernel an idle device gets.
        """
        waiting = Waiting(ticket, problem)
        async with self._changed:
            line = device.judge_line
            line.append(waiting)
            try:
                while not self._has_room(device, problem, code) or first_in_line(line, device.kept) is not waiting:
                    _check(device)
                    idle = self._idle(device) if not code or code not in device.sent else []
                    if idle and first_in_line(line, idle[0].kept, device.kept) is waiting:
                        device.assigned -= 1
                        device = idle[0]
                        device.assigned += 1
                        break
                    await self._wait()
                _check(device)
            except BaseException:
                line.remove(waiting)
                raise
            leave_line(line, waiting)
            device.sent.append(code)
            self._changed.notify_all()  # A second kernel may now wait behind this kernel.
            return device

    def _has_room(self, device: Device, problem: str, code: str) -> bool:
        """Return whether a kernel may go to the device's host now.

        While the device judges one kernel, a second kernel waits on the host. Otherwise, the device would be idle while
        the network transfers the report and the next order. If both have the same machine code, the engine holds the
        second kernel back until the verdict arrives.
        """
        if self._is_claimed(device):
            return False
        if not device.sent:
            return True
        if None in device.sent or len(device.sent) == MOST_SENT or device.waiting:
            return False
        if (code and code in device.sent) or problem not in device.kept:
            return False
        # A kernel on a host cannot move to another device, so keep at least one kernel in line for each device.
        usable = self._roster.usable()
        return sum(len(one.judge_line) for one in usable) >= len(usable)

    def _idle(self, device: Device) -> list[Device]:
        """Return idle devices that can do the work of ``device`` at least as fast as ``device`` itself."""
        pace = self._comparability.pace(device.id)
        idle = [one for one in self._roster.usable() if not (one.sent or one.assigned or self._is_claimed(one))]
        return [one for one in idle if self._comparability.pace(one.id) <= pace]

    def _is_claimed(self, device: Device) -> bool:
        return any(device in claim for claim in self._claims)

    async def _release(self, device: Device, code: str | None) -> None:
        device.sent.remove(code)
        await self._wake()

    async def _wait(self) -> None:
        """Wait until the state of a device changes. The caller must hold the condition."""
        # No notification arrives when a device may get work again after faults, so wake up every second. In
        # Python 3.11, ``wait_for`` can leave the condition locked when the search cancels this task.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._changed.wait()

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    @contextlib.asynccontextmanager
    async def _any_device(
        self,
        problem: str = "",
        wanted: str = "",
        home: str | None = None,
        avoid: Sequence[Device] = (),
        comparable: bool = False,
    ) -> AsyncIterator[_Turn]:
        """Wait for a device, and occupy it: ``wanted`` if set, otherwise ``home`` if available, otherwise any device.
        Prefer a device that has the problem open.

        ``wanted`` may be a device that gets no other work for a while. Devices in ``avoid`` are the last choice.
        ``comparable`` makes slow devices and devices with unusual software a last choice, too.
        """
        claim: list[Device] = []
        async with self._changed:
            self._claims.append(claim)
            try:
                while True:
                    usable = self._roster.admitted() if wanted else self._roster.usable()
                    usable = [one for one in usable if one not in avoid] or usable
                    if comparable:
                        usable = [one for one in usable if not self._comparability.is_odd(one.fact)] or usable
                    if wanted and wanted not in {one.id for one in usable}:
                        raise EvaluationError(f"the device {wanted} has left the search")
                    if home in {one.id for one in usable}:
                        usable = [one for one in usable if one.id == home]
                    claim[:] = [one for one in usable if wanted in ("", one.id)]
                    if free := [one for one in claim if not one.sent]:
                        device = min(free, key=lambda one: (problem not in one.kept, one.assigned))
                        break
                    await self._wait()
            finally:
                self._claims = [one for one in self._claims if one is not claim]
                self._changed.notify_all()  # Kernels may now occupy the other devices.
            device.sent.append(None)
        try:
            yield _Turn(device)
        finally:
            await self._release(device, None)

    async def _somewhere(self, job: Callable[[Device], Awaitable[_T]], problem: str, home: str | None = None) -> _T:
        """Run ``job`` on a device. If the device is lost or fails, run it on another device."""
        why, failed = "", list[Device]()
        for _ in range(MOST_TRIES):
            async with self._any_device(problem, home=home, avoid=failed, comparable=True) as turn:
                try:
                    return await job(turn.device)
                except DeviceLost as lost:
                    why, home = str(lost), None
                    failed.append(turn.device)
                    self._redo(turn.device, lost)
        raise JudgeKilled(f"the work failed {MOST_TRIES} times. The last failure: {why}")

    def _redo(self, device: Device, lost: DeviceLost) -> None:
        if device.lost:  # The log already contains the reason.
            return
        if not isinstance(lost, Doubted):
            self._roster.blame(device, str(lost))
        self._say(f"{lost}; {self._roster.fate_of_work(device)}", True)

    # Tasks

    async def _ask(
        self, device: Device, work: m.AnyWork, resource: str, on_stage: Callable[[Stage], None] = lambda stage: None
    ) -> m.AnyFinal:
        """Give a device one task, and return its answer. Canceling this call also cancels the task.

        Raises ``DeviceLost`` if the host is at fault, and ``EvaluationError`` if the work itself failed.
        """
        _check(device)
        self._counter += 1
        name = f"{self._engine}-{self._counter}"
        attempt = self._attempts[name] = _Attempt(device, type(work), on_stage)
        fact = device.fact
        order = m.Order(name, self._engine, self._evaluation, work, fact.bandwidth_gbs, fact.peak_gflops)
        try:
            attempt.task = self._link.submit(order, device.beat.address, resource)
            answer = await attempt.answer
        except ConnectionError as error:
            await asyncio.sleep(_LOOK_S)
            raise DeviceLost(f"{device.host}: {error}") from None
        finally:
            del self._attempts[name]
            if attempt.task is not None:
                with contextlib.suppress(Exception):  # The connection may be down.
                    attempt.task.release()
        if isinstance(answer, m.Failed):
            if answer.host:
                device.waiting = False
                raise DeviceLost(f"{device.host}: {answer.reason}")
            raise EvaluationError(answer.reason, answer.variant)
        self._durations.setdefault(type(work), []).append(attempt.ran_s)
        del self._durations[type(work)][:-_KEPT]
        return answer

    async def _watch(self) -> None:
        """Find silent devices, and tasks that are lost, stuck or too slow."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self._roster.look()
            for name, attempt in list(self._attempts.items()):
                self._look(name, attempt)
            # If all devices fell silent at once, perhaps the engine's own connection is dead.
            silent = self._down is None and self._started and not self._roster.devices
            if silent and not await self._link.alive(SILENT_S / 2):
                await self._link.reset()

    def _look(self, name: str, attempt: _Attempt) -> None:
        now, device = time.monotonic(), attempt.device
        passed_s, attempt.looked_at = now - attempt.looked_at, now
        beat = device.beat
        if device.lost:
            attempt.lose(f"{device.host} left")
        elif attempt.task is not None and attempt.task.status in ("error", "cancelled", "lost", "finished"):
            attempt.ended_s += passed_s
            if attempt.ended_s >= UNREPORTED_S and not attempt.answer.done():
                why = (
                    f"{device.host}: its worker was killed; {self._roster.fate_of_work(device)}. If the worker does "
                    f"not join again, start it on the host: {self._join_command}"
                )
                self._roster.left(device.id, why, fault=True)
                attempt.lose(why)
        elif name in beat.stuck:
            attempt.lose(f"{device.host}: its judging process does not respond")
        elif name in beat.running:
            if not device.waiting or attempt.kind is m.Build:  # Builds do not need the device.
                attempt.ran_s += passed_s
            limit_s = min(DEADLINE_S, max(SLOW_S, SLOW * self._median_s(attempt.kind)))
            if attempt.ran_s > limit_s and (limit_s == DEADLINE_S or len(self._roster.usable()) > 1):
                attempt.lose(f"{device.host}: its worker did not finish a task within {limit_s:g} s")
        elif not beat.running:  # The worker runs no task of this or another engine.
            attempt.idle_s += passed_s
            if attempt.idle_s > UNSTARTED_S:
                attempt.lose(f"{device.host}: its worker did not start a task within {UNSTARTED_S:g} s")

    def _median_s(self, kind: type) -> float:
        seconds = sorted(self._durations.get(kind, ()))
        return seconds[len(seconds) // 2] if len(seconds) >= 5 else DEADLINE_S

    # Messages from workers

    def _hear_beat(self, beat: m.Beat) -> None:
        self._roster.hear(beat)
        device = self._roster.devices.get(beat.device.id)
        if beat.sample is not None and device is not None and not device.refusal:
            self._samples[beat.device.id] = beat.sample

    def _hear_report(self, report: m.Report) -> None:
        match report.answer:
            case m.Waits(wait=wait):
                if (device := self._roster.devices.get(wait.device.id)) is not None:
                    device.waiting = True
                self._on_wait(wait)
                return
            case m.WaitEnded(seconds=seconds, device=device_id):
                if (device := self._roster.devices.get(device_id)) is not None:
                    device.waiting = False
                    self._on_free(device.fact, seconds)
                return
        attempt = self._attempts.get(report.attempt)
        if attempt is None:  # The report is late: the engine has given up on this attempt.
            return
        if isinstance(report.answer, m.AtStage):
            attempt.on_stage(report.answer.stage)
        elif isinstance(report.answer, m.FINAL) and not attempt.answer.done():
            attempt.answer.set_result(report.answer)

    def _hear_link(self, trouble: str) -> None:
        if trouble:
            self._down = trouble
            self._say(f"{self._address}: {trouble}; the engine keeps trying until the scheduler answers", True)
            for attempt in self._attempts.values():
                attempt.lose(f"{self._address}: {trouble}")
            for device in list(self._roster.devices.values()):
                self._roster.left(
                    device.id, f"{device.host}: the engine lost its connection to the scheduler {self._address}"
                )
        else:
            if self._down is not None:
                self._say(f"{self._address}: connected", False)
            self._down = None

    def _compare_software(self, devices: Iterable[Device]) -> None:
        for line in self._comparability.joined(device.fact for device in devices):
            self._say(line, True)

    def _joined(self, device: Device) -> None:
        if self._started:
            self._on_join(device.fact)
            self._compare_software([device])
            self._welcome(device)
        asyncio.ensure_future(self._wake())  # noqa: RUF006 - It ends at once.

    def _left(self, device: Device, why: str) -> None:
        self._samples.pop(device.id, None)
        self._comparability.left(device.id)
        self._on_leave(device.fact, why)
        for attempt in self._attempts.values():
            if attempt.device is device:
                attempt.lose(why)
        asyncio.ensure_future(self._wake())  # noqa: RUF006 - It ends at once.

    def _place(self, problem: ProblemSpec) -> m.Place:
        return m.Place(problem, self._headers.get(problem.id, ""))
