"""Per-user cache for data that kernel-tui can rebuild: builds and problem specifications."""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    """Return ``$XDG_CACHE_HOME/kernel-tui``, by default ``~/.cache/kernel-tui``. The directory does not necessarily
    exist.
    """
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kernel-tui"
