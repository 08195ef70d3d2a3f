"""The commands that messages suggest name the session of the message, also if another session has the same name."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
from pathlib import Path

import pytest

from engine.cluster.certificates import faults
from engine.session.records import events as ev
from engine.session.store import EventWriter, SessionPaths, create_session, find_session
from engine.session.store.errors import SessionLocked, of_sqlite
from engine.session.store.paths import session_argument
from tests.commandline import KernelTui
from tests.engine.proposers import canned


def died(root: Path, name: str = "demo") -> SessionPaths:
    """Create a session whose engine died."""
    paths = create_session(root, name, 'problems = ["builtin:quickstart/softmax"]\n', "config.toml", 0)
    writer = EventWriter(paths)
    writer.append_all([ev.EngineStarted(pid=1, host="here", version="0", devices=(), sandbox="", resumed=False)])
    writer.flush(5)
    writer.close()
    return paths


def named_sessions(said: str) -> list[Path]:
    """Return the directories that the suggested commands in ``said`` open in the current directory."""
    found = []
    commands = r"kernel-tui ((?:show|resume|attach|stop|bench --resume|export) .*?)(?=;|, or|$)"
    for command in re.findall(commands, said, re.MULTILINE):
        words = shlex.split(command.replace("--resume ", ""))
        found.append(find_session(Path("sessions"), words[1]).directory)
    return found


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        (["my kernels/k 1.cu"], ["eval", "my kernels/k 1.cu", "--problem", "P"]),
        (["my kernels/no problem.py"], ["problems", "my kernels/no problem.py"]),
        (
            ["eval", "my kernels/k 1.cu", "--problem", "my kernels/p 1.py", "--device", "cpu"],
            ["build", "my kernels/k 1.cu", "--problem", "my kernels/p 1.py"],
        ),
    ],
)
def test_suggested_commands_quote_the_names_of_files(tmp_path: Path, typed: list[str], suggested: list[str]) -> None:
    (folder := tmp_path / "my kernels").mkdir()
    (folder / "k 1.cu").write_text("// a kernel\n")
    (folder / "p 1.py").write_text(canned.PROBLEM)
    said = KernelTui(tmp_path)(*typed).stderr
    assert shlex.split(said.rpartition("kernel-tui ")[2]) == suggested, said


def test_the_remedy_for_certificates_quotes_their_directory(tmp_path: Path) -> None:
    (found,) = faults(directory := tmp_path / "my certs", "engine")
    assert shlex.split(found.rpartition("kernel-tui ")[2]) == ["cluster", "certs", str(directory)]


@pytest.fixture(params=["elsewhere", "another place"])
def session(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SessionPaths:
    """A session whose engine died, and a session of the same name in the current directory's ``sessions/``."""
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    died(here / "sessions")
    return died(tmp_path / request.param)


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("show", "v9"),
        ("attach",),
        ("replay",),
        ("bench", "--resume"),
        ("bench", "--report"),
        ("pause",),
        ("export", "--problem", "softmax"),
    ],
)
def test_a_suggested_command_names_this_session(
    tmp_path: Path, session: SessionPaths, arguments: tuple[str, ...]
) -> None:
    kernel_tui = KernelTui(tmp_path / "here")
    first, *others = arguments
    # The path ends with the name, which alone would mean the other session.
    given = [*others, "demo"] if first == "bench" else ["demo", *others]
    done = kernel_tui(first, *given, "--sessions", session.directory.parent)
    named = named_sessions(done.stdout + done.stderr)
    assert named and set(named) == {session.directory}, done.stdout + done.stderr


def test_resume_lists_the_sessions_where_they_are(tmp_path: Path, session: SessionPaths) -> None:
    other = died(session.directory.parent, "night")
    done = KernelTui(tmp_path / "here")("resume", "--sessions", os.path.relpath(session.directory.parent))
    assert "/../" not in done.stderr
    assert set(named_sessions(done.stderr)) == {session.directory, other.directory}


def test_a_locked_session_is_named_by_its_path(session: SessionPaths) -> None:
    said = str(SessionLocked(session.directory, 1))
    assert named_sessions(said) == [session.directory] * 2


def test_the_engines_commands_quote_the_session(session: SessionPaths) -> None:
    assert find_session(Path("sessions"), *shlex.split(session_argument(session.directory))) == session
    assert find_session(Path("sessions"), *shlex.split(session.quoted)) == session


def test_a_path_of_a_damaged_session_is_quoted(session: SessionPaths) -> None:
    error = sqlite3.DatabaseError("damaged")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    program, database, option = shlex.split(str(of_sqlite(error, session.database)).partition("with: ")[2])
    assert (program, database, option) == ("sqlite3", str(session.database), ".recover")
