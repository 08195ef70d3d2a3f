"""Whether this machine kills a user's processes at logout, and how to start one that survives it.

systemd-logind does so with ``KillUserProcesses=yes`` (logind.conf(5)), then also for a process in a session of its
own. The documented way out is a scope of the user's own service manager (``systemd-run --user --scope``), which
outlives the last logout where lingering is enabled.
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
    """``kills``: logout kills this user's processes. ``lingers``: the user's service manager outlives logout.

    ``scope``: ``systemd-run --user --scope`` works here (asked only where it matters).
    """

    kills: bool
    lingers: bool = False
    scope: bool = False

    @property
    def advice(self) -> str | None:
        """What a person should do so that a search survives logout, None if nothing."""
        if not self.kills or (self.scope and self.lingers):
            return None
        if self.scope:
            return (
                "logind kills this user's processes at logout (KillUserProcesses=yes). "
                "Run 'loginctl enable-linger' once, so that a search goes on after the last logout."
            )
        return (
            "logind kills this user's processes at logout (KillUserProcesses=yes) and 'systemd-run --user --scope' "
            "does not work here: a search ends with the login. Ask for KillUserProcesses=no, or stay logged in."
        )


def logout_policy() -> LogoutPolicy:
    """Ask logind, or read its configuration where it does not answer. Takes milliseconds; never raises."""
    user = _user()
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
    """``command`` as it must be started to survive logout. The process id stays that of the command: a scope execs."""
    if policy.kills and policy.scope:
        return ["systemd-run", "--user", "--scope", "--quiet", "--collect", "--", *command]
    return list(command)


def configured_to_kill(files: Iterable[Path], user: str) -> bool:
    """What logind.conf and its drop-ins say, in the order in which they override each other; the default is no."""
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
    """The first ``logind.conf`` found, then all drop-ins by name; a name in /etc hides the same name in /usr/lib."""
    main = next((Path(root, "logind.conf") for root in _CONFIGS if Path(root, "logind.conf").is_file()), None)
    drops: dict[str, Path] = {}
    for root in reversed(_CONFIGS):
        drops |= {file.name: file for file in Path(root, "logind.conf.d").glob("*.conf")}
    return ([main] if main is not None else []) + [drops[name] for name in sorted(drops)]


def _ask(command: Sequence[str]) -> str | None:
    """The output of a system tool, None where it is absent, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # a user id without a name, as in containers
