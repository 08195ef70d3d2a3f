"""Watch a running session in tests, and count its verdicts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.state.session_state import SessionState, fold
from engine.session.store import SessionPaths, SessionReader

SURELY_AT_WORK = ("checking", "timing")


def recorded(directory: Path) -> list[Recorded]:
    with SessionReader(SessionPaths.at(directory)) as reader:
        return list(reader.read())


def wait_for(directory: Path, wanted: Callable[[SessionState], bool], seconds: float) -> SessionState:
    """Return the session's state as soon as ``wanted`` holds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (directory / "session.db").exists():
            state = fold(recorded(directory))
            if wanted(state):
                return state
            assert state.engine is None or state.engine.stopped is None, "the search ended first"
        time.sleep(0.05)
    raise AssertionError(f"did not happen within {seconds:g} s")


def at_work(state: SessionState, host: str) -> list[str]:
    """Kernels that the host is judging."""
    return [one.id for one in state.in_flight() if one.device == f"{host}/cpu" and one.stage in SURELY_AT_WORK]


def verdicts_per_kernel(directory: Path) -> Counter[str]:
    """Count each kernel's verdicts, without those that replace an earlier one on purpose."""
    events = [one.event for one in recorded(directory)]
    counts = Counter({event.variant: 0 for event in events if isinstance(event, ev.VariantWritten)})
    counts.update(event.variant for event in events if isinstance(event, ev.VerdictGiven) and not event.why)
    return counts
