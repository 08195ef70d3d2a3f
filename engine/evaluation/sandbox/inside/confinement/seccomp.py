"""A seccomp filter that permits only computation: threads and memory, but no new processes, network or tracing.

The filter kills a process that starts another process; the judge sees the signal ``SIGSYS``. Most other denied calls
fail with ``EPERM``. Filter format: Linux ``Documentation/userspace-api/seccomp_filter.rst``. Threat: escape, late-work.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct

from engine.evaluation.sandbox.inside.abi import (
    LIBC,
    AuditArch,
    Bpf,
    Clone,
    Fcntl,
    Prctl,
    Seccomp,
    SeccompData,
    check,
    syscalls,
)

_FILTER = struct.Struct("=HBBI")
"""``struct sock_filter``: code, jump if true, jump if false, operand."""
_STARTS_PROCESSES = ("fork", "vfork", "execve", "execveat")
_TIMERS = ("alarm", "setitimer", "timerfd_create", "timerfd_settime")
"""Calls that set timers. A timer's interrupts arrive even while the process is stopped, and take time away from the
process that is running.
"""
_DENIED = (
    *("socket", "connect", "accept", "bind", "listen", "socketpair", "accept4"),
    *("kill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "pidfd_send_signal", "pidfd_getfd"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "perf_event_open", "bpf", "userfaultfd"),
    *("timer_create",),  # The timer's signal may be SIGCONT, which resumes a stopped process.
    # Work started by these calls continues while the process is stopped.
    *("io_setup", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("setpgid", "setsid", "setpriority", "sched_setscheduler", "sched_setattr", "setrlimit", "personality"),
    *("pivot_root", "chroot", "acct", "mount", "umount2", "open_tree", "move_mount", "mount_setattr", "unshare"),
    *("setns", "open_by_handle_at", "add_key", "request_key", "keyctl"),
    *("shmget", "shmat", "shmctl", "semget", "msgget", "mq_open"),
)


def install(processes: bool = False, timers: bool = False) -> None:
    """Install the filter in this process. ``processes``: whether to permit new processes. ``timers``: whether to permit
    timers.

    Raises ``OSError`` if Linux or the architecture does not support the filter.
    """
    machine = os.uname().machine
    try:
        numbers, arch = syscalls(machine), AuditArch[machine.upper()]
    except KeyError:
        raise OSError(errno.ENOSYS, f"kernel-tui has no table of system calls for {machine}") from None
    code = b"".join(program(numbers, arch, os.getpid(), processes, timers))
    filters = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("=HxxxxxxQ", len(code) // _FILTER.size, ctypes.addressof(filters))
    forbid_new_privileges()
    check(LIBC.prctl(Prctl.SET_SECCOMP, Seccomp.MODE_FILTER, header, 0, 0), "prctl(PR_SET_SECCOMP)")


def forbid_new_privileges() -> None:
    """Set ``no_new_privs``, which an unprivileged user needs for seccomp and Landlock. Raises ``OSError``."""
    check(LIBC.prctl(Prctl.SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def program(
    numbers: dict[str, int | None], arch: AuditArch, own_pid: int, processes: bool, timers: bool
) -> list[bytes]:
    """Return the filter as BPF instructions. ``own_pid``: the only thread group that the process may signal."""
    kill, allow, deny = _answer(Seccomp.KILL_PROCESS), _answer(Seccomp.ALLOW), _answer(Seccomp.ERRNO | errno.EPERM)
    load = {place: _instruction(Bpf.LOAD, place) for place in SeccompData}

    def on(name: str, *then: bytes) -> list[bytes]:
        """Return instructions that run ``then`` for one system call. ``then`` ends with the filter's decision."""
        number = numbers[name]
        return [] if number is None else [_instruction(Bpf.JUMP_IF_EQUAL, number, 0, len(then)), *then]

    def equal(value: int, if_true: int, if_false: int) -> bytes:
        return _instruction(Bpf.JUMP_IF_EQUAL, value, if_true, if_false)

    if processes:  # Compilers do not need new namespaces.
        clone = [_instruction(Bpf.JUMP_IF_ANY_BIT, Clone.ANY_NAMESPACE, 1, 0), allow, kill]
    else:
        clone = [_instruction(Bpf.JUMP_IF_ANY_BIT, Clone.THREAD, 0, 1), allow, kill]
    checked = [
        # glibc then falls back to clone, whose flags a filter can read.
        *on("clone3", _answer(Seccomp.ERRNO | errno.ENOSYS)),
        *on("clone", load[SeccompData.ARG0], *clone),
        # A SIGKILL would look as if the system had killed the process.
        *on(
            "tgkill",
            *(load[SeccompData.ARG2], equal(signal.SIGKILL, 3, 0)),
            *(load[SeccompData.ARG0], equal(own_pid, 0, 1), allow, deny),
        ),
        # A null pointer to new limits means that the call only reads limits, which is harmless.
        *on(
            "prlimit64",
            *(load[SeccompData.ARG2], equal(0, 0, 3)),
            *(load[SeccompData.ARG2_HIGH], equal(0, 0, 1), allow, deny),
        ),
        *on("fcntl", load[SeccompData.ARG1], equal(Fcntl.SETSIG, 0, 1), deny, allow),  # see timer_create
    ]
    for name in () if processes else _STARTS_PROCESSES:
        checked += on(name, kill)
    for name in _DENIED if timers else (*_DENIED, *_TIMERS):
        checked += on(name, deny)
    return [
        *(load[SeccompData.ARCH], equal(arch, 1, 0), kill),
        *(load[SeccompData.NUMBER], _instruction(Bpf.JUMP_IF_NOT_LESS, Seccomp.X32_SYSCALLS, 0, 1), kill),
        *checked,
        allow,
    ]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return _FILTER.pack(code, if_true, if_false, value)


def _answer(action: int) -> bytes:
    return _instruction(Bpf.RETURN, action)
