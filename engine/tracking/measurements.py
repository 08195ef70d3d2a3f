"""Turn events into metrics, and a session's configuration into parameters. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from engine.config.toml_table import toml_table
from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.state.session_state import SessionState

MAX_VALUE = 500
"""Maximum length of a parameter's value in characters, as in older MLflow servers."""
_REFUSED = re.compile(r"[^\w\-./ ]")
"""Characters that MLflow rejects in names."""
SENT = (ev.VerdictGiven, ev.RunoffFinished, ev.NodePruned, ev.NodeRestored, ev.ModelReplied, ev.ModelCallFailed,
        ev.BaselineMeasured, ev.EngineStopped)  # fmt: skip
"""Kinds of events after which the sender sends metrics."""


class Point(Struct, frozen=True):
    """A metric's value. ``time`` is in Unix milliseconds; ``step`` is the number of the session's verdicts so far."""

    name: str
    value: float
    time: int
    step: int


class Measurements:
    """The metrics of a session. Pass every event to ``take``, in order. ``take`` also applies it to ``state``."""

    def __init__(self) -> None:
        self.state = SessionState()
        self.verdicts = 0
        """Number of verdicts so far, including later verdicts on the same kernel."""
        self._judged: set[str] = set()
        self._correct: set[str] = set()

    def take(self, recorded: Recorded) -> list[Point]:
        """Apply an event and return its metrics."""
        state, event = self.state, recorded.event
        state.apply(recorded)
        if isinstance(event, ev.VerdictGiven):
            self.verdicts += 1
            self._count(event.variant)
        if not isinstance(event, SENT):
            return []
        values = dict(self._of_event(event)) | self._totals(recorded.time)
        time = int(recorded.time * 1000)
        return [Point(clean(name), value, time, self.verdicts) for name, value in values.items()]

    def _count(self, name: str) -> None:
        variant = self.state.variants.get(name)
        for kernels, holds in ((self._judged, variant is not None and variant.was_judged),
                               (self._correct, variant is not None and variant.correct)):  # fmt: skip
            kernels.add(name) if holds else kernels.discard(name)

    def _of_event(self, event: ev.AnyEvent) -> Iterator[tuple[str, float]]:
        state = self.state
        if isinstance(event, ev.VerdictGiven) and (variant := state.variants.get(event.variant)) is not None:
            verdict = event.verdict
            yield f"{variant.problem}/correct", float(verdict.correct)
            if verdict.correct and verdict.speedup is not None:
                yield f"{variant.problem}/speedup", verdict.speedup
            if verdict.correct and verdict.kernel is not None:
                yield f"{variant.problem}/kernel_ms", verdict.kernel.median_ms
        if isinstance(event, ev.BaselineMeasured) and event.baseline.timing is not None:
            yield f"{event.problem}/{event.baseline.which}_ms", event.baseline.timing.median_ms
        for problem in state.problems.values():
            best = state.variants.get(problem.best or "")
            if best is not None and best.speedup is not None:
                yield f"{problem.id}/best_speedup", best.speedup
                if best.kernel_ms is not None:
                    yield f"{problem.id}/best_ms", best.kernel_ms

    def _totals(self, time: float) -> dict[str, float]:
        state, spend = self.state, self.state.spending.total
        return {
            "verdicts": float(len(self._judged)),
            "correct": float(len(self._correct)),
            "search_seconds": state.elapsed_s(time),
            "dollars": spend.dollars,
            "tokens": float(spend.tokens),
            "calls": float(spend.calls),
        }


def parameters_of(config: str) -> dict[str, str]:
    """Return a configuration (TOML) as dotted keys with their values as text."""
    try:
        table = toml_table(config)
    except tomllib.TOMLDecodeError:
        return {}
    return {clean(name): value[:MAX_VALUE] for name, value in _flat(table, "") if value}


def _flat(table: dict[str, Any], above: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = f"{above}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
            for number, one in enumerate(value, 1):
                yield from _flat(one if isinstance(one, dict) else {"": one}, f"{name}.{number}.")
        elif isinstance(value, list):
            yield name, ", ".join(map(str, value))
        else:
            yield name, str(value)


def clean(name: str) -> str:
    """Replace the characters of ``name`` that MLflow rejects."""
    return _REFUSED.sub("_", name)
