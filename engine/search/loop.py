"""The search of one session: open the problems, keep their rounds and the queue going, and know when to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import Coroutine, Iterable
from functools import partial
from importlib.util import find_spec
from typing import Any

from engine import __version__
from engine.config import Config
from engine.events import (
    BY_HAND,
    AnyEvent,
    BaselineMeasured,
    BudgetChanged,
    CommandHandled,
    DeviceAwaited,
    DeviceFact,
    DeviceFree,
    EngineStarted,
    LogLine,
    ModelCallFailed,
    ModelCallStarted,
    ModelReplied,
    ProblemFinished,
    SearchResumed,
    ShareChanged,
    SizesChecked,
    Stage,
    StopReason,
    VariantStage,
    VariantWritten,
    VerdictGiven,
)
from engine.exit_codes import ExitCode
from engine.proposers.protocol import UNUSABLE, Proposer
from engine.proposers.registry import make_proposers
from engine.search.context import Context
from engine.search.ids import Ids
from engine.search.journal import Journal
from engine.search.opening import Opening
from engine.search.owed import Owed
from engine.search.queue import EvaluationQueue, Priority
from engine.search.rounds import ProblemSearch
from engine.search.sources import Sources
from engine.search.steering import Steering
from engine.search.telling import SEEDED, same_code
from engine.session import CommandInbox, EventWriter, SessionPaths, SessionReader, write_best
from engine.state import SessionState
from engine.verdict import Verdict
from engine.workers.local import LocalEvaluator
from engine.workers.protocol import EvaluationError, Evaluator
from engine.workers.waiting import Wait

IDLE_S = 1.5
"""A device that had nothing to do for so long is free for what is not urgent."""
SETTLED_S = 2.0
"""What waits for replies only has not moved for so long; more than ``IDLE_S``, so that owed work goes first."""
LAST_VERDICTS_S = 15.0
"""How long evaluations in flight may go on when the minutes are over."""
OVERRUN = 0.1
"""What is still owed may start until the minutes are exceeded by this share (at least 10 s), or for so long after the
last work that was under way then has ended."""


class NobodyToAsk(Exception):
    """No model of the config can be asked any more (wrong keys, no such models); the text says why of each."""

    exit_code = ExitCode.FAILURE


class NotOpened(Exception):
    """All else is done, but problems could not be opened since their judge was killed; the text says which."""

    exit_code = ExitCode.NOT_OPENED


_TELLING = (
    VariantStage,
    LogLine,
    CommandHandled,
    DeviceAwaited,
    DeviceFree,
    BaselineMeasured,
    ProblemFinished,
    SizesChecked,
    ModelCallStarted,
    ModelCallFailed,
    ModelReplied,
)
"""Events after which there is nothing new to start."""


class NoTools(Exception):
    """Nothing can be judged on this machine; the text says what is missing and what to do."""

    exit_code = ExitCode.NO_TOOLS


async def run_search(
    paths: SessionPaths, writer: EventWriter, inbox: CommandInbox, config: Config, state: SessionState
) -> StopReason:
    """Search until the rounds are done, the budget is spent or a person stops it; ``state`` is kept folded.

    Raises ``NoTools``, ``ProposerUnavailable`` and SessionError; whatever was recorded stays. Cancelling ends every
    process of the evaluator.
    """
    journal = Journal(writer, state)
    with SessionReader(paths) as reader:
        sources = Sources(writer, reader, state)
        # First, so that keys are out of the environment before any other process is started.
        proposers = make_proposers(config, paths, journal, state, sources.text)
        try:
            return await _run_with(proposers, sources, paths, journal, inbox, config, state)
        finally:
            await asyncio.gather(*(proposer.close() for proposer, _ in proposers))


async def _run_with(
    proposers: list[tuple[Proposer, float]],
    sources: Sources,
    paths: SessionPaths,
    journal: Journal,
    inbox: CommandInbox,
    config: Config,
    state: SessionState,
) -> StopReason:
    def on_wait(wait: Wait) -> None:
        device, since = wait.device.id, wait.held_since
        event = DeviceAwaited(device=device, pid=wait.pid, command=wait.command, held_since=since, seconds=wait.seconds)
        journal.post(event)

    def on_free(device: DeviceFact, seconds: float) -> None:
        journal.post(DeviceFree(device=device.id, seconds=seconds))

    scratch = paths.directory / "scratch"
    evaluator: Evaluator = LocalEvaluator(config.evaluation, scratch, on_wait=on_wait, on_free=on_free)
    try:
        if find_spec("torch") is None:
            raise NoTools("PyTorch is not installed, so no reference can run; install it: pip install torch")
        try:
            devices = await evaluator.start()
        except EvaluationError as error:
            raise NoTools(str(error)) from error
        await journal.record(
            EngineStarted(
                pid=os.getpid(),
                host=platform.node(),
                version=__version__,
                resumed=state.starts > 0,
                devices=devices,
                sandbox=evaluator.sandbox,
            )
        )
        context = Context(config, paths, state, journal, evaluator, proposers, sources, Ids(state), devices[0])
        return await Search(context).run(inbox)
    finally:
        await evaluator.close()


class Search:
    """Owns the queue and the tasks of one running search."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._state = context.state
        self._changed = asyncio.Event()
        self._unrecorded: dict[str, Verdict] = {}
        """Given by the evaluator, not yet in the state."""
        self._queue = EvaluationQueue(self._judge, context.width, self._changed.set)
        self._opening = Opening(context)
        self._problems: dict[str, ProblemSearch] = {}
        self._rounds: dict[str, asyncio.Task[None]] = {}
        self._restless: set[str] = set()
        self._others: set[asyncio.Task[None]] = set()
        self._owed = Owed(context, self._problems, self._spawn)
        self._drained = False
        self._drained_at = time.monotonic()
        """When the last work ended that the budget has let finish."""
        self._moved_at = time.monotonic()
        self._best_written: dict[str, str | None] = {}
        self._failure: BaseException | None = None

    async def run(self, inbox: CommandInbox) -> StopReason:
        """Raises SessionError. When it is cancelled, so is everything under way."""
        self.context.journal.listen(self._heard)
        steering = Steering(self.context, self._cancel, self._requeue)
        try:
            for sent in inbox.poll():
                await steering.handle(sent)
            if self._state.paused:
                await self.context.journal.record(SearchResumed())
            self._spawn(self._obey(steering, inbox))
            self._spawn(self._open_problems())
            while (reason := await self._step()) is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.5)
            await self._end_tasks()
            await self._give_back()
            return reason
        finally:
            await self._end_tasks()

    async def _step(self) -> StopReason | None:
        """Look, start what is due; the reason when the search is over."""
        self._changed.clear()
        if (failure := self._failure or self._queue.failure) is not None:
            raise failure
        self._reap_rounds()
        await self._write_best()
        self._heed_budget()
        ending = self.context.ending
        if ending == "stopped":
            return ending
        if ending == "budget":
            return await self._finish_within_budget()
        self._start_rounds()
        if not self._queue.idle or self._rounds or not self._opening.done:
            if any(problem.heating for problem in self._problems.values()):
                self._queue.touch()
            self._do_owed(only_if_idle=True)
            return "waiting" if self.context.until_idle and self._only_waits() else None
        if self.context.spent is not None or self.context.closed:
            ending = await self._finish_within_budget()
            if ending is not None and self.context.helpless:
                reasons = ". ".join(self.context.refused.values())
                again = f"kernel-tui resume {self.context.paths.directory}"
                raise NobodyToAsk(f"nobody is left to write kernels: {reasons}. To resume: {again}")
            return ending
        if self.context.last_rounds:
            return "stopped"
        self._do_owed(only_if_idle=False)
        if self._owed.busy or self._state.paused:
            return None
        if self.context.unopened:
            which = "; ".join(f"{name} was not opened: {why}" for name, why in self.context.unopened.items())
            raise NotOpened(f"{which}. To try again: kernel-tui resume {self.context.paths.directory}")
        return "finished"

    def _only_waits(self) -> bool:
        """Whether nothing moves, and will not until a person has written a reply."""
        proposers = [proposer for proposer, _ in self.context.proposers]
        return (
            self._opening.done
            and not self._owed.busy
            and self._queue.idle_s > SETTLED_S
            and time.monotonic() - self._moved_at > SETTLED_S
            and any(proposer.awaited for proposer in proposers)
            and not any(proposer.busy for proposer in proposers)
            and not any(problem.heating for problem in self._problems.values())
        )

    # Commands

    async def _obey(self, steering: Steering, inbox: CommandInbox) -> None:
        async for sent in inbox:
            await steering.handle(sent)
            for problem in self._problems.values():
                problem.wake()
            self._changed.set()

    def _cancel(self, variants: Iterable[str]) -> None:
        """Take variants out of the queue and record that they were cancelled."""
        names = list(variants)
        self._spawn(self._record_cancelled(names, self._queue.cancel(names)))

    async def _record_cancelled(self, variants: list[str], tasks: list[asyncio.Task[None]]) -> None:
        if tasks:
            await asyncio.wait(tasks)
        cancelled = Verdict(status="cancelled", reason="pruned before it was judged")
        left = [self._state.variants[name] for name in variants if self._state.variants[name].stage is not None]
        await self.context.journal.record(
            # One that was being judged again keeps the verdict it had.
            *(VerdictGiven(variant=one.id, verdict=one.verdict or cancelled) for one in left)
        )
        if restored := [one.id for one in left if not self._state.is_pruned(one.id)]:
            await self.context.journal.record(*(VariantStage(variant=name, stage="queued") for name in restored))
            self._requeue(restored)

    def _requeue(self, variants: Iterable[str]) -> None:
        """Judge variants again that are recorded as queued; those of a problem that is not open yet come with it."""
        for name in variants:
            if self._state.variants[name].problem in self._problems:
                self._put(name, Priority.HAND)

    def _put(self, variant: str, priority: Priority, round_number: int = 0) -> None:
        """Queue a variant, unless the search is ending: what is recorded as queued is judged when it goes on."""
        if self.context.ending is None:
            self._queue.put(variant, priority, round_number)

    # Evaluations

    async def _judge(self, variant_id: str) -> None:
        context, variant = self.context, self._state.variants[variant_id]
        told: list[asyncio.Future[None]] = []

        def on_stage(stage: Stage) -> None:
            told.append(context.journal.post(VariantStage(variant=variant_id, stage=stage)))

        problem = self._state.problems[variant.problem].spec
        if (why := variant.data.get(UNUSABLE)) is not None:  # a reply without a kernel: there is nothing to build
            verdict = Verdict(status="build_error", reason=str(why))
            await context.journal.record(VerdictGiven(variant=variant_id, verdict=verdict))
            return
        try:
            source = context.sources.text(variant.source)
            known = partial(self._with_code, variant.problem) if variant.judged == 0 else None
            unrecorded = partial(self._unrecorded.__setitem__, variant_id)
            verdict = await context.evaluator.evaluate(problem, variant.form, source, on_stage, known, unrecorded)
        except EvaluationError as error:
            verdict = Verdict(status="error", reason=str(error))
        try:
            for one in told:
                await one
            await context.journal.record(VerdictGiven(variant=variant_id, verdict=verdict))
        finally:
            self._unrecorded.pop(variant_id, None)

    def _with_code(self, problem: str, code: str) -> Verdict | None:
        """The verdict on a kernel of the problem with this machine code, from the moment it was given.

        Not of a pruned one: its twin may take its place.
        """
        variants = [one for one in self._state.variants_of(problem) if not self._state.is_pruned(one.id)]
        recorded = [(one.id, one.verdict) for one in variants if one.verdict is not None]
        given = [(one.id, self._unrecorded[one.id]) for one in variants if one.id in self._unrecorded]
        return same_code([*recorded, *given], code)

    def _priority(self, variant_id: str) -> Priority:
        variant = self._state.variants[variant_id]
        idea = self._state.ideas[variant.idea]
        if idea.proposer == BY_HAND or idea.data.get(SEEDED):
            return Priority.HAND
        return Priority.FIX if variant.parent in idea.variants else Priority.NORMAL

    def _enqueue_waiting(self, problem: str) -> None:
        """Queue the problem's variants without a verdict, as after a resume or when the budget was raised."""
        lost = []
        for variant in self._state.in_flight():
            if variant.problem == problem:
                if self._state.is_pruned(variant.id):
                    lost.append(variant.id)
                elif variant.id not in self._queue:
                    self._put(variant.id, self._priority(variant.id), variant.round)
        if lost:
            self._cancel(lost)

    # Problems

    async def _open_problems(self) -> None:
        """Inspect what is new, then open every problem; each is searched as soon as it is open."""
        async for problem in self._opening.opened():
            self._problems[problem] = ProblemSearch(self.context, problem)
            self._restless.add(problem)
            self._enqueue_waiting(problem)
            self._changed.set()

    def _reap_rounds(self) -> None:
        for name in [name for name, task in self._rounds.items() if task.done()]:
            self._rounds.pop(name).result()

    def _start_rounds(self) -> None:
        """Run the rounds of every problem about which something changed since they came to rest."""
        for name in self._restless - self._rounds.keys():
            if not self._state.is_pruned(name):
                self._rounds[name] = asyncio.ensure_future(self._problems[name].run())
                self._rounds[name].add_done_callback(lambda _: self._changed.set())
            self._restless.discard(name)

    def _heard(self, event: AnyEvent) -> None:
        """After each recorded event: queue what is to be judged, hold or release the queue, wake whom it concerns."""
        self._moved_at = time.monotonic()
        if isinstance(event, VariantStage) and event.stage == "queued":
            self._requeue([event.variant])
        if isinstance(event, _TELLING):
            return
        if isinstance(event, BudgetChanged | ShareChanged):
            self.context.allow()
        if isinstance(event, VariantWritten) and event.problem in self._problems:
            self._put(event.variant, self._priority(event.variant), event.round)
        if self._state.paused:
            self._queue.hold()
        elif self.context.ending is None:
            self._queue.release()
        concerned = self._concerned(event)
        for name in self._problems if concerned is None else {concerned} & self._problems.keys():
            self._restless.add(name)
            self._problems[name].wake()
        self._changed.set()

    def _concerned(self, event: AnyEvent) -> str | None:
        """The problem that an event is about, None where it may be about all."""
        if isinstance(event, VerdictGiven):
            return self._state.variants[event.variant].problem
        name = getattr(event, "problem", None)
        return name if isinstance(name, str) else None

    async def _write_best(self) -> None:
        """Keep the best kernel of each problem as a file. Raises SessionError."""
        for problem in list(self._state.problems.values()):
            if self._best_written.get(problem.id) != problem.best:
                best = self._best_written[problem.id] = problem.best
                if best is not None:
                    variant = self._state.variants[best]
                    source = self.context.sources.text(variant.source)
                    await asyncio.to_thread(write_best, self.context.paths, problem.id, f".{variant.form}", source)
                else:
                    self.context.paths.best(problem.id, f".{problem.form}").unlink(missing_ok=True)

    # Budget, and what can wait

    def _heed_budget(self) -> None:
        left = self.context.left_s(self._owed.reserve_s)
        if self.context.ending is None and left <= 0:
            self.context.ending = "budget"
            self._drained = False
            self._queue.hold()
            for problem in self._problems.values():
                problem.wake()
        elif self.context.ending == "budget" and left > 0:  # a person raised it
            self.context.ending = None
            for name in self._problems:
                self._enqueue_waiting(name)
                self._restless.add(name)
            if not self._state.paused:
                self._queue.release()

    async def _finish_within_budget(self) -> StopReason | None:
        """No new work: what runs may finish, then what is owed, while that is only a little late."""
        if not self._drained:
            self._drained, self._drained_at = True, time.monotonic()
            self._spawn(self._drain())
            return None
        if not self._queue.idle or self._rounds:
            self._drained_at = time.monotonic()
            return None
        whole_s = (self.context.budget.minutes or 0.0) * 60.0
        late_s = min(-self.context.left_s(), time.monotonic() - self._drained_at)
        if late_s < max(10.0, OVERRUN * whole_s):
            self._do_owed(only_if_idle=False)
        return None if self._owed.busy else "budget"

    async def _drain(self) -> None:
        await self._queue.drain(LAST_VERDICTS_S)
        await self._give_back()
        self._changed.set()

    def _do_owed(self, *, only_if_idle: bool) -> None:
        """A baseline when it costs the search nothing, or anything when nothing else is left."""
        if self._owed.busy or self._state.paused:
            return
        if not only_if_idle:
            self._owed.start_any()
        elif self._queue.idle_s >= IDLE_S:
            self._owed.start_baseline()

    # Tasks

    async def _give_back(self) -> None:
        """What was being judged when the search ended is queued again, for an engine that resumes it."""
        begun = [variant.id for variant in self._state.in_flight() if variant.stage != "queued"]
        await self.context.journal.record(*(VariantStage(variant=name, stage="queued") for name in begun))

    def _spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a job beside the search; its error ends the search."""
        task = asyncio.ensure_future(job)
        self._others.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            self._others.discard(done)
            if not done.cancelled() and (error := done.exception()) is not None:
                self._failure = self._failure or error
            self._changed.set()

        task.add_done_callback(ended)
        return task

    async def _end_tasks(self) -> None:
        tasks = [*self._others, *self._rounds.values(), *self._queue.cancel(list(self._queue.running))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
