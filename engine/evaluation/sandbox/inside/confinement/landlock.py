"""Restrict a kernel to a small, read-only file system with Landlock (Linux ``userspace-api/landlock.rst``).

Threat: escape.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable

from engine.evaluation.sandbox.inside.abi import LIBC, Landlock, LandlockRights, check
from engine.evaluation.sandbox.inside.confinement.seccomp import forbid_new_privileges

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/etc/alternatives", "/etc/ld.so.cache")
"""Directory trees that contain programs and libraries but no user data. Compilers may be in /opt."""


def abi() -> int:
    """Return the version of the system's Landlock ABI, or 0 without Landlock."""
    return max(0, int(LIBC.syscall(Landlock.CREATE_RULESET, None, 0, Landlock.CREATE_RULESET_VERSION)))


def restrict(readable: Iterable[str], devices: Iterable[str], writable: Iterable[str] = ()) -> None:
    """Permit access only to ``readable`` trees (read, execute), ``devices`` (read, write, ioctl) and ``writable``
    trees.

    Raises ``OSError``.
    """
    version = abi()
    if version == 0:
        raise OSError(errno.ENOSYS, "this system does not support Landlock")
    rights = LandlockRights[f"ABI_{min(version, len(LandlockRights.__members__))}"]
    attributes = [int(rights)]
    if version >= Landlock.FIRST_ABI_WITH_NETWORK:
        attributes.append(Landlock.NET_BIND_AND_CONNECT_TCP)
    if version >= Landlock.FIRST_ABI_WITH_SCOPES:
        attributes.append(Landlock.SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    data = struct.pack(f"={len(attributes)}Q", *attributes)
    ruleset = check(LIBC.syscall(Landlock.CREATE_RULESET, data, len(data), 0), "landlock_create_ruleset")
    read = Landlock.EXECUTE | Landlock.READ_FILE | Landlock.READ_DIR
    use = (Landlock.WRITE_FILE | Landlock.READ_FILE | Landlock.TRUNCATE | Landlock.IOCTL_DEV) & rights
    for paths, allowed in ((readable, read), (devices, use), (writable, rights & ~Landlock.IOCTL_DEV)):
        for path in paths:
            _allow(ruleset, path, allowed)
    forbid_new_privileges()
    check(LIBC.syscall(Landlock.RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):  # noqa: PTH112 - the runner imports few modules
            rights &= ~Landlock.READ_DIR
        rule = struct.pack("=Qi", rights, descriptor)
        check(
            LIBC.syscall(Landlock.ADD_RULE, ruleset, Landlock.RULE_PATH_BENEATH, rule, 0), f"landlock_add_rule {path}"
        )
    finally:
        os.close(descriptor)
