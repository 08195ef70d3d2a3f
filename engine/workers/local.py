"""Evaluate on this machine: builders on its cores, one judge for each device."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from engine.child import end_group, end_what_it_leaves
from engine.config import EvaluationConfig
from engine.devices import discover
from engine.evaluation import messages
from engine.evaluation.build import NoCompiler, build, compiler_of, default_cache, remove_leftovers
from engine.evaluation.locks import shared
from engine.evaluation.messages import JudgeSettings
from engine.evaluation.modules import build_module
from engine.evaluation.probe import SandboxReport, describe, probe
from engine.evaluation.sandbox import RunnerEnded
from engine.events import DeviceFact, Stage
from engine.problem.spec import FORM_OF_DEVICE, Form, ProblemSpec
from engine.verdict import Baseline, BuildReport, Standing, Verdict
from engine.workers.judge_process import JudgeProcess, child_environment, how_it_ended
from engine.workers.log_tap import LogTap
from engine.workers.protocol import EvaluationError, JudgeDied, Known, Opened
from engine.workers.room import lack_of_room
from engine.workers.waiting import DeviceWatch, Wait

_NOTICED_S = 0.05
"""How long a build may wait for its turn before it counts as waiting."""
_OPEN_S, _JUDGE_S, _HEAT_S, _COMPILE_S = 300.0, 600.0, 300.0, 300.0
_BUILD_S, _MODULE_S = 150.0, 900.0
"""Longest that a build may keep others from timing: more than all its own deadlines."""
_THOROUGH_PAIRS = 7
"""So many times ``max_pairs`` for a verdict that takes its time: short kernels give thousands."""

_T = TypeVar("_T")


class LocalEvaluator:
    """The :class:`~engine.workers.protocol.Evaluator` of one machine.

    Builds run ``config.builders`` at a time and never on cores that are timing; each device judges one kernel at a
    time, and no other process of kernel-tui on this machine uses it meanwhile. ``scratch`` is where builds go when
    the user's cache directory cannot be written. ``thorough``: one verdict may take ten seconds, for a narrow interval;
    a search leaves that to its heats. ``on_wait`` and ``on_free``: told of waits for devices that other processes hold
    (:class:`~engine.workers.waiting.DeviceWatch`).
    ``stderr``: descriptor for what judges and problems print, else this process's own, within bounds.
    """

    def __init__(
        self,
        config: EvaluationConfig,
        scratch: Path,
        thorough: bool = False,
        on_wait: Callable[[Wait], None] = lambda wait: None,
        on_free: Callable[[DeviceFact, float], None] = lambda device, seconds: None,
        stderr: int | None = None,
    ) -> None:
        self._config = config
        self._isolates = config.sandbox != "off"
        self._watch = DeviceWatch(on_wait, on_free)
        self._waits_counted_s = 0.0
        self._stderr = stderr
        self._tap: LogTap | None = None
        self._thorough = thorough
        self._cache = _writable_cache(scratch)
        cores = len(os.sched_getaffinity(0))
        self._threads = config.threads or cores
        self._builders = asyncio.Semaphore(config.builders or cores)
        self._sandbox: SandboxReport | None = None
        self._judges: list[JudgeProcess] = []
        self._free = asyncio.Condition()
        self._busy: set[JudgeProcess] = set()
        self._headers: dict[str, str] = {}
        self._floors: dict[str, float] = {}
        """By problem, milliseconds: all judges that open it, now or after a resume, go by the same."""
        self._begun: dict[tuple[str, Form, str], asyncio.Task[tuple[Path | None, BuildReport]]] = {}
        self._devices: tuple[DeviceFact, ...] = ()
        self._closing = False

    async def start(self) -> tuple[DeviceFact, ...]:
        self._devices = self._choose_devices()
        try:
            compiler_of(FORM_OF_DEVICE[self._devices[0].kind])
        except NoCompiler as error:
            raise EvaluationError(str(error)) from None
        self._watch.start(self._devices)
        if self._stderr is None:
            self._tap = LogTap()
        self._judges = [JudgeProcess(self._settings(device), self._watch, *self._errors) for device in self._devices]
        if find_spec("torch") is not None:  # a judge would only die of it
            self._judges[0].begin()
        if self._isolates:
            self._sandbox = await asyncio.to_thread(self._probe)
        await asyncio.to_thread(remove_leftovers, self._cache)
        return self._devices

    @property
    def sandbox(self) -> str:
        return describe(self._sandbox) if self._sandbox is not None else "off (as configured)"

    def begin_build(self, problem: ProblemSpec, header: str, form: Form, source: str) -> None:
        """Build now what is evaluated once its problem is open: a judge that starts times nothing yet."""
        self._headers[problem.id] = header
        self._begun[problem.id, form, source] = asyncio.create_task(self._build_now(problem, form, source, _ignore))

    async def measure_device(self, device: DeviceFact) -> DeviceFact:
        judge = next(judge for judge in self._judges if judge.settings.device_id == device.id)
        async with self._take(None, judge):
            request = messages.Measure(device.bandwidth_gbs, device.peak_gflops)
            answer = await self._twice(lambda: judge.ask(request, _OPEN_S, _ignore))
        assert isinstance(answer, messages.Measured)
        # A judge that has to be started again goes by the same figures.
        judge.settings = replace(judge.settings, bandwidth_gbs=answer.bandwidth_gbs, peak_gflops=answer.peak_gflops)
        return replace(device, bandwidth_gbs=answer.bandwidth_gbs, peak_gflops=answer.peak_gflops)

    async def open(
        self, problem: ProblemSpec, header: str, floor_ms: float | None = None, *, limit_s: float = _OPEN_S
    ) -> Opened:
        """``limit_s``: seconds from when the device is free."""
        self._headers[problem.id] = header
        self._floors.pop(problem.id, None)
        if floor_ms is not None:
            self._floors[problem.id] = floor_ms
        if (lack := lack_of_room(problem, self._devices[0])) is not None:
            raise EvaluationError(lack)
        async with self._take(problem.id) as judge:
            opened = await self._twice(lambda: self._open_in(judge, problem, limit_s))
        return Opened(opened.eager, opened.floor_ms, opened.degenerate, opened.tightened)

    async def evaluate(
        self,
        problem: ProblemSpec,
        form: Form,
        source: str,
        on_stage: Callable[[Stage], None],
        known: Known | None = None,
        on_verdict: Callable[[Verdict], None] | None = None,
    ) -> Verdict:
        queued, waited_s = time.monotonic(), self._watch.waited_s
        try:
            library, report = await self._build(problem, form, source, on_stage)
        except (NoCompiler, OSError) as error:
            return Verdict(status="error", reason=str(error))
        if library is None:
            return Verdict(
                status="build_error",
                reason=first_error(report),
                build=report,
                device=self._devices[0].name,
                stage_s=_before_judging(queued, report, self._watch.waited_s - waited_s),
            )
        on_stage("waiting")
        async with self._take(problem.id) as judge:
            spent = _before_judging(queued, report, self._watch.waited_s - waited_s)
            if known is not None and report.code and (verdict := known(report.code)) is not None:
                return replace(verdict, build=report, stage_s=spent)
            request = messages.JudgeKernel(problem.id, str(library), report)
            for last in (False, True):
                try:
                    await self._open_in(judge, problem)
                    answer = await judge.ask(request, _JUDGE_S, on_stage)
                    break
                except EvaluationError as error:
                    if last or self._closing:
                        return Verdict(status="error", reason=str(error), build=report, device=self._devices[0].name)
            assert isinstance(answer, messages.Judged)
            verdict = replace(answer.verdict, stage_s={**spent, **self._waited(), **answer.verdict.stage_s})
            if on_verdict is not None:
                on_verdict(verdict)
            return verdict

    async def heat(self, problem: ProblemSpec, kernels: Mapping[str, tuple[Form, str]]) -> tuple[Standing, ...]:
        libraries = {}
        for variant, (form, source) in kernels.items():
            library, report = await self._build(problem, form, source, _ignore)
            if library is None:
                raise EvaluationError(f"{variant} does not build any more: {first_error(report)}")
            libraries[variant] = str(library)
        async with self._take(problem.id) as judge:

            async def run() -> messages.AnyAnswer:
                await self._open_in(judge, problem)
                return await judge.ask(messages.RunHeat(problem.id, libraries), _HEAT_S, _ignore)

            answer = await self._twice(run)
        assert isinstance(answer, messages.HeatRun)
        return answer.standings

    async def compile_baseline(self, problem: ProblemSpec) -> Baseline:
        async with self._take(problem.id) as judge:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "engine.quickly",
                "engine.evaluation.baseline",
                msgspec.json.encode(judge.settings).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._errors[0],
                env=child_environment(judge.settings) | self._inductor_environment(),
                process_group=0,
            )
            reaper = asyncio.create_task(end_what_it_leaves(process))
            try:
                async with self._watch.wanted(judge.settings.device_id, _COMPILE_S, process.pid):
                    output, _ = await process.communicate(msgspec.json.encode(problem))
            except TimeoutError:
                return Baseline("compile", failure=f"torch.compile did not end within {_COMPILE_S:g} s")
            finally:
                reaper.cancel()
                await asyncio.gather(reaper, return_exceptions=True)
                if process.returncode is None:
                    await end_group(process)
        try:
            return msgspec.json.decode(output, type=Baseline)
        except msgspec.MsgspecError:
            how = how_it_ended(process.returncode or 0)
            return Baseline("compile", failure=f"the process of torch.compile {how}{self._errors[1]}")

    async def close(self) -> None:
        self._closing = True
        for task in self._begun.values():
            task.cancel()
        await asyncio.gather(*self._begun.values(), return_exceptions=True)
        await asyncio.gather(*(judge.stop() for judge in self._judges))
        await self._watch.close()
        if self._tap is not None:
            await asyncio.to_thread(self._tap.close)
            self._tap = None

    # Devices and judges

    @property
    def _errors(self) -> tuple[int | None, str]:
        """Where children print to, and where a person finds that: an engine's standard error is its session's log; a
        command that gave a descriptor shows what comes out of it."""
        return (self._tap.descriptor, "; see engine.log") if self._tap is not None else (self._stderr, "")

    def _choose_devices(self) -> tuple[DeviceFact, ...]:
        """The configured devices; ``auto``: all GPUs like the first one where there is nvcc, else the CPU."""
        found = discover()
        gpus = [device for device in found if device.kind == "cuda"]
        cpu = [device for device in found if device.kind == "cpu"]
        chosen: list[DeviceFact] = []
        for name in self._config.devices:
            if name == "cpu":
                chosen += cpu
            elif name == "auto":
                with contextlib.suppress(NoCompiler):
                    compiler_of("cu")
                    chosen += [gpu for gpu in gpus if gpu.name == gpus[0].name]
                chosen = chosen or cpu
            else:
                index = int(name.partition(":")[2] or 0)
                if index >= len(gpus):
                    there = f"{len(gpus)} NVIDIA device(s)" if gpus else "no NVIDIA device"
                    raise EvaluationError(
                        f'evaluation.device = {name!r}: this machine has {there}; try "auto" or "cpu"'
                    )
                chosen.append(gpus[index])
        if len({device.kind for device in chosen}) > 1:
            raise EvaluationError("evaluation.device mixes CPU and GPU; a session judges on one kind of device")
        return tuple(chosen)

    def _probe(self) -> SandboxReport:
        try:
            report = probe()
        except RunnerEnded as ended:
            if self._config.sandbox == "require":
                raise EvaluationError(f'evaluation.sandbox = "require": {ended}') from None
            return SandboxReport((), ("namespaces", "Landlock", "seccomp"))
        if report.missing and self._config.sandbox == "require":
            raise EvaluationError(
                f'evaluation.sandbox = "require", but this machine refuses {", ".join(report.missing)}; '
                'see kernel-tui doctor, or set it to "auto"'
            )
        return report

    def _settings(self, device: DeviceFact) -> JudgeSettings:
        limit = self._config.memory_limit
        return JudgeSettings(
            kind=device.kind,
            device_id=device.id,
            device_name=device.name,
            threads=self._threads,
            trials=self._config.trials,
            max_pairs=self._config.max_pairs * (_THOROUGH_PAIRS if self._thorough else 1),
            deadline_s=self._config.deadline_s,
            memory_bytes=0 if limit == "auto" else limit,
            tolerance_fp32=self._config.tolerance_for("float32"),
            tolerance_other=self._config.tolerance_for("float16"),
            isolate=self._isolates,
            precision=self._config.precision,
            libraries=self._config.libraries,
            thorough=self._thorough,
        )

    @contextlib.asynccontextmanager
    async def _take(self, problem: str | None, wanted: JudgeProcess | None = None) -> AsyncIterator[JudgeProcess]:
        """A judge that is free, one that knows ``problem`` before others."""
        async with self._free:
            while not (free := [j for j in self._judges if j not in self._busy and wanted in (None, j)]):
                await self._free.wait()
            judge = next((judge for judge in free if problem in judge.opened), free[0])
            self._busy.add(judge)
        try:
            yield judge
        finally:
            self._busy.discard(judge)
            async with self._free:
                self._free.notify_all()

    async def _twice(self, job: Callable[[], Awaitable[_T]]) -> _T:
        """What ``job`` gives; once more in a new judge if its own died."""
        try:
            return await job()
        except JudgeDied:
            if self._closing:
                raise
        return await job()

    async def _open_in(
        self, judge: JudgeProcess, problem: ProblemSpec, limit_s: float = _OPEN_S
    ) -> messages.ProblemOpened:
        if problem.id in judge.opened:
            return messages.ProblemOpened(Baseline("eager"), None)
        answer = await judge.ask(messages.OpenProblem(problem, self._floors.get(problem.id)), limit_s, _ignore)
        assert isinstance(answer, messages.ProblemOpened)
        if answer.floor_ms is not None:
            self._floors[problem.id] = answer.floor_ms
        judge.opened.add(problem.id)
        return answer

    # Builds

    async def _build(
        self, problem: ProblemSpec, form: Form, source: str, on_stage: Callable[[Stage], None]
    ) -> tuple[Path | None, BuildReport]:
        begun = self._begun.pop((problem.id, form, source), None)
        if begun is None:
            return await self._build_now(problem, form, source, on_stage)
        on_stage("building")
        return await begun

    async def _build_now(
        self, problem: ProblemSpec, form: Form, source: str, on_stage: Callable[[Stage], None]
    ) -> tuple[Path | None, BuildReport]:
        """Build as soon as a builder is free and, on a processor, nothing is being timed."""
        device = self._devices[0]
        waits = asyncio.get_running_loop().call_later(_NOTICED_S, on_stage, "waiting")
        try:
            async with self._builders, contextlib.AsyncExitStack() as stack:
                if device.kind == "cpu":
                    async with self._watch.wanted(device.id):
                        most_s = _MODULE_S if form == "py" else _BUILD_S
                        await stack.enter_async_context(shared(device.id, most_s))
                waits.cancel()
                on_stage("building")
                if form == "py":
                    return await build_module(
                        source, problem.source, device.kind, device.arch, self._cache, self._isolates
                    )
                return await build(source, form, self._headers[problem.id], device.arch, self._cache)
        finally:
            waits.cancel()

    def _waited(self) -> dict[str, float]:
        """Seconds for which others kept the devices since this was last asked, so that each is in one verdict."""
        seconds = self._watch.waited_s - self._waits_counted_s
        self._waits_counted_s += seconds
        return {"waiting": seconds} if seconds > 0 else {}

    def _inductor_environment(self) -> dict[str, str]:
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(self._cache.parent / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": str(self._threads),
        }


def _before_judging(queued: float, report: BuildReport, waited_s: float) -> dict[str, float]:
    """Stages until now, seconds, of a kernel that was ``queued`` then; its build may have begun before. ``waited_s`` of
    them, somebody else had the device."""
    return {"queue": max(0.0, time.monotonic() - queued - report.seconds - waited_s), "build": report.seconds}


def first_error(report: BuildReport) -> str:
    """The compiler's first error, or its last line: a shell says there why a compiler did not start."""
    lines = [line.strip() for line in report.log.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or line.startswith("no function")]
    return errors[0] if errors else lines[-1] if lines else "the compiler failed without a word"


def _ignore(stage: Stage) -> None:
    """For requests whose stages interest nobody."""


def _writable_cache(scratch: Path) -> Path:
    wanted = default_cache()
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        if os.access(wanted, os.W_OK) and shutil.disk_usage(wanted).free > 64 << 20:
            return wanted
    except OSError:
        pass
    return scratch / "builds"
