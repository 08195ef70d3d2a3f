"""Limit the processor time of processes and of those that they start, through a cgroup of version 1 or 2."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_PREFIX = f"kernel-tui-limit-{os.getpid()}-"
_PERIOD_US = 100_000


def why_no_limits() -> str:
    """Return why this machine has no such cgroups; "" if it has."""
    try:
        _root().joinpath(f"{_PREFIX}probe").mkdir()
        _root().joinpath(f"{_PREFIX}probe").rmdir()
    except OSError as error:
        return f"processor limits need a writable cgroup file system: {error}"
    return ""


def limit(processes: Iterable[psutil.Process], cores: float) -> None:
    """Let ``processes`` and their future children use ``cores`` cores together."""
    group = _root() / f"{_PREFIX}{time.monotonic_ns()}"
    group.mkdir()
    quota = max(1000, int(cores * _PERIOD_US))
    if _root() == _V1:
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        (group / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
    for process in processes:
        with contextlib.suppress(OSError):  # It ended.
            (group / "cgroup.procs").write_text(str(process.pid))


def remove_limits() -> None:
    """Let all limited processes of this program run freely, and remove the cgroups."""
    for group in _root().glob(f"{_PREFIX}*"):
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (_root() / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            group.rmdir()


def _root() -> Path:
    return _V1 if (_V1 / "cgroup.procs").exists() else _V2
