"""A session survives kill -9, full disks and read-only media. Foreign and newer files are refused."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.exit_codes import ExitCode
from engine.session.records.events import LogLine
from engine.session.records.requests import Pause
from engine.session.store import (
    EventWriter,
    SessionError,
    SessionPaths,
    SessionReader,
    StorageError,
    UnsafeFileSystem,
    create_session,
    send_request,
    summarize,
)
from engine.session.store.database import MIGRATIONS, migrate
from engine.session.store.filesystem import check_file_system, mount_type
from engine.session.store.samples import thin
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]

WRITES_FOR_EVER = """
import sys
from pathlib import Path
from engine.session.records.events import LogLine
from engine.session.store import EventWriter, SessionPaths
writer = EventWriter(SessionPaths(Path(sys.argv[1])))
def tell(done):
    sys.stdout.write(f"{done.result().seq}\\n")
    sys.stdout.flush()
while True:
    writer.put_blob(str(id(object())) * 100)
    future = writer.append(LogLine(level="info", text="x" * 500))
    future.add_done_callback(tell)
    future.result()
"""

FILLS_ITS_DISK = """
import resource, sys
sys.dont_write_bytecode = True
from pathlib import Path
from engine.session.records.events import LogLine
from engine.session.store import EventWriter, SessionError, SessionPaths
paths = SessionPaths(Path(sys.argv[1]))
size = paths.database.stat().st_size
writer = EventWriter(paths, patience_s=0.3, on_trouble=lambda what: print("trouble", what, flush=True))
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 200_000, resource.RLIM_INFINITY))
while True:
    try:
        print("seq", writer.append(LogLine(level="info", text="x" * 5000)).result().seq, flush=True)
    except SessionError as error:
        print("failed", int(error.exit_code), error, flush=True)
        break
try:
    writer.close()
except SessionError:
    print("closed", flush=True)
"""


@pytest.fixture
def paths(tmp_path: Path) -> SessionPaths:
    return create_session(tmp_path, "demo", "", "config.toml", 0)


@contextlib.contextmanager
def mounted(target: Path, *options: str) -> Iterator[None]:
    """Mount a real file system for a test. Skip the test if mounting is not allowed."""
    target.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(target)], capture_output=True, text=True, timeout=20)
    if done.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True, timeout=20)


def line(text: str = "x") -> LogLine:
    return LogLine(level="info", text=text)


def run_script(script: str, paths: SessionPaths) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, str(paths.directory)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


# Crashes


@pytest.mark.parametrize("kill", range(3))
def test_kill_9_loses_no_acknowledged_event(paths: SessionPaths, kill: int) -> None:
    engine = run_script(WRITES_FOR_EVER, paths)
    assert engine.stdout is not None
    engine.stdout.readline()
    time.sleep(random.uniform(0.02, 0.4))
    engine.send_signal(signal.SIGKILL)
    acknowledged = [int(seq) for seq in engine.stdout.read().split("\n")[:-1]]
    engine.wait(10)
    with SessionReader(paths) as reader:
        assert reader.last_seq() >= max(acknowledged, default=2)
        assert [r.seq for r in reader.read()] == list(range(1, reader.last_seq() + 1))
        assert reader.quick_check() is None
    writer = EventWriter(paths)
    assert writer.append(line("resumed")).result(10).seq > max(acknowledged, default=2)
    writer.close()


# Full disks


def test_a_full_disk_is_reported_once_and_what_was_acknowledged_stays(paths: SessionPaths) -> None:
    said, _ = run_script(FILLS_ITS_DISK, paths).communicate(timeout=PATIENCE_S)
    lines = said.splitlines()
    acknowledged = [int(one.split()[1]) for one in lines if one.startswith("seq")]
    assert len([one for one in lines if one.startswith("trouble")]) == 1
    assert any(one.startswith(f"failed {ExitCode.STORAGE:d}") and str(paths.database) in one for one in lines)
    with SessionReader(paths) as reader:
        assert reader.last_seq() == acknowledged[-1]
        assert reader.quick_check() is None
    writer = EventWriter(paths)
    assert writer.append(line("resumed")).result(10).seq == acknowledged[-1] + 1
    writer.close()


@pytest.mark.serial
def test_the_engine_waits_for_space_and_loses_nothing(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=2m", "none"):
        paths = create_session(tmp_path / "small", "demo", "", "config.toml", 0)
        ballast = tmp_path / "small" / "ballast"
        troubles: list[str] = []
        writer = EventWriter(paths, on_trouble=troubles.append)
        ballast.write_bytes(b"0" * (os.statvfs(ballast.parent).f_bavail * 4096 - 8192))
        futures = [writer.append(line("x" * 4000)) for _ in range(100)]
        deadline = time.monotonic() + PATIENCE_S
        while not troubles and time.monotonic() < deadline:
            time.sleep(0.02)
        assert "no space left" in troubles[0]
        ballast.unlink()
        assert [future.result(20).seq for future in futures] == list(range(2, 102))
        writer.close()


def test_a_session_that_is_deleted_under_its_engine_is_no_place_to_write_to(paths: SessionPaths) -> None:
    told: list[str] = []
    writer = EventWriter(paths, patience_s=0.2, on_trouble=told.append)
    writer.heartbeat()
    writer.flush(10)
    paths.database.unlink()
    writer.heartbeat()
    with pytest.raises(SessionError, match="another process deleted this file"):
        for _ in range(100):
            writer.flush(10)
            time.sleep(0.05)
            writer.heartbeat()
    assert len(told) == 1 and "deleted" in told[0]
    with pytest.raises(SessionError):
        writer.close()


def test_no_session_is_left_where_there_is_no_room_for_one(tmp_path: Path) -> None:
    with mounted(tmp_path / "tiny", "-t", "tmpfs", "-o", "size=16k", "none"):
        with pytest.raises(StorageError, match="no space left"):
            create_session(tmp_path / "tiny", "demo", "", "config.toml", 0)
        assert list((tmp_path / "tiny").iterdir()) == []


# Read-only media


def test_a_read_only_session_can_be_read_but_not_written(paths: SessionPaths) -> None:
    with mounted(paths.directory, "-o", "bind", str(paths.directory)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(paths.directory)], check=True, timeout=20)
        with SessionReader(paths) as reader:
            assert len(list(reader.read())) == 1
        assert summarize(paths).state == "new"
        for write in (lambda: EventWriter(paths), lambda: send_request(paths, Pause(), "cli")):
            with pytest.raises(StorageError, match="cannot write"):
                write()


def test_a_log_left_by_a_dead_engine_is_read_from_read_only_media(paths: SessionPaths) -> None:
    engine = run_script(WRITES_FOR_EVER, paths)
    assert engine.stdout is not None
    last = [int(engine.stdout.readline()) for _ in range(5)][-1]
    engine.kill()
    engine.wait(10)
    engine.stdout.close()
    paths.database.with_name("session.db-shm").unlink()
    with mounted(paths.directory, "-o", "bind", str(paths.directory)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(paths.directory)], check=True, timeout=20)
        with SessionReader(paths) as reader:
            assert reader.last_seq() >= last


def test_a_place_where_nothing_can_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="/proc/sessions"):
        create_session(Path("/proc/sessions"), "demo", "", "config.toml", 0)
    (tmp_path / "file").touch()
    with pytest.raises(SessionError, match="file"):
        create_session(tmp_path / "file", "demo", "", "config.toml", 0)


# Foreign, damaged, newer and older files


def test_a_missing_session_and_an_empty_directory_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="no such session") as missing:
        SessionReader(SessionPaths(tmp_path / "nowhere"))
    with pytest.raises(SessionError, match=r"is not a (kernel-tui )?session") as empty:
        SessionReader(SessionPaths(tmp_path))
    assert missing.value.exit_code is empty.value.exit_code is ExitCode.NO_SESSION


@pytest.mark.parametrize("content", [b"", b"hello, world " * 100, b"SQLite format 3\0"])
def test_a_file_that_is_no_session_is_refused(paths: SessionPaths, content: bytes) -> None:
    paths.database.write_bytes(content)
    for opened in (SessionReader, EventWriter):
        with pytest.raises(SessionError, match=r"session\.db: the (database|file) is ") as caught:
            opened(paths)
        assert caught.value.exit_code is ExitCode.NO_SESSION


def test_a_foreign_database_is_refused_untouched(paths: SessionPaths) -> None:
    paths.database.unlink()
    with contextlib.closing(sqlite3.connect(paths.database)) as foreign:
        foreign.execute("CREATE TABLE mine (x)")
        foreign.commit()
    before = paths.database.read_bytes()
    with pytest.raises(SessionError, match="is not a kernel-tui session"):
        EventWriter(paths)
    assert paths.database.read_bytes() == before


def test_text_that_is_no_text_is_damage_and_is_not_quoted(paths: SessionPaths) -> None:
    writer = EventWriter(paths)
    writer.append(line("a secret"))
    writer.close()
    with contextlib.closing(sqlite3.connect(paths.database)) as database:
        database.execute("UPDATE event SET json = CAST(CAST(json AS BLOB) || x'ff' AS TEXT)")
        database.commit()
    with SessionReader(paths) as reader, pytest.raises(SessionError) as caught:
        list(reader.read())
    assert "is damaged (it contains text that is not UTF-8). Start a new session, or recover" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_truncated_session_is_found_out(paths: SessionPaths) -> None:
    writer = EventWriter(paths)
    for number in range(200):
        writer.append(line(str(number) * 500))
    writer.close()
    os.truncate(paths.database, paths.database.stat().st_size // 2)
    summary = summarize(paths)
    assert summary.state == "unreadable"
    assert str(paths.database) in summary.note


def send_pause(paths: SessionPaths) -> None:
    send_request(paths, Pause(), "cli")


def test_a_newer_session_is_refused_by_everyone(paths: SessionPaths) -> None:
    with contextlib.closing(sqlite3.connect(paths.database)) as newer:
        newer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    for opened in (SessionReader, EventWriter, send_pause):
        with pytest.raises(SessionError, match="newer kernel-tui") as caught:
            opened(paths)
        assert caught.value.exit_code is ExitCode.SESSION_NEWER


def test_an_event_that_cannot_be_decoded_names_its_number(paths: SessionPaths) -> None:
    with contextlib.closing(sqlite3.connect(paths.database)) as foreign:
        foreign.execute("INSERT INTO event VALUES (2, 0, 'new_kind', '{\"kind\": \"new_kind\"}')")
        foreign.commit()
    with SessionReader(paths) as reader, pytest.raises(SessionError, match="cannot decode event 2"):
        list(reader.read())


def test_migrations_run_in_order_and_each_whole_or_not_at_all() -> None:
    database = sqlite3.connect(":memory:", isolation_level=None)
    first, second = "CREATE TABLE t (a)", "ALTER TABLE t ADD COLUMN b"
    migrate(database, (first,))
    migrate(database, (first, second))
    broken = "CREATE TABLE u (a); INSERT INTO nowhere VALUES (1)"
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        migrate(database, (first, second, broken))
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
    assert (tables, database.execute("PRAGMA user_version").fetchone()) == (["t"], (2,))
    assert [row[1] for row in database.execute("PRAGMA table_info(t)")] == ["a", "b"]


# File systems


def test_network_file_systems_are_refused_with_a_local_directory(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        f"30 22 0:40 / {tmp_path}/my\\040share rw shared:2 - nfs4 server:/export rw\n"
        f"31 30 0:41 / {tmp_path}/my\\040share/local rw - tmpfs none rw\n"
    )
    assert mount_type(tmp_path, mounts) == "ext4"
    assert mount_type(tmp_path / "my share" / "local" / "x", mounts) == "tmpfs"
    check_file_system(tmp_path, mounts)
    with pytest.raises(UnsafeFileSystem, match="NFS") as caught:
        check_file_system(tmp_path / "my share" / "sessions", mounts)
    assert str(caught.value.local) in str(caught.value)


# Thinning


def test_samples_grow_sparser_with_age(paths: SessionPaths) -> None:
    now = 1_800_000_000.0
    with contextlib.closing(sqlite3.connect(paths.database)) as database:
        rows = [(now - age, "[]") for age in range(200_000, 0, -1)]
        database.executemany("INSERT INTO sample (time, json) VALUES (?, ?)", rows)
        thin(database, now)
        thin(database, now)  # a second time has no effect

        def count(older: float, younger: float) -> int:
            query = "SELECT count(*) FROM sample WHERE time >= ? AND time < ?"
            return int(database.execute(query, (now - older, now - younger)).fetchone()[0])

        assert count(600, 0) == 600
        assert count(3600 + 600, 600) == pytest.approx(360, abs=2)
        assert count(10 * 3600, 9 * 3600) == pytest.approx(60, abs=2)
        assert count(52 * 3600, 46 * 3600) == pytest.approx(36, abs=2)
