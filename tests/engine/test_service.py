"""The engine as a background process: start, refusal, failure, and its messages."""

from __future__ import annotations

import asyncio
import os
import pwd
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.daemon.launch import EngineNotStarted, log_tail, spawn_engine, start_engine
from engine.daemon.logind import LogoutPolicy, configured_to_kill, surviving
from engine.daemon.service import LATE_STOP, _beat
from engine.devices.fact import DeviceFact
from engine.devices.readings import Readings
from engine.exit_codes import ExitCode
from engine.session.records.events import CommandHandled, EngineStarted, EngineStopped, LogLine
from engine.session.records.requests import Stop
from engine.session.state.session_state import fold
from engine.session.store import (
    EngineLock,
    EventWriter,
    SessionError,
    SessionLocked,
    SessionPaths,
    SessionReader,
    create_session,
    engine_liveness,
    send_request,
    summarize,
)
from engine.session.store.reader import STARTING
from engine.system import clock
from engine.system.guard import Guard
from tests.patience import PATIENCE_S
from tui.cli.shared.common import Failure
from tui.cli.steering import send
from tui.text.story import fold_with_story

BROKEN = "problems = ['builtin:quickstart/softmax']\n[search]\nruonds = 3\n"


@pytest.fixture
def broken(tmp_path: Path) -> SessionPaths:
    """Create a session with a damaged configuration, whose engine ends immediately."""
    return create_session(tmp_path, "broken", BROKEN, "config.toml", 0)


def ended(paths: SessionPaths) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while engine_liveness(paths).running:
        assert time.monotonic() < deadline, log_tail(paths, 50)
        time.sleep(0.05)


def test_an_engine_that_fails_says_why_in_its_session_its_lock_and_its_log(broken: SessionPaths) -> None:
    pid = start_engine(broken)
    ended(broken)
    with SessionReader(broken) as reader:
        _, started, stopped = (recorded.event for recorded in reader.read())
        beat = reader.heartbeat()
    assert isinstance(started, EngineStarted)
    assert (started.pid, started.resumed) == (pid, False)
    assert isinstance(stopped, EngineStopped)
    assert stopped.reason == "error"
    assert "ruonds" in stopped.message
    assert "\n" not in stopped.message
    assert beat is None or beat.pid == pid
    living = engine_liveness(broken)
    assert (living.exit_code, living.message) == (ExitCode.USAGE, stopped.message)
    assert "ruonds" in log_tail(broken)
    assert summarize(broken).state == "stopped"


def test_the_line_of_a_start_names_no_device_that_was_not_looked_for(broken: SessionPaths) -> None:
    writer = EventWriter(broken)
    gpu = DeviceFact("GPU-1", "cuda", "NVIDIA H200", "sm_90a", 141 << 30, 132)
    writer.append(EngineStarted(pid=1, host="h", version="1", resumed=False, devices=(gpu,), sandbox="landlock"))
    writer.close()
    pid = start_engine(broken)
    ended(broken)
    with SessionReader(broken) as reader:
        state, story = fold_with_story(reader.read())
    said = [line.text for line in story.lines]
    assert "the engine started (pid 1) on NVIDIA H200; sandbox: landlock" in said
    assert f"the engine started again (pid {pid})" in said
    assert state.devices == {"GPU-1": gpu}


def test_an_engine_can_be_started_again_and_counts_as_resumed(broken: SessionPaths) -> None:
    for _ in range(2):
        start_engine(broken)
        ended(broken)
    with SessionReader(broken) as reader:
        starts = [r.event.resumed for r in reader.read() if isinstance(r.event, EngineStarted)]
    assert starts == [False, True]


def test_a_stop_that_the_last_engine_did_not_live_to_see_does_not_stop_the_next(broken: SessionPaths) -> None:
    number = send_request(broken, Stop(), "cli")
    start_engine(broken)
    ended(broken)
    with SessionReader(broken) as reader:
        answer = reader.handled(number)
    assert answer is not None
    assert isinstance(answer.event, CommandHandled)
    assert (answer.event.ok, answer.event.message) == (False, LATE_STOP)


def test_a_stop_that_was_sent_while_the_engine_starts_is_for_it(broken: SessionPaths) -> None:
    start = spawn_engine(broken)
    assert start.under_way
    number = send_request(broken, Stop(), "cli")
    pid = start.wait()
    assert not start.under_way
    ended(broken)
    with SessionReader(broken) as reader:
        assert reader.handled(number) is None, "it ends by its broken configuration before it reads a command"
        assert [r.event.pid for r in reader.read() if isinstance(r.event, EngineStarted)] == [pid]


def test_a_heartbeat_of_an_earlier_engine_says_nothing_of_a_new_one(broken: SessionPaths) -> None:
    lock, writer = EngineLock(broken), EventWriter(broken)
    writer.heartbeat("running")
    writer.flush(5)
    assert engine_liveness(broken).heartbeat_age_s is not None
    with sqlite3.connect(broken.database) as database:
        database.execute("UPDATE heartbeat SET pid = pid - 1")
    database.close()
    assert engine_liveness(broken).heartbeat_age_s is None
    writer.close()
    lock.release()


def test_a_second_engine_is_refused_before_it_starts(broken: SessionPaths) -> None:
    lock = EngineLock(broken)
    with pytest.raises(SessionLocked, match="already running this session"):
        start_engine(broken)
    lock.release()


def test_an_engine_started_by_hand_on_a_taken_session_ends_with_its_exit_code(broken: SessionPaths) -> None:
    lock = EngineLock(broken)
    command = [sys.executable, "-m", "engine.daemon.service", str(broken.directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=Path(__file__).parents[2])
    assert done.returncode == ExitCode.SESSION_LOCKED
    assert "already running this session" in done.stderr
    lock.release()


def test_a_missing_session_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="no such session"):
        start_engine(SessionPaths(tmp_path / "nowhere"))


def test_an_engine_that_cannot_take_its_lock_tells_the_end_of_its_log(broken: SessionPaths) -> None:
    broken.lock.mkdir()  # blocks the way even for root
    broken.log.write_text("words of an earlier engine\n")
    with pytest.raises(EngineNotStarted, match=r"engine\.lock: Is a directory") as caught:
        start_engine(broken)
    assert caught.value.exit_code is ExitCode.STORAGE
    assert caught.value.brief == "the engine ended during startup (status 6): engine.lock: Is a directory."
    assert "earlier" not in str(caught.value) and str(broken.log) in str(caught.value)


def test_an_engine_without_a_word_is_said_to_have_died(broken: SessionPaths) -> None:
    writer = EventWriter(broken)
    writer.append(EngineStarted(pid=1, host="h", version="1", resumed=False, devices=(), sandbox=""))
    writer.close()
    assert summarize(broken).state == "died"


async def test_an_engine_that_dies_during_its_start_adds_no_time_to_the_search(
    broken: SessionPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = EngineStarted(pid=1, host="h", version="1", resumed=False, devices=(), sandbox="")
    began, writer = clock.now(), EventWriter(broken)
    writer.append(start)
    writer.close()
    for hours in (0, 10):  # The first engine dies in its first second, and the second engine before it has started.
        monkeypatch.setattr(clock, "now", lambda hours=hours: began + 3600.0 * hours)
        with SessionReader(broken) as reader:
            state = fold(reader.read())
            state.heard_at = reader.last_moment(state)
        writer, guard = EventWriter(broken), Guard(0, "none")
        if hours:
            writer.append(LogLine(level="warning", text="tracking could not start"))
        heart = asyncio.create_task(_beat(writer, guard, [], Readings(), state))
        await asyncio.sleep(0)
        heart.cancel()
        writer.close()
    with SessionReader(broken) as reader:
        assert state.elapsed_s(reader.last_moment(state)) < 60.0
        assert (beat := reader.heartbeat()) is not None and beat.note == STARTING


# logging out


def test_drop_ins_of_logind_override_its_configuration(tmp_path: Path) -> None:
    main, drop = tmp_path / "logind.conf", tmp_path / "kill.conf"
    main.write_text("[Login]\n#KillUserProcesses=no\nKillExcludeUsers=root admin\n")
    drop.write_text("[Login]\nKillUserProcesses=yes\n")
    assert not configured_to_kill([main], "ann")
    assert configured_to_kill([main, drop], "ann")
    assert not configured_to_kill([main, drop], "admin")


def test_an_engine_gets_a_scope_only_where_logout_would_kill_it() -> None:
    command = ["python", "-m", "engine.daemon.service"]
    assert surviving(command, LogoutPolicy(False)) == command
    assert surviving(command, LogoutPolicy(True, scope=False)) == command
    assert surviving(command, LogoutPolicy(True, scope=True))[-3:] == command
    assert LogoutPolicy(False).advice is None
    assert "enable-linger" in (LogoutPolicy(True, scope=True).advice or "")
    assert "searches end at logout" in (LogoutPolicy(True).advice or "")


def test_a_user_without_a_name_can_steer(broken: SessionPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # The system knows no user.
    monkeypatch.setattr(send, "ANSWER_S", 0.0)
    lock = EngineLock(broken)
    with pytest.raises(Failure, match="no answer"):
        send.send(broken.directory.parent, "broken", Stop(), as_json=False)
    lock.release()
    with SessionReader(broken) as reader:
        (sent,) = reader.commands()
    assert sent.author == f"uid {os.getuid()} (command line)"
