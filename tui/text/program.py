"""The command that a user types to start this program."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "kernel-tui"


def program() -> str:
    """Return the program's name if the shell can find the program, or the path of the running script.

    ``make run`` uses a virtual environment without activating it, so only the path works with ``make run``.
    """
    started = Path(sys.argv[0])
    if started.name != NAME or shutil.which(NAME) is not None or not started.is_file():
        return NAME
    relative = os.path.relpath(started)
    return shlex.quote(str(started.absolute()) if relative.startswith(os.pardir) else relative)
