"""What the monitor knows of a session: the fold, the device readings, the link to the engine, what is pending."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from msgspec import Struct, field

from engine.budget import elapsed_s
from engine.commands import Command
from engine.events import CommandHandled, DeviceAwaited
from engine.state import ProblemState, SessionState, VariantState
from engine.verdict import Verdict
from tui.results import without_compile
from tui.sanitize import one_line
from tui.source import HISTORY_S, Limits, Link, Reading, Source, Update
from tui.story import Story

READINGS = 900

EngineKind = Literal[
    "connecting",
    "starting",
    "live",
    "stalled",
    "replay",
    "dead",
    "ended early",
    "stopped",
    "finished",
    "never ran",
    "gone",
]
"""``dead``: it ended without a word. ``ended early``: its lock says why, its events do not (disk full). ``gone``: the
session was moved or deleted."""


class Pending(Struct, frozen=True):
    """A command that the engine has not answered. ``node`` is the row that shows it, ``text`` what it shows."""

    number: int
    command: Command
    node: str | None
    text: str
    sent_at: float


class Model(Struct):
    """One session as a monitor sees it. Changed by the app's thread only."""

    source: Source
    state: SessionState = field(default_factory=SessionState)
    story: Story = field(default_factory=Story)
    link: Link = field(default_factory=lambda: Link("connecting"))
    readings: deque[Reading] = field(default_factory=lambda: deque(maxlen=READINGS))
    pending: dict[int, Pending] = field(default_factory=dict)
    trouble: str | None = None
    opened: bool = False
    playing: Callable[[], str] | None = None
    """Of a replay: its place and speed, in words."""
    recorded_starts: int = 0
    """Of a replay: how often an engine was started in all of the recording."""
    recorded_at: Callable[[float], float] | None = None
    """Of a replay: when what it shows at a time had happened."""

    def now(self) -> float:
        return self.source.now()

    def take(self, update: Update) -> None:
        """Everything but the events, which the app folds one by one."""
        if update.state is not None:
            self.state, self.story, self.opened = update.state, update.story or Story(), True
            self.readings.clear()
        self.readings.extend(update.readings)
        if update.link is not None:
            self.link = update.link

    @property
    def engine(self) -> EngineKind:
        """How the engine is, by its lock and its own words together."""
        if self.link.kind != "ended":
            return self.link.kind
        if self.link.gone:
            return "gone"
        engine = self.state.engine
        if engine is None:
            return "never ran"
        if engine.stopped is None:
            return "ended early" if self.link.message else "dead"
        return "finished" if engine.stopped == "finished" else "stopped"

    def answered(self, handled: CommandHandled) -> Pending | None:
        return self.pending.pop(handled.command, None)

    def give_up_pending(self) -> list[Pending]:
        """The engine has ended: nobody answers what is pending."""
        left = list(self.pending.values())
        self.pending.clear()
        return left

    def pending_at(self, node: str) -> str | None:
        """What waits to be done to ``node``, None for most nodes."""
        return next((one.text for one in self.pending.values() if one.node == node), None)

    def latest(self) -> Reading | None:
        return self.readings[-1] if self.readings else None

    def recent(self) -> list[Reading]:
        since = (self.readings[-1].time if self.readings else 0.0) - HISTORY_S
        return [reading for reading in self.readings if reading.time >= since]

    def best(self, problem: ProblemState) -> VariantState | None:
        return self.state.variants.get(problem.best) if problem.best is not None else None

    def verdict_of_best(self, problem: ProblemState) -> Verdict | None:
        best = self.best(problem)
        return best.verdict if best is not None else None

    @property
    def limits(self) -> Limits:
        """What the search may spend, as changed last."""
        state, created = self.state, self.source.limits
        return Limits(
            minutes=state.minutes if state.minutes is not None else created.minutes,
            rounds=state.rounds if state.rounds is not None else created.rounds,
            dollars=state.dollars if state.dollars is not None else created.dollars,
            tokens=state.tokens if state.tokens is not None else created.tokens,
            calls=state.calls if state.calls is not None else created.calls,
            torch_compile=created.torch_compile,
            other_sizes=created.other_sizes,
        )

    def shown_whole_by(self, node: str) -> str:
        """What prints all of a text of ``node`` that is too long for a pane."""
        return f"all of it: kernel-tui show {one_line(self.source.argument, 200)} {node} --json"

    def without_compile(self, problem: ProblemState) -> str:
        """Why ``problem`` has no time of torch.compile, in a word or two."""
        alive = self.link.kind in ("starting", "live", "stalled", "replay")
        return without_compile(problem, measured=self.source.limits.torch_compile, pending=alive)

    @property
    def wait(self) -> DeviceAwaited | None:
        """The first of the session's devices that a process outside this search keeps from it."""
        if self.link.kind not in ("live", "stalled", "replay"):
            return None
        return next(iter(self.state.waits.values()), None)

    @property
    def minutes(self) -> float | None:
        """The limit on the minutes of search."""
        return self.limits.minutes

    @property
    def rounds(self) -> int | None:
        return self.limits.rounds

    def search_seconds(self) -> float:
        """Seconds of search so far, over all runs of the engine, pauses apart: what its budget counts."""
        return elapsed_s(self.state, self.now() if self.link.kind in ("live", "stalled", "replay") else self.state.time)


def change_against_parent(state: SessionState, variant: VariantState) -> float | None:
    """Relative change of the speedup against the parent kernel's: 0.04 is four percent faster."""
    parent = state.variants.get(variant.parent) if variant.parent is not None else None
    if parent is None or not parent.speedup or variant.speedup is None:
        return None
    return variant.speedup / parent.speedup - 1
