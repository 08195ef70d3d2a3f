"""Load problems: resolve the names in a config, inspect the files, open the references, and compute each SOL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from importlib.util import find_spec

from engine.devices.fact import DeviceFact
from engine.devices.hardware import usable_cores
from engine.evaluation.evaluator import EvaluationError, JudgeKilled
from engine.exit_codes import ExitCode
from engine.problem.c_header import derive_header
from engine.problem.catalog import CatalogError, inspect_files, resolve
from engine.problem.failure import ProblemFailure
from engine.problem.names import ProblemFile
from engine.problem.spec import (
    LANGUAGE_KEYS,
    LANGUAGE_NAMES,
    LANGUAGES_OF_DEVICE,
    MODULES,
    ProblemSpec,
)
from engine.proposers.coverage import remedies
from engine.proposers.protocol import UNUSABLE
from engine.search.context import Context
from engine.search.proposing.warm_start import WarmStart
from engine.session.records.events import (
    BaselineMeasured,
    CannotWrite,
    DeviceMeasured,
    LogLine,
    ProblemAdded,
    ProblemFinished,
    ProblemRefused,
    RoundStarted,
    Startup,
    StartupStep,
)
from engine.session.state.session_state import ProblemState, VariantState
from engine.session.store.paths import session_argument

FIRST_KERNEL_S = {"cpu": 10.0, "cuda": 1.0}
"""Maximum seconds for which a resumed search delays the opening of its second problem, until the judge has begun the
first kernel. On a CPU, opening a problem blocks all builds.
"""
FIRST_WRITTEN_S = 1.0
"""Seconds in which the playbook writes a kernel for a reopened problem."""
_LOOK_S = 0.05


class ProblemsMissing(Exception):
    """The config names missing problems, and the session does not contain any problems yet."""

    exit_code = ExitCode.USAGE


class Opening:
    """Open the session's problems one after another. The search of a problem starts as soon as the problem is open."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._state = context.state
        self._warm_start = WarmStart(context)
        self.done = False

    async def opened(self) -> AsyncIterator[str]:
        """Yield each problem's id when the problem is open. If the judge cannot open a problem, record the reason."""
        inspection: asyncio.Future[list[ProblemSpec | ProblemFailure]] | None = None
        try:
            files = await self._files()
            new = [file for file in files if file.id not in self._state.problems and file.id not in self._state.refused]
            # Both steps start a process that imports torch, so run the steps in parallel.
            inspection = asyncio.ensure_future(inspect_files(new)) if new else None
            stored = self._to_reopen()
            self._begin_builds(stored)
            await self._measure_device()
            await self._warm_start.remember()
            count = len(stored) + len(new)
            for number, problem in enumerate(stored, 1):
                await self._tell("problem", problem.id, number, count)
                if await self._open(problem.id):
                    await self._say_who_writes(problem.id)
                    yield problem.id
                    if number == 1 and count > 1:
                        await self._let_first_kernel_start(problem.id)
            inspected = await inspection if inspection is not None else []
            for number, (file, answer) in enumerate(zip(new, inspected, strict=True), len(stored) + 1):
                if isinstance(answer, ProblemSpec):
                    if not await self._add(answer):
                        continue
                    await self._tell("problem", answer.id, number, count)
                    if await self._open(answer.id):
                        await self._say_who_writes(answer.id)
                        await self._warm_start.seed(answer.id)
                        yield answer.id
                else:
                    await self._refuse(file, str(answer))
            await self._tell("done")
        finally:
            self.done = True
            if inspection is not None:
                inspection.cancel()

    async def announce(self) -> None:
        """With turns: measure the device, and inspect and record all problems without opening them."""
        files = await self._files()
        new = [file for file in files if file.id not in self._state.problems and file.id not in self._state.refused]
        inspection = asyncio.ensure_future(inspect_files(new))
        try:
            await self._measure_device()
            await self._warm_start.remember()
            for file, answer in zip(new, await inspection, strict=True):
                if isinstance(answer, ProblemSpec):
                    await self._add(answer)
                else:
                    await self._refuse(file, str(answer))
        finally:
            inspection.cancel()
        await self._tell("done")
        for name in self._state.problems:
            if name not in self._state.refused:
                await self._say_who_writes(name)

    async def open(self, name: str) -> bool:
        """Open a problem for its turn, after ``announce`` has recorded the problem. Returns whether the problem is
        open.
        """
        is_first = "eager" not in self._state.problems[name].baselines
        opened = await self._open(name)
        if opened and is_first:
            await self._warm_start.seed(name)
        return opened

    async def _files(self) -> list[ProblemFile]:
        """Problem files that the config names. If the session already contains its problems, missing files cause only a
        warning.
        """
        config = self._context.config
        try:
            return resolve(config.problems, config.path.parent)
        except CatalogError as error:
            if not self._state.problems:
                raise ProblemsMissing(str(error)) from error
            await self._context.journal.record(LogLine(level="warning", text=str(error)))
            return []

    async def _tell(self, step: Startup, problem: str = "", number: int = 0, count: int = 0) -> None:
        await self._context.journal.record(StartupStep(step=step, problem=problem, number=number, count=count))

    def _to_reopen(self) -> list[ProblemState]:
        """Return the session's problems in the order of opening: first problems with kernels to judge, last finished
        problems.
        """
        waiting = {variant.problem for variant in self._state.in_flight() if not self._state.is_pruned(variant.id)}

        def order(problem: ProblemState) -> tuple[bool, bool]:
            return problem.id not in waiting, problem.finished is not None or self._state.is_pruned(problem.id)

        return sorted((one for one in self._state.problems.values() if one.id not in self._state.refused), key=order)

    def _begin_builds(self, problems: Sequence[ProblemState]) -> None:
        """Build kernels of the first problem while the judge starts. One core stays free for the judge."""
        context = self._context
        if not problems or self._state.paused or context.ending is not None:
            return
        first = problems[0]
        kernels = [one for one in self._state.in_flight() if one.problem == first.id and UNUSABLE not in one.data]
        kernels = [one for one in kernels if not self._state.is_pruned(one.id)]
        for kernel in kernels[: max(1, usable_cores() - 1)]:
            source = context.sources.text(kernel.source)
            context.evaluator.begin_build(first.spec, first.header, kernel.language, source)

    async def _let_first_kernel_start(self, name: str) -> None:
        """Wait until the judge has begun a kernel of the reopened problem, so that the opening of the next problem does
        not delay it.
        """
        began, limit_s = time.monotonic(), FIRST_KERNEL_S[self._context.device.kind]

        def waits() -> bool:
            if self._state.paused or self._context.ending is not None:
                return False
            found: list[VariantState] = [one for one in self._state.in_flight() if one.problem == name]
            if any(one.stage in ("checking", "timing") for one in found):
                return False
            return time.monotonic() - began < (limit_s if found else FIRST_WRITTEN_S)

        while waits():  # noqa: ASYNC110 - several events end the wait
            await asyncio.sleep(_LOOK_S)

    async def _measure_device(self) -> None:
        context = self._context
        try:
            known = self._state.devices.get(context.device.id, context.device)
            await self._tell("judge" if known.bandwidth_gbs is not None else "peaks")
            measured = await context.evaluator.measure_device(known)
        except EvaluationError as error:
            await context.journal.record(
                LogLine(level="warning", text=f"the judge could not measure the device's peaks: {error}")
            )
            return
        context.device = measured
        await context.journal.record(DeviceMeasured(device=measured))

    async def _add(self, spec: ProblemSpec) -> bool:
        """Record the problem and its first round, unless the judge cannot evaluate its kernels."""
        if not spec.languages:
            reason = spec.c_refusal or "the judge cannot evaluate kernels for this problem"
            await self._context.journal.record(ProblemRefused(problem=spec.id, path=spec.path, reason=reason))
            return False
        languages = spec.languages_on(self._context.device.kind, self._context.config.search.languages)
        header = "" if languages[0] in MODULES else derive_header(spec, languages[0])
        await self._context.journal.record(
            ProblemAdded(
                problem=spec,
                language=languages[0],
                header=header,
                languages=languages if len(languages) > 1 else (),
            ),
            RoundStarted(problem=spec.id, round=0, parents=()),
        )
        return True

    async def _say_who_writes(self, name: str) -> None:
        """Record a change in whether any proposer can write kernels for the problem."""
        context, problem = self._context, self._state.problems[name]
        reason = context.why_nobody_writes(name)
        if reason != problem.cannot_write:
            session = session_argument(context.paths.directory)
            what_next = remedies(name, problem.language, session) if reason is not None else ()
            await context.journal.record(CannotWrite(problem=name, reason=reason or "", remedies=what_next))

    async def _open(self, name: str) -> bool:
        """Load the reference, and time it in eager mode unless the session already has this baseline. Returns whether
        the problem is open.

        If the judge dies during this step, the engine, after a resume, opens the problem again.
        """
        problem, began = self._state.problems[name], time.monotonic()
        try:
            opened = await self._context.evaluator.open(problem.spec, problem.header, problem.sol_ms)
        except JudgeKilled as error:
            self._context.unopened[name] = str(error)
            await self._context.journal.record(LogLine(level="error", text=f"the judge could not open {name}: {error}"))
            return False
        except EvaluationError as error:
            await self._context.journal.record(
                ProblemRefused(problem=name, path=problem.spec.path, reason=str(error)),
                ProblemFinished(problem=name, reason=f"cannot be searched: {error}"),
            )
            return False
        self._context.unopened.pop(name, None)
        if "eager" not in problem.baselines:
            await self._context.journal.record(
                BaselineMeasured(
                    problem=name,
                    baseline=opened.eager,
                    sol_ms=opened.sol_ms,
                    degenerate=opened.degenerate,
                    seconds=time.monotonic() - began,
                )
            )
        return True

    async def _refuse(self, file: ProblemFile, reason: str) -> None:
        await self._context.journal.record(ProblemRefused(problem=file.id, path=str(file.path), reason=reason))


def cannot_run(names: Sequence[str], device: DeviceFact) -> str | None:
    """Return why ``device`` cannot run kernels in the config's languages, and a remedy. Return None if it can."""
    runs = LANGUAGES_OF_DEVICE[device.kind]
    for name in names:
        if LANGUAGE_KEYS[name] not in runs:
            needs = {"cpp": "a CPU", "triton": "an NVIDIA GPU"}.get(name, "an NVIDIA GPU with nvcc")
            possible = ", ".join(f'"{LANGUAGE_NAMES[language]}"' for language in runs)
            return (
                f'search.languages has "{name}", which needs {needs}, but this search runs on {device.name}; '
                f"remove search.languages, or choose from {possible}"
            )
    if "triton" in names and find_spec("triton") is None:
        return 'search.languages has "triton", but the triton package is missing. Install it: pip install triton'
    return None
