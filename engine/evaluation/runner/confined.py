"""Run a compiler that sees the system's files and its own directory, and can write nothing else.

Arguments: the directory, further readable trees separated by colons, then the command. A source may say ``#include``
or ``.incbin`` of any path, and what a compiler quotes of it ends in logs and prompts. Where the system has no Landlock
the command runs all the same: ``kernel-tui doctor`` says so.
"""

from __future__ import annotations

import contextlib
import os
import sys

sys.path.append(os.path.abspath(__file__).rsplit(os.sep, 4)[0])  # noqa: PTH100

from engine.evaluation.runner import landlock

_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def main() -> None:
    directory, further, *command = sys.argv[1:]
    readable = [*landlock.SYSTEM, *further.split(os.pathsep)]
    with contextlib.suppress(OSError):
        landlock.restrict(readable, _DEVICES, [directory])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
