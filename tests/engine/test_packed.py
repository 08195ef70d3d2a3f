"""A packed session reads like the original, and an interrupted packing or unpacking leaves nothing broken."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.exit_codes import ExitCode
from engine.session.records.events import EngineStarted, LogLine
from engine.session.state.session_state import fold
from engine.session.store import (
    EventWriter,
    SessionDamaged,
    SessionError,
    SessionPaths,
    SessionReader,
    StorageError,
    create_session,
    list_sessions,
    pack_session,
    quick_check,
    summarize,
)
from engine.session.store.lock import EngineLock
from engine.session.store.shipped import packed as packing
from engine.session.store.shipped.packing import COPIED, without_prefix
from tests.commandline import KernelTui, environment
from tests.patience import PATIENCE_S
from tui.bench.files import as_html, as_json, as_markdown
from tui.bench.report import read_report
from tui.cli.saved.session_results import session_results
from tui.text.format import size
from tui.view.source import SessionSource

ROOT = Path(__file__).parents[2]
BY_HAND = SessionPaths(ROOT / "sessions" / "by-hand")
OLD = SessionPaths(ROOT / "tests" / "recorded" / "format-1")

KILLED = """
import os, pathlib, signal, sys
from pathlib import Path
from engine.session.store import EventWriter, SessionPaths, pack_session
def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(pathlib.Path, sys.argv[1], kill)
if sys.argv[2] == "pack":
    pack_session(SessionPaths(Path(sys.argv[3])), Path("sessions/packed"))
else:
    EventWriter(SessionPaths(Path(sys.argv[3])))
"""


def content(paths: SessionPaths) -> tuple[object, ...]:
    """Everything that a reader returns of a session."""
    with SessionReader(paths) as reader:
        events = list(reader.read())
        digests = [row[0] for row in reader._rows("SELECT digest FROM blob ORDER BY digest")]
        blobs = {digest: reader.blob(digest) for digest in digests}
        return events, blobs, reader.samples(), reader.commands(), reader.heartbeat(), reader.config_name()


def killed(directory: Path, step: str, what: str, session: Path) -> None:
    """Pack or unpack in a process that kills itself at its first call of ``Path``'s method ``step``."""
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-c", KILLED, step, what, str(session)]
    ran = subprocess.run(command, cwd=directory, env=environment(), timeout=PATIENCE_S, check=False)
    assert ran.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> SessionPaths:
    """A packed copy of the bundled session. Tests that write use ``copied``."""
    return pack_session(BY_HAND, tmp_path_factory.mktemp("packed") / "by-hand")


@pytest.fixture
def copied(original: SessionPaths, tmp_path: Path) -> SessionPaths:
    return SessionPaths.at(shutil.copytree(original.directory, tmp_path / "sessions" / "packed"))


@pytest.mark.parametrize("session", [BY_HAND, OLD], ids=["by-hand", "format-1"])
def test_a_packed_session_is_the_same_session(session: SessionPaths, tmp_path: Path) -> None:
    copy = pack_session(session, tmp_path / "sessions" / session.name)
    assert content(copy) == content(session)
    assert quick_check(copy) is None
    assert not copy.database.exists()
    assert copy.packed.stat().st_size < session.database.stat().st_size / 4
    again = pack_session(copy, tmp_path / "again")
    assert content(again) == content(session)


def test_its_reports_are_the_same_byte_for_byte(original: SessionPaths) -> None:
    one, other = read_report(BY_HAND), read_report(original)
    for write in (as_json, as_markdown, as_html):
        assert write(one) == write(other)


def test_the_commands_read_it_and_write_nothing(copied: SessionPaths, kernel_tui: KernelTui, tmp_path: Path) -> None:
    before = sorted(copied.directory.iterdir())
    for command in (("show", "v1", "--full"), ("export", "--report", "-")):
        packed, plain = (kernel_tui(command[0], name, *command[1:]) for name in ("packed", "by-hand"))
        assert packed.returncode == plain.returncode == 0, packed.stderr
        assert packed.stdout.replace("# packed\n", "# by-hand\n") == plain.stdout
    shown = kernel_tui("show", "packed").stdout
    assert "best softmax: v42\n" in shown and "--sources DIRECTORY" in shown
    screen = kernel_tui("attach", "packed", "--once", "--size", "200x60").stdout
    assert (
        "to write the best kernels to files: kernel-tui export SESSION --sources DIRECTORY" in screen
        and "best/" not in screen
    )
    assert [one["name"] for one in kernel_tui.json("sessions")] == ["packed"]
    assert sorted(copied.directory.iterdir()) == before

    sources = kernel_tui("export", "packed", "--sources", "best")
    assert sources.returncode == 0, sources.stderr
    expected = {file.name: file.read_text() for file in (BY_HAND.directory / "best").iterdir()}
    assert {file.name: file.read_text() for file in (tmp_path / "best").iterdir()} == expected


def test_export_packs_it_and_records_relative_paths(kernel_tui: KernelTui, tmp_path: Path) -> None:
    session = SessionPaths.at(shutil.copytree(BY_HAND.directory, tmp_path / "sessions" / "mine"))
    here = "/home/someone/with space"
    connection = sqlite3.connect(session.database)
    connection.execute(f"UPDATE event SET json = replace(json, 'problems/headline', '{here}/problems/headline')")
    connection.execute(f"UPDATE about SET value = '{here}/config.toml'")
    connection.commit()
    connection.close()

    done = kernel_tui("export", "mine", "--packed", "out/mine", "--relative-to", here)
    assert done.returncode == 0 and "session.db.xz" in done.stderr, done.stderr
    copy = SessionPaths(tmp_path / "out" / "mine")
    assert here.encode() not in lzma.decompress(copy.packed.read_bytes())
    assert content(copy) == content(BY_HAND)

    taken = kernel_tui("export", "mine", "--packed", "out/mine")
    assert taken.returncode == ExitCode.STORAGE and "already exists" in taken.stderr


def test_export_reports_the_whole_size_of_an_open_session(kernel_tui: KernelTui, tmp_path: Path) -> None:
    paths = create_session(tmp_path / "sessions", "demo", "", "config.toml", 0)
    writer = EventWriter(paths)
    writer.put_blob(os.urandom(1 << 20).hex())
    writer.flush(5)
    done = kernel_tui("export", "demo", "--packed", "copy")
    log = paths.database.with_name("session.db-wal").stat().st_size
    assert log > 1 << 19, "the blob is not in the database yet"
    assert f"packed from session.db of demo ({size(paths.database.stat().st_size + log)})" in done.stderr
    writer.close()


def start_engine(paths: SessionPaths) -> None:
    """Record that an engine started."""
    writer = EventWriter(paths)
    writer.append_all([EngineStarted(pid=1, host="here", version="0", devices=(), sandbox="", resumed=False)])
    writer.flush(5)
    writer.close()


def test_a_copy_of_a_running_search_says_so(tmp_path: Path) -> None:
    paths = create_session(tmp_path, "demo", "", "config.toml", 0)
    start_engine(paths)
    lock = EngineLock(paths)
    copy = pack_session(paths, tmp_path / "copy")
    lock.release()
    listed = {one.name: one for one in list_sessions(tmp_path)}
    assert (listed["copy"].state, listed["copy"].note) == ("stopped", COPIED)
    assert listed["demo"].state == "died", "the original is unchanged"
    with SessionReader(copy) as reader:
        state = fold(reader.read())
        assert COPIED in session_results(reader, state).ended and not state.died
    assert summarize(pack_session(paths, tmp_path / "died")).state == "died"
    start_engine(copy)
    assert summarize(copy).state == "died", "a later engine died"


def test_a_copy_contains_no_keys_and_no_work_of_the_engine(tmp_path: Path) -> None:
    session = SessionPaths.at(shutil.copytree(BY_HAND.directory, tmp_path / "mine"))
    key = session.directory / "scratch" / "certificates" / "engine-key.pem"
    key.parent.mkdir(parents=True)
    key.write_text("secret")
    (session.directory / "outbox").mkdir(exist_ok=True)
    (session.directory / "outbox" / "gone.md").symlink_to(tmp_path / "gone")
    copy = pack_session(session, tmp_path / "copy")
    assert {one.name for one in copy.directory.iterdir()} == {"config.toml", "session.db.xz"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('["/home/me/a.py", "/mnt/home/me/b.py"]', '["a.py", "/mnt/home/me/b.py"]'),
        ("cannot read /home/me/a.py (/home/me/b)", "cannot read a.py (b)"),
    ],
)
def test_only_the_start_of_a_path_becomes_relative(text: str, expected: str) -> None:
    assert without_prefix(text, "/home/me/") == expected


def test_the_configuration_with_relative_paths_has_its_digest(tmp_path: Path) -> None:
    text = 'problems = ["/home/someone/with space/softmax.py"]\nsessions = "/home/someone/sessions"\n'
    session = create_session(tmp_path / "sessions", "mine", text, "config.toml", 0)
    copy = pack_session(session, tmp_path / "copy", [Path("/home/someone"), Path("/home/someone/with space")])
    with SessionReader(copy) as reader:
        digest = fold(reader.read()).config
        frozen = reader.text(digest)
    assert frozen == copy.config.read_text() == 'problems = ["softmax.py"]\nsessions = "sessions"\n'
    assert digest == hashlib.sha256(frozen.encode()).hexdigest()


# An engine that continues it


def test_an_engine_unpacks_it_and_open_monitors_follow(copied: SessionPaths) -> None:
    source = SessionSource(copied)
    source.open()
    with SessionReader(copied) as reader:
        before = list(reader.read())
        reader.changed()
        writer = EventWriter(copied)
        writer.append(LogLine(level="info", text="continues")).result(10)
        assert copied.database.exists() and not copied.packed.exists()
        assert reader.changed()
        (new,) = reader.read(before[-1].seq)
        assert new.event == LogLine(level="info", text="continues")
        assert [one.event for one in source.poll().events] == [new.event]
        assert source.text(fold(before).config) == copied.config.read_text()
        writer.close()
    source.close()
    connection = sqlite3.connect(copied.database)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_an_old_packed_session_is_migrated(tmp_path: Path) -> None:
    copy = pack_session(OLD, tmp_path / "old")
    EventWriter(copy).close()
    with SessionReader(copy) as new, SessionReader(OLD) as old:
        assert list(new.read()) == list(old.read())


# Interruptions and damage


@pytest.mark.parametrize("step", ["open", "rename"])
def test_a_killed_packing_leaves_no_session(step: str, tmp_path: Path) -> None:
    killed(tmp_path, step, "pack", BY_HAND.directory)
    assert list_sessions(tmp_path / "sessions") == []
    assert not (tmp_path / "sessions" / "packed").exists()
    assert content(pack_session(BY_HAND, tmp_path / "sessions" / "packed")) == content(BY_HAND)


@pytest.mark.parametrize("step", ["replace", "unlink"])
def test_a_killed_unpacking_loses_nothing(step: str, copied: SessionPaths, tmp_path: Path) -> None:
    killed(tmp_path, step, "unpack", copied.directory)
    assert copied.packed.exists()
    assert [one.name for one in list_sessions(tmp_path / "sessions")] == ["packed"]
    assert content(copied) == content(BY_HAND)
    EventWriter(copied).close()
    assert copied.database.exists()
    assert content(copied) == content(BY_HAND)


def truncated(packed: Path) -> None:
    packed.write_bytes(packed.read_bytes()[:5000])


def foreign(packed: Path) -> None:
    packed.write_bytes(lzma.compress(b"no database" * 1000))


def altered(packed: Path) -> None:
    data = bytearray(packed.read_bytes())
    data[len(data) // 2] ^= 255
    packed.write_bytes(data)


@pytest.mark.parametrize("damage", [truncated, foreign, altered, lambda packed: packed.write_bytes(b"")])
def test_a_damaged_file_is_named(damage: Callable[[Path], None], copied: SessionPaths, tmp_path: Path) -> None:
    damage(copied.packed)
    with pytest.raises(SessionError, match=r"session\.db"):
        SessionReader(copied)
    with pytest.raises(SessionError, match=r"session\.db"):
        EventWriter(copied)
    assert [one.state for one in list_sessions(tmp_path / "sessions")] == ["unreadable"]
    assert copied.packed.exists()


def test_a_small_file_does_not_fill_the_disk(copied: SessionPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LARGEST_BYTES", 1 << 20)
    with pytest.raises(SessionDamaged, match="larger"):
        SessionReader(copied)


def test_a_taken_name_stays_untouched(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(StorageError, match="already exists"):
        pack_session(BY_HAND, tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_bundled_session_gets_no_report(kernel_tui: KernelTui) -> None:
    printed = kernel_tui("bench", "--report", "by-hand")
    assert printed.returncode == 0 and "fast_p" in printed.stderr and "--output" in printed.stderr
    assert not printed.stdout, "no file was written"
    assert kernel_tui("bench", "--report", "by-hand", "--output", "tables").returncode == 0
    assert not (BY_HAND.directory / "report").exists()
