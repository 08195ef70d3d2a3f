"""What a runner gives up before a kernel is loaded: namespaces, files, system calls, memory, processes.

Each layer that works is named in the list that comes back; a layer that the machine refuses is left out, and the
judge decides whether what remains is enough.
"""

from __future__ import annotations

import ctypes
import glob
import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from engine.evaluation.runner import landlock, seccomp

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_PR_SET_PDEATHSIG = 1
_READABLE = (*landlock.SYSTEM, "/proc", "/sys")
_NVIDIA_READABLE = ("/usr/local/nvidia", "/usr/local/cuda", "/etc/nvidia", "/run/nvidia-persistenced")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/shm/nothing")


def die_with_parent() -> None:
    """SIGKILL for this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def enter_namespaces(status_descriptor: int) -> list[str]:
    """Move into new user, network, mount, IPC, UTS and PID namespaces; returns in the innermost process.

    The processes outside stay behind as reapers: the first of the new PID namespace writes the wait status of
    the runner to ``status_descriptor`` and ends, which ends everything in the namespace.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    layers = ["user", "net", "mount", "ipc", "pid"]
    if libc.unshare(_NEWUSER | _NEWNET | _NEWNS | _NEWIPC | _NEWUTS | _NEWPID) != 0:
        if libc.unshare(_NEWUSER | _NEWNET | _NEWIPC) != 0:
            return _fork_and_report(status_descriptor, [])
        layers = ["user", "net", "ipc"]
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")
    if "pid" in layers:
        _fork_and_wait()
        libc.mount(None, b"/", None, _MS_REC_PRIVATE, None)
        if libc.mount(b"proc", b"/proc", b"proc", _MS_NOSUID_NODEV_NOEXEC, None) == 0:
            layers.append("own /proc")
    return _fork_and_report(status_descriptor, [f"namespaces ({', '.join(layers)})"])


def report_to(status_descriptor: int) -> None:
    """Without namespaces: fork, and let the parent write the child's wait status."""
    _fork_and_report(status_descriptor, [])


def limit_resources(data_bytes: int, file_descriptors: int = 64, file_bytes: int = 0) -> list[str]:
    """No core dump, no files, ``data_bytes`` more of memory for data (``RLIMIT_AS`` would break CUDA)."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (file_descriptors, file_descriptors))
    if data_bytes:
        bound = _data_bytes_now() + data_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    return ["rlimits"]


def _data_bytes_now() -> int:
    with open("/proc/self/status") as status:  # noqa: PTH123
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))


def restrict_files(cuda: bool, readable: Sequence[str] = (), writable: Sequence[str] = ()) -> list[str]:
    """Landlock: system libraries and ``readable`` trees, ``writable`` ones, null devices and the GPU's own."""
    readable = [*_READABLE, sys.prefix, sys.base_prefix, *readable]
    devices = list(_DEVICES)
    if cuda:
        readable += _NVIDIA_READABLE
        devices += [*glob.glob("/dev/nvidia*"), "/dev/nvidia-caps"]  # noqa: PTH207
    try:
        landlock.restrict(readable, devices, writable)
    except OSError:
        return []
    return [f"Landlock (ABI {landlock.abi()})"]


def restrict_calls(processes: bool = False, timers: bool = False) -> list[str]:
    """``processes``: a compiler may be started, as Triton does at a kernel's first call. ``timers``: may be set, as a
    driver does."""
    try:
        seccomp.install(processes, timers)
    except OSError:
        return []
    return ["seccomp, but for starting compilers" if processes else "seccomp"]


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:  # noqa: PTH123
            file.write(text)
    except OSError:
        pass


def _fork_and_wait() -> None:
    """Fork; the parent waits and leaves with the child's code, the child goes on as first of its PID namespace."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0x7F)
    die_with_parent()


def _fork_and_report(status_descriptor: int, layers: list[str]) -> list[str]:
    child = os.fork()
    if child:
        _report(child, status_descriptor)
    os.close(status_descriptor)
    die_with_parent()
    return layers


def _report(child: int, status_descriptor: int) -> NoReturn:
    """Wait for the runner and write its wait status; orphans of the runner are reaped on the way."""
    for descriptor in range(3, 64):
        if descriptor != status_descriptor:
            try:
                os.close(descriptor)
            except OSError:
                continue
    while True:
        pid, status = os.wait()
        if pid == child:
            os.write(status_descriptor, str(status).encode())
            os._exit(0)
