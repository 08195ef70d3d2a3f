"""If a real SSH connection is killed, the monitor ends, the engine keeps running, and a new monitor attaches."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from engine.session.store import SessionPaths, engine_liveness
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
CONFIG = """
name = "far"
problems = ["builtin:quickstart/softmax"]
[search]
rounds = 20
ideas = 2
variants = 2
[budget]
minutes = 60
[evaluation]
torch_compile = false
other_sizes = false
max_pairs = 20
[[models]]
provider = "playbook"
"""

pytestmark = [
    pytest.mark.skipif(
        not Path(SSHD).exists() or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None,
        reason="OpenSSH is not installed",
    ),
]


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[list[str]]:
    """Return an ``ssh`` command that logs in to this machine through its own sshd."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    (tmp_path / "keys").write_text((tmp_path / "user.pub").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if os.geteuid() == 0:  # where Debian's sshd drops its privileges
        Path("/run/sshd").mkdir(exist_ok=True)
    (tmp_path / "sshd").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/keys\n"
        f"PidFile {tmp_path}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
    )
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(tmp_path / "sshd")], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            break
        time.sleep(0.1)
    options = ["StrictHostKeyChecking=no", f"UserKnownHostsFile={tmp_path}/known", "LogLevel=ERROR", "BatchMode=yes"]
    command = ["ssh", "-tt", "-p", str(port), "-i", str(tmp_path / "user")]
    yield [*command, *(part for option in options for part in ("-o", option)), f"{getpass.getuser()}@127.0.0.1"]
    server.terminate()
    server.wait(10)


def remote(ssh: list[str], directory: Path, arguments: str) -> subprocess.Popen[bytes]:
    """Run the command over SSH in a 120x40 terminal. The output goes to ``directory/seen``."""
    program = (
        f"cd {directory} && stty cols 120 rows 40 && TERM=xterm-256color PYTHONPATH={ROOT} XDG_CONFIG_HOME={directory} "
        f"LC_ALL=C.UTF-8 exec {sys.executable} -m tui.cli.main {arguments}"
    )
    with (directory / "seen").open("wb") as seen:
        return subprocess.Popen([*ssh, program], stdin=subprocess.PIPE, stdout=seen, stderr=subprocess.STDOUT)


def wait_for(directory: Path, text: bytes) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while text not in (seen := (directory / "seen").read_bytes()):
        assert time.monotonic() < deadline, seen[-3000:].decode("utf-8", "replace")
        time.sleep(0.1)


def monitors(directory: Path) -> list[int]:
    """Return the command-line processes that run in ``directory``."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "tui.cli.main" in process.cmdline() and process.cwd() == str(directory):
                found.append(process.pid)
    return found


def heartbeat(paths: SessionPaths) -> float:
    with contextlib.closing(sqlite3.connect(f"file:{paths.database}?mode=ro", uri=True)) as db:
        (beat,) = db.execute("SELECT time FROM heartbeat").fetchone()
    return float(beat)


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_lost_connection_stops_nothing(ssh: list[str], tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(CONFIG)
    paths = SessionPaths.at(tmp_path / "sessions" / "far")
    connection = remote(ssh, tmp_path, "c.toml")
    try:
        wait_for(tmp_path, b"round 0")
        assert monitors(tmp_path)
        connection.send_signal(signal.SIGKILL)
        connection.wait()
        until(lambda: not monitors(tmp_path), "the orphaned monitor ends")
        ended_at = time.time()
        until(lambda: heartbeat(paths) > ended_at, "the engine's heart goes on beating")
        assert engine_liveness(paths).running

        again = remote(ssh, tmp_path, "attach far")
        wait_for(tmp_path, b"softmax")
        assert again.stdin is not None
        again.stdin.write(b"Q")
        again.stdin.flush()
        wait_for(tmp_path, b"Stop the search now?")
        again.stdin.write(b"y")
        again.stdin.flush()
        wait_for(tmp_path, b"Stopped on request")
        again.stdin.write(b"q")
        again.stdin.flush()
        assert again.wait(15) == 0
    finally:
        for process in (connection, locals().get("again")):
            if process is not None and process.poll() is None:
                process.kill()
        living = engine_liveness(paths)
        if living.running and living.pid is not None:
            os.kill(living.pid, signal.SIGTERM)
