"""Run a session's search: open its problems, run their rounds and the evaluation queue, and end when all work is
complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

from engine import __version__
from engine.cluster.certificates import CertificateError
from engine.config.schema import Config
from engine.devices.fact import DeviceFact
from engine.devices.readings import Readings
from engine.evaluation.device_waits import Wait
from engine.evaluation.evaluator import EvaluationError, Evaluator
from engine.evaluation.local_evaluator import LocalEvaluator
from engine.exit_codes import ExitCode
from engine.problem.spec import LANGUAGE_KEYS, MODULES, suffix_of
from engine.proposers.protocol import UNUSABLE, Proposer
from engine.proposers.registry import make_proposers
from engine.search.context import Context
from engine.search.deferred_work import LAST_S, Owed
from engine.search.ids import Ids
from engine.search.kernel_sources import Sources
from engine.search.problem_loader import Opening, cannot_run
from engine.search.problem_search import ProblemSearch
from engine.search.proposing.proposer_context import same_code
from engine.search.queue import EvaluationQueue, Priority
from engine.search.request_handling import Steering
from engine.search.turns import LAST_VERDICTS_S, Turns
from engine.session.journal import Journal
from engine.session.records.events import (
    BY_HAND,
    AnyEvent,
    BaselineMeasured,
    BudgetChanged,
    CommandHandled,
    DeviceAwaited,
    DeviceFree,
    DeviceJoined,
    DeviceLeft,
    DeviceMeasured,
    EngineStarted,
    LogLine,
    ModelCallFailed,
    ModelCallStarted,
    ModelReplied,
    ProblemFinished,
    SearchPaused,
    SearchResumed,
    ShareChanged,
    SizesChecked,
    StartupStep,
    StopReason,
    TurnEnded,
    TurnStarted,
    VariantStage,
    VariantWritten,
    VerdictGiven,
)
from engine.session.records.skipped_compile import STOP_PLANNED
from engine.session.records.verdict import Stage, Verdict
from engine.session.state.nodes import SEEDED
from engine.session.state.session_state import SessionState
from engine.session.store import EventWriter, RequestInbox, SessionPaths, SessionReader, write_best

IDLE_S = 1.5
"""Seconds without work after which a device counts as idle and may run deferred work."""
SETTLED_S = 2.0
"""Seconds without events after which the search counts as waiting for a person. This time exceeds ``IDLE_S``, so
that deferred work runs first.
"""


class Ended(NamedTuple):
    """Why a search ended. ``limit``: a sentence about the spending limit that ended the search; "" for any other
    reason.
    """

    reason: StopReason
    limit: str = ""


class NobodyToAsk(Exception):
    """All models in the config failed permanently (invalid keys, unknown models). The message gives the reasons."""

    exit_code = ExitCode.FAILURE


class NotOpened(Exception):
    """All other work is done, but the judge was killed while it opened some problems. The message lists these
    problems.
    """

    exit_code = ExitCode.NOT_OPENED


_TELLING = (
    VariantStage,
    LogLine,
    CommandHandled,
    StartupStep,
    DeviceAwaited,
    DeviceFree,
    DeviceJoined,
    DeviceLeft,
    BaselineMeasured,
    ProblemFinished,
    SizesChecked,
    ModelCallStarted,
    ModelCallFailed,
    ModelReplied,
    TurnStarted,
    TurnEnded,
)
"""Events that never cause new work in a problem's rounds."""


class NoTools(Exception):
    """This machine cannot judge kernels. The message says what is missing and how to install it."""

    exit_code = ExitCode.NO_TOOLS


class OtherDevice(Exception):
    """A person resumed a benchmark on a different device model. The message says what to do."""

    exit_code = ExitCode.NO_TOOLS


def other_model(config: Config, state: SessionState, devices: Sequence[DeviceFact]) -> str | None:
    """Return why a benchmark cannot continue on ``devices`` of a different model.

    Returns None if it can. A search without turns continues on any device. A cluster checks the models of its devices
    itself.
    """
    if config.budget.minutes_per_problem is None or config.cluster is not None:
        return None
    before = {device.name for device in state.devices.values()}
    if not before or all(device.name in before for device in devices):
        return None
    found = " and ".join(dict.fromkeys(device.name for device in devices))
    return (
        f"this benchmark's times are from {' and '.join(sorted(before))}, but this machine has {found}. Times from "
        "different devices are not comparable. Continue on the same device model, or start again with --new"
    )


async def run_search(
    paths: SessionPaths,
    writer: EventWriter,
    inbox: RequestInbox,
    config: Config,
    state: SessionState,
    readings: Readings,
    *,
    unattended: bool = False,
) -> Ended:
    """Search until the rounds are complete, the budget is used up or a person stops the search. ``state`` always
    includes every recorded event. ``readings`` receives the device readings of other hosts.

    If no proposer supports a problem, the search waits for a person's kernels, unless ``unattended``. Canceling the
    search ends all processes of the evaluator. All recorded events remain.

    Raises:
        NoTools: This machine cannot judge kernels.
        OtherDevice: The benchmark's times are from a different device model.
        ProposerUnavailable: A proposer cannot start.
        SessionError: The session cannot be written.
    """
    journal = Journal(writer, state)
    with SessionReader(paths) as reader:
        sources = Sources(writer, reader, state)
        # Create the proposers first, which removes API keys from the environment before any other process inherits it.
        proposers = make_proposers(config, paths, journal, state, sources.text)
        try:
            return await _run_with(proposers, sources, paths, journal, inbox, config, state, readings, unattended)
        finally:
            await asyncio.gather(*(proposer.close() for proposer, _ in proposers))


async def _run_with(
    proposers: list[tuple[Proposer, float]],
    sources: Sources,
    paths: SessionPaths,
    journal: Journal,
    inbox: RequestInbox,
    config: Config,
    state: SessionState,
    readings: Readings,
    unattended: bool,
) -> Ended:
    def on_wait(wait: Wait) -> None:
        event = DeviceAwaited(
            device=wait.device.id,
            pid=wait.pid,
            command=wait.command,
            held_since=wait.held_since,
            seconds=wait.seconds,
            needed_bytes=wait.needed_bytes,
            free_bytes=wait.free_bytes,
        )
        journal.post(event)

    def on_free(device: DeviceFact, seconds: float) -> None:
        journal.post(DeviceFree(device=device.id, seconds=seconds))

    evaluator = _make_evaluator(paths, config, state, journal, readings, on_wait, on_free)
    try:
        if find_spec("torch") is None:
            raise NoTools("PyTorch is not installed, so the judge cannot run references. Install it: pip install torch")
        try:
            devices = await evaluator.start()
        except (EvaluationError, CertificateError) as error:
            raise NoTools(str(error)) from error
        if (why := cannot_run(config.search.languages, devices[0])) is not None:
            raise NoTools(why)
        if (why := other_model(config, state, devices)) is not None:
            raise OtherDevice(why)
        await journal.record(
            EngineStarted(
                pid=os.getpid(),
                host=platform.node(),
                version=__version__,
                resumed=state.starts > 0,
                devices=devices,
                sandbox=evaluator.sandbox,
                before=state.died_at,
            )
        )
        context = Context(config, paths, state, journal, evaluator, proposers, sources, Ids(state), devices[0])
        context.unattended = unattended
        reason = await Search(context).run(inbox)
        return Ended(reason, (context.spent or "") if reason == "budget" else "")
    finally:
        await evaluator.close()


def _make_evaluator(
    paths: SessionPaths,
    config: Config,
    state: SessionState,
    journal: Journal,
    readings: Readings,
    on_wait: Callable[[Wait], None],
    on_free: Callable[[DeviceFact, float], None],
) -> Evaluator:
    """Create the evaluator: on this machine or, with ``[cluster]``, on other hosts. Raises ``NoTools``."""
    if config.cluster is None:
        scratch = paths.directory / "scratch"
        modules = any(LANGUAGE_KEYS[name] in MODULES for name in config.search.languages)
        return LocalEvaluator(config.evaluation, scratch, on_wait=on_wait, on_free=on_free, modules=modules)
    if find_spec("distributed") is None or find_spec("cryptography") is None:
        raise NoTools(
            "[cluster] needs more packages. Install them: pip install 'kernel-tui[cluster]' (from a checkout: "
            "'.[cluster]')"
        )
    from engine.cluster.evaluator import ClusterEvaluator

    def on_join(device: DeviceFact) -> None:
        journal.post(DeviceJoined(device=device))

    def on_leave(device: DeviceFact, reason: str) -> None:
        journal.post(DeviceLeft(device=device.id, reason=reason))

    def on_measured(device: DeviceFact) -> None:
        journal.post(DeviceMeasured(device=device))

    def say(text: str, is_warning: bool) -> None:
        journal.post(LogLine(level="warning" if is_warning else "info", text=text))

    def on_late_marks(problem: str, mark: Callable[[Verdict], Verdict]) -> None:
        for name in state.problems[problem].variants:
            given = state.variants[name].verdict
            if given is not None and (marked := mark(given)) is not given:
                journal.post(VerdictGiven(variant=name, verdict=marked, why=f"{name}: {marked.flags[-1]}"))

    readings.remote = {}
    return ClusterEvaluator(
        config.cluster,
        config.evaluation,
        list(state.devices.values()),
        on_wait,
        on_free,
        on_join,
        on_leave,
        on_measured,
        say,
        paths.directory / "scratch" / "certificates",
        readings.remote,
        on_late_marks,
    )


class Search:
    """A running search, which owns the evaluation queue and all tasks."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._state = context.state
        self._changed = asyncio.Event()
        self._unrecorded: dict[str, Verdict] = {}
        """Verdicts that the evaluator has returned but the session has not recorded."""
        self._queue = EvaluationQueue(self._judge, context.evaluator.width, self._changed.set)
        self._opening = Opening(context)
        self._problems: dict[str, ProblemSearch] = {}
        self._rounds: dict[str, asyncio.Task[None]] = {}
        self._restless: set[str] = set()
        self._others: set[asyncio.Task[None]] = set()
        self._owed = Owed(context, self._problems, self._spawn)
        self._turns = Turns(context, self._opening, self._owed, self)
        self._drained = False
        self._draining: asyncio.Task[None] | None = None
        self._ended_minutes: float | None = None
        """Time budget, in minutes, that the search has used up; None before then."""
        self._moved_at = time.monotonic()
        self._best_written: dict[str, str | None] = {}
        self._failure: BaseException | None = None

    async def run(self, inbox: RequestInbox) -> StopReason:
        """Run the search. Canceling the search cancels all its tasks. Raises SessionError."""
        self.context.journal.listen(self._heard)
        steering = Steering(self.context, self._cancel, self._requeue)
        try:
            if self._state.paused:
                await self._end_or_keep_pause()
            for sent in inbox.poll():
                await steering.handle(sent)
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

    async def _end_or_keep_pause(self) -> None:
        """Keep an interrupted search paused, and log a warning. If no person watches the search, end the pause."""
        journal = self.context.journal
        if self.context.unattended:
            await journal.record(SearchResumed())
            return
        again = f"To unpause, press P in the monitor, or run: kernel-tui unpause {self.context.paths.quoted}"
        text = f"the search is still paused, because it was paused before its engine was interrupted. {again}"
        await journal.record(SearchPaused(kept=True), LogLine(level="warning", text=text))

    async def _step(self) -> StopReason | None:
        """Start all work that is due. If the search is over, returns the reason."""
        self._changed.clear()
        self._queue.widen(self.context.evaluator.width)
        if (failure := self._failure or self._queue.failure) is not None:
            raise failure
        self._reap_rounds()
        await self._write_best()
        self._heed_budget()
        if self.context.leaves_compile:
            self._owed.cancel_compile(STOP_PLANNED)
        ending = self.context.ending
        if ending == "stopped":
            return ending
        if ending == "budget":
            return await self._finish_within_budget()
        self._start_rounds()
        if not self._queue.idle or self._rounds or not self._opening.done:
            if self._opens_more or any(problem.in_runoff for problem in self._problems.values()):
                self._queue.touch()
            self._do_owed(only_if_idle=True)
            return "waiting" if self.context.until_idle and self._only_waits() else None
        # With turns, a problem at its own limit does not end the search.
        closed = self.context.closed and (not self.context.takes_turns or self.context.helpless)
        if self.context.spent is not None or closed:
            ending = await self._finish_within_budget()
            if ending is not None and self.context.helpless:
                reasons = ". ".join(self.context.refused.values())
                again = f"kernel-tui resume {self.context.paths.quoted}"
                raise NobodyToAsk(f"all models failed permanently: {reasons}. To resume: {again}")
            return ending
        if self.context.last_rounds:
            return "stopped"
        ends = self._needs_person and self.context.ends_without_person and not self.context.unopened
        if ends and not self._anything_judged and not self._state.paused:
            return "waiting"
        self._do_owed(only_if_idle=False)
        if self._owed.busy or self._state.paused:
            return None
        if self.context.unopened:
            which = "; ".join(f"the judge could not open {name}: {why}" for name, why in self.context.unopened.items())
            raise NotOpened(f"{which}. To try again: kernel-tui resume {self.context.paths.quoted}")
        if not self._needs_person:
            return "finished"
        return "waiting" if self.context.ends_without_person else None

    @property
    def _opens_more(self) -> bool:
        """Whether more problems are about to open, whose kernels come before ``torch.compile``. With turns, only one
        problem is open at a time.
        """
        return not self._opening.done and not self.context.takes_turns

    @property
    def _needs_person(self) -> bool:
        """Whether a problem is waiting for seeded kernels, because no proposer can write kernels for the problem."""
        return any(problem.needs_person for problem in self._problems.values())

    @property
    def _anything_judged(self) -> bool:
        return any(variant.verdict is not None for variant in self._state.variants.values())

    def _only_waits(self) -> bool:
        """Return whether the search can make progress only after a reply from a person."""
        proposers = [proposer for proposer, _ in self.context.proposers]
        return (
            (self._opening.done or self._turns.searching)
            and not self._owed.busy
            and self._queue.idle_s > SETTLED_S
            and time.monotonic() - self._moved_at > SETTLED_S
            and any(proposer.awaited for proposer in proposers)
            and not any(proposer.busy for proposer in proposers)
            and not any(problem.in_runoff for problem in self._problems.values())
        )

    # Requests

    async def _obey(self, steering: Steering, inbox: RequestInbox) -> None:
        async for sent in inbox:
            await steering.handle(sent)
            for problem in self._problems.values():
                problem.wake()
            self._changed.set()

    def _cancel(self, variants: Iterable[str]) -> None:
        """Remove variants from the queue and record them as canceled."""
        names = list(variants)
        self._spawn(self._record_cancelled(names, self._queue.cancel(names)))

    async def _record_cancelled(self, variants: list[str], tasks: list[asyncio.Task[None]]) -> None:
        if tasks:
            await asyncio.wait(tasks)
        cancelled = Verdict(status="cancelled", reason="pruned before the judge evaluated it")
        left = [self._state.variants[name] for name in variants if self._state.variants[name].stage is not None]
        await self.context.journal.record(
            # If the variant was being judged again, it keeps its earlier verdict.
            *(VerdictGiven(variant=one.id, verdict=one.verdict or cancelled) for one in left)
        )
        if restored := [one.id for one in left if not self._state.is_pruned(one.id)]:
            await self.context.journal.record(*(VariantStage(variant=name, stage="queued") for name in restored))
            self._requeue(restored)

    def _requeue(self, variants: Iterable[str]) -> None:
        """Queue variants that the session records as queued. Variants of an unopened problem wait until the problem
        opens.
        """
        for name in variants:
            if self._state.variants[name].problem in self._problems:
                self._put(name, Priority.HAND)

    def _put(self, variant: str, priority: Priority, round_number: int = 0) -> None:
        """Queue a variant, or cancel it if it is pruned. If the search or the problem's turn is ending, queue nothing:
        the search queues the variant after a resume or in the problem's next turn.
        """
        if self._state.is_pruned(variant):
            self._cancel([variant])
        elif self.context.ending is None and self._state.variants[variant].problem not in self.context.closing:
            self._queue.put(variant, priority, round_number)

    # Evaluations

    async def _judge(self, variant_id: str) -> None:
        context, variant = self.context, self._state.variants[variant_id]
        told: list[asyncio.Future[None]] = []
        at: list[str] = [""]

        def on_stage(stage: Stage) -> None:
            told.append(context.journal.post(VariantStage(variant=variant_id, stage=stage, device=at[-1])))

        problem = self._state.problems[variant.problem].spec
        if (why := variant.data.get(UNUSABLE)) is not None:  # The reply contains no kernel to build.
            verdict = Verdict(status="build_error", reason=str(why))
            await context.journal.record(VerdictGiven(variant=variant_id, verdict=verdict))
            return
        try:
            source = context.sources.text(variant.source)
            known = partial(self._with_code, variant.problem) if variant.judged == 0 else None
            unrecorded = partial(self._unrecorded.__setitem__, variant_id)
            verdict = await context.evaluator.evaluate(
                problem, variant.language, source, on_stage, known, unrecorded, at.append
            )
        except EvaluationError as error:
            verdict = Verdict(status="error", reason=str(error))
        try:
            for one in told:
                await one
            await context.journal.record(VerdictGiven(variant=variant_id, verdict=verdict))
        finally:
            self._unrecorded.pop(variant_id, None)

    def _with_code(self, problem: str, code: str) -> Verdict | None:
        """Find the verdict, recorded or not, on another of the problem's kernels that has the same machine code.

        Skip pruned kernels, so that a duplicate can replace them.
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
        """Queue the problem's variants that have no verdict, for example after a resume or a larger budget."""
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
        """Inspect new problems, then open all problems and start their searches. With turns, open one problem at a
        time.
        """
        minutes = self.context.config.budget.minutes_per_problem
        if minutes is not None:
            await self._turns.run(minutes)
            self._opening.done = True
            return
        async for problem in self._opening.opened():
            self.begin(problem)

    def begin(self, problem: str) -> None:
        """Start the rounds of an open problem, and queue its kernels that have no verdict. A ``torch.compile`` baseline
        starts only if the device stays idle, so that the problem's first kernels come first, even after a resume.
        """
        self._queue.touch()
        self._problems[problem] = ProblemSearch(self.context, problem)
        self._restless.add(problem)
        self._enqueue_waiting(problem)
        self._changed.set()

    def is_at_rest(self, problem: str) -> bool:
        """Return whether no work on the problem is in progress or due."""
        if problem in self._rounds or problem in self._restless or not self._queue.idle or self._owed.busy:
            return False
        return self._state.is_pruned(problem) or self._problems[problem].at_rest

    async def halt(self, problem: str, limit_s: float) -> None:
        """End the problem's rounds, and wait up to ``limit_s`` seconds for evaluations. Kernels without a verdict stay
        queued in the session.
        """
        if (rounds := self._rounds.pop(problem, None)) is not None:
            rounds.cancel()
            (outcome,) = await asyncio.gather(rounds, return_exceptions=True)
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                raise outcome
        await self._queue.drain(limit_s)
        await self._give_back()

    def forget(self, problem: str) -> None:
        """Remove the problem from the search."""
        self._problems.pop(problem, None)
        self._restless.discard(problem)
        if self.context.ending is None and not self._state.paused:
            self._queue.release()

    def _reap_rounds(self) -> None:
        for name in [name for name, task in self._rounds.items() if task.done()]:
            self._rounds.pop(name).result()

    def _start_rounds(self) -> None:
        """Start the rounds of every problem whose state changed since its rounds last stopped."""
        for name in self._restless - self._rounds.keys() - self.context.closing:
            if not self._state.is_pruned(name):
                self._rounds[name] = asyncio.ensure_future(self._problems[name].run())
                self._rounds[name].add_done_callback(lambda _: self._changed.set())
            self._restless.discard(name)

    def _heard(self, event: AnyEvent) -> None:
        """React to a recorded event: queue kernels, hold or release the queue, and wake affected problems."""
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
        """Return the problem that an event affects. Return None if the event may affect all problems."""
        if isinstance(event, VerdictGiven):
            return self._state.variants[event.variant].problem
        name = getattr(event, "problem", None)
        return name if isinstance(name, str) else None

    async def _write_best(self) -> None:
        """Write each problem's best kernel to a file. Raises SessionError."""
        for problem in list(self._state.problems.values()):
            if self._best_written.get(problem.id) != problem.best:
                best = self._best_written[problem.id] = problem.best
                if best is not None:
                    variant = self._state.variants[best]
                    source = self.context.sources.text(variant.source)
                    suffix = suffix_of(variant.language)
                    await asyncio.to_thread(write_best, self.context.paths, problem.id, suffix, source)
                    stale = {suffix_of(language) for language in problem.languages} - {suffix}
                else:
                    stale = {suffix_of(language) for language in problem.languages}
                for suffix in stale:
                    self.context.paths.best(problem.id, suffix).unlink(missing_ok=True)

    # Budget and deferred work

    def _heed_budget(self) -> None:
        left = self.context.left_s(self._owed.reserve_s)
        if self.context.ending is None and left <= 0:
            self.context.ending, self._ended_minutes = "budget", self.context.budget.minutes
            self._drained = False
            self._queue.hold()
            for problem in self._problems.values():
                problem.wake()
        elif self.context.ending == "budget" and not self._is_draining and left > (0 if self._is_raised else LAST_S):
            # A person raised the budget, or deferred work took less time than reserved.
            self.context.ending, self._owed.drained_at = None, None
            for name in self._problems:
                self._enqueue_waiting(name)
                self._restless.add(name)
            if not self._state.paused:
                self._queue.release()

    @property
    def _is_draining(self) -> bool:
        """Whether the search is waiting for the last evaluations, or is canceling them and requeuing their kernels."""
        return self._draining is not None and not self._draining.done()

    @property
    def _is_raised(self) -> bool:
        """Whether a person raised the time budget after the search had used it up."""
        minutes, before = self.context.budget.minutes, self._ended_minutes
        return before is not None and (minutes is None or minutes > before)

    async def _finish_within_budget(self) -> StopReason | None:
        """Stop starting evaluations, finish running work, then run deferred work. Deferred work may take up to
        ``Budget.overrun_s`` after the budget's end or after the last work in flight, whichever is later. A pause delays
        deferred work.
        """
        if not self._drained:
            self._drained, self._owed.drained_at = True, time.monotonic()
            self._draining = self._spawn(self._drain())
            return None
        delayed = self._state.paused and self._owed.overrun_left_s > 0
        if self._is_draining or not self._queue.idle or self._rounds or delayed:
            self._owed.drained_at = time.monotonic()
            return None
        if self._owed.overrun_left_s > 0:
            self._do_owed(only_if_idle=False)
        else:
            self._owed.cancel_compile("the time budget is used up")
            if not self._owed.busy:
                self._owed.log_skipped_baselines()
        return None if self._owed.busy else "budget"

    async def _drain(self) -> None:
        await self._queue.drain(LAST_VERDICTS_S)
        await self._give_back()
        self._changed.set()

    def _do_owed(self, *, only_if_idle: bool) -> None:
        """Start deferred work. ``only_if_idle``: start only a baseline, and only while the devices are idle."""
        if self._owed.busy or self._state.paused:
            return
        if not only_if_idle:
            self._owed.start_any()
        elif self._queue.idle_s >= IDLE_S:
            self._owed.start_baseline()

    # Tasks

    async def _give_back(self) -> None:
        """Queue unfinished evaluations again, so that the engine repeats them after a resume or in the next turn."""
        begun = [variant.id for variant in self._state.in_flight() if variant.stage != "queued"]
        await self.context.journal.record(*(VariantStage(variant=name, stage="queued") for name in begun))

    def _spawn(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a job alongside the search. An error in the job ends the search."""
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
        tasks = [*self._others, *self._rounds.values(), *self._queue.end()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
