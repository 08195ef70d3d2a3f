"""Follow a search without the monitor: a live table on a terminal, plain lines elsewhere, JSON lines for a script."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Protocol

import msgspec

from engine import commands as cmd
from engine.budget import elapsed_s
from engine.events import Recorded
from engine.exit_codes import ExitCode
from engine.proposers.mailbox import Mailbox
from engine.session import Liveness, SessionPaths, SessionReader, engine_liveness, send_command
from engine.state import SessionState
from tui.activity import owed_of
from tui.echo import echo
from tui.program import program
from tui.prompts import PromptLines
from tui.results import Results, results_of
from tui.source import limits_of
from tui.waiting import WaitLines

POLL_S = 0.1
LIVENESS_S = 0.5


class View(Protocol):
    """What shows the search. ``recorded`` is called after ``state`` took the event in."""

    def recorded(self, one: Recorded, state: SessionState) -> None: ...

    def tick(self, state: SessionState) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def follow(paths: SessionPaths, *, as_json: bool, stops_on_interrupt: bool, skip_seq: int = 0) -> ExitCode:
    """Show the search until its engine ends; returns the exit code to end with. Raises SessionError.

    ``stops_on_interrupt``: the first Ctrl-C (or SIGTERM) asks the engine to stop and waits, the second detaches; else
    the first one detaches. Events up to ``skip_seq`` are taken in without being shown.
    """
    state = SessionState()
    with SessionReader(paths) as reader, _interrupts() as interrupts:
        for recorded in reader.read():
            if recorded.seq > skip_seq:
                break
            state.apply(recorded)
        view = _view(as_json, paths)
        try:
            detached = _watch(paths, reader, state, view, interrupts, stops_on_interrupt)
        finally:
            view.close()
        if detached:
            echo(
                f"detached; the search goes on. Come back: {program()} attach {paths.directory}   "
                f"End it: {program()} stop {paths.directory}",
                err=True,
            )
            return ExitCode.INTERRUPTED
        return _ended(paths, reader, state, as_json, interrupted=bool(interrupts))


def _watch(
    paths: SessionPaths,
    reader: SessionReader,
    state: SessionState,
    view: View,
    interrupts: list[int],
    stops_on_interrupt: bool,
) -> bool:
    """Until the engine ends (False) or the person detaches (True)."""
    asked = stalled = False
    checked_at = 0.0
    while True:
        # The lock is asked before the last read, so that nothing an engine wrote before its end is missed.
        alive = True
        if time.monotonic() - checked_at >= LIVENESS_S:
            live, checked_at = engine_liveness(paths, reader), time.monotonic()
            alive, stalled = live.running, _say_stall(view, live, stalled)
        if reader.changed() or not alive:
            for recorded in reader.read(state.seq):
                state.apply(recorded)
                view.recorded(recorded, state)
        view.tick(state)
        if not alive:
            return False
        if len(interrupts) > asked:
            if not stops_on_interrupt or len(interrupts) > 1:
                return True
            asked = True
            send_command(paths, cmd.Stop(), "Ctrl-C")
            view.say("stopping; press Ctrl-C again to detach without waiting")
        time.sleep(POLL_S)


def _say_stall(view: View, live: Liveness, said: bool) -> bool:
    """Say once that the engine has stalled, and that it is back; whether it is stalled now."""
    if live.stall is not None and not said:
        view.say(f"the engine stands still: {live.stall}")
    elif said and live.running and live.stall is None:
        view.say("the engine is back")
    return live.stall is not None


def _ended(
    paths: SessionPaths, reader: SessionReader, state: SessionState, as_json: bool, *, interrupted: bool
) -> ExitCode:
    """The results, the engine's last words, and the code that follows from both."""
    measured = limits_of(paths).torch_compile
    results = results_of(
        state, paths.directory, elapsed_s(state, state.time), torch_compile=measured, died=state.engine is not None
    )
    if as_json:
        echo(msgspec.json.encode({"results": results}).decode())
    else:
        from tui.tables import print_results

        if any(row.eager_ms is not None for row in results.problems):
            print_results(results)
    live = engine_liveness(paths, reader)
    if live.exit_code is None and not paths.database.exists():
        _say_end(
            f"error: {paths.directory}: the session was moved or removed while it was searched in. Its engine ends by "
            "itself within a minute; go on with it where it lies now: kernel-tui resume DIRECTORY"
        )
        return ExitCode.FAILURE
    if live.exit_code is None:
        _say_end(f"the engine died without a word (see {paths.log}); go on with: kernel-tui resume {paths.directory}")
        return ExitCode.FAILURE
    code = ExitCode(live.exit_code)
    if code is ExitCode.NOTHING_CORRECT:
        _say_end(f"error: no correct kernel was found{_refusals(results)}")
    elif code is ExitCode.WAITING:
        waiting = Mailbox(paths.directory).waiting()
        _say_end(f"{paths.name}: {live.message}" + "".join(f"\n  {paths.directory}/outbox/{one}.md" for one in waiting))
    elif code not in (ExitCode.OK, ExitCode.INTERRUPTED):
        _say_end(f"error: {live.message}")
    elif not as_json:
        echo(f"{paths.name}: {live.message}")
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
    """Collects SIGINT and SIGTERM instead of dying of them."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _view(as_json: bool, paths: SessionPaths) -> View:
    if as_json:
        return JsonLines()
    if sys.stdout.isatty():
        from engine.config import load_config
        from tui.progress import LiveTable

        config = load_config(paths.config)
        return LiveTable(config.budget.minutes, config.search.rounds, paths)
    return PlainLines(paths)


class JsonLines:
    """Every event as one JSON object: ``{"seq": ..., "time": ..., "event": {"kind": ...}}``."""

    def recorded(self, one: Recorded, state: SessionState) -> None:
        echo(msgspec.json.encode(one).decode())

    def tick(self, state: SessionState) -> None:
        pass

    def say(self, text: str) -> None:
        echo(text, err=True)

    def close(self) -> None:
        pass


class PlainLines:
    """One line per fact that a person would want in a log, and what is measured when the rounds are over."""

    def __init__(self, paths: SessionPaths) -> None:
        self._limits = limits_of(paths)
        self._best: dict[str, str | None] = {}
        self._owed: str | None = None
        self._waits = WaitLines()
        self._prompts = PromptLines(paths)

    def recorded(self, one: Recorded, state: SessionState) -> None:
        from tui.narration import line_of

        stamp = time.strftime("%H:%M:%S", time.localtime(one.time))
        if (line := line_of(one.event, state, self._best) or self._waits.line_of(one)) is not None:
            echo(f"{stamp} {line}")
        before, self._owed = self._owed, owed_of(state, self._limits)
        if self._owed not in (None, before):
            echo(f"{stamp} the rounds are over: {self._owed}")

    def tick(self, state: SessionState) -> None:
        now = time.time()
        for line in (self._waits.lasting(now), self._prompts.lasting(state, now)):
            if line is not None:
                echo(f"{time.strftime('%H:%M:%S', time.localtime(now))} {line}")

    def say(self, text: str) -> None:
        echo(text, err=True)

    def close(self) -> None:
        pass
