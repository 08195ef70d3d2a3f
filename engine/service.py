"""The engine as a background process: heartbeat, signals, stop. The only way in which an engine runs.

``python -m engine.service DIRECTORY`` is what :mod:`engine.launch` starts for the monitor and the command line, for a
new session and for resuming one: the fold of the session's events is the starting state. It is a process in a session
of its own with its three standard streams redirected, so that neither a closed terminal nor a lost SSH connection
reaches it.

The process ends in order on SIGTERM and SIGINT (``engine_stopped`` with reason ``signal``), ignores SIGHUP, and leaves
how it ended in its lock file, also when there was no room left for an event. Its exit status is an
:class:`engine.exit_codes.ExitCode`. What is left of it after ``kill -9`` is killed by its guard (``engine.guard``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from engine import __version__
from engine.commands import Stop
from engine.config import ConfigError, load_config
from engine.devices import DeviceReader
from engine.events import CommandHandled, EngineStarted, EngineStopped, StopReason
from engine.exit_codes import ExitCode
from engine.guard import VARIABLE, Guard
from engine.session import (
    CommandInbox,
    EngineLock,
    EventWriter,
    SessionError,
    SessionPaths,
    SessionReader,
)
from engine.session.writer import PATIENCE_S
from engine.state import SessionState, fold

HEARTBEAT_S = 1.0
STOP_S = 15.0
"""How long a search may take to end in order before the engine leaves without it (its guard kills the rest)."""

LATE_STOP = "a stop from before this engine was started does not hold for it: none had lived to read it"

_log = logging.getLogger("engine")

_MESSAGES: dict[StopReason, str] = {
    "finished": "the search came to its end",
    "stopped": "stopped as asked; resume goes on from here",
    "budget": "the budget is spent; resume with a larger one goes on from here",
    "waiting": "only replies are missing: answer the prompts in its outbox; resume goes on from here",
    "signal": "ended by a signal; resume goes on from here",
    "error": "ended by an error; the log has the details",
}


class Ending(NamedTuple):
    """How a run of the engine ended."""

    reason: StopReason
    message: str
    exit_code: ExitCode


def main(directory: Path, marker: str, asked_at: float) -> ExitCode:
    """Run an engine on the session in ``directory`` until its search ends. Returns the exit status.

    ``marker`` is what its processes carry in their environment, for its guard to know them by. ``asked_at``: when
    somebody asked for this engine, in Unix seconds; a stop from before that was meant for an earlier one.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    paths = SessionPaths.at(directory)
    with contextlib.suppress(PermissionError):  # a process group's leader, started by hand from a shell
        os.setsid()
    os.environ[VARIABLE] = marker
    try:
        lock = EngineLock(paths, marker)
    except SessionError as error:
        _log.error("%s", error)
        return error.exit_code
    ending = Ending("error", _MESSAGES["error"], ExitCode.FAILURE)
    try:
        # Only a session of our own may be swept clean; else the shell that started us would go too.
        guard = Guard(os.getpid() if os.getsid(0) == os.getpid() else 0, marker)
        ending = asyncio.new_event_loop().run_until_complete(_serve(paths, lock, guard, asked_at))
    except Exception as error:
        ending = _failed(error)
    finally:
        lock.release(ending.exit_code, ending.message)
    _log.info("engine ended: %s: %s", ending.reason, ending.message)
    return ending.exit_code


async def _serve(paths: SessionPaths, lock: EngineLock, guard: Guard, asked_at: float) -> Ending:
    """Search, and record how it ended. Raises SessionError if that cannot be stored."""

    def tell(trouble: str) -> None:
        words = f"nothing can be stored, which ends the engine after {PATIENCE_S:g} s: {trouble}"
        lock.say(words)  # the log may be as full as the rest
        _log.error("%s", words)

    writer = EventWriter(paths, on_trouble=tell, on_relief=lambda: lock.say(""))
    try:
        with SessionReader(paths) as reader:
            state = fold(reader.read())
        starts = state.starts
        ending = await _search(paths, writer, guard, state, asked_at)
        if writer.failure is not None:
            return ending
        if state.starts == starts:  # it ended before the search could say which devices and sandbox it has
            writer.append(
                EngineStarted(
                    pid=os.getpid(),
                    host=platform.node(),
                    version=__version__,
                    resumed=starts > 0,
                    devices=(),
                    sandbox="",
                )
            )
        await writer.record(EngineStopped(reason=ending.reason, message=ending.message))
        return ending
    finally:
        await asyncio.to_thread(writer.close)


async def _search(
    paths: SessionPaths, writer: EventWriter, guard: Guard, state: SessionState, asked_at: float
) -> Ending:
    """Run the search until it ends by itself, by a signal, or by storage that gave up. Never raises."""
    loop = asyncio.get_running_loop()
    signals: list[signal.Signals] = []
    asked: asyncio.Future[None] = loop.create_future()
    asked_twice: asyncio.Future[None] = loop.create_future()

    def interrupt(which: signal.Signals) -> None:
        _log.info("%s: stopping", which.name)
        signals.append(which)
        for future in (asked, asked_twice)[: len(signals)]:
            if not future.done():
                future.set_result(None)

    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, interrupt, which)
    search = asyncio.create_task(_run(paths, writer, state, asked_at))
    heart = asyncio.create_task(_beat(writer, guard, signals))
    await asyncio.wait((search, heart, asked), return_when=asyncio.FIRST_COMPLETED)
    if not search.done():
        search.cancel()
        await asyncio.wait((search, asked_twice), timeout=STOP_S, return_when=asyncio.FIRST_COMPLETED)
    if not search.done():
        _log.error("the search did not end within %g s of being asked; leaving without it", STOP_S)
    if writer.failure is not None:
        return _failed(writer.failure)
    if heart.done() and (failure := heart.exception()) is not None:
        return _failed(failure)
    heart.cancel()
    if signals:
        return Ending("signal", f"{signals[0].name}: {_MESSAGES['signal']}", ExitCode.INTERRUPTED)
    if search.cancelled() or not search.done():
        return Ending("error", _MESSAGES["error"], ExitCode.FAILURE)
    if (error := search.exception()) is not None:
        return _failed(error)
    return _ended(search.result(), state)


async def _run(paths: SessionPaths, writer: EventWriter, state: SessionState, asked_at: float) -> StopReason:
    await _refuse_late_stops(paths, writer, state, asked_at)
    config = load_config(paths.config)
    from engine.search.loop import run_search  # here, so that a second engine or a wrong config is told at once

    inbox = CommandInbox(paths, state.handled)
    try:
        reason: StopReason = await run_search(paths, writer, inbox, config, state)
        return reason
    finally:
        inbox.close()


async def _refuse_late_stops(paths: SessionPaths, writer: EventWriter, state: SessionState, asked_at: float) -> None:
    """Answer the stops from before ``asked_at``, which no engine lived to see. Whoever has asked for a new engine since
    wants it to go on; a stop that lies in the file must not end it at once."""
    with SessionReader(paths) as reader:
        unanswered = [sent for sent in reader.commands() if sent.id not in state.handled and sent.time < asked_at]
    late = [sent for sent in unanswered if isinstance(sent.command, Stop)]
    for sent in late:
        answer = CommandHandled(command=sent.id, ok=False, message=LATE_STOP)
        state.apply(await writer.record(answer))


async def _beat(writer: EventWriter, guard: Guard, signals: list[signal.Signals]) -> None:
    """Heartbeat and device readings every second, from the event loop, so that a stuck loop shows.

    Ends only when the writer has given up.
    """
    devices = DeviceReader()
    while writer.failure is None:
        writer.heartbeat("stopping" if signals else "running")
        writer.sample(devices.read())
        guard.ensure()
        await asyncio.sleep(HEARTBEAT_S)


def _ended(reason: StopReason, state: SessionState) -> Ending:
    code = ExitCode.OK
    if reason == "waiting":
        code = ExitCode.WAITING
    elif reason in ("finished", "budget") and not any(variant.correct for variant in state.variants.values()):
        code = ExitCode.NOTHING_CORRECT
    return Ending(reason, _MESSAGES[reason], code)


def _failed(error: BaseException) -> Ending:
    """The one-line ending for an error, whose traceback goes to the log unless it is one meant for people."""
    code = ExitCode.USAGE if isinstance(error, ConfigError) else getattr(error, "exit_code", ExitCode.FAILURE)
    meant_for_people = isinstance(error, (SessionError, ConfigError)) or hasattr(error, "exit_code")
    _log.error("the engine failed: %s", error, exc_info=None if meant_for_people else error)
    line = str(error).strip().replace("\n", "; ") or type(error).__name__
    return Ending("error", line if meant_for_people else f"{type(error).__name__}: {line}", ExitCode(code))


if __name__ == "__main__":
    told = dict(enumerate(sys.argv))
    status = main(Path(sys.argv[1]), told.get(2, uuid.uuid4().hex), float(told.get(3, time.time())))
    logging.shutdown()
    # Not sys.exit: a thread or task that does not end must not keep a dead search's process alive.
    os._exit(status)
