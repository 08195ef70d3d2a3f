"""A search whose workers the engine starts over a real SSH connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.cluster.certificates import check_peer, create
from engine.cluster.ssh_hosts import SshHosts, packed, ssh_command
from engine.config.schema import ClusterConfig, ConfigError, parse_config
from engine.session.state.session_state import fold
from tests.cluster.watching import recorded, verdicts_per_kernel
from tests.commandline import KernelTui
from tests.patience import PATIENCE_S, TRIES

ROOT = Path(__file__).resolve().parents[2]
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
CONFIG = """\
name = "far"
problems = ["builtin:quickstart/gelu"]
[search]
rounds = 1
ideas = 1
variants = 1
[evaluation]
torch_compile = false
trials = 3
max_pairs = 8
[cluster]
hosts = ["localhost"]
address = "127.0.0.1"
command = "{}"
"""


@pytest.fixture
def ssh_path(tmp_path: Path) -> Iterator[str]:
    """Return a PATH whose ``ssh`` logs in to this machine through its own sshd."""
    if not Path(SSHD).exists() or shutil.which("ssh") is None:
        pytest.skip("OpenSSH is not installed")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if os.geteuid() == 0:  # where Debian's sshd drops its privileges
        Path("/run/sshd").mkdir(exist_ok=True)
    (tmp_path / "sshd").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\n"
        f"PidFile {tmp_path}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
    )
    folder = tmp_path / "bin"
    folder.mkdir()
    options = f"-F none -i {tmp_path}/user -p {port} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    (folder / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {options} -o LogLevel=ERROR "$@"\n')
    (folder / "ssh").chmod(0o755)
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(tmp_path / "sshd")], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            break
        time.sleep(0.05)
    yield f"{folder}:{os.environ['PATH']}"
    server.terminate()
    server.wait(10)


def workers(marker: str) -> list[psutil.Process]:
    """Processes of workers that ``marker``, a directory, belongs to."""
    found = []
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get("KERNEL_TUI_TEST") == marker:
            found.append(process)
    return found


def test_the_engine_starts_and_ends_workers_over_ssh(ssh_path: str, kernel_tui: KernelTui, tmp_path: Path) -> None:
    command = tmp_path / "there"
    command.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={ROOT} CUDA_VISIBLE_DEVICES= KERNEL_TUI_TEST={tmp_path}\n"
        f'exec {sys.executable} -m tui.cli.main "$@"\n'
    )
    command.chmod(0o755)
    (tmp_path / "config.toml").write_text(CONFIG.format(command))
    found = kernel_tui("doctor", "config.toml", env={"PATH": ssh_path}).stdout
    assert "SSH reaches localhost" in found
    searched = kernel_tui("run", "config.toml", "--headless", env={"PATH": ssh_path})
    assert searched.returncode == 0, searched.stdout + searched.stderr
    session = tmp_path / "sessions" / "far"
    assert set(verdicts_per_kernel(session).values()) == {1}
    verdicts = [one.verdict for one in fold(recorded(session)).variants.values()]
    assert {verdict.host for verdict in verdicts if verdict is not None} == {"localhost"}
    _, alive = psutil.wait_procs(workers(str(tmp_path)), timeout=PATIENCE_S)
    assert not alive
    assert not (session / "scratch" / "certificates").exists()


async def test_the_engine_repeats_what_a_host_without_a_compiler_says(
    ssh_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "there"
    command.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={ROOT} CUDA_VISIBLE_DEVICES= PATH=/nowhere KERNEL_TUI_TEST={tmp_path}\n"
        f'exec {sys.executable} -m tui.cli.main "$@" --gpus none\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", ssh_path)
    monkeypatch.delenv("CXX", raising=False)
    said: asyncio.Queue[str] = asyncio.Queue()
    cluster = ClusterConfig(hosts=("localhost",), address="127.0.0.1", command=str(command))
    hosts = SshHosts(cluster, tmp_path / "certificates", said.put_nowait)
    await hosts.start()
    try:
        why = await asyncio.wait_for(said.get(), 60)
    finally:
        await hosts.close()
    assert why.startswith("localhost: ") and "apt-get install g++" in why


@pytest.fixture
def received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an ``ssh`` on the PATH that reaches no host and writes what it receives to this file."""
    ssh, file = tmp_path / "bin" / "ssh", tmp_path / "received"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\nexec cat >{file}\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    return file


async def test_the_engine_tries_again_after_it_could_not_start_a_worker(received: Path, tmp_path: Path) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    hosts = SshHosts(ClusterConfig(hosts=("gpu1",), address="127.0.0.1"), tmp_path / "certificates", said.put_nowait)
    await hosts.start()
    try:
        certificate, aside = tmp_path / "certificates" / "worker.pem", tmp_path / "aside.pem"
        certificate.rename(aside)
        why = await asyncio.wait_for(said.get(), PATIENCE_S)
        aside.rename(certificate)
        assert why.startswith("gpu1: ") and "worker.pem" in why
        for _ in range(TRIES):
            if received.exists() and received.stat().st_size:
                break
            await asyncio.sleep(0.05)
        assert received.stat().st_size
    finally:
        await hosts.close()


async def test_the_engine_starts_a_scheduler_that_died_again_on_its_port(received: Path, tmp_path: Path) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    hosts = SshHosts(ClusterConfig(hosts=("gpu1",), address="127.0.0.1"), tmp_path / "certificates", said.put_nowait)
    cluster = await hosts.start()
    try:
        first = hosts._scheduler
        assert first is not None and cluster.scheduler is not None
        first.kill()
        assert "scheduler" in await asyncio.wait_for(said.get(), PATIENCE_S)
        port = int(cluster.scheduler.rpartition(":")[2])
        for _ in range(TRIES):
            with contextlib.suppress(OSError):
                check_peer(tmp_path / "certificates", "engine", "127.0.0.1", port, 5)
                break
            await asyncio.sleep(0.05)
        check_peer(tmp_path / "certificates", "engine", "127.0.0.1", port, 5)
        second = hosts._scheduler
    finally:
        await hosts.close()
    assert second is not first and second is not None and second.returncode is not None


def test_the_script_on_a_host_ends_with_its_worker(tmp_path: Path) -> None:
    script = ssh_command("host", "false", "tls://hub:8786")[-1]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        create(tmp_path / "certificates", ["hub"])
        process.stdin.write(packed(tmp_path / "certificates") + b"\n")
        process.stdin.flush()
        assert process.wait(20) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["certificates"]


def test_hosts_and_scheduler_exclude_each_other() -> None:
    for keys in ("", 'hosts = ["gpu1"]\nscheduler = "tls://gpu1:8786"\ncertificates = "certs"'):
        with pytest.raises(ConfigError, match="one of two keys"):
            parse_config(f"[cluster]\n{keys}\n", "config.toml", needs_problems=False)
    with pytest.raises(ConfigError, match="host name"):
        parse_config('[cluster]\nhosts = ["-oProxyCommand=evil"]\n', "config.toml", needs_problems=False)
