"""Run ``kernel-tui`` in tests as a user does: ``kernel_tui("show", "demo")``. The fixture is in conftest.py."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.session.store import SessionError, SessionPaths, engine_liveness
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[1]
NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}


def without_waits(said: str) -> str:
    """Remove reports of waiting for the device, which other tests use too."""
    return "".join(line for line in said.splitlines(True) if not line.startswith("waiting for the device ("))


class KernelTui:
    """``kernel-tui`` as a process in ``directory``, without a terminal."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(
        self,
        *arguments: str | Path,
        env: dict[str, str] | None = None,
        timeout: float = PATIENCE_S,
        stdin: str = "",
        setup: Callable[[], None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command and wait for it to end. ``setup`` runs in the child before the command.

        With ``setup``, Python keeps no bytecode: under a limit on file sizes, it would leave truncated ``.pyc`` files,
        which break every later import.
        """
        return subprocess.run(
            [sys.executable, "-m", "tui.cli.main", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=environment() | (NO_BYTECODE if setup else {}) | (env or {}),
            timeout=timeout,
            input=stdin,
            preexec_fn=setup,
        )

    def json(self, *arguments: str | Path) -> Any:
        """Return the JSON line that ``COMMAND --json`` prints."""
        return self.decode(self(*arguments, "--json").stdout)

    @staticmethod
    def decode(line: str) -> Any:
        return json.loads(line)

    def start(self, *arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command in the background, with stderr merged into stdout."""
        return subprocess.Popen(
            [sys.executable, "-m", "tui.cli.main", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.directory,
            env=environment() | (env or {}),
        )

    def kill_engines(self) -> None:
        """Kill every engine of the sessions below ``directory``."""
        for database in self.directory.glob("**/session.db"):
            with contextlib.suppress(SessionError, ProcessLookupError):
                living = engine_liveness(SessionPaths.at(database.parent))
                if living.running and living.pid is not None:
                    os.kill(living.pid, signal.SIGKILL)


def environment() -> dict[str, str]:
    """Return the environment with the checkout importable and without the user's own settings."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("KERNEL_TUI_")}
    return own | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
