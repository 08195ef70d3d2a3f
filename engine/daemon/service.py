"""The engine process: run a search, write heartbeats, handle signals, and shut down cleanly.

``engine.daemon.launch`` starts this process as ``python -m engine.daemon.service DIRECTORY``, for new and resumed
sessions. The engine folds the session's events into a state and continues the search from that state. The process has
its own process session and no terminal, so it survives a closed terminal or a lost SSH connection.

On SIGTERM and SIGINT, the process shuts down cleanly and records ``engine_stopped`` with reason ``signal``. It ignores
SIGHUP. The engine also records its reason for ending in the lock file, in case the disk is too full for an event. The
exit status is an :class:`engine.exit_codes.ExitCode`. After ``kill -9``, the guard kills the engine's remaining
processes.
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
from engine.config.renamed_keys import deprecations
from engine.config.schema import ConfigError, load_config
from engine.daemon.launch import UNATTENDED
from engine.devices.readings import Readings
from engine.exit_codes import ExitCode
from engine.session.records.events import (
    LARGER_LIMIT,
    CommandHandled,
    EngineStarted,
    EngineStopped,
    LogLine,
    StopReason,
)
from engine.session.records.requests import Stop
from engine.session.state.session_state import SessionState, fold
from engine.session.state.spend import MANUAL
from engine.session.store import EngineLock, EventWriter, RequestInbox, SessionError, SessionPaths, SessionReader
from engine.session.store.reader import STARTING
from engine.session.store.writer import PATIENCE_S
from engine.system.guard import VARIABLE, Guard
from engine.tracking.launch import MISSING, start_sender

HEARTBEAT_S = 1.0
STOP_S = 15.0
"""Time limit for a clean shutdown, in seconds. After this time, the engine exits, and its guard kills the remaining
processes.
"""

LATE_STOP = "the stop request was for the previous engine; this engine continues"

_log = logging.getLogger("engine")

_MESSAGES: dict[StopReason, str] = {
    "finished": "the search is complete",
    "stopped": "stopped on request; to continue, resume the session",
    "budget": "time budget used up; to continue, resume with more minutes",
    "waiting": "waiting for replies to the prompts in outbox/; to continue, save replies in inbox/ and "
    "resume the session",
    "signal": "stopped by {}; to continue, resume the session",
    "error": "stopped by an internal error; the engine's log has the traceback",
}


class Ending(NamedTuple):
    """Why and how an engine ended."""

    reason: StopReason
    message: str
    exit_code: ExitCode


class Launch(NamedTuple):
    """How a person started this engine.

    ``asked_at``: Unix time of the request. Stop requests from before this launch were for a previous engine.
    ``unattended``: no user is watching the search, so the engine does not wait for kernels that only a user could add.
    """

    asked_at: float
    unattended: bool = False


def main(directory: Path, marker: str, launch: Launch) -> ExitCode:
    """Run a session's engine until the search ends.

    Args:
        directory: The session's directory.
        marker: Value of an environment variable that the guard uses to recognize the engine's processes.
        launch: How a person started the engine.

    Returns:
        The exit status.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    paths = SessionPaths.at(directory)
    with contextlib.suppress(PermissionError):  # If a shell started this process, it already leads a process group.
        os.setsid()
    os.environ[VARIABLE] = marker
    try:
        lock = EngineLock(paths, marker)
    except SessionError as error:
        _log.error("%s", error)
        return error.exit_code
    ending = Ending("error", _MESSAGES["error"], ExitCode.FAILURE)
    try:
        # The guard may clean up only the engine's own process session. Otherwise, it would kill the shell that started
        # the engine.
        guard = Guard(os.getpid() if os.getsid(0) == os.getpid() else 0, marker)
        ending = asyncio.new_event_loop().run_until_complete(_serve(paths, lock, guard, launch))
    except Exception as error:
        ending = _failed(error)
    finally:
        lock.release(ending.exit_code, ending.message)
    _log.info("engine ended: %s: %s", ending.reason, ending.message)
    return ending.exit_code


async def _serve(paths: SessionPaths, lock: EngineLock, guard: Guard, launch: Launch) -> Ending:
    """Run the search and record how it ended. Raises SessionError if the session cannot be written."""

    def tell(trouble: str) -> None:
        words = f"cannot write to the session; the engine stops if this lasts {PATIENCE_S:g} s: {trouble}"
        lock.say(words)  # The log may be on the same full disk.
        _log.error("%s", words)

    writer = EventWriter(paths, on_trouble=tell, on_relief=lambda: lock.say(""))
    try:
        with SessionReader(paths) as reader:
            state = fold(reader.read())
            state.heard_at = reader.last_moment(state)
        starts = state.starts
        ending = await _search(paths, writer, guard, state, launch)
        if writer.failure is not None:
            return ending
        if state.starts == starts:  # The engine ended before the search could report its devices and sandbox.
            writer.append(
                EngineStarted(
                    pid=os.getpid(),
                    host=platform.node(),
                    version=__version__,
                    resumed=starts > 0,
                    devices=(),
                    sandbox="",
                    before=state.died_at,
                )
            )
        await writer.record(EngineStopped(reason=ending.reason, message=ending.message))
        return ending
    finally:
        await asyncio.to_thread(writer.close)


async def _search(
    paths: SessionPaths, writer: EventWriter, guard: Guard, state: SessionState, launch: Launch
) -> Ending:
    """Run the search until the search is complete, a signal arrives or the storage fails. Never raises."""
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
    readings = Readings()
    search = asyncio.create_task(_run(paths, writer, state, launch, readings))
    heart = asyncio.create_task(_beat(writer, guard, signals, readings, state))
    await asyncio.wait((search, heart, asked), return_when=asyncio.FIRST_COMPLETED)
    if not search.done():
        search.cancel()
        await asyncio.wait((search, asked_twice), timeout=STOP_S, return_when=asyncio.FIRST_COMPLETED)
    if not search.done():
        _log.error("the search did not stop within %g s; the engine exits anyway", STOP_S)
    if writer.failure is not None:
        return _failed(writer.failure)
    if heart.done() and (failure := heart.exception()) is not None:
        return _failed(failure)
    heart.cancel()
    if signals:
        return Ending("signal", _MESSAGES["signal"].format(signals[0].name), ExitCode.INTERRUPTED)
    if search.cancelled() or not search.done():
        return Ending("error", _MESSAGES["error"], ExitCode.FAILURE)
    if (error := search.exception()) is not None:
        return _failed(error)
    return _ended(*search.result(), state)


async def _run(
    paths: SessionPaths, writer: EventWriter, state: SessionState, launch: Launch, readings: Readings
) -> tuple[StopReason, str]:
    await _refuse_late_stops(paths, writer, state, launch.asked_at)
    config = load_config(paths.config)
    for line in deprecations(paths.config):
        _log.info("%s", line)
    if config.tracking.mlflow is not None:
        _track(paths, writer)
    from engine.search.coordinator import run_search

    inbox = RequestInbox(paths, state.handled)
    try:
        ended: tuple[StopReason, str] = await run_search(
            paths, writer, inbox, config, state, readings, unattended=launch.unattended
        )
        return ended
    finally:
        inbox.close()


def _track(paths: SessionPaths, writer: EventWriter) -> None:
    """Start the process that sends metrics. The search does not depend on that process."""
    try:
        if start_sender(paths) is not None:
            return
        trouble = MISSING
    except OSError as error:
        trouble = f"tracking could not start: {error}"
    _log.warning("%s", trouble)
    writer.append(LogLine(level="warning", text=trouble))


async def _refuse_late_stops(paths: SessionPaths, writer: EventWriter, state: SessionState, asked_at: float) -> None:
    """Reject stop requests sent before ``asked_at``. Such requests were for an earlier engine and must not end this
    engine.
    """
    with SessionReader(paths) as reader:
        unanswered = [sent for sent in reader.commands() if sent.id not in state.handled and sent.time < asked_at]
    late = [sent for sent in unanswered if isinstance(sent.command, Stop)]
    for sent in late:
        answer = CommandHandled(command=sent.id, ok=False, message=LATE_STOP)
        state.apply(await writer.record(answer))


async def _beat(
    writer: EventWriter, guard: Guard, signals: list[signal.Signals], readings: Readings, state: SessionState
) -> None:
    """Write a heartbeat and device readings every second. Because this coroutine runs in the event loop, a blocked loop
    shows up as missing heartbeats.

    Returns only after the writer has failed.
    """
    starts = state.starts
    while writer.failure is None:
        if state.starts > starts:
            writer.heartbeat("stopping" if signals else "running")
        else:  # If this engine dies now, the next engine must know when the earlier engine died.
            writer.heartbeat(STARTING, state.heard_at)
        writer.sample(readings.read())
        guard.ensure()
        await asyncio.sleep(HEARTBEAT_S)


def _ended(reason: StopReason, limit: str, state: SessionState) -> Ending:
    replies = any(call.provider == MANUAL for call in state.spending.flying.values())
    if reason == "waiting" and replies:
        return Ending(reason, _MESSAGES[reason], ExitCode.WAITING)
    code = ExitCode.OK
    if reason in ("finished", "budget", "waiting") and state.nothing_correct:
        code = ExitCode.NOTHING_CORRECT
    message = f"{limit}; {LARGER_LIMIT}" if limit else _MESSAGES[reason]
    if reason == "waiting":
        open_ones = [one.id for one in state.problems.values() if one.cannot_write and not state.is_pruned(one.id)]
        message = (
            f"no proposer in the config can write kernels for {', '.join(open_ones)}; to continue, resume the "
            f"session and seed a kernel"
        )
    return Ending(reason, message, code)


def _failed(error: BaseException) -> Ending:
    """Convert an error to an ending with a one-line message. Log the traceback, unless the message is for users."""
    code = ExitCode.USAGE if isinstance(error, ConfigError) else getattr(error, "exit_code", ExitCode.FAILURE)
    meant_for_people = isinstance(error, (SessionError, ConfigError)) or hasattr(error, "exit_code")
    _log.error("the engine failed: %s", error, exc_info=None if meant_for_people else error)
    line = str(error).strip().replace("\n", "; ") or type(error).__name__
    return Ending("error", line if meant_for_people else f"{type(error).__name__}: {line}", ExitCode(code))


if __name__ == "__main__":
    told = dict(enumerate(sys.argv))
    asked = Launch(float(told.get(3, time.time())), told.get(4) == UNATTENDED)
    status = main(Path(sys.argv[1]), told.get(2, uuid.uuid4().hex), asked)
    logging.shutdown()
    # If a thread or task never ended, sys.exit would wait for it forever.
    os._exit(status)
