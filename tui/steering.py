"""What a person may ask of the search, as plans: the command, its inverse, and the question to answer first."""

from __future__ import annotations

from msgspec import Struct, field

from engine import commands as cmd
from engine.budget import Cap
from engine.commands import Command
from engine.events import CommandHandled
from engine.spend import Spend
from engine.state import SessionState
from tui.certainty import factor_words
from tui.model import Model
from tui.sanitize import one_line
from tui.spend import caps_of

_LIMITS = ("minutes", "rounds", "dollars", "tokens", "calls")


class Refused(Exception):
    """Why a wish makes no sense here, in one sentence."""


class Plan(Struct, frozen=True):
    """``text``: what the row shows while the command is pending. ``node``: that row. ``question``: the lines
    to confirm. ``undoable``: whether ``z`` takes it back; without an ``inverse`` that prunes what the command made."""

    command: Command
    text: str
    node: str | None = None
    inverse: Command | None = None
    question: tuple[str, ...] = ()
    undoable: bool = True


def plan_prune(state: SessionState, node: str) -> Plan:
    """Prune, or restore what is pruned."""
    if node in state.pruned:
        return Plan(cmd.Restore(node=node), "restoring", node, cmd.Prune(node=node))
    if state.is_pruned(node):
        above = next(other for other in state.lineage(node) if other in state.pruned)
        raise Refused(f"{node} is pruned with {above} above it; restore {above}.")
    if node not in state.problems and node not in state.ideas and node not in state.variants:
        raise Refused("A round cannot be pruned: choose a problem, an idea or a kernel.")
    return Plan(cmd.Prune(node=node), "pruning", node, cmd.Restore(node=node), _what_dies(state, node))


def plan_pin(state: SessionState, node: str) -> Plan:
    if node in state.pinned:
        return Plan(cmd.Unpin(node=node), "unpinning", node, cmd.Pin(node=node))
    if node not in state.ideas and node not in state.variants:
        raise Refused("Only an idea or a kernel can be pinned.")
    return Plan(cmd.Pin(node=node), "pinning", node, cmd.Unpin(node=node))


def plan_pause(state: SessionState) -> Plan:
    if state.paused:
        return Plan(cmd.Resume(), "resuming the search", None, cmd.Pause())
    return Plan(cmd.Pause(), "pausing the search", None, cmd.Resume())


def plan_retry(state: SessionState, node: str) -> Plan:
    if (variant := state.variants.get(node)) is None:
        raise Refused("Only a kernel can be judged again.")
    if variant.stage is not None:
        raise Refused(f"{node} is being judged now.")
    return Plan(cmd.Retry(variant=node), "judging again", node, undoable=False)


def plan_budget(model: Model, change: cmd.ChangeBudget | cmd.ChangeShare) -> Plan:
    """What ``change`` names; what it leaves out stays as it is. A limit below what is spent is asked about first."""
    if isinstance(change, cmd.ChangeShare):
        return _plan_share(model, change)
    changed = [name for name in _LIMITS if getattr(change, name) is not None]
    before = cmd.ChangeBudget(**{name: getattr(model.limits, name) for name in changed})
    known = before != cmd.ChangeBudget()
    below = _below_what_is_spent(model, change)
    question = ("Set a limit below what is spent?", *below, "Everything is kept; resume goes on.") if below else ()
    return Plan(change, "changing the budget", None, before if known else None, question=question, undoable=known)


def _plan_share(model: Model, change: cmd.ChangeShare) -> Plan:
    cap = caps_of(model).get(change.model, Cap())
    changed = [name for name in ("dollars", "tokens", "calls") if getattr(change, name) is not None]
    before = cmd.ChangeShare(model=change.model, **{name: getattr(cap, name) for name in changed})
    known = before != cmd.ChangeShare(model=change.model)
    spending = model.state.spending
    spends = [spending.model.get(change.model, Spend())] if change.model else list(spending.problem.values())
    below = list(dict.fromkeys(text for spend in spends for text in _costs_below(change, spend)))
    of = one_line(change.model, 60) or "a problem"
    question = (f"Set a limit of {of} below what it spent?", *below) if below else ()
    return Plan(change, "changing the budget", None, before if known else None, question=question, undoable=known)


def _below_what_is_spent(model: Model, change: cmd.ChangeBudget) -> list[str]:
    """A line for each limit of ``change`` that is reached already."""
    spend, minutes = model.state.spending.total, model.search_seconds() / 60
    numbers = [problem.rounds[-1].number for problem in model.state.problems.values() if problem.rounds]
    said = []
    if change.minutes is not None and change.minutes <= minutes:
        said.append(f"{change.minutes:g} min allowed, {minutes:.1f} min spent: it ends at once.")
    if change.rounds is not None and numbers and change.rounds < max(numbers):
        said.append(f"{_count(change.rounds, 'round')} allowed, round {max(numbers)} has begun: no other one follows.")
    return [*said, *_costs_below(change, spend)]


def _costs_below(change: cmd.ChangeBudget | cmd.ChangeShare, spend: Spend) -> list[str]:
    said = []
    if change.dollars is not None and change.dollars <= spend.dollars:
        said.append(f"${change.dollars:g} allowed, ${spend.dollars:.2f} spent: no model is asked again.")
    if change.tokens is not None and change.tokens <= spend.tokens:
        said.append(f"{change.tokens:,} tokens allowed, {spend.tokens:,} spent: no model is asked again.")
    if change.calls is not None and change.calls <= spend.calls:
        said.append(f"{change.calls:,} calls allowed, {spend.calls:,} made: no model is asked again.")
    return said


def plan_stop(state: SessionState, *, after_round: bool) -> Plan:
    flight = state.in_flight()
    busy = sum(variant.stage != "queued" for variant in flight)
    question: tuple[str, ...]
    if after_round:
        question = ("Stop the search when the running rounds are done?", "Everything is kept; resume goes on.")
        return Plan(cmd.Stop(after_round=True), "stopping after the round", None, question=question, undoable=False)
    question = (
        "Stop the search now?",
        *([_what_stops(busy, len(flight) - busy)] if flight else []),
        "Everything recorded is kept; resume goes on from there.",
    )
    return Plan(cmd.Stop(), "stopping the search", None, question=question, undoable=False)


def _what_dies(state: SessionState, node: str) -> tuple[str, ...]:
    branch = state.branch(node)
    variants = [state.variants[name] for name in branch if name in state.variants]
    ideas = sum(name in state.ideas for name in branch)
    running = sum(variant.stage not in (None, "queued") for variant in variants)
    queued = sum(variant.stage == "queued" for variant in variants)
    lines = [f"Prune {node}?"]
    if branch != {node}:
        lines.append(f"The branch holds {_count(ideas, 'idea')} and {_count(len(variants), 'kernel')}.")
    if running or queued:
        lines.append(_what_stops(running, queued))
    bests = [problem.id for problem in state.problems.values() if problem.best in branch]
    for problem in bests:
        best = state.variants[state.problems[problem].best or ""]
        lines.append(f"It holds the best kernel of {problem}: {best.id}, {factor_words(best.verdict)}.")
    pinned = sorted(name for name in branch if name in state.pinned)
    if pinned:
        lines.append(f"Pinned in it: {', '.join(pinned[:5])}.")
    return (*lines, "It is never a parent or the best again until restored (d again, or z).")


def _what_stops(running: int, queued: int) -> str:
    """Of evaluations, at least one of which there is."""
    stops = [f"{_count(running, 'running evaluation')} cancelled"] if running else []
    return ", ".join([*stops, *([f"{queued} queued dropped"] if queued else [])]) + "."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class History(Struct):
    """What can be undone and redone. Fed by the engine's answers, so that only what happened can be taken back."""

    _done: list[tuple[Command, Command]] = field(default_factory=list)
    _undone: list[tuple[Command, Command]] = field(default_factory=list)

    def happened(self, plan: Plan, handled: CommandHandled) -> None:
        """A plan that is neither undo nor redo was carried out."""
        if not plan.undoable or not handled.ok:
            return
        inverse = plan.inverse
        if inverse is None and handled.node is not None:  # a seed: taken back by pruning what it made
            inverse, again = cmd.Prune(node=handled.node), cmd.Restore(node=handled.node)
            self._done.append((again, inverse))
        elif inverse is not None:
            self._done.append((plan.command, inverse))
        self._undone.clear()

    @property
    def undoes(self) -> bool:
        """Whether there is something to undo."""
        return bool(self._done)

    def undo(self) -> Plan:
        """Raises Refused when there is nothing to undo."""
        if not self._done:
            raise Refused("Nothing to undo.")
        forward, inverse = self._done.pop()
        self._undone.append((forward, inverse))
        return Plan(inverse, "undoing", _node(inverse), undoable=False)

    def redo(self) -> Plan:
        """Raises Refused when there is nothing to redo."""
        if not self._undone:
            raise Refused("Nothing to redo.")
        forward, inverse = self._undone.pop()
        self._done.append((forward, inverse))
        return Plan(forward, "redoing", _node(forward), undoable=False)


def _node(command: Command) -> str | None:
    return getattr(command, "node", None)
