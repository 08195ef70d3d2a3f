"""The command as a person runs it, for tests: ``kernel_tui("show", "demo")`` (the fixture is in conftest.py)."""

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

from engine.session import SessionError, SessionPaths, engine_liveness

ROOT = Path(__file__).resolve().parents[1]


def without_waits(said: str) -> str:
    """What a command said, less that it waited for the device: other tests use it too."""
    return "".join(line for line in said.splitlines(True) if not line.startswith("waiting for the device ("))


class KernelTui:
    """``kernel-tui`` as a process in ``directory``. Nothing is on a terminal."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(
        self,
        *arguments: str | Path,
        env: dict[str, str] | None = None,
        timeout: float = 120,
        stdin: str = "",
        setup: Callable[[], None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. ``setup`` runs in the child before it begins."""
        return subprocess.run(
            [sys.executable, "-m", "tui.cli", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=environment() | (env or {}),
            timeout=timeout,
            input=stdin,
            preexec_fn=setup,
        )

    def json(self, *arguments: str | Path) -> Any:
        """The one JSON line that ``COMMAND --json`` prints."""
        return self.decode(self(*arguments, "--json").stdout)

    @staticmethod
    def decode(line: str) -> Any:
        return json.loads(line)

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start a command and leave it running; its output is merged."""
        return subprocess.Popen(
            [sys.executable, "-m", "tui.cli", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.directory,
            env=environment(),
        )

    def kill_engines(self) -> None:
        """End every engine that lives on a session below ``directory``."""
        for database in self.directory.glob("**/session.db"):
            with contextlib.suppress(SessionError, ProcessLookupError):
                living = engine_liveness(SessionPaths.at(database.parent))
                if living.running and living.pid is not None:
                    os.kill(living.pid, signal.SIGKILL)


def environment() -> dict[str, str]:
    """This environment with the checkout importable; nothing of a person's own settings leaks in."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("KERNEL_TUI_")}
    return own | {"PYTHONPATH": str(ROOT)}
