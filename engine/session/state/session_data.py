"""The data in a session's state, with lookups. All functions are pure.

The event handlers change this data, and the ranking reads it. ``SessionState`` adds ``apply``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Literal, get_args

from msgspec import Struct, field

from engine.devices.fact import DeviceFact
from engine.session.records import events as ev
from engine.session.state.nodes import EngineState, IdeaState, ProblemState, RoundState, TurnState, VariantState
from engine.session.state.spend import MANUAL, Spending

LOG_LINES = 2000
Phase = Literal["running", "done", "waiting"]
"""In a session with turns: whether a problem's turn is open, over or still to come."""
Outcome = Literal["solved", "unsolved", "open", "pruned", "refused"]
"""``open``: no proposer can write kernels for the problem, and no person has seeded a correct kernel yet."""


class SessionData(Struct):
    """A session's state at event ``seq``.

    Three indexes speed up lookups. ``flight`` lists variants without a verdict, oldest first. ``below`` maps a node to
    the ideas or variants directly under it. ``derived`` maps a variant to the variants written from it. ``minutes``,
    ``rounds``, ``dollars``, ``tokens`` and ``calls`` are limits that a person set; None means that the config's limit
    applies. ``shares`` maps model names to limits; its entry "" contains the limits for each problem.

    ``pause_kept``: whether the search was paused before its engine was interrupted, and is still paused.

    ``turn`` is the open turn. ``takes_turns``: whether the search works on one problem at a time.

    ``awaited`` lists missing ideas and variants that other nodes refer to; it is empty in an undamaged session.
    ``verdicts`` counts kernels with a verdict, each once. ``useless`` names calls with unusable replies. ``waits``
    lists the devices that other processes occupy now. ``held_up_at`` is the time at which the last available device
    left or became occupied; time after this does not count toward the budget. ``heard_at`` is the time of the last
    event or heartbeat from the newest engine that recorded its start; 0 if unknown. Readers set this field each time
    they read the session. ``gone`` maps each departed device of another host to the reason. ``died``: whether the
    newest engine died. Readers set this field from the engine's lock, because no event records a death.
    """

    name: str = ""
    version: str = ""
    config: str = ""
    seed: int = 0
    seq: int = 0
    created_at: float = 0.0
    time: float = 0.0
    engine: EngineState | None = None
    starts: int = 0
    search_seconds: float = 0.0
    devices: dict[str, DeviceFact] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)
    waits: dict[str, ev.DeviceAwaited] = field(default_factory=dict)
    held_up_at: float | None = None
    problems: dict[str, ProblemState] = field(default_factory=dict)
    turn: TurnState | None = None
    takes_turns: bool = False
    refused: dict[str, ev.ProblemRefused] = field(default_factory=dict)
    ideas: dict[str, IdeaState] = field(default_factory=dict)
    variants: dict[str, VariantState] = field(default_factory=dict)
    flight: dict[str, None] = field(default_factory=dict)
    below: dict[str, list[str]] = field(default_factory=dict)
    derived: dict[str, list[str]] = field(default_factory=dict)
    awaited: set[str] = field(default_factory=set)
    pruned: set[str] = field(default_factory=set)
    pinned: set[str] = field(default_factory=set)
    paused: bool = False
    pause_kept: bool = False
    paused_at: float | None = None
    stop_planned: bool = False
    minutes: float | None = None
    rounds: int | None = None
    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None
    shares: dict[str, ev.ShareChanged] = field(default_factory=dict)
    spending: Spending = field(default_factory=Spending)
    handled: dict[int, ev.CommandHandled] = field(default_factory=dict)
    useless: set[str] = field(default_factory=set)
    log: deque[tuple[float, ev.LogLine]] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    verdicts: int = 0
    heard_at: float = 0.0
    died: bool = False

    def elapsed_s(self, now: float) -> float:
        """Return this session's engine time in seconds at ``now``. This time excludes pauses and time without an
        available device. If the engine died, pass the time of its last event or heartbeat as ``now``.
        """
        engine, seconds = self.engine, self.search_seconds
        if engine is not None and engine.stopped is None:
            seconds += max(0.0, now - engine.started_at)
        for since in (self.paused_at, self.held_up_at):
            if since is not None:
                seconds -= max(0.0, now - since)
        return seconds

    def problem_seconds(self, problem: str, now: float) -> float:
        """Return the engine time of all turns of a problem at ``now``, in seconds."""
        found = self.problems.get(problem)
        seconds = found.turn_seconds if found is not None else 0.0
        if self.turn is not None and self.turn.problem == problem:
            seconds += self.turn_s(now)
        return seconds

    def turn_s(self, now: float) -> float:
        """Return the engine time of the open turn at ``now``, in seconds, or 0 if no turn is open."""
        if self.turn is None:
            return 0.0
        now_s = self.turn.stopped_s if self.turn.stopped_s is not None else self.elapsed_s(now)
        return max(0.0, now_s - self.turn.began_s)

    def phase(self, problem: str) -> Phase | None:
        """Return whether a problem's turn is open, over or still to come. Return None in a session without turns."""
        if not self.takes_turns:
            return None
        if self.turn is not None and self.turn.problem == problem:
            return "running"
        found = self.problems.get(problem)
        over = found is None or found.turns > 0 or found.cannot_write is not None
        return "done" if over or problem in self.refused or self.is_pruned(problem) else "waiting"

    def phases(self) -> dict[str, Phase]:
        """Return every problem's ``phase``: first the problem with the open turn, then finished problems, then waiting
        problems.
        """
        found = {name: phase for name in self.problems | self.refused if (phase := self.phase(name)) is not None}
        return {name: phase for which in get_args(Phase) for name, phase in found.items() if phase == which}

    def last_moment(self, beat: float) -> float:
        """Return the time of the newest engine's last sign of life: the later of its last event and ``beat``. Ignore
        ``beat`` if the engine recorded a stop. ``beat`` is the time of the last heartbeat, according to the engine's
        clock. Heartbeats of earlier engines are older than the newest engine's events.
        """
        lives = self.engine is not None and self.engine.stopped is None
        return max(self.time, beat) if lives else self.time

    @property
    def died_at(self) -> float:
        """Estimate the time at which the newest engine died; 0 if it did not die. Events after this time are from an
        engine that has not recorded its start yet.
        """
        died = self.engine is not None and self.engine.stopped is None
        return self.heard_at if died else 0.0

    def outcome(self, problem: str) -> Outcome:
        """Return a problem's current outcome. A pruned problem is neither solved nor unsolved."""
        if self.is_pruned(problem):
            return "pruned"
        found = self.problems.get(problem)
        if found is None or problem in self.refused:
            return "refused"
        if found.best is not None:
            return "solved"
        return "open" if found.cannot_write is not None else "unsolved"

    def outcomes(self) -> dict[str, Outcome]:
        """Return every problem's ``outcome``, with refused problems last."""
        searched = [name for name in self.problems if name not in self.refused]
        return {name: self.outcome(name) for name in (*searched, *self.refused)}

    @property
    def nothing_correct(self) -> bool:
        """Whether no problem has a correct kernel. False if all problems are pruned."""
        outcomes = [outcome for outcome in self.outcomes().values() if outcome != "pruned"]
        return "solved" not in outcomes and (bool(outcomes) or not self.pruned)

    def is_pruned(self, node: str) -> bool:
        """Return whether ``node`` (a problem, idea or variant) or any of its ancestors is pruned."""
        return bool(self.pruned) and any(above in self.pruned for above in self.lineage(node))

    def is_pinned(self, node: str) -> bool:
        return any(above in self.pinned for above in self.lineage(node))

    def lineage(self, node: str) -> Iterator[str]:
        """Yield ``node`` and its ancestors: variant, its idea, the idea's parent variant, ..., the problem."""
        problem: str | None = None
        here: str | None = node
        while here is not None:
            yield here
            if (variant := self.variants.get(here)) is not None:
                problem, here = variant.problem, variant.idea
            elif (idea := self.ideas.get(here)) is not None:
                problem, here = idea.problem, idea.parent
            else:
                return
        if problem is not None:
            yield problem

    def ancestors(self, variant: str) -> list[str]:
        """Return ``variant`` and the variants from which it descends, newest first."""
        return [node for node in self.lineage(variant) if node in self.variants]

    def branch(self, node: str) -> set[str]:
        """Return all ideas and variants at or below ``node``."""
        found = {node} & (self.ideas.keys() | self.variants.keys())
        waiting = [node]
        while waiting:
            fresh = [other for other in self.below.get(waiting.pop(), ()) if other not in found]
            found.update(fresh)
            waiting += fresh
        return found

    def variants_of(self, problem: str) -> Iterator[VariantState]:
        found = self.problems.get(problem)
        return (self.variants[variant] for variant in (found.variants if found is not None else ()))

    def leaders(self, problem: str, count: int | None = None) -> list[VariantState]:
        """Return at most ``count`` correct, unpruned variants of a problem, fastest first."""
        found = self.problems.get(problem)
        ranking = found.ranking if found is not None else []
        return [self.variants[name] for name in islice((n for _, n in ranking if not self.is_pruned(n)), count)]

    def lacks_compile(self, problem: str) -> bool:
        """Return whether the search includes the problem and the session has no ``torch.compile`` baseline for it."""
        excluded = problem in self.refused or self.is_pruned(problem)
        return not excluded and "compile" not in self.problems[problem].baselines

    @property
    def has_running_rounds(self) -> bool:
        """Whether a stop after the running rounds has anything to wait for: a problem with an open round that a
        proposer can fill, with a kernel to judge, or with a model call in flight, such as for a seed after the rounds.
        With turns, only the open turn's problem counts.
        """
        if not self.problems:  # The engine opens the problems and runs their first rounds.
            return True
        turn = self.turn.problem if self.turn is not None else None
        waiting = {one.problem for one in self.in_flight() if not self.is_pruned(one.id)}
        waiting |= {call.site.problem for call in self.spending.flying.values() if call.provider != MANUAL}
        return any(
            name in waiting or (bool(one.rounds) and one.rounds[-1].finished_at is None and one.cannot_write is None)
            for name, one in self.problems.items()
            if (name == turn or not self.takes_turns) and name not in self.refused and not self.is_pruned(name)
        )

    def in_flight(self) -> list[VariantState]:
        """Variants without a verdict, oldest first."""
        return [self.variants[variant] for variant in self.flight]

    def at_work(self) -> list[VariantState]:
        """Variants without a verdict that the search will still judge, oldest first."""
        return [variant for variant in self.in_flight() if not self.is_left_over(variant)]

    def is_left_over(self, variant: VariantState) -> bool:
        """Return whether the search or the problem's turn ended before the judge evaluated the kernel. Only more rounds
        or another turn can give this kernel a verdict.
        """
        if variant.id not in self.flight or (problem := self.problems.get(variant.problem)) is None:
            return False
        if self.finished:
            return True
        turn_over = problem.turns > 0 and self.phase(problem.id) == "done"
        return turn_over and variant.stage_since <= problem.turn_ended_at

    @property
    def at_rest(self) -> bool:
        """Whether the newest engine stopped or died."""
        return self.died or (self.engine is not None and self.engine.stopped is not None)

    def awaits_resume(self, variant: VariantState) -> bool:
        """Return whether the engine stopped or died before the judge evaluated the kernel. A resumed engine evaluates
        it, unless the kernel is pruned.
        """
        if not self.at_rest or variant.id not in self.flight:
            return False
        return not self.is_left_over(variant) and not self.is_pruned(variant.id)

    def is_interrupted(self, variant: VariantState) -> bool:
        """Return whether the engine stopped or died during the kernel's evaluation. After a resume, the engine repeats
        the evaluation.
        """
        return self.awaits_resume(variant) and variant.stage not in (None, "queued")

    def not_judged(self, problem: str | None = None) -> int:
        """Return the number of kernels, of all problems or of one, that the judge did not evaluate before the newest
        engine stopped or died. Return 0 while an engine is running. The number includes pruned and leftover kernels.
        """
        if not self.at_rest:
            return 0
        return sum(problem in (None, self.variants[name].problem) for name in self.flight)

    def left_to_resume(self) -> int:
        """Return the number of kernels that a resumed engine evaluates. Return 0 while an engine is running."""
        return sum(map(self.awaits_resume, self.in_flight()))

    def best_of_round(self, problem: str, number: int) -> float | None:
        """Return the speedup over eager of the round's leader, from its verdict."""
        leader = self.leader_of_round(problem, number)
        return leader.speedup if leader is not None else None

    def leader_of_round(self, problem: str, number: int) -> VariantState | None:
        """Return a round's leader: the problem's best kernel at the round's end, if that kernel belongs to the round.
        If the best kernel belongs to another round, return the round's fastest kernel in the round's runoff. Return
        ``RoundState.best`` if there is no such kernel, or if the best kernel at the round's end no longer qualifies
        (:meth:`_best_at_end`). Treat an open round as if it ended now.
        """
        round_ = round_of(self, problem, number)
        if round_ is None:
            return None
        best = self._best_at_end(round_)
        if best is not None and best.round == number:
            return best
        for name in (one.variant for one in round_.standings if best is not None and one.decides):
            kernel = self.variants.get(name)
            if kernel is not None and kernel.round == number and kernel.correct and not self.is_pruned(name):
                return kernel
        return self.variants.get(round_.best) if round_.best is not None else None

    def _best_at_end(self, round_: RoundState) -> VariantState | None:
        """Return the problem's best kernel at the round's end, or now if the round is open.

        Returns None if there is no such kernel, or if the kernel was later pruned or failed. Also returns None if a
        restored kernel that was pruned at the round's end beats it.
        """
        name = round_.reached if round_.finished_at is not None else self.problems[round_.problem].best
        best = self.variants.get(name) if name is not None else None
        if best is None or best.speedup is None or self.is_pruned(best.id):
            return None
        return None if round_.finished_at is not None and self._is_overtaken(round_, best) else best

    def _is_overtaken(self, round_: RoundState, best: VariantState) -> bool:
        """Return whether a restored kernel of this or an earlier round beats ``best``, the problem's best kernel at the
        round's end. Consider only kernels that were pruned at the round's end.
        """
        restored = set(round_.pruned) - self.pruned
        if not restored:
            return False
        problem = self.problems[round_.problem]
        timed = any(one.standings for one in problem.rounds if one.number <= round_.number)
        for speedup, name in problem.ranking:
            if -speedup <= best.sure_speedup:  # All further kernels are slower.
                return False
            rival = self.variants[name]
            counts = rival.round <= round_.number and rival.beats(best, timed=timed) and not self.is_pruned(name)
            if counts and not restored.isdisjoint(self.lineage(name)):
                return True
        return False

    def best_after_round(self, problem: str, number: int) -> VariantState | None:
        """Return the problem's best kernel at the end of a round; for an open round, the best kernel so far.

        If that kernel was later pruned or failed, return the best of the leaders up to this round.
        """
        found, round_ = self.problems.get(problem), round_of(self, problem, number)
        if found is None or round_ is None:
            return None
        if (best := self._best_at_end(round_)) is not None:
            return best
        leaders = [self.leader_of_round(problem, one.number) for one in found.rounds if one.number <= number]
        timed = [one for one in leaders if one is not None and one.speedup is not None]
        return max(timed, key=lambda one: one.speedup or 0.0, default=None)

    @property
    def finished(self) -> bool:
        return self.engine is not None and self.engine.stopped == "finished"


def round_of(state: SessionData, problem: str, number: int) -> RoundState | None:
    """Return the latest round with the number ``number``, or None."""
    found = state.problems.get(problem)
    if found is None:
        return None
    for round_ in reversed(found.rounds):  # A generator would take twice as long, and each kernel causes three calls.
        if round_.number == number:
            return round_
    return None
