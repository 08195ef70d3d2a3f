"""Follow a search without the monitor until its engine ends."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Protocol

import msgspec

from engine.exit_codes import ExitCode
from engine.proposers.mailbox import Mailbox
from engine.session.budget import elapsed_s
from engine.session.records import requests as requests
from engine.session.records.events import Recorded
from engine.session.state.session_state import SessionState
from engine.session.store import Liveness, SessionPaths, SessionReader, engine_liveness, send_request
from tui.console.echo import echo
from tui.text.narration import Reported, line_of
from tui.text.program import program
from tui.text.waiting import WaitLines
from tui.view.activity import owed_of
from tui.view.model import note_death
from tui.view.next_steps import seeding_words, words_to_time_compile
from tui.view.prompts import PromptLines
from tui.view.results import Results, results_of
from tui.view.source import argument_of, limits_of

POLL_S = 0.1
LIVENESS_S = 0.5


class View(Protocol):
    """The output of a headless search. When ``recorded`` gets an event, ``state`` already includes that event."""

    def recorded(self, one: Recorded, state: SessionState) -> None: ...

    def tick(self, state: SessionState) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def follow(paths: SessionPaths, *, as_json: bool, stops_on_interrupt: bool, skip_seq: int = 0) -> ExitCode:
    """Show the search until its engine ends, and return the exit code. Raises SessionError.

    If ``stops_on_interrupt``, the first Ctrl-C or SIGTERM asks the engine to stop, and the second detaches. Otherwise,
    the first Ctrl-C or SIGTERM detaches. The function applies events up to ``skip_seq`` without showing them.
    """
    state = SessionState()
    with SessionReader(paths) as reader, _interrupts() as interrupts:
        for recorded in reader.read():
            if recorded.seq > skip_seq:
                break
            state.apply(recorded)
        view = _view(as_json, paths, reader)
        try:
            detached = _watch(paths, reader, state, view, interrupts, stops_on_interrupt)
        except OSError:  # Standard output is full, or the process that read it has exited.
            _say_detached(paths)
            raise
        finally:
            view.close()
        if detached:
            _say_detached(paths)
            return ExitCode.INTERRUPTED
        return _ended(paths, reader, state, as_json, interrupted=bool(interrupts))


def _say_detached(paths: SessionPaths) -> None:
    argument = argument_of(paths)
    echo(
        f"detached; the search keeps running. Attach: {program()} attach {argument}   "
        f"Stop: {program()} stop {argument}",
        err=True,
    )


def _watch(
    paths: SessionPaths,
    reader: SessionReader,
    state: SessionState,
    view: View,
    interrupts: list[int],
    stops_on_interrupt: bool,
) -> bool:
    """Follow the search. Return False when the engine ends, or True when the user detaches."""
    asked = stalled = False
    live, checked_at = engine_liveness(paths, reader), 0.0
    while True:
        # Check the lock before the last read, so that no event from the engine's last moments is missed.
        alive = True
        if time.monotonic() - checked_at >= LIVENESS_S:
            live, checked_at = engine_liveness(paths, reader), time.monotonic()
            alive, stalled = live.running, _say_stall(view, live, stalled)
        if reader.changed() or not alive:
            for recorded in reader.read(state.seq):
                state.apply(recorded)
                view.recorded(recorded, state)
        if alive:
            note_death(state, live)
        view.tick(state)
        if not alive:
            return False
        if len(interrupts) > asked:
            if not stops_on_interrupt or len(interrupts) > 1:
                return True
            asked = True
            send_request(paths, requests.Stop(), "Ctrl-C")
            view.say("stopping; press Ctrl-C again to detach without waiting")
        time.sleep(POLL_S)


def _say_stall(view: View, live: Liveness, said: bool) -> bool:
    """Report once that the engine has stalled or recovered. Return whether the engine is stalled now."""
    if live.stall is not None and not said:
        view.say(f"the engine has stalled: {live.stall}")
    elif said and live.running and live.stall is None:
        view.say("the engine is running again")
    return live.stall is not None


def _ended(
    paths: SessionPaths, reader: SessionReader, state: SessionState, as_json: bool, *, interrupted: bool
) -> ExitCode:
    """Print the results and how the engine ended. Returns the exit code."""
    created = limits_of(paths)
    results = results_of(
        state,
        paths.directory,
        elapsed_s(state, reader.last_moment(state)),
        tolerance=created.tolerance,
        torch_compile=created.torch_compile,
        died=state.engine is not None,
    )
    if as_json:
        echo(msgspec.json.encode({"results": results}).decode(), is_message=False)
    else:
        from tui.console.tables import print_results

        if any(row.eager_ms is not None for row in results.problems):
            print_results(results, words_to_time_compile(state, paths, results))
    live = engine_liveness(paths, reader)
    if live.exit_code is None and not paths.exists:
        _say_end(
            f"Error: {paths.directory}: the session was moved or deleted during the search. The engine stops within a "
            "minute. Resume the session from its new location: kernel-tui resume DIRECTORY"
        )
        return ExitCode.FAILURE
    if live.exit_code is None:
        _say_end(f"the engine died; its log is {paths.log}. Resume with: kernel-tui resume {argument_of(paths)}")
        return ExitCode.FAILURE
    code = ExitCode(live.exit_code)
    seeding = "".join(f"\n{line}" for line in seeding_words(state, paths))
    if code is ExitCode.NOTHING_CORRECT:
        unsolved = ", ".join(row.problem for row in results.problems if row.status in ("unsolved", "open"))
        what = f" for {unsolved}" if unsolved else ""
        if state.engine is not None and state.engine.stopped == "budget":
            what += f": {live.message}"
        _say_end(f"Error: no correct kernel found{what}{_refusals(results)}{seeding}")
    elif code is ExitCode.WAITING:
        waiting = Mailbox(paths.directory).waiting()
        _say_end(f"{paths.name}: {live.message}" + "".join(f"\n  {paths.directory}/outbox/{one}.md" for one in waiting))
    elif code not in (ExitCode.OK, ExitCode.INTERRUPTED):
        _say_end(f"Error: {live.message}")
    elif not as_json:
        echo(f"{paths.name}: {live.message}{seeding}")
    if interrupted and code is ExitCode.OK and state.engine is not None and state.engine.stopped == "stopped":
        return ExitCode.INTERRUPTED
    return code


def _refusals(results: Results) -> str:
    refused = [f"{row.problem}: {row.remark}" for row in results.problems if row.eager_ms is None and row.remark]
    return "; " + "; ".join(refused) if refused else ""


def _say_end(text: str) -> None:
    echo(text, err=True)


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of exiting on them."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _view(as_json: bool, paths: SessionPaths, reader: SessionReader) -> View:
    if as_json:
        return JsonLines()
    if sys.stdout.isatty():
        from engine.config.schema import load_config
        from tui.headless.progress import LiveTable

        config = load_config(paths.config)
        return LiveTable(config.budget.minutes, config.search.rounds, paths, reader.engine_now)
    return PlainLines(paths)


class JsonLines:
    """Print every event as one JSON object, such as ``{"seq": ..., "time": ..., "event": {"kind": ...}}``."""

    def recorded(self, one: Recorded, state: SessionState) -> None:
        echo(msgspec.json.encode(one).decode(), is_message=False)

    def tick(self, state: SessionState) -> None:
        pass

    def say(self, text: str) -> None:
        echo(text, err=True)

    def close(self) -> None:
        pass


class PlainLines:
    """Print one line per notable event, and a line about the measurements left after the last round."""

    def __init__(self, paths: SessionPaths) -> None:
        self._limits = limits_of(paths)
        self._best: dict[str, Reported] = {}
        self._owed: str | None = None
        self._waits = WaitLines()
        self._prompts = PromptLines(paths)

    def recorded(self, one: Recorded, state: SessionState) -> None:
        stamp = time.strftime("%H:%M:%S", time.localtime(one.time))
        if (line := line_of(one.event, state, self._best) or self._waits.line_of(one)) is not None:
            echo(f"{stamp} {line}")
        before, self._owed = self._owed, owed_of(state, self._limits)
        if self._owed not in (None, before):
            echo(f"{stamp} rounds finished: {self._owed}")

    def tick(self, state: SessionState) -> None:
        now = time.time()
        for line in (self._waits.lasting(now), self._prompts.lasting(state, now)):
            if line is not None:
                echo(f"{time.strftime('%H:%M:%S', time.localtime(now))} {line}")

    def say(self, text: str) -> None:
        echo(text, err=True)

    def close(self) -> None:
        pass
