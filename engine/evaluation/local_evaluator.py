"""Evaluate kernels on this machine, with builders on its cores and one judge per device."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from engine.config.evaluation_table import EvaluationConfig
from engine.devices.fact import DeviceFact
from engine.devices.hardware import discover, usable_cores
from engine.devices.nvml import driver
from engine.devices.waiting_line import Waiting, first_in_line, leave_line
from engine.evaluation.build.build_cache import BuildCache, first_error
from engine.evaluation.build.builder import Builder
from engine.evaluation.build.compilers import NoCompiler, compiler_of, default_cache, remove_leftovers
from engine.evaluation.build.kernel_source import KernelSource, kernel_source
from engine.evaluation.device_waits import DeviceWatch, Wait
from engine.evaluation.evaluator import CountersUnavailable, EvaluationError, JudgeDied, Known, Opened
from engine.evaluation.free_memory import lack_of_room
from engine.evaluation.inspect.profiler import DEADLINE_S, ProfileError, profile
from engine.evaluation.judge import messages
from engine.evaluation.judge.admission import need_of
from engine.evaluation.judge.device_lock import shared
from engine.evaluation.judge.messages import JudgeSettings
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.judge_process import JudgeProcess, child_environment, how_it_ended
from engine.evaluation.log_tap import LogTap
from engine.evaluation.sandbox.probe import SandboxReport, describe, probe
from engine.evaluation.sandbox.runner import RunnerEnded
from engine.problem.spec import LANGUAGE_OF_DEVICE, MODULES, Language, ProblemSpec
from engine.session.records.counters import COUNTERS, KernelCounters
from engine.session.records.verdict import Baseline, BuildReport, Stage, Standing, Verdict
from engine.system.child import end_group, end_what_it_leaves
from engine.system.python_process import python_command
from engine.system.tool_paths import NoTool

_OPEN_S, _JUDGE_S, _RUNOFF_S, _COMPILE_S = 300.0, 600.0, 300.0, 300.0
_JUDGING = ("start", "check", "timing", "kernelbench")
_LEAST_TOLD_S = 1.0
"""Minimum seconds that the evaluator reports as the stage "repeats"."""

_T = TypeVar("_T")


class LocalEvaluator:
    """The :class:`~engine.evaluation.evaluator.Evaluator` for one machine.

    At most ``config.builders`` builds run at a time, never on cores that a judge is using for timing. Each device
    judges one kernel at a time. While a device judges a kernel, no other kernel-tui process on this machine uses the
    device.

    ``scratch``: directory for builds if the user's cache is not writable; the directory need not exist. ``thorough``:
    whether to spend more time per verdict for a narrower interval. Searches rely on runoffs instead. ``on_wait``,
    ``on_free``: see :class:`~engine.evaluation.device_waits.DeviceWatch`. ``stderr``: descriptor for the output of
    judges and problems. The default is this process's standard error, with a limit on the output. ``modules``: whether
    each judge prepares for ``.py`` kernels when the judge starts.
    """

    def __init__(
        self,
        config: EvaluationConfig,
        scratch: Path,
        thorough: bool = False,
        on_wait: Callable[[Wait], None] = lambda wait: None,
        on_free: Callable[[DeviceFact, float], None] = lambda device, seconds: None,
        stderr: int | None = None,
        modules: bool = False,
    ) -> None:
        self._config, self._modules = config, modules
        self._isolates = config.sandbox != "off"
        self._watch = DeviceWatch(on_wait, on_free)
        self._waits_counted_s = 0.0
        self._stderr = stderr
        self._tap: LogTap | None = None
        self._thorough = thorough
        self._cache = _writable_cache(scratch)
        cores = usable_cores()
        self._threads = config.threads or cores
        self._builder = Builder(
            BuildCache(self._cache, self._isolates), config.builders or cores, self._beside_other_builds
        )
        self._sandbox: SandboxReport | None = None
        self._judges: list[JudgeProcess] = []
        self._free = asyncio.Condition()
        self._busy: set[JudgeProcess] = set()
        self._line: list[Waiting] = []
        self._tickets = itertools.count()
        self._evaluating = 0
        """Number of kernels under evaluation."""
        self._headers: dict[str, str] = {}
        self._sol_ms: dict[str, float] = {}
        """SOL bounds by problem, in milliseconds. All judges use the same bounds, and a resumed session keeps them."""
        self._devices: tuple[DeviceFact, ...] = ()
        self._closing = False

    async def start(self) -> tuple[DeviceFact, ...]:
        self._devices = self._choose_devices()
        try:
            compiler_of(LANGUAGE_OF_DEVICE[self._devices[0].kind])
        except NoCompiler as error:
            raise EvaluationError(str(error)) from None
        self._watch.start(self._devices)
        if self._stderr is None:
            self._tap = LogTap()
        self._judges = [
            JudgeProcess(self._settings(device), self._cache, self._watch, *self._errors) for device in self._devices
        ]
        if find_spec("torch") is not None:  # Without torch, a judge could not start.
            self._judges[0].begin()
        if self._isolates:
            self._sandbox = await asyncio.to_thread(self._probe)
        await asyncio.to_thread(remove_leftovers, self._cache)
        return self._devices

    @property
    def sandbox(self) -> str:
        return describe(self._sandbox) if self._sandbox is not None else "off (as configured)"

    @property
    def width(self) -> int:
        return (self._config.builders or max(1, usable_cores() // 2)) + max(1, len(self._devices))

    def begin_build(self, problem: ProblemSpec, header: str, language: Language, source: str) -> None:
        """Start building a kernel before its problem is open.

        The build does not disturb timing, because a judge that is starting does not time kernels.
        """
        self._headers[problem.id] = header
        self._builder.begin(self._kernel(problem, language, source))

    async def build(
        self,
        problem: ProblemSpec,
        header: str,
        language: Language,
        source: str,
        on_stage: Callable[[Stage], None] = lambda stage: None,
    ) -> BuildReport:
        """Build a kernel on this host. A later :meth:`evaluate` finds the library in the host's cache.

        Raises ``NoCompiler`` if the compiler is missing, and ``OSError`` if the cache is not writable.
        """
        self._headers[problem.id] = header
        return await self._builder.build(self._kernel(problem, language, source), on_stage)

    async def measure_device(self, device: DeviceFact) -> DeviceFact:
        judge = next(judge for judge in self._judges if judge.settings.device_id == device.id)
        async with self._take(None, judge):
            request = messages.Measure(device.bandwidth_gbs, device.peak_gflops)
            answer = await self._twice(lambda: judge.ask(request, _OPEN_S, _ignore))
        assert isinstance(answer, messages.Measured)
        # A restarted judge uses the same measured peaks.
        judge.settings = replace(judge.settings, bandwidth_gbs=answer.bandwidth_gbs, peak_gflops=answer.peak_gflops)
        return replace(device, bandwidth_gbs=answer.bandwidth_gbs, peak_gflops=answer.peak_gflops)

    async def open(
        self, problem: ProblemSpec, header: str, sol_ms: float | None = None, *, limit_s: float = _OPEN_S
    ) -> Opened:
        """Open a problem. ``limit_s``: time limit in seconds, counted from when the device is free."""
        self._headers[problem.id] = header
        self._sol_ms.pop(problem.id, None)
        if sol_ms is not None:
            self._sol_ms[problem.id] = sol_ms
        if (lack := lack_of_room(problem, self._devices[0])) is not None:
            raise EvaluationError(lack)
        async with self._take(None) as judge:
            opened = await self._twice(lambda: self._open_in(judge, problem, limit_s))
        return Opened(opened.eager, opened.sol_ms, opened.degenerate)

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
        self._evaluating += 1
        try:
            for judge in self._judges[: self._evaluating]:  # While the kernel builds, a judge for it starts.
                judge.begin()
            return await self._build_and_judge(problem, language, source, on_stage, known, on_verdict)
        finally:
            self._evaluating -= 1

    async def _build_and_judge(
        self,
        problem: ProblemSpec,
        language: Language,
        source: str,
        on_stage: Callable[[Stage], None],
        known: Known | None,
        on_verdict: Callable[[Verdict], None] | None,
    ) -> Verdict:
        queued, waited_s = time.monotonic(), self._watch.waited_s
        kernel = self._kernel(problem, language, source)
        try:
            report = await self._builder.build(kernel, on_stage)
        except (NoCompiler, OSError) as error:
            return Verdict(status="error", reason=str(error))
        if not report.ok:
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
            request = messages.JudgeKernel(problem.id, kernel)
            asked, waited_s = time.monotonic(), self._watch.waited_s
            for last in (False, True):
                try:
                    await self._open_in(judge, problem)
                    answer = await judge.ask(request, _JUDGE_S, on_stage)
                    break
                except EvaluationError as error:
                    if last or self._closing:
                        return Verdict(status="error", reason=str(error), build=report, device=self._devices[0].name)
            assert isinstance(answer, messages.Judged)
            judged_s = time.monotonic() - asked - (self._watch.waited_s - waited_s)
            stages = {**spent, **self._waited(), **_with_repeats(answer.verdict.stage_s, judged_s)}
            verdict = replace(answer.verdict, build=report, stage_s=stages)
            if on_verdict is not None:
                on_verdict(verdict)
            return verdict

    async def runoff(self, problem: ProblemSpec, kernels: Mapping[str, tuple[Language, str]]) -> tuple[Standing, ...]:
        sources = {variant: self._kernel(problem, *kernel) for variant, kernel in kernels.items()}
        for variant, kernel in sources.items():
            report = await self._builder.build(kernel)
            if not report.ok:
                raise EvaluationError(f"{variant} no longer compiles: {first_error(report)}")
        async with self._take(problem.id) as judge:

            async def run() -> messages.AnyAnswer:
                await self._open_in(judge, problem)
                return await judge.ask(messages.TimeRunoff(problem.id, sources), _RUNOFF_S, _ignore)

            answer = await self._twice(run)
        assert isinstance(answer, messages.RunoffTimed)
        return answer.standings

    async def compile_baseline(self, problem: ProblemSpec) -> Baseline:
        async with self._take(None) as judge:
            await self._make_room(judge, problem)
            process = await asyncio.create_subprocess_exec(
                *python_command("engine.system.fast_start", "engine.evaluation.timing.baselines"),
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
                return Baseline("compile", failure=f"torch.compile did not finish within {_COMPILE_S:g} s")
            finally:
                reaper.cancel()
                await asyncio.gather(reaper, return_exceptions=True)
                if process.returncode is None:
                    await end_group(process)
        try:
            return msgspec.json.decode(output, type=Baseline)
        except msgspec.MsgspecError:
            how = how_it_ended(process.returncode or 0)
            return Baseline("compile", failure=f"the process that measures torch.compile {how}{self._errors[1]}")

    async def counters(
        self, problem: ProblemSpec, language: Language, source: str, report: Path
    ) -> tuple[KernelCounters, ...]:
        if self._devices[0].kind != "cuda":
            raise CountersUnavailable("ncu reads hardware counters only on GPUs", lasting=True)
        built = await self._builder.built(self._kernel(problem, language, source))
        if built is None:
            raise CountersUnavailable("the kernel no longer compiles")
        async with self._take(None) as judge:
            await self._make_room(judge, problem)
            device = judge.settings.device_id
            try:
                async with self._watch.wanted(device, DEADLINE_S):
                    found = await profile(problem, built, COUNTERS, report, device)
            except NoTool as error:
                raise CountersUnavailable(str(error), lasting=True) from None
            except ProfileError as error:
                raise CountersUnavailable(str(error), lasting=error.lasting) from None
            except TimeoutError:
                reason = f"another process used the device for more than {DEADLINE_S:g} s; try again later"
                raise CountersUnavailable(reason) from None
        return tuple(KernelCounters(one.kernel, {each.name: each.value for each in one.metrics}) for one in found)

    async def evict(self) -> None:
        for judge in self._judges:
            if judge.opened:
                async with self._take(None, judge):
                    with contextlib.suppress(EvaluationError):  # A judge that died has no memory left to release.
                        await judge.ask(messages.Evict(), _OPEN_S, _ignore)
                    judge.forget_problems()

    async def close(self) -> None:
        self._closing = True
        await self._builder.close()
        await asyncio.gather(*(judge.stop() for judge in self._judges))
        await self._watch.close()
        if self._tap is not None:
            await asyncio.to_thread(self._tap.close)
            self._tap = None

    # Devices and judges.

    @property
    def _errors(self) -> tuple[int | None, str]:
        """A descriptor for the children's output, and a clause that says where to find that output.

        The engine's standard error is the session's log. A command that passes a descriptor shows the children's output
        itself.
        """
        return (self._tap.descriptor, "; see engine.log") if self._tap is not None else (self._stderr, "")

    def _choose_devices(self) -> tuple[DeviceFact, ...]:
        """Return the configured devices. For ``auto``, return all GPUs of the same model as the first GPU if nvcc
        exists, otherwise the CPU.
        """
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
                        f'evaluation.device is {name!r}, but this machine has {there}; set it to "auto" or "cpu"'
                    )
                chosen.append(gpus[index])
        if len({device.kind for device in chosen}) > 1:
            raise EvaluationError("evaluation.device names both CPU and GPU; name devices of one kind only")
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
                f'evaluation.sandbox = "require", but this machine lacks {", ".join(report.missing)}; run '
                'kernel-tui doctor, or set evaluation.sandbox to "auto"'
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
            max_pairs=self._config.max_pairs * (POLICY.pairs.thorough_pairs if self._thorough else 1),
            deadline_s=self._config.deadline_s,
            memory_bytes=0 if limit == "auto" else limit,
            tolerance_fp32=self._config.tolerance_for("float32"),
            tolerance_other=self._config.tolerance_for("float16"),
            isolate=self._isolates,
            precision=self._config.precision,
            libraries=self._config.libraries,
            thorough=self._thorough,
            modules=self._modules,
        )

    @contextlib.asynccontextmanager
    async def _take(self, problem: str | None, wanted: JudgeProcess | None = None) -> AsyncIterator[JudgeProcess]:
        """Take a free judge, preferably with ``problem`` open.

        ``problem``: None for work that does not need an open problem. ``wanted``: the judge to take, or None for any
        judge.
        """
        waiting = Waiting(next(self._tickets), problem, wanted)
        async with self._free:
            self._line.append(waiting)
            try:
                while (judge := self._judge_for(waiting)) is None:
                    await self._free.wait()
            except BaseException:
                self._line.remove(waiting)
                self._free.notify_all()  # Other work may now be first in line.
                raise
            self._busy.add(judge)
            leave_line(self._line, waiting)
            self._free.notify_all()
        try:
            yield judge
        finally:
            self._busy.discard(judge)
            async with self._free:
                self._free.notify_all()

    def _judge_for(self, waiting: Waiting) -> JudgeProcess | None:
        """Return a free judge for which ``waiting`` is first in line. Return None if there is no such judge."""
        free = [judge for judge in self._judges if judge not in self._busy and waiting.only in (None, judge)]
        for judge in sorted(free, key=lambda one: waiting.problem not in one.kept):
            line = [one for one in self._line if one.only in (None, judge)]
            elsewhere = {problem for other in self._judges if other is not judge for problem in other.kept}
            if first_in_line(line, judge.kept, elsewhere) is waiting:
                return judge
        return None

    async def _twice(self, job: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of ``job``. If the judge dies, retry once with a new judge."""
        try:
            return await job()
        except JudgeDied:
            if self._closing:
                raise
        return await job()

    async def _make_room(self, judge: JudgeProcess, problem: ProblemSpec) -> None:
        """Make an idle judge release its GPU memory if another process needs the memory to work on a problem."""
        device = next(one for one in self._devices if one.id == judge.settings.device_id)
        if device.kind != "cuda" or not judge.running:
            return
        needed_bytes, memory = need_of(problem, "cuda").full_bytes, driver().memory(device.id)
        if 2 * needed_bytes > device.memory_bytes or (memory is not None and memory.free_bytes < needed_bytes):
            with contextlib.suppress(EvaluationError):  # After a failure, the next request restarts the judge.
                await judge.ask(messages.Evict(), _OPEN_S, _ignore)
                judge.kept.clear()

    async def _open_in(
        self, judge: JudgeProcess, problem: ProblemSpec, limit_s: float = _OPEN_S
    ) -> messages.ProblemOpened:
        judge.kept.add(problem.id)
        if problem.id in judge.opened:
            return messages.ProblemOpened(Baseline("eager"), None)
        answer = await judge.ask(messages.OpenProblem(problem, self._sol_ms.get(problem.id)), limit_s, _ignore)
        assert isinstance(answer, messages.ProblemOpened)
        if answer.sol_ms is not None:
            self._sol_ms[problem.id] = answer.sol_ms
        judge.opened.add(problem.id)
        return answer

    # Builds.

    def _kernel(self, problem: ProblemSpec, language: Language, source: str) -> KernelSource:
        """Return a kernel of ``problem`` as text that any host can build. C++ and CUDA kernels need the problem's
        header.
        """
        header = "" if language in MODULES else self._headers[problem.id]
        return kernel_source(problem, header, language, source, self._devices[0])

    @contextlib.asynccontextmanager
    async def _beside_other_builds(self, most_s: float) -> AsyncIterator[None]:
        """On a CPU, wait until no judge is timing a kernel, and then block timing for at most ``most_s`` seconds."""
        device = self._devices[0]
        if device.kind != "cpu":
            yield
            return
        async with contextlib.AsyncExitStack() as stack:
            async with self._watch.wanted(device.id):
                await stack.enter_async_context(shared(device.id, most_s))
            yield

    def _waited(self) -> dict[str, float]:
        """Return the seconds spent waiting for devices since the last call, so that each wait appears in only one
        verdict.
        """
        seconds = self._watch.waited_s - self._waits_counted_s
        self._waits_counted_s += seconds
        return {"waiting": seconds} if seconds > 0 else {}

    def _inductor_environment(self) -> dict[str, str]:
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(self._cache.parent / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": str(self._threads),
            # The processor's flags determine the vector width. Without this variable, Inductor also compiles a test
            # program for each width, which took 10 s on two cores.
            "TORCHINDUCTOR_VEC_ISA_OK": "1",
        }


def _before_judging(queued: float, report: BuildReport, waited_s: float) -> dict[str, float]:
    """Return the seconds per stage before judging, for a kernel that entered the queue at the time ``queued``.

    The kernel's build may have started earlier. ``waited_s``: seconds during which another process used the device.
    """
    return {"queue": max(0.0, time.monotonic() - queued - report.seconds - waited_s), "build": report.seconds}


def _with_repeats(stage_s: dict[str, float], judged_s: float) -> dict[str, float]:
    """Return the last timing process's stages, and count the rest of the judge's time as "repeats".

    The rest includes earlier processes, retries and reopening the problem. ``judged_s``: the judge's total time.
    """
    repeats_s = judged_s - sum(stage_s.get(stage, 0.0) for stage in _JUDGING)
    return {**({"repeats": repeats_s} if repeats_s >= _LEAST_TOLD_S else {}), **stage_s}


def _ignore(stage: Stage) -> None:
    """Ignore a stage, for requests whose stages the engine does not show."""


def _writable_cache(scratch: Path) -> Path:
    wanted = default_cache()
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        if os.access(wanted, os.W_OK) and shutil.disk_usage(wanted).free > 64 << 20:
            return wanted
    except OSError:
        pass
    return scratch / "builds"
