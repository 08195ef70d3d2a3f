"""Detect whether logout kills a user's processes, and start a process that survives logout. systemd-logind kills a
user's processes if ``KillUserProcesses=yes`` (logind.conf(5)), even processes with their own process session. The
documented remedy is a scope of the user's service manager (``systemd-run --user --scope``). With lingering
enabled, the scope outlives the last logout.
"""

from __future__ import annotations

import configparser
import getpass
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

_ASK_S = 2.0
_CONFIGS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
_MANAGER = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")


class LogoutPolicy(Struct, frozen=True):
    """How logind treats this user's processes at logout.

    ``kills``: logout kills the processes. ``lingers``: the user's service manager survives logout. ``scope``:
    ``systemd-run --user --scope`` works on this machine; checked only if ``kills`` is true.
    """

    kills: bool
    lingers: bool = False
    scope: bool = False

    @property
    def advice(self) -> str | None:
        """Advice on how to make a search survive logout; None if no action is needed."""
        if not self.kills or (self.scope and self.lingers):
            return None
        if self.scope:
            return (
                "logind kills this user's processes at logout (KillUserProcesses=yes). "
                "To keep searches running after logout, type once: loginctl enable-linger"
            )
        return (
            "logind kills this user's processes at logout (KillUserProcesses=yes), and 'systemd-run --user --scope' "
            "fails here, so searches end at logout. Stay logged in, or ask the administrator to set "
            "KillUserProcesses=no."
        )


def logout_policy() -> LogoutPolicy:
    """Query logind or, if logind does not answer, read its configuration. The query takes milliseconds and never raises
    an exception.
    """
    user = user_name()
    asked = _ask(("busctl", "--system", "get-property", *_MANAGER, "KillUserProcesses", "KillExcludeUsers"))
    if asked is not None:
        lines = asked.splitlines()
        kills = bool(lines) and lines[0] == "b true" and f'"{user}"' not in (lines[1] if len(lines) > 1 else "")
    else:
        kills = Path("/run/systemd/system").is_dir() and configured_to_kill(_config_files(), user)
    if not kills:
        return LogoutPolicy(False)
    lingers = Path("/var/lib/systemd/linger", user).exists()
    scope = _ask(("systemd-run", "--user", "--scope", "--quiet", "--collect", "true")) is not None
    return LogoutPolicy(True, lingers, scope)


def surviving(command: Sequence[str], policy: LogoutPolicy) -> list[str]:
    """Wrap ``command`` so that it survives logout. The process id stays the same, because ``systemd-run --scope`` execs
    the command.
    """
    if policy.kills and policy.scope:
        return ["systemd-run", "--user", "--scope", "--quiet", "--collect", "--", *command]
    return list(command)


def configured_to_kill(files: Iterable[Path], user: str) -> bool:
    """Return whether logind.conf and its drop-ins make logout kill ``user``'s processes. Later ``files`` take
    precedence.
    """
    kills, excluded = False, "root"
    for file in files:
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        try:
            parser.read_string(file.read_text(errors="replace"))
        except (OSError, configparser.Error):
            continue
        kills = parser.get("Login", "KillUserProcesses", fallback=str(kills)).lower() in ("yes", "true", "1", "on")
        excluded = parser.get("Login", "KillExcludeUsers", fallback=excluded)
    return kills and user not in excluded.split()


def _config_files() -> list[Path]:
    """The first ``logind.conf``, then all drop-ins by name. Drop-ins in /etc hide drop-ins of the same name in
    /usr/lib."""
    main = next((Path(root, "logind.conf") for root in _CONFIGS if Path(root, "logind.conf").is_file()), None)
    drops: dict[str, Path] = {}
    for root in reversed(_CONFIGS):
        drops |= {file.name: file for file in Path(root, "logind.conf.d").glob("*.conf")}
    return ([main] if main is not None else []) + [drops[name] for name in sorted(drops)]


def _ask(command: Sequence[str]) -> str | None:
    """Run a system tool and return its output; None if it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def user_name() -> str:
    """Return the user's name, or "" if the user id has no name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
