"""Run one problem's rounds: read the state, start missing work, wait, and repeat.

Only the session stores progress, so that a search can resume after any event. Each pass requests kernels for ideas
without kernels, and ideas for parents without ideas. A round closes when no work is missing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from engine.evaluation.evaluator import CountersUnavailable, EvaluationError
from engine.problem.spec import Language
from engine.proposers.protocol import NUMBER, Proposer
from engine.search.context import Context
from engine.search.ids import seed_for
from engine.search.proposing.model_choice import asked_for, choose
from engine.search.proposing.proposer_context import (
    PATIENCE,
    answering_model,
    candidates_of,
    own_ideas,
    parents_of,
    share_out,
)
from engine.search.proposing.proposer_requests import Questions
from engine.search.proposing.untried import nothing_left
from engine.search.strategies import STRATEGIES, Selection
from engine.search.strategies.runoff_choice import runoff_leaders, with_doubts
from engine.session.records.counters import bottleneck_of
from engine.session.records.events import (
    BY_HAND,
    LogLine,
    ProblemFinished,
    Profiled,
    RoundFinished,
    RoundStarted,
    RunoffFinished,
    Selected,
    VariantStage,
    VerdictGiven,
)
from engine.session.records.model_calls import CallSite, Purpose
from engine.session.records.problem_end import NO_FIRST_KERNEL, NO_IDEA, rounds_complete
from engine.session.records.verdict import Standing
from engine.session.state.nodes import SEEDED
from engine.session.state.session_state import IdeaState, ProblemState, RoundState, VariantState
from engine.session.store.paths import session_argument

PROFILES = "profiles"
"""Folder for ``ncu`` reports in the session's directory."""
FIXABLE = frozenset({"build_error", "wrong", "out_of_bounds", "crashed", "timeout", "memory"})


class ProblemSearch:
    """Run one problem's rounds until they are complete, no proposer has a new idea, or the search ends.

    Call ``run`` again to search more rounds or to handle new seeds.
    """

    def __init__(self, context: Context, problem: str) -> None:
        self.context = context
        self.id = problem
        self._state = context.state
        self._changed = asyncio.Event()
        self._questions = Questions(context, problem)
        self._jobs: dict[tuple[str, ...], asyncio.Task[bool | None]] = {}
        self._done: set[tuple[str, ...]] = set()
        self._requested: dict[tuple[str, ...], int] = {}
        """Number of ideas in each request for ideas, by job key."""
        self._failure: BaseException | None = None
        self._tried_to_count: set[str] = set()
        self._failed_in_runoff: set[tuple[int, str]] = set()
        """Pairs of a round's number and a kernel that failed in the round's runoff."""

    @property
    def problem(self) -> ProblemState:
        return self._state.problems[self.id]

    @property
    def _spent(self) -> bool:
        return self.context.spent_on(self.id)

    @property
    def at_rest(self) -> bool:
        """Whether the problem's rounds are complete, a spending limit blocks them, or a person must write kernels."""
        if self._spent or self.needs_person:
            return True
        return self._open_round() is None and (self.problem.finished is not None or self.context.last_rounds)

    @property
    def needs_person(self) -> bool:
        """Whether the problem is not pruned, but no proposer can write kernels for it.

        If so, the first round stays open for seeded kernels.
        """
        return self.problem.cannot_write is not None and not self._state.is_pruned(self.id)

    @property
    def in_runoff(self) -> bool:
        """Whether a runoff of the problem's leaders is in progress."""
        return any(kind == "runoff" for kind, *_ in self._jobs)

    @property
    def owes_runoff(self) -> bool:
        """Whether the open round still needs a runoff, for example because the budget ran out first."""
        round_ = self._open_round()
        return round_ is not None and not self._state.is_pruned(self.id) and self._wants_runoff(round_)

    async def last_runoff(self) -> None:
        """Run the pending runoff. If a kernel fails, repeat the runoff without this kernel. Raises SessionError."""
        while self.owes_runoff and (round_ := self._open_round()) is not None:
            job = _runoff_job(round_, self._runoff_leaders())
            await self._runoff(round_)
            self._done.add(job)

    def wake(self) -> None:
        """Signal that the state of this problem changed."""
        self._changed.set()

    async def run(self) -> None:
        """Run the rounds. Raises SessionError if the session cannot be written."""
        try:
            while not self.context.ending:
                self._changed.clear()
                if self._state.is_pruned(self.id):
                    return
                if self._failure is not None:
                    raise self._failure
                if self._work() or await self._advance():
                    await self._changed.wait()
                elif self.at_rest:
                    return
        finally:
            _cancel(self._jobs.values())
            await asyncio.gather(*self._jobs.values(), return_exceptions=True)

    # Missing work

    def _work(self) -> bool:
        """Cancel requests for pruned nodes, and start missing work. Returns whether any work is in progress."""
        requests = [(key[1], job) for key, job in self._jobs.items() if key[0] in ("ideas", "variants", "fix")]
        _cancel(job for node, job in requests if self._state.is_pruned(node))
        round_ = self._open_round()
        if not self.context.paused:
            if not self._spent and round_ is not None:
                self._start_ideas(round_)
            for idea in [self._state.ideas[name] for one in self.problem.rounds for name in one.ideas]:
                if not self._spent:
                    self._start_variants(idea, round_)
            if round_ is not None:
                self._mend(round_)
        judged = any(variant.stage is not None for variant in self._state.variants_of(self.id))
        return bool(self._jobs) or judged

    def _mend(self, round_: RoundState) -> None:
        """Start repairs of failed kernels, and repeat evaluations that failed for reasons unrelated to the kernel."""
        for variant in list(self._state.variants_of(self.id)):
            if not self._spent:
                self._start_fix(variant, round_)
            verdict, judged_once = variant.verdict, variant.judged == 1
            if verdict is not None and verdict.status == "error" and judged_once and variant.round == round_.number:
                self._start(("again", variant.id), self._judge_again(variant, verdict.reason))

    async def _advance(self) -> bool:
        """If no work is in progress, run a runoff, close or open a round, or finish the problem. Returns whether to
        wait.
        """
        if self.context.paused:
            return True
        if self._spent:
            return False
        round_ = self._open_round()
        if round_ is not None:
            if self._wants_runoff(round_):
                self._start(_runoff_job(round_, self._runoff_leaders()), self._runoff(round_))
                return True
            if uncounted := self._uncounted():
                names = [variant.id for variant in uncounted]
                self._start(("counters", str(round_.number), *names), self._read_counters(uncounted))
                return True
            if self.needs_person:
                return False
            await self._close(round_)
        elif self.context.last_rounds:
            return False
        elif (reason := await self._reason_to_finish()) is None:
            await self._open_next()
        elif self.problem.finished != reason:
            await self.context.journal.record(ProblemFinished(problem=self.id, reason=reason))
        return False

    def _open_round(self) -> RoundState | None:
        rounds = self.problem.rounds
        return rounds[-1] if rounds and rounds[-1].finished_at is None else None

    async def _reason_to_finish(self) -> str | None:
        """Return why the search of the problem is over. Return None if another round may follow."""
        rounds = self.problem.rounds
        if not rounds:
            return None
        if rounds[-1].number >= self.context.budget.rounds:
            return rounds_complete(rounds[-1].number)
        if self._owed_in(rounds[-1].number):
            return None
        if not self._state.leaders(self.id):
            if not any(variant.round == rounds[-1].number for variant in self._state.variants_of(self.id)):
                return NO_FIRST_KERNEL
            return None
        if not (await self._select(rounds[-1].number)).developed:
            return NO_IDEA
        return None

    def _owed_in(self, round_number: int) -> bool:
        """Return whether a proposer failed to answer in the round and the search will repeat the request."""
        return any(
            round_number in rounds and len(rounds) < PATIENCE and not self._state.is_pruned(subject or self.id)
            for (_, subject), rounds in self.problem.missing.items()
        )

    # Jobs

    def _start(self, key: tuple[str, ...], job: Coroutine[Any, Any, bool | None]) -> None:
        """Run a job, once per engine process unless it may start again. The job's end wakes the search loop. An error
        in the job ends the search.

        A job may start again if the search canceled it or if it returns False, for example because a limit blocked it.
        """
        if key in self._jobs or key in self._done:
            job.close()
            return
        task = asyncio.ensure_future(job)
        self._jobs[key] = task

        def ended(done: asyncio.Task[bool | None]) -> None:
            del self._jobs[key]
            if done.cancelled():
                may_start_again = done.cancelling() > 0  # 0: the job itself raised CancelledError.
            else:
                may_start_again = done.exception() is None and done.result() is False
                self._failure = self._failure or done.exception()
            if not may_start_again:
                self._done.add(key)
            self.wake()

        task.add_done_callback(ended)

    def _start_ideas(self, round_: RoundState) -> None:
        context = self.context
        names = [one.name for one in context.idea_proposers(self.id)]
        own = own_ideas(self._state, round_.ideas)
        have = {(idea.parent, idea.proposer) for idea in own}
        parents = parents_of(self._state, round_, context.config.search.parents)
        wanted = share_out(context.config.search.ideas, parents, context.weights("ideas", names)) if names else {}
        # A proposer's share may change during the round, but not the number of ideas per parent.
        missing = Counter[str | None]()
        for (parent, _), count in wanted.items():
            missing[parent] += count
        missing.subtract(idea.parent for idea in own)
        for key in self._jobs:
            if key[0] == "ideas":
                missing[key[1] or None] -= self._requested.get(key, 0)
        for (parent, place), count in wanted.items():
            proposer = context.proposer(names[place])
            key = ("ideas", parent or "", str(round_.number), names[place])
            was_asked = (parent, names[place]) in have or key in self._jobs or key in self._done
            count = min(count, missing[parent])
            if proposer is not None and not was_asked and count > 0 and not self._given_up("ideas", parent):
                missing[parent] -= count
                self._requested[key] = count
                self._start(key, self._questions.ideas(round_.number, proposer, parent, count))

    def _start_variants(self, idea: IdeaState, round_: RoundState | None) -> None:
        """Request the idea's missing kernels, including those that a proposer failed to provide in an earlier round."""
        if idea.waiting or idea.proposer == BY_HAND or self._state.is_pruned(idea.id):
            return
        number = round_.number if round_ is not None else idea.round
        seeded, retried = bool(idea.data.get(SEEDED)), self._questions.missing("kernel", idea.id) > 0
        if round_ is None and not seeded:
            return
        if (round_ is None or idea.round != number) and not retried and (idea.variants or not seeded):
            return
        if self._given_up("kernel", idea.id):
            return
        author = self.context.proposer(idea.proposer)
        if author is None or (idea.variants and not author.reads_prose):
            return
        key = ("variants", idea.id, str(number))
        if key not in self._jobs and key not in self._done and (shares := self._shares(author, idea, number)):
            self._start(key, self._questions.kernels(number, idea, shares))

    def _shares(self, author: Proposer, idea: IdeaState, round_number: int) -> dict[str, list[int]]:
        """Assign an idea's missing kernels to proposers. Returns the kernel numbers for each proposer's name."""
        count = self.context.config.search.variants
        if not author.reads_prose:
            return {author.name: list(range(count))}
        written = {self._state.variants[name].data.get(NUMBER) for name in idea.variants}
        written |= {repeat.number for repeat in idea.repeats}
        names = [one.name for one in self.context.proposers_for(self.id, "code") if one.reads_prose]
        if not names:
            return {}
        weights, asked = self.context.weights("code", names), asked_for(self._state, "code")
        shares: dict[str, list[int]] = {}
        for number in (one for one in range(count) if one not in written):
            site = CallSite(self.id, round_number, "kernel", idea.id, number)
            known = answering_model(self._state, site)
            name = known if known in names else choose(names, weights, asked)
            asked[name] = asked.get(name, 0) + 1
            shares.setdefault(name, []).append(number)
        return shares

    def _start_fix(self, variant: VariantState, round_: RoundState) -> None:
        if variant.verdict is None or variant.stage is not None or variant.verdict.status not in FIXABLE:
            return
        if variant.verdict.same_code_as is not None:  # The search repairs the earlier kernel with this machine code.
            return
        if variant.round != round_.number and not self._questions.missing("fix", variant.id):
            return
        siblings = [self._state.variants[name] for name in self._state.ideas[variant.idea].variants]
        turn = 1 + _turns(variant, {one.id: one for one in siblings})
        if turn > self.context.config.search.fixes or any(one.parent == variant.id for one in siblings):
            return
        if self._state.is_pruned(variant.id) or self._given_up("fix", variant.id):
            return
        if (proposer := self._fixer(variant, round_.number)) is not None:
            key = ("fix", variant.id, str(round_.number))
            self._start(key, self._questions.fix(round_.number, proposer, variant, turn))

    def _fixer(self, variant: VariantState, round_number: int) -> Proposer | None:
        """Return the proposer that repairs a kernel: the next model in turn if a language model wrote the kernel,
        otherwise its author.
        """
        author = self.context.proposer(variant.proposer)
        if author is None or not author.reads_prose:
            return author
        names = [one.name for one in self.context.proposers_for(self.id, "fixes") if one.reads_prose]
        if not names:
            return None
        known = answering_model(self._state, CallSite(self.id, round_number, "fix", variant.id))
        weights = self.context.weights("fixes", names)
        name = known if known in names else choose(names, weights, asked_for(self._state, "fixes"))
        return self.context.proposer(name)

    def _given_up(self, purpose: Purpose, subject: str | None) -> bool:
        return self._questions.missing(purpose, subject or "") >= PATIENCE

    async def _judge_again(self, variant: VariantState, why: str) -> None:
        """Queue a kernel again, because its last evaluation was inconclusive or a runoff contradicts its verdict."""
        await self.context.journal.record(VariantStage(variant=variant.id, stage="queued", why=why))

    async def _take_back(self, variant: VariantState, why: str) -> None:
        """Revoke the verdict on a kernel that failed in a runoff, because no time is left to judge the kernel again."""
        assert variant.verdict is not None, "every kernel in a runoff has a verdict"
        again = f"kernel-tui retry {session_argument(self.context.paths.directory)} {variant.id}"
        reason = f"the kernel failed in the last runoff: {why}. To judge it again: {again}"
        doubted = replace(variant.verdict.without_times(), status="error", reason=reason)
        await self.context.journal.record(VerdictGiven(variant=variant.id, verdict=doubted, why=reason))

    # The ends and starts of rounds

    def _wants_runoff(self, round_: RoundState) -> bool:
        """Return whether a runoff is due, because the judge has not timed all current leaders side by side."""
        leaders = self._runoff_leaders()
        timed = {standing.variant for standing in self.problem.standings if standing.decides}
        owed = len(leaders) >= 2 and not {leader.id for leader in leaders} <= timed
        return owed and _runoff_job(round_, leaders) not in self._done

    def _runoff_leaders(self) -> list[VariantState]:
        return runoff_leaders(self._state, self.id, self.context.config.search.runoff)

    async def _runoff(self, round_: RoundState) -> bool:
        """Time the leaders side by side. Returns whether the runoff is done. If a kernel fails in the runoff for the
        first time, the search repeats the runoff after a new verdict on the kernel. If a result is uncertain, the
        search repeats the runoff once, because load may have slowed one kernel.
        """
        kernels: dict[str, tuple[Language, str]] = {
            leader.id: (leader.language, self.context.sources.text(leader.source)) for leader in self._runoff_leaders()
        }
        began = time.monotonic()
        standings: tuple[Standing, ...] = ()
        try:
            standings = await self._timed_side_by_side(kernels)
            if doubtful := [one.variant for one in standings if one.uncertain]:
                uncertain = f"the runoff of {round_.id} is uncertain for {' and '.join(doubtful)}; repeating it"
                await self.context.journal.record(LogLine(level="info", text=uncertain))
                standings = await self._timed_side_by_side(kernels)
        except EvaluationError as error:
            await self._say(f"the runoff of {round_.id} failed: {error}")
            if error.variant is not None and (variant := self._state.variants.get(error.variant)) is not None:
                ending = self.context.ending or self.id in self.context.closing
                again = self._take_back if ending else self._judge_again
                await again(variant, str(error))
                first = (round_.number, variant.id) not in self._failed_in_runoff
                self._failed_in_runoff.add((round_.number, variant.id))
                return not first
            if not standings:  # Otherwise, the first result counts, because only its repetition failed.
                return True
        seconds = time.monotonic() - began
        await self.context.journal.record(
            RunoffFinished(problem=self.id, round=round_.number, standings=standings, seconds=seconds)
        )
        return True

    async def _timed_side_by_side(self, kernels: Mapping[str, tuple[Language, str]]) -> tuple[Standing, ...]:
        standings = await self.context.evaluator.runoff(self.problem.spec, kernels)
        return with_doubts(standings, self._state.variants)

    def _uncounted(self) -> list[VariantState]:
        """Return the leading kernels without hardware counters, if the config requests counters."""
        if not self.context.config.profile.counters or self.context.no_counters:
            return []
        leaders = self._state.leaders(self.id, self.context.config.search.parents)
        return [one for one in leaders if one.profile is None and one.id not in self._tried_to_count]

    async def _read_counters(self, variants: Sequence[VariantState]) -> None:
        """Read the kernels' hardware counters. If ``ncu`` is missing or lacks permission, log the reason once and
        continue.
        """
        folder = self.context.paths.directory / PROFILES
        for variant in variants:
            if self.context.no_counters:
                return
            self._tried_to_count.add(variant.id)
            report = folder / f"{variant.id}.ncu-rep"
            source = self.context.sources.text(variant.source)
            try:
                folder.mkdir(exist_ok=True)
                launches = await self.context.evaluator.counters(self.problem.spec, variant.language, source, report)
            except (CountersUnavailable, OSError) as error:
                self.context.no_counters = isinstance(error, CountersUnavailable) and error.lasting
                then = "; the search continues without counters" if self.context.no_counters else ""
                text = f"cannot read the hardware counters of {variant.id}: {error}{then}"
                await self.context.journal.record(LogLine(level="warning", text=text))
                continue
            kept = f"{PROFILES}/{report.name}" if report.exists() else ""
            await self.context.journal.record(
                Profiled(variant=variant.id, launches=launches, bottleneck=bottleneck_of(launches), report=kept)
            )

    async def _close(self, round_: RoundState) -> None:
        selection = (await self._select(round_.number)).selection
        concerned = {one.variant for one in round_.parents}
        concerned |= {
            variant.id
            for variant in self._state.variants_of(self.id)
            # A person may have seeded a kernel into an earlier round after its end.
            if variant.round == round_.number or (variant.correct and variant.is_undecided)
        }
        failed = tuple(
            Selected(variant.id, _why_failed(variant))
            for variant in self._state.variants_of(self.id)
            if variant.id in concerned and (variant.speedup is None or self._state.is_pruned(variant.id))
        )
        pruned = {variant.variant for variant in failed}
        await self.context.journal.record(
            RoundFinished(
                problem=self.id,
                round=round_.number,
                selected=selection.selected,
                dropped=tuple(
                    one for one in selection.dropped if one.variant in concerned and one.variant not in pruned
                )
                + failed,
            )
        )

    async def _open_next(self) -> None:
        """Open the next round with parents chosen from the current state, which a person may have changed."""
        rounds = self.problem.rounds
        number = rounds[-1].number + 1 if rounds else 0
        repeated = (one.parents(self.id, number) for one in self.context.proposers_for(self.id))
        parents = next((parents for parents in repeated if parents is not None), None)
        if parents is None:
            parents = (await self._select(number - 1)).selection.selected if rounds else ()
        await self.context.journal.record(RoundStarted(problem=self.id, round=number, parents=parents))

    async def _select(self, round_number: int) -> _Chosen:
        """Select the parents of the round after ``round_number``. Skip kernels for which no proposer has a new idea."""
        search = self.context.config.search
        seed = seed_for(self._state.seed, self.id, "selection", round_number)
        candidates = candidates_of(self._state, self.problem)
        while True:
            selection = STRATEGIES[search.strategy](
                candidates, round_number=round_number, width=search.parents, seed=seed
            )
            selected_because = {one.variant for one in selection.selected}
            open_ones = [one.variant for one in candidates if one.variant in selected_because and not one.exhausted]
            dry = {name for name in open_ones if await nothing_left(self.context, self.problem, name)}
            if not dry:
                return _Chosen(selection, bool(open_ones))
            candidates = [replace(one, exhausted=one.exhausted or one.variant in dry) for one in candidates]

    async def _say(self, text: str) -> None:
        await self.context.journal.record(LogLine(level="info", text=text))


class _Chosen(NamedTuple):
    """A selection of parents. ``developed``: whether a proposer may have a new idea for any selected kernel."""

    selection: Selection
    developed: bool


def _cancel(jobs: Iterable[asyncio.Task[bool | None]]) -> None:
    for job in jobs:
        if not job.cancelling():  # A second cancellation would interrupt the cleanup of a call's processes.
            job.cancel()


def _turns(variant: VariantState, siblings: dict[str, VariantState]) -> int:
    """Count the repairs that led to ``variant``: its ancestors among its idea's kernels."""
    turns = 0
    while variant.parent in siblings and variant.parent != variant.id:
        variant, turns = siblings[variant.parent], turns + 1
    return turns


def _runoff_job(round_: RoundState, leaders: Sequence[VariantState]) -> tuple[str, ...]:
    """Return the key of a runoff job, which allows one runoff per round and set of leaders."""
    return ("runoff", str(round_.number), *sorted(leader.id for leader in leaders))


def _why_failed(variant: VariantState) -> str:
    if variant.verdict is not None and variant.verdict.same_code_as is not None:
        return f"same machine code as {variant.verdict.same_code_as}"
    if variant.verdict is None or variant.verdict.status in ("correct", "cancelled"):
        return "pruned by the user"
    reason = variant.verdict.reason.strip().splitlines()
    status = variant.verdict.status.replace("_", " ")
    return f"{status}: {reason[0]}" if reason else status
