"""Commands that run a module of this program in a new process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
"""The directory of this program's packages: the checkout, or ``kernel_tui/_packages`` of an installed wheel."""


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``module``. Run the command with :func:`python_path` as its ``PYTHONPATH``.

    The current directory stays off the import path, because a user's folder may hold packages with the same names.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def python_path() -> str:
    """Return a ``PYTHONPATH`` on which this program's packages come first."""
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != str(_ROOT)]
    return os.pathsep.join([str(_ROOT), *filter(None, inherited)])
