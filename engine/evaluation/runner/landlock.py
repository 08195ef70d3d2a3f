"""Landlock: the file system that a kernel may see is read-only and small. Linux ``userspace-api/landlock.rst``."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from engine.evaluation.runner.seccomp import forbid_new_privileges

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_RIGHTS_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_SCOPE_SIGNALS_AND_SOCKETS = 3
_NETWORK_BIND_CONNECT = 3

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/etc/alternatives", "/etc/ld.so.cache")
"""Trees that hold programs and libraries and nobody's data. Compilers lie in /opt too."""


def abi() -> int:
    """The kernel's Landlock version, 0 where there is none."""
    found = ctypes.CDLL(None).syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    return max(0, int(found))


def restrict(readable: Iterable[str], devices: Iterable[str], writable: Iterable[str] = ()) -> None:
    """Leave only ``readable`` trees (read and map), ``devices`` (read, write, ioctl) and ``writable`` trees.

    Raises ``OSError``.
    """
    version = abi()
    if version == 0:
        raise OSError(38, "this kernel has no Landlock")
    rights = _RIGHTS_OF_ABI[min(version, 5)]
    network = _NETWORK_BIND_CONNECT if version >= 4 else 0
    scope = _SCOPE_SIGNALS_AND_SOCKETS if version >= 6 else 0
    attributes = struct.pack("=QQQ", rights, network, scope)
    size = 8 if version < 4 else (16 if version < 6 else 24)
    libc = ctypes.CDLL(None, use_errno=True)
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.c_char_p(attributes), size, 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    read = _EXECUTE | _READ_FILE | _READ_DIR
    use = (_WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV) & rights
    for paths, allowed in ((readable, read), (devices, use), (writable, rights & ~_IOCTL_DEV)):
        for path in paths:
            _allow(libc, ruleset, path, allowed)
    forbid_new_privileges()
    if libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):  # noqa: PTH112 - the runner keeps its imports few
            rights &= ~_READ_DIR
        rule = struct.pack("=Qi", rights, descriptor)
        if libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.c_char_p(rule), 0) != 0:
            raise OSError(ctypes.get_errno(), f"landlock_add_rule {path}")
    finally:
        os.close(descriptor)
