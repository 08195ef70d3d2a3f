"""Check what a search needs from the system: session files, logout, API keys, threads, and the terminal."""

from __future__ import annotations

import contextlib
import locale
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from engine.config.schema import CalledModel, Config
from engine.daemon.logind import LogoutPolicy, logout_policy
from engine.devices.hardware import usable_cores
from engine.doctor.finding import Finding
from engine.session.records.verdict import BUSY
from engine.session.store import SessionError, SessionPaths, engine_liveness, sessions_in
from engine.session.store.errors import UnsafeFileSystem
from engine.session.store.filesystem import MOUNTS, check_file_system, mount_type

KEY_VARIABLES = ("OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "ANTHROPIC_API_KEY")
_FREE_BYTES = 1 << 30
_MEASURED_S = 0.5
"""Time over which the check measures the CPU usage of running programs, in seconds."""


def sqlite(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> Finding:
    """Check SQLite's version.

    ``STRICT`` tables need SQLite 3.37. Versions 3.7.0 to 3.51.2 have a rare WAL-reset bug
    (https://sqlite.org/wal.html).
    """
    shown = f"SQLite {'.'.join(map(str, version[:3]))}"
    if version < (3, 37):
        return Finding("sqlite", "fail", f"{shown} is too old", "use a Python built with SQLite 3.37 or later")
    if version <= (3, 51, 2):
        return Finding(
            "sqlite",
            "ok",
            f"{shown}; kernel-tui serializes writers to avoid SQLite's rare WAL-reset bug (3.7.0 to 3.51.2)",
        )
    return Finding("sqlite", "ok", shown)


def sessions(directory: Path, mounts: Path = MOUNTS) -> Finding:
    """Check that the session directory is writable, has free space, and is on a safe file system."""
    name = "sessions"
    present = next(folder for folder in (directory, *directory.parents) if folder.is_dir())
    kind = mount_type(present, mounts) or "an unknown file system"
    elsewhere = "set `sessions` in the config to a directory on a local disk"
    try:
        check_file_system(present, mounts)
    except UnsafeFileSystem as error:
        return Finding(name, "fail", str(error), elsewhere)
    if not os.access(present, os.W_OK | os.X_OK):
        return Finding(name, "fail", f"{present} is not writable", elsewhere)
    free = shutil.disk_usage(present).free
    if free < _FREE_BYTES:
        return Finding(name, "warn", f"{directory} has only {free / 2**20:.0f} MiB free", "free some disk space")
    return Finding(name, "ok", f"{directory} ({kind}, {free / 2**30:.0f} GiB free)")


def logout(policy: LogoutPolicy | None = None) -> Finding:
    """Check that a search survives logout (``engine.daemon.logind``).

    ``policy``: the logout policy; by default, the check reads the system's policy.
    """
    policy = policy if policy is not None else logout_policy()
    if policy.advice is not None:
        what, _, remedy = policy.advice.partition(". ")
        return Finding("logout", "warn", what, remedy)
    scope = ", in its own systemd scope" if policy.kills else ""
    return Finding("logout", "ok", f"a search continues after logout{scope}")


def keys(config: Config | None, environment: Mapping[str, str] = os.environ) -> Finding:
    """Report which API keys are set. The check never shows a key's value."""
    name = "keys"
    present = [variable for variable in KEY_VARIABLES if environment.get(variable)]
    shown = f"set: {', '.join(present)}" if present else "no API key is set"
    remote = [] if config is None else [one for one in config.models if isinstance(one, CalledModel)]
    if not remote:
        return Finding(name, "ok", f"{shown}; the playbook needs no key")
    needed = list(dict.fromkeys(variable for one in remote if (variable := one.key_variable) is not None))
    missing = [variable for variable in needed if not environment.get(variable)]
    if missing:
        remedy = "; ".join(f"export {variable}=..." for variable in missing)
        return Finding(name, "fail", f"the config's models need these unset API keys: {', '.join(missing)}", remedy)
    return Finding(name, "ok", f"set: {', '.join(needed)}" if needed else f"{shown}; the config's models need no key")


def threads(
    environment: Mapping[str, str] = os.environ,
    cores: int | None = None,
    used: Callable[[], float] | None = None,
    directory: Path | None = None,
) -> Finding:
    """Check whether kernels can use all cores: OpenMP's settings, and the CPU usage of running programs.

    ``used`` measures the share of the usable cores that programs use. If the share is too large, the finding names the
    running searches whose sessions are in ``directory``.
    """
    name = "threads"
    cores = cores or usable_cores()
    limit = environment.get("OMP_NUM_THREADS", "")
    if limit.split(",")[0].strip().isdecimal() and int(limit.split(",")[0]) < cores:
        return Finding(
            name,
            "warn",
            f"OMP_NUM_THREADS={limit} limits kernels to fewer than {cores} cores",
            "unset OMP_NUM_THREADS",
        )
    if environment.get("OMP_WAIT_POLICY", "").lower() == "active":
        return Finding(
            name, "warn", "with OMP_WAIT_POLICY=active, idle threads spin and disturb timings", "unset OMP_WAIT_POLICY"
        )
    share = (used or _used_share)()
    if share > BUSY:
        searches = _running_searches(directory) if directory is not None else []
        return Finding(
            name,
            "warn",
            f"running programs disturb timings: they use {share:.0%} of {cores} cores"
            + (f"; running searches: {', '.join(searches)}" if searches else ""),
            "run searches while the machine is otherwise idle",
        )
    return Finding(name, "ok", f"{cores} cores; running programs use {share:.0%} of them")


def _running_searches(directory: Path) -> list[str]:
    """Return the names of the sessions in ``directory`` whose engine is running."""
    names = []
    for paths in map(SessionPaths.at, sessions_in(directory)):
        with contextlib.suppress(SessionError):  # The other commands report unreadable sessions.
            if paths.lock.exists() and engine_liveness(paths).running:
                names.append(paths.name)
    return names


def _used_share() -> float:
    """Return the share of the usable cores that all programs use, measured for ``_MEASURED_S``."""
    import psutil

    cores = psutil.cpu_percent(interval=_MEASURED_S, percpu=True)
    usable = [cores[core] for core in os.sched_getaffinity(0) if core < len(cores)]
    return sum(usable) / len(usable) / 100 if usable else 0.0


def terminal(environment: Mapping[str, str] = os.environ) -> Finding:
    """Check that the terminal can display the monitor."""
    name = "terminal"
    if not sys.stdout.isatty():
        return Finding(name, "ok", "output is not a terminal; kernel-tui prints progress as plain lines")
    size = shutil.get_terminal_size()
    kind = environment.get("TERM", "")
    inside = "inside tmux" if environment.get("TMUX") else ("tmux is installed" if shutil.which("tmux") else "no tmux")
    shown = f"{kind or 'TERM not set'}, {size.columns}x{size.lines}, {inside}"
    if kind in ("", "dumb"):
        return Finding(
            name, "warn", f"{shown}: the monitor cannot move the cursor", "set TERM, for example TERM=xterm-256color"
        )
    if "utf" not in locale.getpreferredencoding().lower():
        return Finding(name, "warn", f"{shown}: not UTF-8, so the monitor uses ASCII glyphs", "set LANG=C.UTF-8")
    if size.columns < 80 or size.lines < 24:
        return Finding(name, "warn", f"{shown}: smaller than 80x24", "enlarge the window")
    return Finding(name, "ok", shown)
