"""Where kernel-tui keeps what can be made again: builds, specifications of problems. Per user, not per session."""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    """``$XDG_CACHE_HOME/kernel-tui``, ``~/.cache/kernel-tui`` where that is unset. It need not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kernel-tui"
