"""The command that a user types to start this program."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

NAME = "kernel-tui"
_TYPED = (
    "run resume attach bench replay serve sessions show report kernels pause unpause stop prune restore pin unpin "
    "seed-idea seed-kernel retry budget prompt reply eval compare build export sass profile problems doctor init "
    "completion"
)
"""Commands that hints suggest. A worker and a scheduler run on other hosts, where this machine's paths mean nothing."""
_SUGGESTED = re.compile(
    # After "host: ", a hint is for another host. In parentheses, the text is another process's command line.
    rf"(?<![\w./(-])(?<!host: )(?<!Usage: ){NAME}"
    rf"(?= (?:(?:{_TYPED.replace(' ', '|')}|cluster certs)(?![\w-])|--help|'[^']+\.toml'|[^\s;,]+\.toml\b))"
)


def program() -> str:
    """Return the program's name if the shell can find the program, or the path of the running script.

    ``make run`` uses a virtual environment without activating it, so only the path works with ``make run``.
    """
    started = Path(sys.argv[0])
    if started.name != NAME or shutil.which(NAME) is not None or not started.is_file():
        return NAME
    relative = os.path.relpath(started)
    return shlex.quote(str(started.absolute()) if relative.startswith(os.pardir) else relative)


def as_typed(text: str) -> str:
    """Return ``text`` with the program's name replaced by ``program()`` in each command that the text suggests.

    Messages of the engine and stored messages contain the name, because the engine cannot know how its user starts the
    program. Every function that shows a message calls this function.
    """
    if f"{NAME} " not in text:
        return text
    path = program()
    return text if path == NAME else _SUGGESTED.sub(lambda found: path, text)
