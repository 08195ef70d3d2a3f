"""Plans for the user's requests: the request, its inverse for undo, and a confirmation question."""

from __future__ import annotations

import math

from msgspec import Struct, field

from engine.session.budget import Cap
from engine.session.records import requests as requests
from engine.session.records.events import CommandHandled
from engine.session.records.requests import Command
from engine.session.records.verdict_text import speedup_words
from engine.session.state.session_state import SessionState
from engine.session.state.spend import Spend
from tui.text.sanitize import one_line
from tui.view.model import Model
from tui.view.next_steps import more_minutes, other_end, rounds_without_work
from tui.view.spend import caps_of

_UNSTARTED = ("waiting", "queued")
_LIMITS = ("minutes", "rounds", "dollars", "tokens", "calls")

GONE = "The session was moved or deleted. Open it at its new location: kernel-tui attach DIRECTORY"
FINISHED = "The search is complete"
_MORE = "Press M to allow more rounds and resume."
_ANOTHER = "More rounds might not help. Start a new session, for example with a language model."
STARTS_AGAIN = "The search has stopped. Changing a limit resumes it."
_KEPT = "All results are kept, and you can resume later."
_STOP = "A stop cannot be undone, but R resumes a stopped search."
_NEW_LIMIT = "A new limit cannot be removed. To change it, press M."


def finished_words(model: Model, doing: str = "") -> str:
    """Say that the search is complete and what to do.

    ``doing`` says what the user asked the engine to do, if anything.
    """
    other = other_end(model.state, model.limits.rounds)
    words = f"{FINISHED}, so no engine can {doing}" if doing else FINISHED
    if other:
        return f"{words} ({other}). {_ANOTHER}"
    return f"{words}. {_MORE}" if doing else f"{words}: all rounds are done. {_MORE}"


class Refused(Exception):
    """A request that the user cannot make. The message is a sentence that says why."""


class Step(Struct):
    """A request that the engine carried out, and the request that undoes it.

    Without an ``inverse``, ``why_final`` says that the request cannot be undone. ``in_flight`` is true while the step's
    undo or redo is waiting for the engine's answer.
    """

    forward: Command
    inverse: Command | None = None
    why_final: str = ""
    undone: bool = False
    in_flight: bool = False


class Plan(Struct, frozen=True):
    """A request to the engine, with its confirmation and undo.

    The row of ``node`` shows ``text`` until the engine answers. ``question`` contains the lines of the confirmation,
    with the question itself in the first line. If the request cannot be undone, ``why_final`` says so.
    Otherwise, if there is no ``inverse``, undo prunes the node that the request added. ``step`` is the step that the
    request undoes or redoes.
    """

    command: Command
    text: str
    node: str | None = None
    inverse: Command | None = None
    question: tuple[str, ...] = ()
    why_final: str = ""
    step: Step | None = None


def why_not_steer(model: Model, doing: str = "") -> str | None:
    """Return why a request would not reach an engine, or None if it would.

    ``doing`` says what the request asks the engine to do.
    """
    if model.source.read_only:
        return "This monitor is read-only."
    if model.link.gone:
        return GONE
    if model.engine == "finished":
        return finished_words(model, doing)
    if model.link.kind == "ended":
        engine = model.state.engine
        limited = more_minutes(model) is not None or (engine is not None and engine.stopped == "budget")
        key = "M to raise the limit and resume" if limited else "R to start one"
        return f"No engine is running on this session. Press {key}."
    return None if model.opened else "The session is still opening."


def plan_prune(state: SessionState, node: str) -> Plan:
    """Plan to prune a node, or to restore a pruned node."""
    if node in state.pruned:
        return Plan(requests.Restore(node=node), "restoring", node, requests.Prune(node=node))
    if state.is_pruned(node):
        above = next(other for other in state.lineage(node) if other in state.pruned)
        raise Refused(f"{node} is pruned because {above} is pruned. Restore {above} instead.")
    if node not in state.problems and node not in state.ideas and node not in state.variants:
        raise Refused("A round cannot be pruned. Select a problem, an idea or a kernel.")
    return Plan(requests.Prune(node=node), "pruning", node, requests.Restore(node=node), _what_dies(state, node))


def plan_pin(state: SessionState, node: str) -> Plan:
    if node in state.pinned:
        return Plan(requests.Unpin(node=node), "unpinning", node, requests.Pin(node=node))
    if node not in state.ideas and node not in state.variants:
        raise Refused("Only an idea or a kernel can be pinned. Select one.")
    return Plan(requests.Pin(node=node), "pinning", node, requests.Unpin(node=node))


def plan_pause(state: SessionState) -> Plan:
    if state.paused:
        return Plan(requests.Resume(), "unpausing the search", None, requests.Pause())
    return Plan(requests.Pause(), "pausing the search", None, requests.Resume())


def plan_retry(state: SessionState, node: str) -> Plan:
    if (variant := state.variants.get(node)) is None:
        raise Refused("Only a kernel can be judged again. Select one.")
    if variant.stage is not None:
        raise Refused(f"The engine is judging {node} now.")
    final = f"Judging {node} again cannot be undone."
    return Plan(requests.Retry(variant=node), "judging again", node, why_final=final)


def why_stays_stopped(model: Model, change: requests.ChangeBudget | requests.ChangeShare) -> str | None:
    """Return why a stopped search would stay stopped after ``change``, or None if it would continue.

    The check accepts any limit of a model or a problem, even if the search cannot continue yet.
    """
    if isinstance(change, requests.ChangeShare):
        return None
    minutes, rounds = change.minutes, change.rounds
    used, needed = model.search_seconds() / 60, more_minutes(model)
    allowed = minutes if minutes is not None else model.minutes
    too_few = minutes is not None and minutes <= max(used, needed or 0.0)
    if allowed is not None and (too_few or (minutes is None and needed is not None)):
        least = needed if needed is not None else math.ceil(used * 10) / 10
        said = f"{allowed:g} min allowed, {used:.1f} min used: the search stays stopped."
        return f"{said} Allow more than {least:g} min."
    if rounds is not None and (done := rounds_without_work(model.state, rounds)) is not None:
        return f"{_count(rounds, 'round')} allowed, {done} completed: the search stays stopped. Allow more."
    return None


def plan_budget(model: Model, change: requests.ChangeBudget | requests.ChangeShare, *, starts: bool = False) -> Plan:
    """Plan a change of limits. A limit below the amount already spent needs a confirmation.

    ``starts`` says whether the change starts the engine of a stopped search. Undo needs every changed limit's earlier
    value: a request cannot set "no limit" again.
    """
    if isinstance(change, requests.ChangeShare):
        return _plan_share(model, change, starts=starts)
    changed = [name for name in _LIMITS if getattr(change, name) is not None]
    before = requests.ChangeBudget(**{name: getattr(model.limits, name) for name in changed})
    final = "" if all(getattr(before, name) is not None for name in changed) else _NEW_LIMIT
    below = _below_what_is_spent(model, change)
    last = STARTS_AGAIN if starts else _KEPT
    question = ("Set a limit below the amount already spent?", *below, last) if below else ()
    return Plan(change, "changing the budget", None, None if final else before, question=question, why_final=final)


def _plan_share(model: Model, change: requests.ChangeShare, *, starts: bool) -> Plan:
    cap = caps_of(model).get(change.model, Cap())
    changed = [name for name in ("dollars", "tokens", "calls") if getattr(change, name) is not None]
    before = requests.ChangeShare(model=change.model, **{name: getattr(cap, name) for name in changed})
    final = "" if all(getattr(before, name) is not None for name in changed) else _NEW_LIMIT
    spending = model.state.spending
    spends = [spending.model.get(change.model, Spend())] if change.model else list(spending.problem.values())
    below = list(dict.fromkeys(text for spend in spends for text in _costs_below(change, spend)))
    below += [STARTS_AGAIN] if below and starts else []
    of = one_line(change.model, 60) or "a problem"
    question = (f"Set a limit for {of} below the amount already spent?", *below) if below else ()
    return Plan(change, "changing the budget", None, None if final else before, question=question, why_final=final)


def _below_what_is_spent(model: Model, change: requests.ChangeBudget) -> list[str]:
    """Return a line for each limit in ``change`` that the search has already reached."""
    spend, minutes = model.state.spending.total, model.search_seconds() / 60
    numbers = [problem.rounds[-1].number for problem in model.state.problems.values() if problem.rounds]
    said = []
    if change.minutes is not None and change.minutes <= minutes:
        said.append(f"{change.minutes:g} min allowed, {minutes:.1f} min used: the search stops now.")
    if change.rounds is not None and numbers and change.rounds < max(numbers):
        said.append(f"{_count(change.rounds, 'round')} allowed, round {max(numbers)} has started and is the last.")
    return [*said, *_costs_below(change, spend)]


def _costs_below(change: requests.ChangeBudget | requests.ChangeShare, spend: Spend) -> list[str]:
    said = []
    if change.dollars is not None and change.dollars <= spend.dollars:
        said.append(f"${change.dollars:g} allowed, ${spend.dollars:.2f} spent: no more model calls.")
    if change.tokens is not None and change.tokens <= spend.tokens:
        said.append(f"{change.tokens:,} tokens allowed, {spend.tokens:,} used: no more model calls.")
    if change.calls is not None and change.calls <= spend.calls:
        said.append(f"{change.calls:,} calls allowed, {spend.calls:,} made: no more model calls.")
    return said


def plan_stop_after_round(model: Model) -> Plan:
    """Plan to stop after the running rounds, or to cancel a planned stop."""
    state, planned = model.state, requests.Stop(after_round=True)
    if state.stop_planned:
        return Plan(requests.CancelStop(), "canceling the stop", None, planned)
    if not state.has_running_rounds:
        now = ("Stop the search now?", "No round is running, so the search stops at once.", _KEPT)
        return Plan(requests.Stop(), "stopping the search", None, question=now, why_final=_STOP)
    said = ["The search is paused, so its rounds continue after the pause."] if state.paused else []
    if not state.takes_turns and model.limits.torch_compile:
        searched = [name for name in state.problems if name not in state.refused and not state.is_pruned(name)]
        lacking = sum(map(state.lacks_compile, searched))
        if lacking:
            of_all = "this problem" if len(searched) == 1 else f"{lacking} of {_count(len(searched), 'problem')}"
            said.append(f"The torch.compile time of {of_all} is still missing. A resume measures it.")
    question = ("Stop the search after the running rounds?", *said, f"{_KEPT} To cancel the stop, press S again.")
    return Plan(planned, "stopping after the running rounds", None, requests.CancelStop(), question)


def plan_stop(state: SessionState) -> Plan:
    question = ("Stop the search now?", *_left_to_resume(state), _KEPT)
    return Plan(requests.Stop(), "stopping the search", None, question=question, why_final=_STOP)


def _what_dies(state: SessionState, node: str) -> tuple[str, ...]:
    branch = state.branch(node)
    variants = [state.variants[name] for name in branch if name in state.variants]
    ideas = sum(name in state.ideas for name in branch)
    running = sum(variant.stage is not None and variant.stage not in _UNSTARTED for variant in variants)
    unstarted = sum(variant.stage in _UNSTARTED for variant in variants)
    lines = [f"Prune {node}?"]
    if branch != {node}:
        lines.append(f"The branch contains {_count(ideas, 'idea')} and {_count(len(variants), 'kernel')}.")
    if running or unstarted:
        lines.append(_what_stops(running, unstarted))
    bests = [problem.id for problem in state.problems.values() if problem.best in branch]
    for problem in bests:
        best = state.variants[state.problems[problem].best or ""]
        lines.append(f"The branch contains the best kernel of {problem}: {best.id}, {speedup_words(best.verdict)}.")
    pinned = sorted(name for name in branch if name in state.pinned)
    if pinned:
        lines.append(f"The branch contains pinned nodes: {', '.join(pinned[:5])}.")
    return (*lines, "Pruned kernels cannot be parents or the best until you restore them (d again, or z).")


def _left_to_resume(state: SessionState) -> list[str]:
    """Say what a stop does to the evaluations that are running or waiting, if any."""
    flight = [variant for variant in state.at_work() if not state.is_pruned(variant.id)]
    unstarted = sum(variant.stage in _UNSTARTED for variant in flight)
    running, said = len(flight) - unstarted, []
    if running:
        again = "it" if running == 1 else "them"
        said.append(f"This cancels {_count(running, 'running evaluation')}. A resume repeats {again}.")
    if unstarted:
        kept = "is" if unstarted == 1 else "are"
        said.append(f"{_count(unstarted, 'waiting or queued kernel')} {kept} kept for a resume.")
    return said


def _what_stops(running: int, unstarted: int) -> str:
    """Say what happens to the evaluations. At least one of the two numbers must be above 0."""
    both = [f"cancels {_count(running, 'running evaluation')}"] if running else []
    both += [f"drops {_count(unstarted, 'waiting or queued evaluation')}"] if unstarted else []
    return f"This {' and '.join(both)}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class History(Struct):
    """The requests that the user can undo and redo, oldest first. Only the engine's answers change the history.

    An undo or redo skips steps whose undo or redo is still unanswered. While a new request is unanswered, nothing can
    be undone or redone: undo takes the user's last request, and a new request ends what redo can repeat.
    """

    _steps: list[Step] = field(default_factory=list)
    _awaited: list[Plan] = field(default_factory=list)

    def sent(self, plan: Plan) -> None:
        """Record that the user made the plan's request."""
        if plan.step is None:
            self._awaited.append(plan)

    def answered(self, plan: Plan, handled: CommandHandled) -> None:
        """Record whether the engine carried out the plan."""
        self._forget(plan)
        if plan.step is not None:
            plan.step.in_flight = False
            plan.step.undone ^= handled.ok
            return
        if not handled.ok:
            return
        step = None
        if plan.inverse is not None or plan.why_final:
            step = Step(plan.command, plan.inverse, plan.why_final)
        elif handled.node is not None:  # The request was a seed, so undo prunes its node.
            step = Step(requests.Restore(node=handled.node), requests.Prune(node=handled.node))
        kept = [one for one in self._steps if not one.undone or one.in_flight]
        self._steps = [*kept, step] if step is not None else kept

    def unanswered(self, plan: Plan) -> None:
        """Record that no engine received the plan's request, or that the engine ended before answering."""
        self._forget(plan)
        if plan.step is not None:
            plan.step.in_flight = False

    def _forget(self, plan: Plan) -> None:
        self._awaited = [one for one in self._awaited if one is not plan]

    @property
    def undoes(self) -> bool:
        """Whether there is something to undo."""
        return any(step.inverse is not None and not step.undone and not step.in_flight for step in self._steps)

    def undo(self) -> Plan:
        """Return the plan that undoes the last request. Raises Refused if there is nothing to undo.

        If the last request cannot be undone, the refusal says why. The next call then undoes the last request that can
        be undone. If the engine has not answered the user's last request yet, the refusal says so.
        """
        self._refuse_while_awaited("z")
        for step in reversed(self._steps):
            if step.undone or step.in_flight:
                continue
            if step.inverse is None:
                self._steps = [one for one in self._steps if one.inverse is not None]
                more = " To undo an earlier request, press z again." if self.undoes else ""
                raise Refused(step.why_final + more)
            step.in_flight = True
            return Plan(step.inverse, "undoing", _node(step.inverse), step=step)
        raise Refused("Nothing to undo.")

    def redo(self) -> Plan:
        """Return the plan that redoes the last undone request. Raises Refused if there is nothing to redo, or if the
        engine has not answered the last request yet.
        """
        self._refuse_while_awaited("Z")
        for step in self._steps:
            if step.undone and not step.in_flight:
                step.in_flight = True
                return Plan(step.forward, "redoing", _node(step.forward), step=step)
        raise Refused("Nothing to redo.")

    def _refuse_while_awaited(self, key: str) -> None:
        if self._awaited:
            last = self._awaited[-1]
            what = f"{last.text}{f' {last.node}' if last.node is not None else ''}"
            words = f"The engine has not answered your last request yet: {what}."
            raise Refused(f"{words} Press {key} again after its answer.")


def _node(command: Command) -> str | None:
    return getattr(command, "node", None)
