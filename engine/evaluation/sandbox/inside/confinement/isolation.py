"""Drop a process's privileges before it loads a kernel: restrict namespaces, files, system calls and resources.

For the verdict, each function returns the names of the layers that it activated, without layers that the machine
forbids. The judge decides whether the active layers suffice. Threat: escape, resources.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Sequence

from engine.evaluation.sandbox.inside import wire
from engine.evaluation.sandbox.inside.abi import LIBC, Clone, Mount, Prctl
from engine.evaluation.sandbox.inside.confinement import landlock, seccomp

TYPE_CHECKING = False  # Importing typing takes milliseconds.
if TYPE_CHECKING:
    import socket

_READABLE = (*landlock.SYSTEM, "/proc", "/sys")
_NVIDIA_READABLE = ("/usr/local/nvidia", "/usr/local/cuda", "/etc/nvidia", "/run/nvidia-persistenced")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/shm/nothing")


def die_with_parent() -> None:
    """Make the operating system send SIGKILL to this process when its parent ends."""
    LIBC.prctl(Prctl.SET_PDEATHSIG, signal.SIGKILL)


def enter_namespaces(control: socket.socket | None = None, isolate: bool = True) -> list[str]:
    """If ``isolate`` is true, move into new user, network, mount, IPC, UTS and PID namespaces. The function returns in
    a child process.

    The child's ancestors stay in the old namespaces. When the child ends, the first process of the new PID namespace
    reports the end on ``control`` and exits. The exit of the first process ends every process in the namespace.
    """
    uid, gid = os.getuid(), os.getgid()
    names, fewer = ["user", "net", "ipc", "mount", "pid"], Clone.NEWUSER | Clone.NEWNET | Clone.NEWIPC
    if isolate and LIBC.unshare(fewer | Clone.NEWNS | Clone.NEWUTS | Clone.NEWPID) != 0:
        del names[3:]
        isolate = LIBC.unshare(fewer) == 0
    if isolate:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    if isolate and "pid" in names:
        if child := os.fork():  # The child is the first process in the new PID namespace.
            os._exit(_exit_code(os.waitpid(child, 0)[1]))
        die_with_parent()
        LIBC.mount(None, b"/", None, Mount.RECURSIVE_PRIVATE, None)
        if LIBC.mount(b"proc", b"/proc", b"proc", Mount.NOSUID_NODEV_NOEXEC, None) == 0:
            names.append("own /proc")
    _fork_and_report(control)
    return [f"namespaces ({', '.join(names)})"] if isolate else []


def _fork_and_report(control: socket.socket | None) -> None:
    """Fork, and return in the child. The parent reaps orphans, reports the child's wait status, and exits."""
    if (child := os.fork()) == 0:
        die_with_parent()
        return
    code = 1
    try:
        while (ended := os.wait())[0] != child:
            pass
        code = _exit_code(ended[1])
        if control is not None:
            wire.send(control, {"ended": ended[1]})
    finally:
        os._exit(code)


def _exit_code(status: int) -> int:
    """Return the exit code for a child's wait status or, for a signal, 256 minus the signal's number."""
    return os.waitstatus_to_exitcode(status) & 0xFF


def limit_resources(data_bytes: int, file_descriptors: int, file_bytes: int = 0) -> list[str]:
    """Disable core dumps. Limit file sizes to ``file_bytes`` and additional private memory to ``data_bytes`` (0:
    unlimited).

    The function does not set ``RLIMIT_AS``, which would break CUDA. Threat: resources.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (file_descriptors, file_descriptors))
    if data_bytes:
        with open("/proc/self/status") as status:  # noqa: PTH123
            now = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (now + data_bytes, now + data_bytes))
    return ["rlimits"]


def restrict_files(cuda: bool, readable: Sequence[str] = (), writable: Sequence[str] = ()) -> list[str]:
    """Apply Landlock. Permit access only to system files, ``readable`` and ``writable`` trees, standard devices such as
    /dev/null, and GPU devices.

    Threat: escape.
    """
    readable = [*_READABLE, sys.prefix, sys.base_prefix, *readable]
    devices = list(_DEVICES)
    if cuda:
        readable += _NVIDIA_READABLE
        devices += [f"/dev/{name}" for name in os.listdir("/dev") if name.startswith("nvidia")]  # noqa: PTH208
    try:
        landlock.restrict(readable, devices, writable)
    except OSError:
        return []
    return [f"Landlock (ABI {landlock.abi()})"]


def restrict_calls(processes: bool = False, timers: bool = False) -> list[str]:
    """Apply seccomp. ``processes``: whether to permit compilers, which Triton starts at a kernel's first call.

    ``timers``: whether to permit timers, which a GPU's driver needs. Threat: escape, late-work.
    """
    try:
        seccomp.install(processes, timers)
    except OSError:
        return []
    return ["seccomp, with compilers allowed" if processes else "seccomp"]


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:  # noqa: PTH123
            file.write(text)
    except OSError:
        pass
