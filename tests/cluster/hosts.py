"""Hosts for tests: network namespaces, each with a directory of its own, that a hub connects.

The hub has the scheduler and the engine. A host reaches only the hub, and cannot see the engine's directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from engine.cluster.certificates import create

ROOT = Path(__file__).resolve().parents[2]
PORT = 8786


def why_no_namespaces() -> str:
    """Return why this machine cannot create network namespaces; "" if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (apt install iproute2)"
    name = f"ktui-probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if done.returncode == 0:
        linked = subprocess.run(
            ["ip", "-n", name, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"],
            capture_output=True,
            text=True,
        )
        subprocess.run(["ip", "netns", "del", name], check=False)
        return linked.stderr.strip() and f"this machine refuses virtual networks: {linked.stderr.strip()}"
    return f"this machine refuses network namespaces: {done.stderr.strip()}"


class Hosts:
    """A hub and ``count`` hosts in network namespaces, with certificates. Use it as a context manager."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory = directory
        self.names = [f"gpu{number}" for number in range(1, count + 1)]
        self._prefix = f"ktui{os.getpid() % 10000}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.engine = directory / "engine"

    def __enter__(self) -> Hosts:
        self.engine.mkdir(parents=True)
        _run("ip", "netns", "add", self._namespace("hub"))
        _run("ip", "-n", self._namespace("hub"), "link", "set", "lo", "up")
        for number, name in enumerate(self.names, 1):
            space, near, far = self._namespace(name), f"h{number}", "eth0"
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
            _run(
                *("ip", "-n", self._namespace("hub"), "link", "add", near, "type", "veth"),
                *("peer", "name", far, "netns", space),
            )
            _run("ip", "-n", self._namespace("hub"), "address", "add", f"10.77.{number}.1/24", "dev", near)
            _run("ip", "-n", self._namespace("hub"), "link", "set", near, "up")
            _run("ip", "-n", space, "address", "add", f"10.77.{number}.2/24", "dev", far)
            _run("ip", "-n", space, "link", "set", far, "up")
        create(self.engine / "certs", [f"10.77.{number}.1" for number in range(1, len(self.names) + 1)])
        for name in self.names:
            certificates = self.home(name) / "certs"
            certificates.mkdir(parents=True)
            for file in ("ca.pem", "worker.pem", "worker-key.pem"):
                shutil.copy2(self.engine / "certs" / file, certificates / file)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 15
        while self.left_processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in self.left_processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for name in ("hub", *self.names):
            subprocess.run(["ip", "netns", "del", self._namespace(name)], check=False)

    def address(self, name: str) -> str:
        """Return the scheduler's address as the host ``name`` reaches it."""
        return f"tls://10.77.{self.names.index(name) + 1 if name != 'hub' else 1}.1:{PORT}"

    def start_scheduler(self) -> None:
        self._start("hub", "scheduler", "cluster", "scheduler", "--certificates", "certs", "--port", str(PORT))

    def start_worker(self, name: str, *options: str, tree: Path = ROOT, **variables: str) -> None:
        """Start ``kernel-tui worker`` from the checkout ``tree``, with more environment ``variables``."""
        self._start(
            *(name, name, "worker", "--scheduler", self.address(name), "--certificates", "certs", "--gpus", "none"),
            *("--name", name, "--builders", "1", *options),
            environment={"PYTHONPATH": str(tree), **variables},
        )

    def in_hub(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run ``kernel-tui`` in the hub, in the engine's directory."""
        return subprocess.run(
            [*self._command("hub"), *arguments],
            cwd=self.engine,
            env=self._environment("hub"),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def cut(self, name: str) -> None:
        """Cut a host's network. Nothing tells either side."""
        _run("ip", "-n", self._namespace(name), "link", "set", "eth0", "down")

    def of_host(self, name: str) -> list[psutil.Process]:
        """All processes of a host or of the hub."""
        wanted = str(self.home(name))
        return [one for one in _marked(str(self.directory)) if one.info["environ"].get("KERNEL_TUI_HOME") == wanted]

    def worker_of(self, name: str) -> psutil.Process:
        """The Dask worker's process."""
        return next(one for one in self.of_host(name) if "engine.cluster.worker.process" in one.info["cmdline"])

    def left_processes(self) -> list[psutil.Process]:
        return _marked(str(self.directory))

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def home(self, name: str) -> Path:
        """The directory of a host, or of the hub."""
        return self.engine if name == "hub" else self.directory / name

    def _start(self, host: str, log: str, *arguments: str, environment: Mapping[str, str] = {}) -> None:
        with (self.directory / f"{log}.log").open("ab") as file:
            self.processes[log] = subprocess.Popen(
                [*self._command(host), *arguments],
                cwd=self.home(host),
                env={**self._environment(host), **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def _command(self, host: str) -> list[str]:
        command = [sys.executable, "-m", "tui.cli.main"]
        if host != "hub":  # ``ip netns exec`` gives each host its own mounts: hide the engine's directory.
            hidden = f'mount -t tmpfs none "{self.engine}" && exec "$@"'
            command = ["sh", "-c", hidden, "sh", *command]
        return ["ip", "netns", "exec", self._namespace(host), *command]

    def _environment(self, host: str) -> dict[str, str]:
        home = self.home(host)
        temporary = home / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "KERNEL_TUI_TEST": str(self.directory),
            "KERNEL_TUI_HOME": str(home),
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "TMPDIR": str(temporary),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }

    def _namespace(self, host: str) -> str:
        return f"{self._prefix}-{host}"


def _marked(directory: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "status"]):
        environment = process.info["environ"] or {}
        if environment.get("KERNEL_TUI_TEST") == directory and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
