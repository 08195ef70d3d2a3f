"""A seccomp filter for a process that only computes: threads and memory yes; processes, network, tracing no.

Creating a process kills the offender (the judge sees ``SIGSYS``); everything else that is denied answers
``EPERM``. Filter format: Linux ``Documentation/userspace-api/seccomp_filter.rst``.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

_LD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_CLONE_THREAD = 0x10000
_CLONE_NAMESPACES = 0x7E020000
_NR, _ARCH, _ARG0_LOW, _ARG1_LOW, _ARG2_LOW, _ARG2_HIGH = 0, 4, 16, 24, 32, 36
_F_SETSIG, _SIGKILL = 10, 9
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2

# Numbers by architecture: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h
_X86_64 = {
    "arch": 0xC000003E,
    "clone": 56,
    "clone3": 435,
    "tgkill": 234,
    "prlimit64": 302,
    "fcntl": 72,
    "kill": (57, 58, 59, 322),  # fork, vfork, execve, execveat
    "timers": (37, 38, 283, 286),  # alarm, setitimer, timerfd_create, timerfd_settime
    "deny": (
        *(41, 42, 43, 49, 50, 53, 288),  # socket, connect, accept, bind, listen, socketpair, accept4
        *(62, 200, 129, 297, 101, 310, 311, 424, 434, 438),  # signals, ptrace, process_vm_*, pidfd_*
        222,  # timer_create: its signal may be SIGCONT, which wakes who was stopped between two calls
        206,  # io_setup: what is asked for so goes on while the process stands still, as with io_uring
        *(109, 112, 141, 144, 160, 314),  # setpgid, setsid, setpriority, sched_*, setrlimit
        *(155, 161, 163, 165, 166, 272, 308, 428, 429, 442),  # roots, mounts, unshare, setns
        *(29, 30, 31, 64, 68, 240),  # System V shared memory, semaphores and queues, mq_open
        *(135, 248, 249, 250, 298, 304, 321, 323, 425, 426, 427),  # personality, keys, perf, bpf, userfaultfd, io_uring
    ),
}
_AARCH64 = {
    "arch": 0xC00000B7,
    "clone": 220,
    "clone3": 435,
    "tgkill": 131,
    "prlimit64": 261,
    "fcntl": 25,
    "kill": (221, 281),
    "timers": (85, 86, 103),
    "deny": (
        *(198, 199, 200, 201, 202, 203, 242),
        *(129, 130, 138, 240, 117, 270, 271, 424, 434, 438),
        *(107, 0),
        *(154, 157, 140, 119, 164, 274),
        *(51, 41, 40, 39, 97, 268, 428, 429, 442),
        *(194, 190, 186, 180),
        *(92, 217, 218, 219, 241, 265, 280, 282, 425, 426, 427),
    ),
}


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _program(table: dict[str, object], own_pid: int, processes: bool, timers: bool) -> list[bytes]:
    """The filter as a list of BPF instructions; ``own_pid`` is the only thread group that may be signalled."""

    def number(key: str) -> int:
        value = table[key]
        assert isinstance(value, int)
        return value

    def numbers(key: str) -> tuple[int, ...]:
        value = table[key]
        assert isinstance(value, tuple)
        return value

    kill, allow = _instruction(_RET, _KILL), _instruction(_RET, _ALLOW)
    deny, unknown = _instruction(_RET, _ERRNO | _EPERM), _instruction(_RET, _ERRNO | _ENOSYS)
    program = [
        _instruction(_LD, _ARCH),
        _instruction(_JEQ, number("arch"), 1, 0),
        kill,
        _instruction(_LD, _NR),
        _instruction(_JGE, 0x40000000, 0, 1),  # the x32 interface
        kill,
        _instruction(_JEQ, number("clone3"), 0, 1),  # glibc falls back to clone, whose flags can be read
        unknown,
        _instruction(_JEQ, number("clone"), 0, 4),
        _instruction(_LD, _ARG0_LOW),
        *_clone_rule(processes, allow, kill),
        _instruction(_JEQ, number("tgkill"), 0, 6),
        _instruction(_LD, _ARG2_LOW),
        _instruction(_JEQ, _SIGKILL, 3, 0),  # who ends so was ended by the machine, as far as the judge can tell
        _instruction(_LD, _ARG0_LOW),
        _instruction(_JEQ, own_pid, 0, 1),
        allow,
        deny,
        _instruction(_JEQ, number("prlimit64"), 0, 6),
        _instruction(_LD, _ARG2_LOW),
        _instruction(_JEQ, 0, 0, 3),
        _instruction(_LD, _ARG2_HIGH),
        _instruction(_JEQ, 0, 0, 1),
        allow,
        deny,
        _instruction(_JEQ, number("fcntl"), 0, 4),
        _instruction(_LD, _ARG1_LOW),
        _instruction(_JEQ, _F_SETSIG, 0, 1),  # as timer_create
        deny,
        allow,
    ]
    for forbidden in () if processes else numbers("kill"):
        program += [_instruction(_JEQ, forbidden, 0, 1), kill]
    for denied in (*numbers("deny"), *(() if timers else numbers("timers"))):
        program += [_instruction(_JEQ, denied, 0, 1), deny]
    return [*program, allow]


def _clone_rule(processes: bool, allow: bytes, kill: bytes) -> list[bytes]:
    """Three instructions on the flags of clone: threads only, or processes but in no new namespace."""
    if processes:
        return [_instruction(_JSET, _CLONE_NAMESPACES, 1, 0), allow, kill]
    return [_instruction(_JSET, _CLONE_THREAD, 0, 1), allow, kill]


def forbid_new_privileges() -> None:
    """A precondition of seccomp and Landlock for an ordinary user. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")


def install(processes: bool = False, timers: bool = False) -> None:
    """Bind this process to the filter; with ``processes`` it may start others, with ``timers`` set timers, whose
    interrupts come also while it stands still and are charged to whoever runs then.

    Raises ``OSError`` where the kernel or the architecture cannot.
    """
    tables = {"x86_64": _X86_64, "aarch64": _AARCH64}
    table = tables.get(platform.machine())
    if table is None:
        raise OSError(_ENOSYS, f"no seccomp table for {platform.machine()}")
    code = b"".join(_program(table, os.getpid(), processes, timers))
    filters = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("=HxxxxxxQ", len(code) // 8, ctypes.addressof(filters))
    libc = ctypes.CDLL(None, use_errno=True)
    forbid_new_privileges()
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(header), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")
