"""A session's results and how its search ended, for the commands that show a whole session."""

from __future__ import annotations

from typing import NamedTuple

from engine.session.budget import elapsed_s
from engine.session.state.session_state import SessionState
from engine.session.store import Liveness, SessionReader, engine_liveness
from tui.view.model import note_death, precedes_engine
from tui.view.next_steps import how_it_ended
from tui.view.results import Results, results_of
from tui.view.source import Limits, argument_of, limits_of


class SessionResults(NamedTuple):
    """The results, a text that says how the search ended or whether it is running, and the config's limits."""

    results: Results
    ended: str
    created: Limits


def liveness_of(reader: SessionReader, state: SessionState) -> Liveness:
    """Return whether an engine is running, and record in ``state`` whether the newest engine in the events died."""
    live = engine_liveness(reader.paths, reader)
    note_death(state, live)
    return live


def session_results(reader: SessionReader, state: SessionState) -> SessionResults:
    """Compute the results as of now. ``state`` must already include the reader's events."""
    live = liveness_of(reader, state)
    created = limits_of(reader.paths)
    engine = state.engine
    starts = live.running and precedes_engine(state, live.pid, live.started, live.starting)
    results = results_of(
        state,
        reader.paths.directory,
        elapsed_s(state, reader.engine_now() if live.running and not starts else reader.last_moment(state)),
        tolerance=created.tolerance,
        torch_compile=created.torch_compile,
        pending=live.running,
        died=not live.running and engine is not None,
    )
    doing = "starting" if starts else "paused" if state.paused else "searching"
    stops = ", stops after the running rounds" if state.stop_planned and not starts else ""
    words = f"{doing}{stops}, engine pid {live.pid}" if live.running else "no engine has run yet"
    if live.stall is not None:
        words = f"STALLED, {live.stall.rstrip('.')}"
    if not live.running and engine is not None:
        words = (
            engine.message
            if engine.stopped is not None
            else f"the engine died; resume with: kernel-tui resume {argument_of(reader.paths)}"
        )
        if engine.stopped != "finished":
            by_budget = engine.stopped == "budget"
            words = how_it_ended(reader.paths, words, state.minutes, results.seconds, by_budget=by_budget)
    return SessionResults(results, words, created)
