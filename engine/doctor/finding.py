"""The result of one check of ``kernel-tui doctor``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Level = Literal["ok", "warn", "fail"]


class Finding(Struct, frozen=True):
    """The result of one check. ``fail`` means that a search cannot run; ``warn`` means that a search can run, but with
    the limitation that ``what`` describes. ``remedy``: what to do about the problem, or "".

    ``name`` is short and stable ("c++ compiler"). ``what`` is one sentence.
    """

    name: str
    level: Level
    what: str
    remedy: str = ""


def run(
    command: list[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str] | None:
    """Run a short command; return None if it is missing or exceeds ``timeout_s`` seconds."""
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            env=dict(environment) if environment is not None else {**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
