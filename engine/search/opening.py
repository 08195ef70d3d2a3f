"""From the problems that a config names to problems that can be searched: inspected, opened, their floor known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from engine.events import (
    BaselineMeasured,
    DeviceMeasured,
    LogLine,
    ProblemAdded,
    ProblemFinished,
    ProblemRefused,
    RoundStarted,
)
from engine.exit_codes import ExitCode
from engine.problem.catalog import CatalogError, ProblemFile, inspect_files, resolve
from engine.problem.header import derive_header
from engine.problem.source import ProblemFailure
from engine.problem.spec import FORM_OF_DEVICE, Form, ProblemSpec
from engine.proposers.protocol import Task
from engine.search.context import Context
from engine.search.from_bank import Bank
from engine.workers.protocol import EvaluationError, JudgeKilled


class ProblemsMissing(Exception):
    """The config names problems that do not exist, and the session has none yet."""

    exit_code = ExitCode.USAGE


class Opening:
    """Opens the session's problems, one after the other: while one is opened, those before are searched already."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._state = context.state
        self._bank = Bank(context)
        self.done = False

    async def opened(self) -> AsyncIterator[str]:
        """Ids of problems as they become ready. What cannot be searched is recorded as refused, with the reason."""
        inspection: asyncio.Future[list[ProblemSpec | ProblemFailure]] | None = None
        try:
            files = await self._files()
            new = [file for file in files if file.id not in self._state.problems and file.id not in self._state.refused]
            # Both start a process that imports torch; one after the other a person would wait twice.
            inspection = asyncio.ensure_future(inspect_files(new)) if new else None
            await self._measure_device()
            for name in list(self._state.problems):
                if name not in self._state.refused and await self._open(name):
                    yield name
            for file, answer in zip(new, await inspection if inspection is not None else [], strict=True):
                if isinstance(answer, ProblemSpec):
                    if await self._add(answer) and await self._open(answer.id):
                        await self._bank.seed(answer.id)
                        yield answer.id
                else:
                    await self._refuse(file, str(answer))
        finally:
            self.done = True
            if inspection is not None:
                inspection.cancel()

    async def _files(self) -> list[ProblemFile]:
        """What the config names; a session that has its problems already can do without their files."""
        config = self._context.config
        try:
            return resolve(config.problems, config.path.parent)
        except CatalogError as error:
            if not self._state.problems:
                raise ProblemsMissing(str(error)) from error
            await self._context.journal.record(LogLine(level="warning", text=str(error)))
            return []

    async def _measure_device(self) -> None:
        context = self._context
        try:
            known = self._state.devices.get(context.device.id, context.device)
            measured = await context.evaluator.measure_device(known)
        except EvaluationError as error:
            await context.journal.record(LogLine(level="warning", text=f"peaks of the device are unknown: {error}"))
            return
        context.device = measured
        await context.journal.record(DeviceMeasured(device=measured))

    async def _add(self, spec: ProblemSpec) -> bool:
        """Record the problem with its first round, unless nobody can write kernels for it."""
        context = self._context
        form: Form = "py" if spec.c_refusal is not None else FORM_OF_DEVICE[context.device.kind]
        header = "" if form == "py" else derive_header(spec, form)
        task = Task(spec, header, form, context.device, None, None, demands=context.demands(spec))
        refusals = [proposer.refusal(task) for proposer, _ in context.proposers]
        if all(refusal is not None for refusal in refusals):
            reasons = dict.fromkeys(reason for reason in (spec.c_refusal, *refusals) if reason)
            await context.journal.record(
                ProblemRefused(problem=spec.id, path=spec.path, reason="; ".join(reasons) or "nobody can write for it")
            )
            return False
        await context.journal.record(
            ProblemAdded(problem=spec, form=form, header=header),
            RoundStarted(problem=spec.id, round=0, parents=()),
        )
        return True

    async def _open(self, name: str) -> bool:
        """Load the reference and time it in eager; a resumed session keeps the baseline it has. Whether that was done:
        what a killed judge prevented is left to a resume."""
        problem = self._state.problems[name]
        try:
            opened = await self._context.evaluator.open(problem.spec, problem.header, problem.floor_ms)
        except JudgeKilled as error:
            self._context.unopened[name] = str(error)
            await self._context.journal.record(LogLine(level="error", text=f"{name}: not opened: {error}"))
            return False
        except EvaluationError as error:
            await self._context.journal.record(
                ProblemRefused(problem=name, path=problem.spec.path, reason=str(error)),
                ProblemFinished(problem=name, reason=f"cannot be searched: {error}"),
            )
            return False
        if "eager" not in problem.baselines:
            await self._context.journal.record(
                BaselineMeasured(
                    problem=name,
                    baseline=opened.eager,
                    floor_ms=opened.floor_ms,
                    degenerate=opened.degenerate,
                    tightened=opened.tightened,
                )
            )
        return True

    async def _refuse(self, file: ProblemFile, reason: str) -> None:
        await self._context.journal.record(ProblemRefused(problem=file.id, path=str(file.path), reason=reason))
