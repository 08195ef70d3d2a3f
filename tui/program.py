"""What a person types to call this program again."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "kernel-tui"


def program() -> str:
    """Its name where the shell finds it, else the file that was started: in a virtual environment that is not active,
    as ``make run`` leaves it, nobody finds the name."""
    started = Path(sys.argv[0])
    if started.name != NAME or shutil.which(NAME) is not None or not started.is_file():
        return NAME
    relative = os.path.relpath(started)
    return shlex.quote(str(started.absolute()) if relative.startswith(os.pardir) else relative)
