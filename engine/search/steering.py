"""A person's commands: checked, recorded as events together with the answer, then carried out."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from engine import clock
from engine import commands as cmd
from engine import events as ev
from engine.budget import caps_of, elapsed_s
from engine.events import BY_HAND, AnyEvent, CommandHandled, IdeaProposed, IdeaWaiting, VariantStage, VariantWritten
from engine.naming import UnknownName, check_model, check_names, named_idea, named_problem, named_variant
from engine.near import did_you_mean
from engine.nodes import MOVE
from engine.search.context import Context
from engine.search.telling import SEEDED
from engine.search.untried import why_nothing_new
from engine.session import SentCommand, SessionError
from engine.state import ProblemState

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """``events`` are recorded with the answer; ``then`` runs once they are folded. ``unknown``: see CommandHandled."""

    message: str
    ok: bool = True
    unknown: bool = False
    node: str | None = None
    events: tuple[AnyEvent, ...] = ()
    then: Callable[[], None] | None = None


class Refused(Exception):
    """A command that cannot be carried out; the text is the answer."""


class Steering:
    """Carries out commands. ``cancel`` takes variants out of the queue, ``requeue`` puts recorded ones back in."""

    def __init__(
        self, context: Context, cancel: Callable[[Iterable[str]], None], requeue: Callable[[Iterable[str]], None]
    ) -> None:
        self._context = context
        self._state = context.state
        self._cancel = cancel
        self._requeue = requeue

    async def handle(self, sent: SentCommand) -> None:
        """Answer one command. Raises SessionError when the session cannot be written."""
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
                outcome = Outcome(str(refusal), ok=False)
            except SessionError:
                raise
            except Exception as error:  # a fault of ours (or of a proposer's catalogue) must not end the search
                _log.exception("command %d failed", sent.id)
                outcome = Outcome(f"failed inside the engine: {type(error).__name__}: {error}; see its log", ok=False)
        handled = CommandHandled(
            command=sent.id, ok=outcome.ok, message=outcome.message, node=outcome.node, unknown=outcome.unknown
        )
        await self._context.journal.record(*outcome.events, handled)
        if outcome.then is not None:
            outcome.then()

    # Branches

    def _prune(self, command: cmd.Prune) -> Outcome:
        node = command.node
        if node in self._state.pruned:
            return Outcome(f"{node} is pruned already", node=node)
        flying = [one.id for one in self._state.in_flight() if node in self._state.lineage(one.id)]
        below = sum(1 for one in self._state.branch(node) if one in self._state.variants and one != node)
        said = f"pruned {node}"
        if below:
            said += f" and {below} kernel{'s' * (below != 1)} below it"
        if flying:
            said += f"; {len(flying)} that {'was' if len(flying) == 1 else 'were'} queued or running will not be judged"
        return Outcome(
            said,
            node=node,
            events=(ev.NodePruned(node=node),),
            then=lambda: self._cancel(flying),
        )

    def _restore(self, command: cmd.Restore) -> Outcome:
        node = command.node
        if node not in self._state.pruned:
            above = [one for one in self._state.lineage(node) if one in self._state.pruned]
            raise Refused(f"{node} is not pruned" + (f" itself: restore {above[0]} above it" if above else ""))

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

    def _pin(self, command: cmd.Pin) -> Outcome:
        node = command.node
        if node in self._state.pinned:
            return Outcome(f"{node} is pinned already", node=node)
        if self._state.is_pruned(node):
            raise Refused(f"{node} is pruned: restore it before pinning it")
        return Outcome(
            f"pinned {node}: its fastest kernel is always carried", node=node, events=(ev.NodePinned(node=node),)
        )

    def _unpin(self, command: cmd.Unpin) -> Outcome:
        node = command.node
        if node not in self._state.pinned:
            raise Refused(f"{node} is not pinned")
        return Outcome(f"unpinned {node}", node=node, events=(ev.NodeUnpinned(node=node),))

    # The whole search

    def _pause(self, command: cmd.Pause) -> Outcome:
        if self._state.paused:
            return Outcome("the search is paused already")
        running = sum(1 for one in self._state.in_flight() if one.stage != "queued")
        tail = f"; {running} running evaluation{'s' * (running != 1)} will finish" if running else ""
        return Outcome(f"paused: nothing new is started{tail}", events=(ev.SearchPaused(),))

    def _resume(self, command: cmd.Resume) -> Outcome:
        if not self._state.paused:
            return Outcome("the search is not paused")
        return Outcome("the search goes on", events=(ev.SearchResumed(),))

    def _stop(self, command: cmd.Stop) -> Outcome:
        def stop() -> None:
            if command.when_idle:
                self._context.until_idle = True
            elif command.after_round:
                self._context.last_rounds = True
            else:
                self._context.ending = "stopped"

        if command.when_idle:
            return Outcome("stopping once only replies by hand are missing", then=stop)
        return Outcome("stopping after the running rounds" if command.after_round else "stopping now", then=stop)

    def _change_budget(self, command: cmd.ChangeBudget) -> Outcome:
        wishes: dict[str, float | None] = {
            _counted("{:g} minute", command.minutes): command.minutes,
            _counted("{:d} round", command.rounds): command.rounds,
            **_costs(command),
        }
        listed = _listed(wishes, "minutes, rounds, dollars, tokens or calls")
        change = ev.BudgetChanged(
            minutes=command.minutes,
            rounds=command.rounds,
            dollars=command.dollars,
            tokens=command.tokens,
            calls=command.calls,
        )
        spent = elapsed_s(self._state, clock.now()) / 60
        over = command.minutes is not None and command.minutes <= spent
        ends = f", and {spent:.1f} minutes are spent: the search ends" if over else ""
        return Outcome(f"the budget is {listed}{ends}", events=(change,))

    def _change_share(self, command: cmd.ChangeShare) -> Outcome:
        known = caps_of(self._state, self._context.config).models
        if command.model:
            check_model(known, command.model)
        listed = _listed(_costs(command), "dollars, tokens or calls")
        change = ev.ShareChanged(
            model=command.model, dollars=command.dollars, tokens=command.tokens, calls=command.calls
        )
        return Outcome(f"the budget of {command.model or 'each problem'} is {listed}", events=(change,))

    # Seeds

    async def _seed_idea(self, command: cmd.SeedIdea) -> Outcome:
        problem = self._problem(command.problem)
        parent = self._not_pruned(command.parent) or problem.best
        category, text, author = command.category, command.text.strip(), BY_HAND
        data: dict[str, Any] = {}
        if command.catalogue is not None:
            category, move_text, data, author = self._move(problem, command.catalogue)
            text = text or move_text
            writer = self._context.proposer(author)
            if writer is not None and not writer.reads_prose:
                nothing = await why_nothing_new(self._context, writer, problem, parent, command.catalogue)
                if nothing is not None:
                    raise Refused(nothing)
        else:
            if not text:
                raise Refused("an idea without words: say what to try, or name a move of the catalogue")
            readers = [one for one in self._context.proposers_for(problem.id) if one.reads_prose]
            author = readers[0].name if readers else BY_HAND
        idea = self._idea(problem, parent, category, text, author, data)
        if author != BY_HAND:
            said = self._when_work_begins(f"{idea.idea}: {author} writes kernels for it")
            return Outcome(said, node=idea.idea, events=(idea,))
        reason = "no proposer of this session reads prose; write the kernel and seed it with"
        reason += f" seed-kernel --idea {idea.idea}"
        waiting = IdeaWaiting(idea=idea.idea, reason=reason)
        return Outcome(f"{idea.idea} waits for an author: {reason}", node=idea.idea, events=(idea, waiting))

    def _seed_kernel(self, command: cmd.SeedKernel) -> Outcome:
        problem = self._problem(command.problem)
        written_for = named_idea(self._state, problem, command.idea) if command.idea is not None else None
        self._not_pruned(command.idea)
        parent = self._not_pruned(command.parent)
        if parent is None and written_for is not None:
            parent = written_for.parent
        if not command.source.strip():
            raise Refused("the kernel is empty")
        if command.form != problem.form:
            raise Refused(
                f"{problem.id} is searched as .{problem.form} on this device; a .{command.form} kernel cannot be judged"
            )
        digest = self._context.sources.claim(problem.id, command.source)
        if digest is None:
            known = [one.id for one in self._state.variants_of(problem.id)]
            same = next((one for one in known if self._source(one) == command.source), "an earlier kernel")
            raise Refused(f"the same source is {same} already; retry judges it again")
        new: tuple[IdeaProposed, ...] = ()
        if written_for is not None:
            idea, round_number = written_for.id, written_for.round
        else:
            new = (self._idea(problem, parent, "other", command.text.strip() or "seeded by hand", BY_HAND, {}),)
            idea, round_number = new[0].idea, new[0].round
        variant = VariantWritten(
            variant=self._context.ids.variant(),
            idea=idea,
            problem=problem.id,
            round=round_number,
            parent=parent,
            form=command.form,
            source=digest,
            proposer=BY_HAND,
            note="by hand",
        )
        said = self._when_work_begins(f"{variant.variant} is judged next, as {idea}")
        return Outcome(said, node=variant.variant, events=(*new, variant))

    def _retry(self, command: cmd.Retry) -> Outcome:
        variant = named_variant(self._state, command.variant)
        if variant.stage is not None:
            raise Refused(f"{variant.id} is being judged already")
        if self._state.is_pruned(variant.id):
            raise Refused(f"{variant.id} is pruned: restore it first")
        return Outcome(
            self._when_work_begins(f"{variant.id} is judged again"),
            node=variant.id,
            events=_queued([variant.id], "asked for by hand"),
            then=lambda: self._requeue([variant.id]),
        )

    # Checking

    def _when_work_begins(self, said: str) -> str:
        """``said``, and what it waits for where the search begins no new work."""
        if self._context.ending == "budget":
            return f"{said}, once there are more minutes: what is left of them is kept for heats and baselines"
        if self._context.ending is not None:
            return f"{said}, once the search is resumed: it is stopping"
        return f"{said}, once the search goes on: it is paused" if self._state.paused else said

    def _problem(self, name: str) -> ProblemState:
        if (refused := self._state.refused.get(name)) is not None:
            raise Refused(f"{name} is not searched: {refused.reason}")
        problem = named_problem(self._state, name)
        if not problem.rounds:
            raise Refused(f"{name} is still being opened; try again in a moment")
        if self._state.is_pruned(name):
            raise Refused(f"{name} is pruned: restore it first")
        return problem

    def _not_pruned(self, name: str | None) -> str | None:
        if name is not None and self._state.is_pruned(name):
            raise Refused(f"{name} is pruned: restore it first")
        return name

    def _move(self, problem: ProblemState, name: str) -> tuple[str, str, dict[str, Any], str]:
        """Category, text, the proposer's data and its name, for a move of a catalogue."""
        names: list[str] = []
        for proposer in self._context.proposers_for(problem.id):
            for entry in proposer.catalogue(self._context.task(problem)):
                if entry.name == name:
                    return entry.category, entry.text, {MOVE: name}, proposer.name
                names.append(entry.name)
        near = did_you_mean(name, names)
        there = ", ".join(names) or "none"
        raise UnknownName(f"no move {name} for {problem.id}{f'{near} There' if near else '; there'} are {there}")

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

    def _source(self, variant: str) -> str:
        return self._context.sources.text(self._state.variants[variant].source)


def _costs(command: cmd.ChangeBudget | cmd.ChangeShare) -> dict[str, float | None]:
    """What models may cost, by how it is said."""
    return {
        "${:g}": command.dollars,
        _counted("{:,d} token", command.tokens): command.tokens,
        _counted("{:,d} call", command.calls): command.calls,
    }


def _listed(wishes: dict[str, float | None], allowed: str) -> str:
    """Limits in words. Raises Refused where there is none, or one makes no sense."""
    said = [text.format(value) for text, value in wishes.items() if value is not None]
    if not said:
        raise Refused(f"nothing to change: give {allowed}")
    for text, value in wishes.items():
        if value is not None and not 0 < value < float("inf"):
            raise Refused(f"{text.format(value)}: must be more than 0")
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"


def _counted(text: str, number: float | None) -> str:
    return text if number == 1 else f"{text}s"


def _queued(variants: Iterable[str], why: str) -> tuple[VariantStage, ...]:
    """Recorded with the answer, so that a resumed engine judges what it was promised to."""
    return tuple(VariantStage(variant=name, stage="queued", why=why) for name in variants)


_HANDLERS: dict[type, Callable[[Steering, Any], Outcome | Awaitable[Outcome]]] = {
    cmd.Prune: Steering._prune,
    cmd.Restore: Steering._restore,
    cmd.Pin: Steering._pin,
    cmd.Unpin: Steering._unpin,
    cmd.Pause: Steering._pause,
    cmd.Resume: Steering._resume,
    cmd.Stop: Steering._stop,
    cmd.SeedIdea: Steering._seed_idea,
    cmd.SeedKernel: Steering._seed_kernel,
    cmd.Retry: Steering._retry,
    cmd.ChangeBudget: Steering._change_budget,
    cmd.ChangeShare: Steering._change_share,
}
