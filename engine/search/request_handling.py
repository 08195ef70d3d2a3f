"""Handle a person's requests: check each request, record its events with the answer, and carry it out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from engine.problem.spec import LANGUAGE_NAMES, MODULES
from engine.search.context import Context
from engine.search.proposing.untried import develop_only_own, why_nothing_new
from engine.session.budget import caps_of, elapsed_s
from engine.session.records import events as ev
from engine.session.records import requests as requests
from engine.session.records.events import (
    BY_HAND,
    AnyEvent,
    CommandHandled,
    IdeaProposed,
    IdeaWaiting,
    VariantStage,
    VariantWritten,
)
from engine.session.state.node_names import (
    UnknownName,
    check_model,
    check_names,
    named_idea,
    named_problem,
    named_variant,
)
from engine.session.state.nodes import SEED_FILE, SEEDED, TRANSFORMATION, IdeaState
from engine.session.state.session_state import ProblemState
from engine.session.store import SentRequest, SessionError
from engine.session.store.paths import session_argument
from engine.suggestions import did_you_mean
from engine.system import clock

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """A request's result. The engine records ``events`` with the answer, applies them to the state, and then calls
    ``then``.
    """

    message: str
    ok: bool = True
    unknown: bool = False
    node: str | None = None
    events: tuple[AnyEvent, ...] = ()
    then: Callable[[], None] | None = None


class Refused(Exception):
    """The engine cannot carry out a request. The message is the engine's answer to the person.

    ``node``: the node that already meets the request, if any.
    """

    def __init__(self, message: str, node: str | None = None) -> None:
        super().__init__(message)
        self.node = node


class Steering:
    """Carry out requests. ``cancel`` cancels evaluations of variants; ``requeue`` queues recorded variants again."""

    def __init__(
        self, context: Context, cancel: Callable[[Iterable[str]], None], requeue: Callable[[Iterable[str]], None]
    ) -> None:
        self._context = context
        self._state = context.state
        self._cancel = cancel
        self._requeue = requeue

    async def handle(self, sent: SentRequest) -> None:
        """Answer one request. Raises SessionError if the session cannot be written."""
        if sent.command is None:
            outcome = Outcome(sent.error, ok=False)
        else:
            try:
                check_names(self._state, sent.command)
                answer = _HANDLERS[type(sent.command)](self, sent.command)
                outcome = answer if isinstance(answer, Outcome) else await answer
            except UnknownName as error:
                outcome = Outcome(str(error), ok=False, unknown=True)
            except Refused as refusal:
                outcome = Outcome(str(refusal), ok=False, node=refusal.node)
            except SessionError:
                raise
            # A bug in the engine or in a proposer's list of transformations must not end the search.
            except Exception as error:
                _log.exception("command %d failed", sent.id)
                outcome = Outcome(f"internal error: {type(error).__name__}: {error}. See the engine's log.", ok=False)
        handled = CommandHandled(
            command=sent.id, ok=outcome.ok, message=outcome.message, node=outcome.node, unknown=outcome.unknown
        )
        await self._context.journal.record(*outcome.events, handled)
        if outcome.then is not None:
            outcome.then()

    # Branches

    def _prune(self, command: requests.Prune) -> Outcome:
        node = command.node
        if node in self._state.pruned:
            return Outcome(f"{node} is already pruned", node=node)
        flying = [one.id for one in self._state.in_flight() if node in self._state.lineage(one.id)]
        below = sum(1 for one in self._state.branch(node) if one in self._state.variants and one != node)
        said = f"pruned {node}"
        if below:
            said += f" and {below} kernel{'s' * (below != 1)} below it"
        if flying:
            said += f"; canceled {len(flying)} evaluation{'s' * (len(flying) != 1)}"
        return Outcome(
            said,
            node=node,
            events=(ev.NodePruned(node=node),),
            then=lambda: self._cancel(flying),
        )

    def _restore(self, command: requests.Restore) -> Outcome:
        node = command.node
        if node not in self._state.pruned:
            above = [one for one in self._state.lineage(node) if one in self._state.pruned]
            raise Refused(f"{node} is not pruned" + (f" itself; restore its ancestor {above[0]}" if above else ""))

        still_pruned, branch = self._state.pruned - {node}, self._state.branch(node)
        cancelled = [
            one.id
            for one in self._state.variants.values()
            if one.id in branch
            and one.verdict is not None
            and one.verdict.status == "cancelled"
            and still_pruned.isdisjoint(self._state.lineage(one.id))
        ]
        return Outcome(
            f"restored {node}",
            node=node,
            events=(ev.NodeRestored(node=node), *_queued(cancelled, "restored")),
            then=lambda: self._requeue(cancelled),
        )

    def _pin(self, command: requests.Pin) -> Outcome:
        node = command.node
        if node in self._state.pinned:
            return Outcome(f"{node} is already pinned", node=node)
        if self._state.is_pruned(node):
            raise Refused(f"{node} is pruned; restore it before you pin it")
        has_correct = any(node in self._state.lineage(one.id) for one in self._state.variants.values() if one.correct)
        effect = "the fastest kernel of its branch is always a parent"
        if not has_correct:
            effect = "its branch has no correct kernel yet; its fastest correct kernel will always be a parent"
        return Outcome(f"pinned {node}: {effect}", node=node, events=(ev.NodePinned(node=node),))

    def _unpin(self, command: requests.Unpin) -> Outcome:
        node = command.node
        if node not in self._state.pinned:
            raise Refused(f"{node} is not pinned")
        return Outcome(f"unpinned {node}", node=node, events=(ev.NodeUnpinned(node=node),))

    # The whole search

    def _pause(self, command: requests.Pause) -> Outcome:
        if self._state.paused:
            return Outcome("the search is already paused")
        stages = Counter(one.stage for one in self._state.at_work() if not self._state.is_pruned(one.id))
        queued, waiting = stages["queued"], stages["waiting"]
        running = stages.total() - queued - waiting
        started = [f"{count} {which}" for count, which in ((running, "running"), (waiting, "waiting")) if count]
        said = ["paused: no new evaluations start"]
        if started:
            said.append(f"{' and '.join(started)} evaluation{'s' * (running + waiting != 1)} will finish")
        if queued:
            said.append(f"{queued} queued kernel{'s stay' if queued != 1 else ' stays'} queued until you unpause")
        return Outcome("; ".join(said), events=(ev.SearchPaused(),))

    def _resume(self, command: requests.Resume) -> Outcome:
        if not self._state.paused:
            return Outcome("the search is not paused")
        until = " until the running rounds end" if self._state.stop_planned else ""
        return Outcome(f"the search continues{until}", events=(ev.SearchResumed(),))

    def _stop(self, command: requests.Stop) -> Outcome:
        def stop() -> None:
            if command.when_idle:
                self._context.until_idle = True
            else:
                self._context.ending = "stopped"

        if command.when_idle:
            return Outcome("the search will stop when it is waiting only for a person's replies", then=stop)
        if not command.after_round:
            return Outcome("the search is stopping", then=stop)
        if self._state.stop_planned:
            return Outcome("the search already stops after the running rounds")
        between_turns = self._context.takes_turns and self._state.turn is None
        if between_turns or not self._state.has_running_rounds:
            return Outcome("no round is running, so the search is stopping", then=stop)
        lacks = not self._context.takes_turns and any(map(self._context.lacks_compile, self._state.problems))
        without = ", without the missing torch.compile times" if lacks else ""
        paused = "; the search is paused, so the rounds continue after the pause" if self._state.paused else ""
        said = f"the search will stop after the running rounds{without}{paused}"
        return Outcome(said, events=(ev.StopPlanned(),))

    def _cancel_stop(self, command: requests.CancelStop) -> Outcome:
        if self._context.ending is not None:
            raise Refused("the search is already stopping; to start again, resume the session")
        if not self._state.stop_planned:
            return Outcome("no stop is planned")
        paused = " after the pause" if self._state.paused else ""
        return Outcome(f"the stop is canceled: the search continues{paused}", events=(ev.StopCanceled(),))

    def _change_budget(self, command: requests.ChangeBudget) -> Outcome:
        requested: dict[str, float | None] = {
            _counted("{:g} minute", command.minutes): command.minutes,
            _counted("{:d} round", command.rounds): command.rounds,
            **_costs(command),
        }
        listed = _listed(requested, "minutes, rounds, dollars, tokens or calls")
        change = ev.BudgetChanged(
            minutes=command.minutes,
            rounds=command.rounds,
            dollars=command.dollars,
            tokens=command.tokens,
            calls=command.calls,
        )
        spent = elapsed_s(self._state, clock.now()) / 60
        over = command.minutes is not None and command.minutes <= spent
        ends = f"; the search has already used {spent:.1f} minutes, so it is ending" if over else ""
        return Outcome(f"the budget is now {listed}{ends}", events=(change,))

    def _change_share(self, command: requests.ChangeShare) -> Outcome:
        known = caps_of(self._state, self._context.config).models
        if command.model:
            check_model(known, command.model)
        listed = _listed(_costs(command), "dollars, tokens or calls")
        change = ev.ShareChanged(
            model=command.model, dollars=command.dollars, tokens=command.tokens, calls=command.calls
        )
        return Outcome(f"the budget of {command.model or 'each problem'} is now {listed}", events=(change,))

    # Seeds

    async def _seed_idea(self, command: requests.SeedIdea) -> Outcome:
        problem = self._problem(command.problem)
        parent = self._not_pruned(command.parent) or problem.best
        category, text, author = command.category, command.text.strip(), BY_HAND
        data: dict[str, Any] = {}
        if command.catalogue is not None:
            category, default_text, data, author = self._transformation(problem, command.catalogue)
            text = text or default_text
            writer = self._context.proposer(author)
            if writer is not None and not writer.reads_prose:
                nothing = await why_nothing_new(self._context, writer, problem, parent, command.catalogue)
                if nothing is not None:
                    raise Refused(nothing)
        else:
            if not text:
                raise Refused("the idea is empty; describe what to try, or name a transformation of the playbook")
            readers = [one for one in self._context.proposers_for(problem.id) if one.reads_prose]
            author = readers[0].name if readers else BY_HAND
        idea = self._idea(problem, parent, category, text, author, data)
        if author != BY_HAND:
            said = self._when_work_begins(f"{idea.idea}: {author} will write kernels for it")
            return Outcome(said + self._after_end(problem), node=idea.idea, events=(idea,))
        session = session_argument(self._context.paths.directory)
        reason = (
            f"no proposer in this session reads free text. Write a kernel for {idea.idea}: press e in the monitor, or "
            f"run: kernel-tui seed-kernel {session} kernel.{problem.language} --idea {idea.idea}"
        )
        waiting = IdeaWaiting(idea=idea.idea, reason=reason)
        said = f"{idea.idea} is waiting for a kernel: {reason}{self._after_end(problem, by_hand=True)}"
        return Outcome(said, node=idea.idea, events=(idea, waiting))

    def _seed_kernel(self, command: requests.SeedKernel) -> Outcome:
        problem = self._problem(command.problem)
        written_for = named_idea(self._state, problem, command.idea) if command.idea is not None else None
        self._not_pruned(command.idea)
        parent = self._not_pruned(command.parent)
        if parent is None and written_for is not None:
            parent = written_for.parent
        if not command.source.strip():
            raise Refused("the file contains no kernel; add the kernel's source, and try again")
        module = command.language in MODULES and any(language in MODULES for language in problem.languages)
        if command.language not in problem.languages and not module:
            named = " or ".join(LANGUAGE_NAMES[language] for language in problem.languages)
            raise Refused(
                f"this search writes kernels for {problem.id} in {named}, but the file is a "
                f"{LANGUAGE_NAMES[command.language]} kernel"
            )
        if (same := self._context.sources.find(problem.id, command.source)) is not None:
            again = f"kernel-tui retry {session_argument(self._context.paths.directory)} {same}"
            said = f"{same} already has this source, so the judge does not evaluate it again"
            raise Refused(f"{said}. To judge {same} again, press r in the monitor, or run: {again}", same)
        source = command.source.rstrip() + "\n"  # ``find`` must recognize the source, however the file ends.
        name, digest, _ = self._context.sources.claim(problem.id, source, self._context.ids.variant)
        text = command.text.strip() or "seeded by hand"
        written_for = written_for or self._idea_of_file(problem, command.file, text, parent)
        new: tuple[IdeaProposed, ...] = ()
        if written_for is not None:
            idea, round_number = written_for.id, written_for.round
        else:
            data = {SEED_FILE: command.file} if command.file else {}
            new = (self._idea(problem, parent, "other", text, BY_HAND, data),)
            idea, round_number = new[0].idea, new[0].round
        variant = VariantWritten(
            variant=name,
            idea=idea,
            problem=problem.id,
            round=round_number,
            parent=parent,
            language=command.language,
            source=digest,
            proposer=BY_HAND,
            note="by hand",
        )
        said = self._when_work_begins(f"the judge will evaluate {variant.variant} of idea {idea} next")
        said += self._after_end(problem, by_hand=True)
        return Outcome(said, node=variant.variant, events=(*new, variant))

    def _idea_of_file(self, problem: ProblemState, file: str, text: str, parent: str | None) -> IdeaState | None:
        """Return the newest round's idea that a person seeded from ``file`` with the same text and parent, if any.

        Ignores ideas of earlier rounds, because the search has already selected parents from those rounds.
        """
        if not file:
            return None
        for idea in (self._state.ideas[name] for name in reversed(problem.rounds[-1].ideas)):
            is_same = (idea.proposer, idea.data.get(SEED_FILE), idea.text, idea.parent) == (BY_HAND, file, text, parent)
            if is_same and not self._state.is_pruned(idea.id):
                return idea
        return None

    def _retry(self, command: requests.Retry) -> Outcome:
        variant = named_variant(self._state, command.variant)
        if variant.stage is not None:
            raise Refused(f"{variant.id} is already queued or running")
        if self._state.is_pruned(variant.id):
            raise Refused(f"{variant.id} is pruned; restore it first")
        return Outcome(
            self._when_work_begins(f"the judge will evaluate {variant.id} again"),
            node=variant.id,
            events=_queued([variant.id], "requested by a person"),
            then=lambda: self._requeue([variant.id]),
        )

    # Checks

    def _when_work_begins(self, said: str) -> str:
        """If the search does not start new work now, append to ``said`` what must happen first."""
        if self._context.ending == "budget":
            return f"{said} after you raise the time budget; the remaining time is reserved for runoffs and baselines"
        if self._context.ending is not None:
            return f"{said} after you resume the search, which is stopping now"
        return f"{said} after you unpause the search" if self._state.paused else said

    def _after_end(self, problem: ProblemState, *, by_hand: bool = False) -> str:
        """If the search of the problem has ended, say whether a new round will build on the seed. Otherwise, return "".

        ``by_hand``: whether a person writes the kernel.
        """
        if problem.finished is None:
            return ""
        if problem.rounds[-1].number >= self._context.budget.rounds:
            more = f"kernel-tui budget {session_argument(self._context.paths.directory)} --rounds N"
            return f". The problem's rounds are complete. To add rounds, press M in the monitor, or run: {more}"
        if by_hand and develop_only_own(self._context, problem):
            return ". No proposer in this session can develop a kernel that it did not write, so no round builds on it"
        return ". If the kernel is correct, a new round can build on it" if by_hand else ""

    def _problem(self, name: str) -> ProblemState:
        if (refused := self._state.refused.get(name)) is not None:
            raise Refused(f"the search does not include {name}: {refused.reason}")
        problem = named_problem(self._state, name)
        if not problem.rounds:
            raise Refused(f"the judge is still opening {name}; try again in a few seconds")
        if self._state.is_pruned(name):
            raise Refused(f"{name} is pruned; restore it first")
        return problem

    def _not_pruned(self, name: str | None) -> str | None:
        if name is not None and self._state.is_pruned(name):
            raise Refused(f"{name} is pruned; restore it first")
        return name

    def _transformation(self, problem: ProblemState, name: str) -> tuple[str, str, dict[str, Any], str]:
        """Find a transformation. Returns the category, the text, the data for the idea, and the proposer's name."""
        names: list[str] = []
        for proposer in self._context.proposers_for(problem.id):
            for entry in proposer.catalogue(self._context.task(problem)):
                if entry.name == name:
                    return entry.category, entry.text, {TRANSFORMATION: name}, proposer.name
                names.append(entry.name)
        near = did_you_mean(name, names)
        there = ", ".join(names) or "none"
        raise UnknownName(
            f"{problem.id} has no transformation {name}{f'{near} Available' if near else '; available'}: {there}"
        )

    def _idea(
        self, problem: ProblemState, parent: str | None, category: str, text: str, author: str, data: dict[str, Any]
    ) -> IdeaProposed:
        return IdeaProposed(
            idea=self._context.ids.idea(),
            problem=problem.id,
            round=problem.rounds[-1].number,
            parent=parent,
            category=category,
            text=text,
            proposer=author,
            data={**data, SEEDED: True},
        )


def _costs(command: requests.ChangeBudget | requests.ChangeShare) -> dict[str, float | None]:
    """Return a request's spending limits, keyed by the format in which answers display them."""
    return {
        "${:g}": command.dollars,
        _counted("{:,d} token", command.tokens): command.tokens,
        _counted("{:,d} call", command.calls): command.calls,
    }


def _listed(requested: dict[str, float | None], allowed: str) -> str:
    """Format limits as a list. Raises Refused if no limit is set, or if any limit is invalid."""
    said = [text.format(value) for text, value in requested.items() if value is not None]
    if not said:
        raise Refused(f"the request does not change any limit; pass {allowed}")
    for text, value in requested.items():
        if value is not None and not 0 < value < float("inf"):
            raise Refused(f"{text.format(value)} is not a valid limit; use a number greater than 0")
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"


def _counted(text: str, number: float | None) -> str:
    return text if number == 1 else f"{text}s"


def _queued(variants: Iterable[str], why: str) -> tuple[VariantStage, ...]:
    """Return events that queue variants. The engine records them with the answer, so that it queues these variants
    again after a resume.
    """
    return tuple(VariantStage(variant=name, stage="queued", why=why) for name in variants)


_HANDLERS: dict[type, Callable[[Steering, Any], Outcome | Awaitable[Outcome]]] = {
    requests.Prune: Steering._prune,
    requests.Restore: Steering._restore,
    requests.Pin: Steering._pin,
    requests.Unpin: Steering._unpin,
    requests.Pause: Steering._pause,
    requests.Resume: Steering._resume,
    requests.Stop: Steering._stop,
    requests.CancelStop: Steering._cancel_stop,
    requests.SeedIdea: Steering._seed_idea,
    requests.SeedKernel: Steering._seed_kernel,
    requests.Retry: Steering._retry,
    requests.ChangeBudget: Steering._change_budget,
    requests.ChangeShare: Steering._change_share,
}
