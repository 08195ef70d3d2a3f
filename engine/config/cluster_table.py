"""The config's ``[cluster]`` table: judge on other hosts, which join a scheduler."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from engine.config.values import ResolvedPath, Table, refusal

_ADDRESS = re.compile(r"^tls://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]*):(\d{1,5})$")


def scheduler_address(value: str) -> str:
    """Return a scheduler's address unchanged. Raises an error for plain TCP and for anything but ``tls://HOST:PORT``."""
    if value.startswith("tcp://") or re.match(r"^[\w.-]+:\d+$", value):
        place = value.removeprefix("tcp://")
        raise refusal(
            f"is {value!r}, which is not encrypted: anyone on the network could run code on the workers, allowed: "
            f'"tls://{place}"; to create certificates, run kernel-tui cluster certs'
        )
    match = _ADDRESS.match(value)
    if match is None or not 0 < int(match[2]) < 65536:
        raise refusal(f'is {value!r}, allowed: an address such as "tls://gpu1:8786"')
    return value


SchedulerAddress = Annotated[str, AfterValidator(scheduler_address)]


class ClusterConfig(Table):
    """The hosts that judge. Workers on these hosts join the scheduler; the engine itself then judges nothing."""

    scheduler: SchedulerAddress
    """Address of a scheduler that ``kernel-tui cluster scheduler`` started, such as ``tls://gpu1:8786``."""
    certificates: ResolvedPath
    """Directory with the engine's certificate: ``ca.pem``, ``engine.pem`` and ``engine-key.pem``."""
    gpu: str | None = None
    """Model of the devices that judge, as the monitor shows it (``NVIDIA H200``). Default: the most frequent model.
    Other models stay idle, because times from different models are not comparable."""
