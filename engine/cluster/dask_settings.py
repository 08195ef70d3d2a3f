"""Settings of dask.distributed for every process of a cluster."""

from __future__ import annotations

import logging

DEAD_S = 12.0
"""Seconds of silence after which TCP closes a connection, for example to a host that lost its network. Dask
requires at least 11 s.
"""
WORKER_TTL_S = 30.0
"""Seconds without a heartbeat after which the scheduler removes a worker."""


def apply() -> None:
    """Set Dask's configuration for this process."""
    import dask

    dask.config.set(
        {
            # Anyone who connects can run code, so refuse plain TCP (distributed#5039).
            "distributed.comm.require-encryption": True,
            "distributed.comm.timeouts.connect": f"{DEAD_S:g}s",
            "distributed.comm.timeouts.tcp": f"{DEAD_S:g}s",
            # The engine itself retries, on a host that it chooses (distributed#7870, #6078, #5234).
            "distributed.scheduler.allowed-failures": 0,
            # Each task belongs to the worker that the engine chose, and stealing can deadlock (distributed#7523).
            "distributed.scheduler.work-stealing": False,
            "distributed.scheduler.worker-ttl": f"{WORKER_TTL_S:g}s",
            "distributed.scheduler.active-memory-manager.start": False,
            "distributed.worker.profile.enabled": False,
            "distributed.worker.memory.target": False,
            "distributed.worker.memory.spill": False,
            "distributed.worker.memory.pause": False,
            "distributed.worker.memory.terminate": False,
            "distributed.worker.http.routes": [],
            "distributed.scheduler.http.routes": [],
            "distributed.diagnostics.nvml": False,
            "distributed.admin.low-level-log-length": 10,
            "distributed.admin.system-monitor.gil.enabled": False,
        }
    )
    # Dask prints tracebacks for every lost connection. The engine and the worker report a lost connection in one line.
    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
