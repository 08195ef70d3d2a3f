"""Run a cluster's scheduler: the meeting point of engines and workers. The scheduler does not judge kernels, so any
host can run it.
"""

from __future__ import annotations

import asyncio
import platform
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from engine.cluster import dask_settings
from engine.cluster.certificates import security
from engine.evaluation.sandbox.inside.confinement.isolation import die_with_parent

PORT = 8786


async def run_scheduler(host: str, port: int, certificates: Path, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        host: Name or address of the interface to listen on; "" for all.
        port: 0 chooses a free port.
        certificates: Directory with the scheduler's certificate.
        on_ready: Called with the address that workers and engines use.

    Raises:
        CertificateError: The certificates are missing or invalid.
        OSError: The port is in use.
    """
    encryption = security(certificates, "scheduler")
    dask_settings.apply()
    warnings.filterwarnings("ignore", "Couldn't detect a suitable IP address")  # This matters only if ``host`` is "".
    from distributed import Scheduler

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for which in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(which, ended.set)
    scheduler = Scheduler(
        host=host or None,
        port=port,
        protocol="tls",
        security=encryption,
        dashboard=False,
        dashboard_address="127.0.0.1:0",  # Dask always serves HTTP, but without routes the server has no pages.
    )
    async with scheduler:
        # Other hosts cannot connect to an address such as 0.0.0.0, so use this host's name.
        on_ready(scheduler.address if host else f"tls://{platform.node()}:{scheduler.port}")
        await ended.wait()


def main(certificates: Path, port: int = 0) -> None:
    """Serve on ``port``, or on a free port if 0. Print the address, and exit when the parent process exits."""
    die_with_parent()
    asyncio.run(run_scheduler("", port, certificates, lambda address: print(address, flush=True)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
