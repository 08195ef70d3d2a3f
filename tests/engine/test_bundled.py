"""A session that ships with kernel-tui stays unchanged, and its copy is whole or absent."""

from __future__ import annotations

import hashlib
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.daemon.launch import spawn_engine
from engine.exit_codes import ExitCode
from engine.session.records.requests import Pause
from engine.session.store import (
    SessionBundled,
    SessionPaths,
    UnsafeFileSystem,
    filesystem,
    find_session,
    list_sessions,
    own_copy,
    quick_check,
    send_request,
)
from tests.commandline import NO_BYTECODE, KernelTui, environment
from tests.patience import PATIENCE_S

BUNDLED = SessionPaths(Path(__file__).parents[2] / "sessions" / "by-hand")

COPIES = """
from pathlib import Path
from engine.session.store import SessionError, find_session, own_copy
try:
    own_copy(find_session(Path("sessions"), "by-hand"), Path("sessions"))
except SessionError as error:
    raise SystemExit(int(error.exit_code))
"""
COPIES_UNTIL_KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from engine.session.store import find_session, own_copy
copy = shutil.copyfile
def copy_until_killed(source, target, **options):
    if Path(source).name == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    return copy(source, target, **options)
shutil.copyfile = copy_until_killed
own_copy(find_session(Path("sessions"), "by-hand"), Path("sessions"))
"""


def files_of(paths: SessionPaths) -> dict[str, str]:
    """Digests of the recorded files, without those that SQLite makes for a reader."""
    files = (file for file in paths.directory.rglob("*") if file.is_file() and not file.name.startswith("session.db-"))
    return {str(file.relative_to(paths.directory)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_nothing_writes_to_a_bundled_session() -> None:
    before = files_of(BUNDLED)
    with pytest.raises(SessionBundled, match="kernel-tui resume by-hand"):
        send_request(BUNDLED, Pause(), "test")
    with pytest.raises(SessionBundled):
        spawn_engine(BUNDLED)
    assert files_of(BUNDLED) == before


def test_a_copy_is_complete_and_has_a_name_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "by-hand").mkdir()
    (tmp_path / "by-hand" / "notes").touch()
    copies = [own_copy(BUNDLED, tmp_path) for _ in range(2)]

    assert [paths.name for paths in copies] == ["by-hand-2", "by-hand-3"]
    assert [one.name for one in list_sessions(tmp_path)] == ["by-hand-2", "by-hand-3"]
    for paths in copies:
        assert files_of(paths) == files_of(BUNDLED)
        assert quick_check(paths) is None
        assert own_copy(paths, tmp_path) == paths
    send_request(copies[0], Pause(), "test")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["by-hand", "by-hand-2", "by-hand-3"]


@pytest.mark.parametrize("file", ["session.db", "config.toml"])
def test_a_killed_copy_leaves_no_session(file: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", COPIES_UNTIL_KILLED, file],
        cwd=tmp_path,
        env=environment(),
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL
    assert list_sessions(tmp_path / "sessions") == []
    assert not (tmp_path / "sessions" / "by-hand").exists()

    assert find_session(tmp_path / "sessions", "by-hand") == BUNDLED
    assert own_copy(BUNDLED, tmp_path / "sessions").name == "by-hand"


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    ran = subprocess.run(
        [sys.executable, "-c", COPIES],
        cwd=tmp_path,
        env=environment() | NO_BYTECODE,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=small_files,
    )
    assert ran.returncode == ExitCode.STORAGE
    assert list((tmp_path / "sessions").iterdir()) == []


def test_a_copy_goes_to_no_unsafe_file_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 /dev/x rw\n2 1 0:2 / {tmp_path}/share rw - nfs4 server:/share rw\n")
    monkeypatch.setattr(filesystem.check_file_system, "__defaults__", (mounts,))
    with pytest.raises(UnsafeFileSystem, match="NFS"):
        own_copy(BUNDLED, tmp_path / "share" / "sessions")
    assert list((tmp_path / "share" / "sessions").iterdir()) == []


def test_a_finished_session_is_not_copied_for_nothing(kernel_tui: KernelTui, tmp_path: Path) -> None:
    ran = kernel_tui("resume", "by-hand", "--headless")
    assert ran.returncode == ExitCode.USAGE and "--rounds N" in ran.stderr
    assert not (tmp_path / "sessions").exists()


@pytest.mark.parametrize("name", ["by-hand", "headline-h200"])
def test_a_session_whose_gpu_is_missing_is_not_copied(name: str, kernel_tui: KernelTui, tmp_path: Path) -> None:
    if not BUNDLED.directory.with_name(name).exists():
        pytest.skip(f"{name} ships only with a checkout")
    ran = kernel_tui(
        "resume", name, "--rounds", "30", "--minutes", "30", "--headless", env={"CUDA_VISIBLE_DEVICES": ""}
    )
    assert ran.returncode == ExitCode.NO_TOOLS and ran.stdout == ""
    assert "cuda" in ran.stderr and f"kernel-tui replay {name}" in ran.stderr and "config.toml" in ran.stderr
    assert not (tmp_path / "sessions").exists()


def test_a_session_of_your_own_whose_gpu_is_missing_starts_no_engine(kernel_tui: KernelTui, tmp_path: Path) -> None:
    paths = own_copy(BUNDLED, tmp_path / "sessions")
    before = files_of(paths)
    ran = kernel_tui("resume", paths.name, "--rounds", "30", "--headless", env={"CUDA_VISIBLE_DEVICES": ""})
    assert ran.returncode == ExitCode.NO_TOOLS and "evaluation.device" in ran.stderr
    assert str(paths.config) in ran.stderr and "replay" not in ran.stderr
    assert files_of(paths) == before
