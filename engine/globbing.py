"""What a glob of a config names, looked for within bounds: one may name a whole file system."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

MOST_S = 10.0
"""How long may be looked for what a glob names, seconds."""
MOST_FILES = 10_000
"""How many files or directories a glob may name."""


class TooWide(Exception):
    """A glob names too much, or too much is to be looked through; ``str()`` is the sentence to show, without it."""


def has_magic(pattern: Path | str) -> bool:
    return glob.has_magic(str(pattern))


def matches(pattern: Path) -> list[Path]:
    """Files and directories that a glob names, sorted; ``**`` stands for any directories, symbolic links left out.

    What may not be read, or goes while it is looked at, has nothing in it. Raises ``TooWide``.
    """
    first = next((place for place, part in enumerate(pattern.parts) if has_magic(part)), len(pattern.parts))
    found: dict[Path, None] = {}
    deadline = time.monotonic() + MOST_S
    for looked_at, match in enumerate(_walk(Path(*pattern.parts[:first]), pattern.parts[first:])):
        if match is not None:
            found[match] = None
        if len(found) > MOST_FILES:
            raise TooWide(f"names more than {MOST_FILES:,} files; name a narrower pattern")
        if time.monotonic() > deadline:
            raise TooWide(
                f"not all is looked through after {MOST_S:g} s ({looked_at:,} entries); name a narrower pattern"
            )
    return sorted(found)


def _walk(top: Path, parts: tuple[str, ...]) -> Iterator[Path | None]:
    """What ``parts`` name below ``top``, and None for whatever else is looked at."""
    left = [(top, parts)]
    while left:
        directory, parts = left.pop()
        plain = next((place for place, part in enumerate(parts) if has_magic(part)), len(parts))
        directory, parts = directory.joinpath(*parts[:plain]), parts[plain:]
        if not parts:
            yield directory if os.path.exists(directory) else None  # noqa: PTH110 - Path.exists raises where it may not look
            continue
        if parts[0] == "**":
            left.append((directory, parts[1:]))
        try:
            with os.scandir(directory) as entries:
                inside = list(entries)
        except OSError:
            continue
        for entry in inside:
            yield None
            if parts[0] != "**":
                if fnmatchcase(entry.name, parts[0]):
                    left.append((directory / entry.name, parts[1:]))
            elif entry.is_dir(follow_symlinks=False):
                left.append((directory / entry.name, parts))
