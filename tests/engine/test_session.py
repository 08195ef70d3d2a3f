"""The session file in use: one engine writes, monitors follow, and requests come back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.exit_codes import ExitCode
from engine.session.records.events import (
    CommandHandled,
    EngineStarted,
    EngineStopped,
    LogLine,
    SessionCreated,
    VariantWritten,
)
from engine.session.records.requests import Pause, Prune
from engine.session.store import (
    EngineLock,
    EventWriter,
    RequestInbox,
    SessionError,
    SessionPaths,
    SessionReader,
    create_session,
    engine_liveness,
    find_session,
    list_sessions,
    quick_check,
    send_request,
    wait_handled,
    write_best,
)
from tests.patience import PATIENCE_S


@pytest.fixture
def paths(tmp_path: Path) -> SessionPaths:
    return create_session(tmp_path, "demo", "seed = 7\n", "config.toml", 7)


@pytest.fixture
def writer(paths: SessionPaths) -> Iterator[EventWriter]:
    writer = EventWriter(paths)
    yield writer
    writer.close()


def line(text: str) -> LogLine:
    return LogLine(level="info", text=text)


# Creating and finding


def test_a_new_session_holds_its_config_and_its_first_event(paths: SessionPaths) -> None:
    with SessionReader(paths) as reader:
        (first,) = reader.read()
        assert isinstance(first.event, SessionCreated)
        assert (first.seq, first.event.name, first.event.seed) == (1, "demo", 7)
        assert reader.text(first.event.config) == paths.config.read_text() == "seed = 7\n"
        assert reader.config_name() == "config.toml"
    assert quick_check(paths) is None


def test_who_lists_sessions_while_they_are_made_sees_whole_ones_and_hinders_nobody(tmp_path: Path) -> None:
    seen: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.update(summary.state for summary in list_sessions(tmp_path))

    watchers = [threading.Thread(target=look) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(30):
            create_session(tmp_path, "demo", "seed = 7\n", "config.toml", 7)
    finally:
        done.set()
        for watcher in watchers:
            watcher.join()
    assert seen == {"new"}
    assert not (tmp_path / "demo" / ".new").exists()


def test_a_taken_name_gets_a_number(tmp_path: Path) -> None:
    names = [create_session(tmp_path, "demo", "", "c.toml", 0).name for _ in range(3)]
    assert names == ["demo", "demo-2", "demo-3"]


def test_a_name_is_made_safe_as_a_directory(tmp_path: Path) -> None:
    assert create_session(tmp_path, "../my search", "", "c.toml", 0).directory.parent == tmp_path


def test_a_session_is_found_by_name_and_by_path(paths: SessionPaths, tmp_path: Path) -> None:
    assert find_session(tmp_path, "demo") == paths
    assert find_session(Path("elsewhere"), str(paths.directory)) == paths
    with pytest.raises(SessionError, match="no such session") as caught:
        find_session(tmp_path, "dmeo")
    assert caught.value.exit_code is ExitCode.NO_SESSION


# Events and blobs


def test_a_reader_sees_an_event_once_it_is_acknowledged(paths: SessionPaths, writer: EventWriter) -> None:
    with SessionReader(paths) as reader:
        reader.changed()
        assert not reader.changed()
        recorded = writer.append(line("hello")).result(5)
        assert reader.changed()
        assert list(reader.read(after_seq=1)) == [recorded]


async def test_a_clock_that_is_set_while_the_engine_runs_adds_no_time_to_the_search(
    paths: SessionPaths, writer: EventWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, machine_time = await writer.record(line("before")), time.time
    monkeypatch.setattr(time, "time", lambda: machine_time() + 3600.0)
    after = await writer.record(line("after"))
    writer.heartbeat()
    writer.flush(5)
    assert 0.0 <= after.time - before.time < 60.0
    age_s = engine_liveness(paths).heartbeat_age_s
    assert age_s is not None and age_s < 60.0, "heartbeats are seen by others, whose clock was set too"


def test_events_of_many_tasks_come_back_in_the_order_of_the_file(paths: SessionPaths, writer: EventWriter) -> None:
    async def record_all() -> list[int]:
        return [r.seq for r in await asyncio.gather(*(writer.record(line(str(n))) for n in range(500)))]

    assert asyncio.run(record_all()) == list(range(2, 502))
    with SessionReader(paths) as reader:
        texts = [r.event.text for r in reader.read(1) if isinstance(r.event, LogLine)]
    assert texts == [str(n) for n in range(500)]


def test_reading_goes_on_over_many_chunks_and_can_leave_kinds_out(paths: SessionPaths, writer: EventWriter) -> None:
    for number in range(9000):
        writer.append(line(str(number)))
    writer.flush(30)
    with SessionReader(paths) as reader:
        assert [r.seq for r in reader.read()] == list(range(1, 9002))
        assert [r.seq for r in reader.read(without=("log_line",))] == [1]
        assert reader.last_seq() == 9001


def test_events_recorded_together_are_there_all_or_none(paths: SessionPaths, writer: EventWriter) -> None:
    seen = set()
    with SessionReader(paths) as reader:
        first = reader.last_seq()
        writer.append(LogLine(level="info", text="alone"))
        together = writer.append_all(LogLine(level="info", text=str(n)) for n in range(9000))
        while not together[-1].done():
            seen.add(reader.last_seq() - first)
        seen.add(reader.last_seq() - first)
    assert seen <= {0, 1, 9001}


def test_a_cancelled_wait_does_not_take_the_event_back(paths: SessionPaths, writer: EventWriter) -> None:
    async def give_up() -> None:
        waiting = asyncio.create_task(writer.record(line("paid for")))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(give_up())
    writer.flush(5)
    with SessionReader(paths) as reader:
        assert reader.last_seq() == 2


def test_a_blob_is_there_when_the_event_that_names_it_is(paths: SessionPaths, writer: EventWriter) -> None:
    source = "int launch();\n" * 10_000
    digest = writer.put_blob(source)
    assert writer.put_blob(source) == digest
    event = VariantWritten(
        variant="v1", idea="i1", problem="p", round=0, parent=None, language="cpp", source=digest, proposer="playbook"
    )
    writer.append(event).result(5)
    with SessionReader(paths) as reader:
        assert reader.text(digest) == source
        with pytest.raises(SessionError, match="is missing"):
            reader.blob("0" * 64)


def test_close_writes_what_is_queued_and_then_refuses(paths: SessionPaths) -> None:
    writer = EventWriter(paths)
    futures = [writer.append(line(str(n))) for n in range(100)]
    writer.close()
    assert [future.result(0).seq for future in futures] == list(range(2, 102))
    with pytest.raises(SessionError, match="closed"):
        writer.append(line("late")).result(0)


def test_a_resumed_writer_goes_on_where_the_last_one_ended(paths: SessionPaths) -> None:
    for number in range(3):
        writer = EventWriter(paths)
        assert writer.append(line("x")).result(5).seq == number + 2
        writer.close()


def test_the_best_kernel_is_replaced_whole(paths: SessionPaths) -> None:
    write_best(paths, "softmax", ".cpp", "first")
    target = write_best(paths, "softmax", ".cpp", "second")
    assert target == paths.best("softmax", ".cpp")
    assert [file.name for file in target.parent.iterdir()] == ["softmax.cpp"]
    assert target.read_text() == "second"


# Commands


def test_a_command_is_read_once_and_its_answer_awaited(paths: SessionPaths, writer: EventWriter) -> None:
    number = send_request(paths, Prune(node="v3"), "monitor")
    inbox = RequestInbox(paths)
    (sent,) = inbox.poll()
    assert (sent.id, sent.author, sent.command) == (number, "monitor", Prune(node="v3"))
    assert inbox.poll() == []
    assert wait_handled(paths, number, timeout_s=0) is None
    assert wait_handled(paths, number, timeout_s=60, needs_engine=True) is None  # no engine is running
    threading.Timer(0.1, writer.append, [CommandHandled(command=number, ok=True, message="pruned v3")]).start()
    answer = wait_handled(paths, number, timeout_s=10)
    assert answer is not None
    assert answer.message == "pruned v3"
    inbox.close()


def test_a_resumed_engine_reads_only_what_was_not_answered(paths: SessionPaths) -> None:
    numbers = [send_request(paths, Pause(), "cli") for _ in range(3)]
    inbox = RequestInbox(paths, handled=numbers[:1] + numbers[2:])
    assert [sent.id for sent in inbox.poll()] == [numbers[1]]
    inbox.close()


async def test_the_inbox_wakes_for_a_command(paths: SessionPaths) -> None:
    inbox = RequestInbox(paths)
    waiting = asyncio.create_task(inbox.next())
    await asyncio.sleep(0.1)
    await asyncio.to_thread(send_request, paths, Pause(), "cli")
    assert (await asyncio.wait_for(waiting, PATIENCE_S)).command == Pause()
    inbox.close()


def test_many_senders_and_a_busy_engine_lose_nothing(paths: SessionPaths, writer: EventWriter) -> None:
    sent: list[int] = []

    def send() -> None:
        sent.extend(send_request(paths, Pause(), threading.current_thread().name) for _ in range(20))

    senders = [threading.Thread(target=send) for _ in range(5)]
    for sender in senders:
        sender.start()
    futures = []
    while any(sender.is_alive() for sender in senders):
        futures.append(writer.append(line("busy")))
        time.sleep(0.001)
    writer.flush(30)
    inbox = RequestInbox(paths)
    assert sorted(sent) == [one.id for one in inbox.poll()] == list(range(1, 101))
    assert [future.result(0).seq for future in futures] == list(range(2, len(futures) + 2))
    inbox.close()


# Liveness


def test_a_second_engine_is_refused_with_the_pid_of_the_first(paths: SessionPaths) -> None:
    lock = EngineLock(paths)
    assert engine_liveness(paths).running
    with pytest.raises(SessionError, match="already running this session") as caught:
        EngineLock(paths)
    assert caught.value.exit_code is ExitCode.SESSION_LOCKED
    lock.release(ExitCode.NOTHING_CORRECT, "nothing was correct")
    living = engine_liveness(paths)
    assert (living.running, living.exit_code, living.message) == (False, 8, "nothing was correct")
    EngineLock(paths).release()


def test_a_heartbeat_tells_its_age(paths: SessionPaths, writer: EventWriter) -> None:
    assert engine_liveness(paths).heartbeat_age_s is None
    writer.heartbeat("3 running")
    writer.flush(5)
    age_s = engine_liveness(paths).heartbeat_age_s
    assert age_s is not None
    assert age_s < 60
    with SessionReader(paths) as reader:
        beat = reader.heartbeat()
    assert beat is not None
    assert beat.note == "3 running"


def test_the_list_says_how_each_session_stands(tmp_path: Path) -> None:
    def session(name: str, *ends: EngineStopped) -> SessionPaths:
        paths = create_session(tmp_path, name, "", f"{name}.toml", 0)
        writer = EventWriter(paths)
        started = EngineStarted(pid=1, host="h", version="1", resumed=False, devices=(), sandbox="")
        for event in (started, *ends):
            writer.append(event)
        writer.close()
        return paths

    create_session(tmp_path, "new", "", "c.toml", 0)
    session("died")
    session("finished", EngineStopped(reason="finished", message="done"))
    session("stopped", EngineStopped(reason="signal", message="SIGTERM"))
    lock = EngineLock(session("running"))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "session.db").write_text("not a database, and long enough to look like one" * 100)
    states = {one.name: one.state for one in list_sessions(tmp_path)}
    assert states == {name: name for name in ("new", "died", "finished", "stopped", "running")} | {
        "foreign": "unreadable"
    }
    assert list_sessions(tmp_path / "nowhere") == []
    lock.release()


# Samples


def test_samples_come_back_oldest_first(paths: SessionPaths, writer: EventWriter) -> None:
    for utilization in (10, 20):
        writer.sample([{"device": "cpu", "utilization": utilization}])
    writer.flush(5)
    with SessionReader(paths) as reader:
        found = reader.samples()
        assert ["10" in found[0].json, "20" in found[1].json] == [True, True]
        assert reader.samples(since=found[0].time) == found[1:]
