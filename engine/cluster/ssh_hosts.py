"""Start a cluster for one session over SSH: a scheduler on this machine, and a worker on each host.

The engine creates certificates for the session and sends them over SSH. The hosts delete them when the workers end. The
hosts need kernel-tui and a compiler, but no further preparation. If the engine dies, its SSH connections close, and the
workers end.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import logging
import os
import platform
import shlex
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.cluster.certificates import create, files
from engine.config.schema import ClusterConfig
from engine.evaluation.evaluator import EvaluationError
from engine.system.child import end_group
from engine.system.python_process import python_command, python_path

AGAIN_S, LONGEST_S = 2.0, 60.0
"""Initial and maximum wait before the engine restores an SSH connection, in seconds. The wait doubles with each
failure.
"""
_START_S = 20.0
_CLOSE_S = 10.0
_MOST_BYTES = 4096

_SCRIPT = """\
d=$(mktemp -d) || exit 1
trap 'rm -rf "$d"' EXIT
trap 'exit 1' TERM HUP INT
IFS= read -r certificates
echo "$certificates" | base64 -d | tar xzf - -C "$d" || exit 1
{command} worker --scheduler {address} --certificates "$d" --name {name} </dev/null &
worker=$!
(while kill -0 $worker 2>/dev/null; do sleep 1; done; kill $$ 2>/dev/null) &
watch=$!
exec 3<&0
cat <&3 >/dev/null &
reader=$!
trap 'kill $worker $watch $reader 2>/dev/null; wait $worker; rm -rf "$d"' EXIT
wait $reader
exit 0
"""
"""Shell script that runs a worker on a host. The first line of standard input contains the certificates. When standard
input closes, the script ends the worker. If the worker ends, the script ends too. The script uses ``wait``, because a
shell runs its traps during ``wait``, but not while a command runs in the foreground.
"""

_log = logging.getLogger("engine")


class SshHosts:
    """The scheduler and the SSH connections of one session.

    - ``directory``: for certificates; it need not exist
    - ``say``: called with the reason when the scheduler or a host's worker ends, once per reason
    """

    def __init__(self, cluster: ClusterConfig, directory: Path, say: Callable[[str], None]) -> None:
        self._cluster, self._directory, self._say = cluster, directory, say
        self._said: set[str] = set()
        self._closed = False
        self._scheduler: asyncio.subprocess.Process | None = None
        self._keeping: list[asyncio.Task[None]] = []

    async def start(self) -> ClusterConfig:
        """Start the scheduler, and connect to the hosts. Return the config of the running cluster.

        Raises ``EvaluationError`` if ssh is missing or the scheduler does not start, and ``CertificateError`` if the
        certificates cannot be created.
        """
        if shutil.which("ssh") is None:
            raise EvaluationError(
                "the hosts setting in [cluster] needs the ssh command. Install it (Debian, Ubuntu: apt-get install "
                "openssh-client)"
            )
        here = self._cluster.address or platform.node()
        create(self._directory, [here])
        port = await self._start_scheduler(0)
        self._keeping.append(asyncio.create_task(self._keep_scheduler(port)))
        for host in self._cluster.hosts:
            self._keeping.append(asyncio.create_task(self._keep(host, f"tls://{here}:{port}")))
        return self._cluster.model_copy(
            update={"scheduler": f"tls://127.0.0.1:{port}", "certificates": self._directory, "hosts": ()}
        )

    async def close(self) -> None:
        self._closed = True
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        if self._scheduler is not None:
            await end_group(self._scheduler)
            self._scheduler = None
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _start_scheduler(self, port: int) -> int:
        """Start the scheduler on ``port``, or on a free port if 0. Return the port. Raises ``EvaluationError``."""
        self._scheduler = await asyncio.create_subprocess_exec(
            *python_command("engine.cluster.scheduler"),
            str(self._directory),
            str(port),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": python_path()},
            process_group=0,
        )
        assert self._scheduler.stdout is not None
        try:
            line = await asyncio.wait_for(self._scheduler.stdout.readline(), _START_S)
        except TimeoutError:
            line = b""
        if not line:
            raise EvaluationError("the cluster's scheduler did not start; read the reason in the session's engine.log")
        return int(line.decode().strip().rpartition(":")[2])

    async def _keep_scheduler(self, port: int) -> None:
        """Restart the scheduler on the same port whenever it ends. The workers and the engine then reconnect."""
        while self._scheduler is not None and not self._closed:
            code = await self._scheduler.wait()
            self._tell(f"the cluster's scheduler ended (exit code {code}); the engine starts it again")
            await asyncio.sleep(AGAIN_S)
            try:
                await self._start_scheduler(port)
            except OSError as error:
                self._tell(f"the engine cannot start the cluster's scheduler: {error}")
            except EvaluationError as error:
                self._tell(str(error))
                await end_group(self._scheduler)

    def _tell(self, line: str) -> None:
        _log.warning("%s", line)
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    async def _keep(self, host: str, address: str) -> None:
        """Run a worker on ``host`` until canceled. If the connection breaks, connect again."""
        pause_s = AGAIN_S
        while True:
            began = asyncio.get_running_loop().time()
            try:
                why = f"its worker ended: {await self._run_worker(host, address)}"
            except OSError as error:  # For example, this process has too many open files.
                why = f"the engine cannot start its worker: {error}"
            if self._closed:  # In Python 3.11, ``wait_for`` loses a cancellation that arrives as the process ends.
                return
            self._tell(f"{host}: {why}")
            if asyncio.get_running_loop().time() - began > LONGEST_S:
                pause_s = AGAIN_S
            _log.info("%s: the engine starts its worker again in %g s", host, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_S, 2 * pause_s)

    async def _run_worker(self, host: str, address: str) -> str:
        """Run a worker on ``host`` until it ends. Return the last line that it or ssh wrote. Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            *ssh_command(host, self._cluster.command, address),
            stdin=asyncio.subprocess.PIPE,
            stdout=2,  # Standard error is the engine's log.
            stderr=asyncio.subprocess.PIPE,
            process_group=0,
        )
        assert process.stdin is not None and process.stderr is not None
        try:
            process.stdin.write(packed(self._directory) + b"\n")
            last = await _pass_on(process.stderr)
            code = await process.wait()
            return last or f"ssh exit code {code}"
        finally:
            if process.returncode is None:
                process.stdin.close()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _CLOSE_S)
            await end_group(process)


async def _pass_on(errors: asyncio.StreamReader) -> str:
    """Copy the output of a worker and of ssh to the engine's log, until both end. Return the last line."""
    rest = b""
    while chunk := await errors.read(1 << 16):
        with contextlib.suppress(OSError):
            os.write(2, chunk)
        rest = (rest + chunk)[-_MOST_BYTES:]
    lines = [line.strip() for line in rest.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def ssh_command(host: str, command: str, address: str) -> Sequence[str]:
    """Return the command that runs a worker on ``host`` (``HOST`` or ``USER@HOST``)."""
    name = host.rpartition("@")[2]
    script = _SCRIPT.format(command=command, address=shlex.quote(address), name=shlex.quote(name))
    options = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
    return ("ssh", *options, host, f"sh -c {shlex.quote(script)}")


def packed(directory: Path) -> bytes:
    """Return the worker's certificates as one line."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for file in files(directory, "worker"):
            archive.add(file, file.name)
    return base64.b64encode(packed.getvalue())
