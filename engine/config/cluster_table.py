"""The config's ``[cluster]`` table, which names other hosts that judge kernels."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from engine.config.values import ResolvedPath, Table, refusal

_ADDRESS = re.compile(r"^tls://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]*):(\d{1,5})$")


def scheduler_address(value: str) -> str:
    """Return a scheduler's address unchanged. Raises an error unless the address has the form ``tls://HOST:PORT``."""
    if value.startswith("tcp://") or re.match(r"^[\w.-]+:\d+$", value):
        place = value.removeprefix("tcp://")
        raise refusal(
            f"connections to {value!r} are not encrypted, so anyone on the network could run code on the workers; use "
            f'"tls://{place}", with certificates from: kernel-tui cluster certs'
        )
    match = _ADDRESS.match(value)
    if match is None or not 0 < int(match[2]) < 65536:
        raise refusal(f'{value!r} is not an address; use an address such as "tls://gpu1:8786"')
    return value


def _host(value: str) -> str:
    if not re.fullmatch(r"([\w.-]+@)?[A-Za-z0-9][A-Za-z0-9.-]*", value):
        raise refusal(f'{value!r} is not a host name; use a name such as "gpu1" or "me@gpu1"')
    return value


HostName = Annotated[str, AfterValidator(_host)]
SchedulerAddress = Annotated[str, AfterValidator(scheduler_address)]


class ClusterConfig(Table):
    """Other hosts that judge kernels, instead of the engine's own machine. Set either ``hosts`` or ``scheduler``."""

    hosts: Annotated[tuple[HostName, ...], Field(strict=False)] = ()
    """Hosts on which the engine starts workers over SSH, such as ``["gpu1", "me@gpu2"]``. SSH must work without a
    password.
    """
    address: str | None = None
    """With ``hosts``: name or IP address that the hosts use to reach the engine's machine. Default: the machine's host
    name.
    """
    command: str = "kernel-tui"
    """With ``hosts``: the kernel-tui command on the hosts, such as ``~/venv/bin/kernel-tui``."""
    scheduler: SchedulerAddress | None = None
    """Address of a scheduler that ``kernel-tui cluster scheduler`` started, such as ``tls://gpu1:8786``."""
    certificates: ResolvedPath | None = None
    """With ``scheduler``: directory with ``ca.pem``, ``engine.pem`` and ``engine-key.pem``."""
    gpu: str | None = None
    """Device model that judges kernels, as the monitor shows it (``NVIDIA H200``). Default: the most frequent model in
    the cluster. Devices of other models stay idle, because times from different models are not comparable.
    """
