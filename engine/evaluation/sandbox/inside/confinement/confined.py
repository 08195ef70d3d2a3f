"""Run a compiler that can read system files and its own directory, and can write only to its own directory.

A source may ``#include`` or ``.incbin`` any path. Compilers quote these files in their messages, which reach logs and
prompts. Threat: escape.

Arguments: the directory, other readable trees separated by colons, and the command. Without Landlock, the command runs
unconfined, and ``kernel-tui doctor`` reports the missing layer.
"""

from __future__ import annotations

import contextlib
import os
import sys

sys.path.append(os.path.abspath(__file__).rsplit(os.sep, 6)[0])  # noqa: PTH100

from engine.evaluation.sandbox.inside.confinement import landlock

_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def main() -> None:
    directory, further, *command = sys.argv[1:]
    readable = [*landlock.SYSTEM, *further.split(os.pathsep)]
    with contextlib.suppress(OSError):
        landlock.restrict(readable, _DEVICES, [directory])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
