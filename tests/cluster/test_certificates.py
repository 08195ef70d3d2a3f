"""Certificates: which connections the scheduler accepts, which it refuses, and what doctor says."""

from __future__ import annotations

import asyncio
import datetime
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from engine.cluster import dask_settings
from engine.cluster.certificates import CertificateError, create, faults, files, security
from engine.cluster.link import Link
from engine.config.schema import ConfigError, parse_config
from engine.doctor.cluster import cluster
from engine.exit_codes import ExitCode
from tests.commandline import KernelTui, environment
from tests.patience import PATIENCE_S

CONFIG = 'problems = ["builtin:quickstart/softmax"]\n[cluster]\nscheduler = "{}"\ncertificates = "{}"\n'


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    create(directory, ["localhost"])
    return directory


@pytest.fixture(scope="module")
def scheduler(certificates: Path) -> Iterator[str]:
    """Run a scheduler, and return its address."""
    command = [sys.executable, "-m", "tui.cli.main", "cluster", "scheduler", "--certificates", str(certificates)]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert process.stdout is not None
        found = re.search(r"tls://127.0.0.1:(\d+)", process.stdout.readline())
        assert found is not None
        yield f"tls://localhost:{found[1]}"
    finally:
        process.terminate()
        process.wait(10)


def connect(address: str, context: ssl.SSLContext) -> bytes:
    """Connect, and wait for the greeting. Raises if the scheduler refuses."""
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("localhost", int(address.rpartition(":")[2])), 10) as plain,
        context.wrap_socket(plain) as channel,
    ):
        return channel.recv(1)


def test_a_client_needs_a_certificate_from_the_same_ca(scheduler: str, certificates: Path, tmp_path: Path) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(scheduler, ssl.create_default_context())
    create(tmp_path, ["localhost"])
    stranger = ssl.create_default_context()
    stranger.load_cert_chain(*files(tmp_path, "engine")[1:])
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(scheduler, stranger)
    friend = ssl.create_default_context()
    friend.load_cert_chain(*files(certificates, "engine")[1:])
    assert connect(scheduler, friend)


async def test_dask_lets_in_only_holders_of_a_certificate(scheduler: str, certificates: Path, tmp_path: Path) -> None:
    from distributed import Client

    create(tmp_path, ["localhost"])
    with pytest.raises(OSError):
        await Client(scheduler, security=security(tmp_path, "engine"), asynchronous=True, timeout=3)
    with pytest.raises((OSError, ValueError)):
        await Client(scheduler.replace("tls:", "tcp:"), asynchronous=True, timeout=3)
    async with Client(scheduler, security=security(certificates, "engine"), asynchronous=True) as client:
        assert await asyncio.wait_for(client.scheduler.identity(), 10)


async def test_the_engine_connects_once_its_certificates_match_again(
    scheduler: str, certificates: Path, tmp_path: Path
) -> None:
    mine, other, states = tmp_path / "mine", tmp_path / "other", asyncio.Queue[str]()
    shutil.copytree(certificates, mine)
    create(other, ["localhost"])

    def ignore(*_: object) -> None:
        pass

    link = Link(scheduler, mine, "engine", ignore, ignore, ignore, ignore, states.put_nowait)
    shutil.copy(other / "engine-key.pem", mine)  # A person copies new certificates, and the key arrives first.
    link.start()
    try:
        assert "engine-key.pem does not belong to" in await asyncio.wait_for(states.get(), PATIENCE_S)
        shutil.copy(certificates / "engine-key.pem", mine)
        assert await asyncio.wait_for(states.get(), PATIENCE_S) == ""
    finally:
        await link.close()


async def test_a_worker_too_lets_in_only_holders_of_a_certificate(scheduler: str, certificates: Path) -> None:
    from distributed import Worker

    dask_settings.apply()
    options = {"protocol": "tls", "dashboard": False, "dashboard_address": "127.0.0.1:0", "memory_limit": 0}
    async with Worker(scheduler, security=security(certificates, "worker"), nthreads=1, **options) as worker:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(connect, worker.address, ssl.create_default_context())


def test_plain_tcp_is_refused_with_the_remedy(kernel_tui: KernelTui) -> None:
    with pytest.raises(ConfigError, match="kernel-tui cluster certs"):
        parse_config(CONFIG.format("tcp://gpu1:8786", "certs"), "config.toml")
    refused = kernel_tui("worker", "--scheduler", "tcp://gpu1:8786")
    assert refused.returncode == 2 and "tls://gpu1:8786" in refused.stderr


@pytest.mark.parametrize(
    ("scheduler", "word"), [("gpu1", "tls://"), ("tls://gpu1", "tls://"), ("tls://gpu1:99999", "tls://")]
)
def test_wrong_addresses_are_refused(scheduler: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse_config(CONFIG.format(scheduler, "certs"), "config.toml")


def test_a_config_cannot_choose_the_workers_gpus() -> None:
    text = '[evaluation]\ndevice = "cuda:1"\n[cluster]\nscheduler = "tls://gpu1:8786"\ncertificates = "certs"\n'
    with pytest.raises(ConfigError, match="--gpus"):
        parse_config(text, "config.toml", needs_problems=False)


def test_faults_of_certificates_come_with_the_remedy(certificates: Path, tmp_path: Path) -> None:
    assert [faults(certificates, role) for role in ("scheduler", "worker", "engine")] == [[], [], []]
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=400)
    (expired,) = faults(certificates, "worker", later)
    assert "expired" in expired and "kernel-tui cluster certs" in expired
    (missing,) = faults(tmp_path, "worker")
    assert "worker-key.pem" in missing
    other = tmp_path / "other"
    create(other, ["localhost"])
    shutil.copy(certificates / "worker.pem", other / "worker.pem")
    assert len(faults(other, "worker")) == 2  # Another CA issued it, and the key does not belong to it.
    shutil.copytree(certificates, tmp_path / "swapped")
    for file in ("", "-key"):
        shutil.copy(certificates / f"worker{file}.pem", tmp_path / "swapped" / f"engine{file}.pem")
    assert "kernel-tui worker" in faults(tmp_path / "swapped", "engine")[0]


def test_a_search_without_certificates_names_the_remedy(kernel_tui: KernelTui) -> None:
    (kernel_tui.directory / "config.toml").write_text(CONFIG.format("tls://localhost:1", "certs"))
    ended = kernel_tui("run", "config.toml")
    assert ended.returncode == ExitCode.NO_TOOLS
    assert "kernel-tui cluster certs" in ended.stderr and "CertificateError" not in ended.stderr


def test_a_second_run_keeps_the_ca(tmp_path: Path) -> None:
    create(tmp_path, ["gpu1"])
    before = (tmp_path / "ca.pem").read_bytes()
    create(tmp_path, ["gpu1", "gpu2"])
    assert (tmp_path / "ca.pem").read_bytes() == before
    assert faults(tmp_path, "scheduler") == []
    assert (tmp_path / "ca-key.pem").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("lost", ["ca.pem", "ca-key.pem", "scheduler.pem", "worker-key.pem"])
def test_a_second_run_repairs_what_an_interruption_left(kernel_tui: KernelTui, lost: str) -> None:
    directory = kernel_tui.directory / "certs"
    create(directory, ["gpu1"])
    before = (directory / "ca.pem").read_bytes()
    (directory / lost).write_bytes(b"")
    said = kernel_tui("cluster", "certs", "certs").stdout
    assert [faults(directory, role) for role in ("scheduler", "worker", "engine")] == [[], [], []]
    assert ("created a new CA" in said) == (before != (directory / "ca.pem").read_bytes()) == lost.startswith("ca")
    assert {file.name for file in directory.iterdir() if file.stat().st_mode & 0o077 == 0} == {
        *("ca-key.pem", "scheduler-key.pem", "worker-key.pem", "engine-key.pem")
    }


def test_a_ca_whose_key_cannot_be_read_is_kept(tmp_path: Path) -> None:
    create(tmp_path, ["gpu1"])
    before = (tmp_path / "ca.pem").read_bytes()
    (tmp_path / "ca-key.pem").unlink()
    (tmp_path / "ca-key.pem").mkdir()  # cannot be read, also by root
    with pytest.raises(CertificateError, match=r"cannot read .*ca-key\.pem: Is a directory"):
        create(tmp_path, ["gpu1"])
    assert (tmp_path / "ca.pem").read_bytes() == before


def test_a_ca_that_expires_before_the_new_certificates_is_replaced(tmp_path: Path) -> None:
    create(tmp_path, ["gpu1"], days=1)
    before = (tmp_path / "ca.pem").read_bytes()
    create(tmp_path, [], days=9)
    assert (tmp_path / "ca.pem").read_bytes() == before
    create(tmp_path, [], days=11)
    assert (tmp_path / "ca.pem").read_bytes() != before
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=10.5)
    assert [faults(tmp_path, role, later) for role in ("scheduler", "worker", "engine")] == [[], [], []]


def test_a_second_run_without_hosts_keeps_their_names(tmp_path: Path) -> None:
    create(tmp_path, ["gpu1", "10.0.0.7"])
    create(tmp_path, [])
    certificate = x509.load_pem_x509_certificate((tmp_path / "scheduler.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one.value) for one in names] == ["gpu1", "10.0.0.7", "localhost"]


def test_doctor_checks_dates_and_names(scheduler: str, certificates: Path, tmp_path: Path) -> None:
    good = parse_config(CONFIG.format(scheduler, certificates), "config.toml")
    assert cluster(good).level == "ok", cluster(good)
    by_number = parse_config(CONFIG.format(scheduler.replace("localhost", "127.0.0.1"), certificates), "config.toml")
    assert cluster(by_number).level == "fail" and "--host 127.0.0.1" in cluster(by_number).remedy
    create(tmp_path, ["localhost"], days=10)
    assert cluster(parse_config(CONFIG.format(scheduler, tmp_path), "config.toml")).level == "fail"
    unreachable = parse_config(CONFIG.format("tls://localhost:1", certificates), "config.toml")
    assert cluster(unreachable).level == "warn"
