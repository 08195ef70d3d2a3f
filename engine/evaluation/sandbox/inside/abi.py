"""Constants of the sandbox's interfaces: system calls, seccomp filters, Landlock and the CUDA driver.

The constants follow from these interfaces, so they are not part of the judge's policy. Sources: Linux ``include/uapi``
(``asm-generic/unistd.h``, ``linux/audit.h``, ``linux/bpf_common.h``, ``linux/seccomp.h``, ``linux/landlock.h``,
``linux/prctl.h``, ``linux/sched.h``, ``linux/mount.h``, ``asm-generic/mman.h``, ``asm-generic/fcntl.h``),
``arch/x86/entry/syscalls/syscall_64.tbl``, and ``cuda.h`` of the CUDA driver API.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p


def check(result: int, name: str) -> int:
    """Return the result of a C library function. Raises ``OSError`` if the result is negative."""
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


_SYSCALLS = """
socket 41 198, connect 42 203, accept 43 202, bind 49 200, listen 50 201, socketpair 53 199, accept4 288 242
kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, ptrace 101 117
process_vm_readv 310 270, process_vm_writev 311 271, pidfd_send_signal 424 424, pidfd_open 434 434
pidfd_getfd 438 438, timer_create 222 107, io_setup 206 0, setpgid 109 154, setsid 112 157, setpriority 141 140
sched_setscheduler 144 119, setrlimit 160 164, sched_setattr 314 274, pivot_root 155 41, chroot 161 51, acct 163 89
mount 165 40, umount2 166 39, unshare 272 97, setns 308 268, open_tree 428 428, move_mount 429 429
mount_setattr 442 442, shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, msgget 68 186, mq_open 240 180
personality 135 92, add_key 248 217, request_key 249 218, keyctl 250 219, perf_event_open 298 241
open_by_handle_at 304 265, bpf 321 280, userfaultfd 323 282, io_uring_setup 425 425, io_uring_enter 426 426
io_uring_register 427 427, fork 57 -, vfork 58 -, execve 59 221, execveat 322 281, clone 56 220, clone3 435 435
alarm 37 -, setitimer 38 103, timerfd_create 283 85, timerfd_settime 286 86, prlimit64 302 261, fcntl 72 25
"""
"""Each entry: name, number on x86_64, number on aarch64 ("-" if the system call does not exist there)."""


def syscalls(machine: str) -> dict[str, int | None]:
    """Map the names of system calls to their numbers; a call that ``machine`` lacks maps to None.

    Raises ``KeyError`` for a ``machine`` outside the table.
    """
    column = {"x86_64": 1, "aarch64": 2}[machine]
    rows = [row.split() for row in _SYSCALLS.strip().replace("\n", ",").split(",")]
    return {row[0]: None if row[column] == "-" else int(row[column]) for row in rows}


class AuditArch(IntEnum):
    """Architecture codes of system calls, as a seccomp filter sees them."""

    X86_64, AARCH64 = 0xC000003E, 0xC00000B7


class Bpf(IntEnum):
    """Opcodes of classic BPF instructions, including the addressing modes that seccomp uses."""

    LOAD, RETURN = 0x20, 0x06
    JUMP_IF_EQUAL, JUMP_IF_NOT_LESS, JUMP_IF_ANY_BIT = 0x15, 0x35, 0x45


class SeccompData(IntEnum):
    """Offsets in ``struct seccomp_data``. Arguments have 64 bits, but BPF loads 32 bits at a time."""

    NUMBER, ARCH, ARG0, ARG1, ARG2, ARG2_HIGH = 0, 4, 16, 24, 32, 36


class Seccomp(IntEnum):
    ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
    MODE_FILTER = 2
    X32_SYSCALLS = 0x40000000


class Landlock(IntEnum):
    """Landlock's system call numbers (the same on all architectures), flags, and ABI versions that added features."""

    CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
    CREATE_RULESET_VERSION, RULE_PATH_BENEATH = 1, 1
    EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
    NET_BIND_AND_CONNECT_TCP, SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3
    FIRST_ABI_WITH_NETWORK, FIRST_ABI_WITH_SCOPES = 4, 6


class LandlockRights(IntEnum):
    """All file access rights in each version of Landlock's ABI."""

    ABI_1, ABI_2, ABI_3, ABI_4, ABI_5 = (1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1


class Prctl(IntEnum):
    SET_PDEATHSIG, SET_SECCOMP, SET_NO_NEW_PRIVS = 1, 22, 38


class Clone(IntEnum):
    """Flags of clone(2) and unshare(2)."""

    THREAD = 0x10000
    NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
    ANY_NAMESPACE = 0x7E020000


class Mount(IntEnum):
    RECURSIVE_PRIVATE, NOSUID_NODEV_NOEXEC = 0x44000, 2 | 4 | 8


class Mmap(IntEnum):
    NO_ACCESS, FIXED = 0, 0x10


class Fcntl(IntEnum):
    SETSIG = 10


class Cuda(IntEnum):
    """Constants of the CUDA driver API.

    Sources: ``CUmemAllocationType``, ``CUmemAllocationHandleType``, ``CUmemLocationType``, ``CUmemAccess_flags``,
    ``CU_MEMHOSTREGISTER_*``, ``CUstreamWaitValue_flags``, ``CUstreamCaptureMode``, ``CUgraphNodeType`` and
    ``CUfunction_attribute``.
    """

    ALLOCATION_PINNED, POSIX_DESCRIPTOR, LOCATION_DEVICE, ACCESS_READ_WRITE = 1, 1, 1, 3
    HOST_REGISTER_DEVICEMAP, WAIT_VALUE_GEQ = 2, 0
    CAPTURE_RELAXED, KERNEL_NODE = 2, 0
    SHARED_SIZE_BYTES, LOCAL_SIZE_BYTES, NUM_REGS = 1, 3, 4
