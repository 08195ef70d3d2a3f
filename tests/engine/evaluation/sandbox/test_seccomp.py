"""The seccomp filter allows, denies or kills for each system call. The tests interpret it as Linux does."""

from __future__ import annotations

import struct

import pytest

from engine.evaluation.sandbox.inside.abi import AuditArch, Bpf, Clone, Seccomp, syscalls
from engine.evaluation.sandbox.inside.confinement.seccomp import program

PID = 4242
ALLOW, KILL, EPERM, ENOSYS = Seccomp.ALLOW, Seccomp.KILL_PROCESS, Seccomp.ERRNO | 1, Seccomp.ERRNO | 38
MACHINES = ("x86_64", "aarch64")


def answer(machine: str, name: str, *arguments: int, processes: bool = False, timers: bool = False) -> int:
    """Return the filter's decision on a system call."""
    numbers, arch = syscalls(machine), AuditArch[machine.upper()]
    number = numbers[name]
    assert number is not None
    data = struct.pack("=iIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    code, at, loaded = program(numbers, arch, PID, processes, timers), 0, 0
    while True:
        action, if_true, if_false, value = struct.unpack("=HBBI", code[at])
        at += 1
        match action:
            case Bpf.RETURN:
                return int(value)
            case Bpf.LOAD:
                (loaded,) = struct.unpack_from("=I", data, value)
            case Bpf.JUMP_IF_EQUAL:
                at += if_true if loaded == value else if_false
            case Bpf.JUMP_IF_NOT_LESS:
                at += if_true if loaded >= value else if_false
            case Bpf.JUMP_IF_ANY_BIT:
                at += if_true if loaded & value else if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_processes_networks_and_tracing_are_out_of_reach(machine: str) -> None:
    assert answer(machine, "execve") == KILL
    assert answer(machine, "clone", 0) == KILL
    assert answer(machine, "clone3") == ENOSYS
    denied = (
        "socket",
        "connect",
        "ptrace",
        "kill",
        "unshare",
        "mount",
        "io_uring_setup",
        "timer_create",
        "bpf",
        "shmget",
    )
    assert {answer(machine, name) for name in denied} == {EPERM}


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_signals_to_itself_and_reading_limits_are_not(machine: str) -> None:
    assert answer(machine, "clone", Clone.THREAD) == ALLOW
    assert answer(machine, "tgkill", PID, PID, 6) == ALLOW
    assert answer(machine, "tgkill", PID, PID, 9) == EPERM
    assert answer(machine, "tgkill", PID + 1, PID, 6) == EPERM
    assert answer(machine, "prlimit64", 0, 3, 0) == ALLOW
    assert answer(machine, "prlimit64", 0, 3, 1 << 32) == EPERM
    assert answer(machine, "fcntl", 3, 1) == ALLOW
    assert answer(machine, "fcntl", 3, 10) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_compilers_and_timers_are_allowed_where_they_are_needed(machine: str) -> None:
    assert answer(machine, "execve", processes=True) == ALLOW
    assert answer(machine, "clone", 0, processes=True) == ALLOW
    assert answer(machine, "clone", Clone.NEWUSER, processes=True) == KILL
    assert answer(machine, "setitimer") == EPERM
    assert answer(machine, "setitimer", timers=True) == ALLOW
