"""Complete a path as a shell does."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

MOST = 2_000
"""Maximum number of directory entries to read."""


class Completion(NamedTuple):
    """A completion: the path up to the first ambiguity (``text``) and, if ambiguous, the possible names."""

    text: str
    candidates: tuple[str, ...] = ()


def complete(typed: str, suffixes: Collection[str]) -> Completion:
    """Complete ``typed`` with directories and files that end in one of ``suffixes``.

    Hidden names are candidates only if the user has typed the dot.
    """
    head, slash, start = typed.rpartition("/")
    directory = expanded(head + slash) if slash else Path()
    names = sorted(_names(directory, start, suffixes))
    if not names:
        return Completion(typed)
    shared = os.path.commonprefix(names)  # noqa: RUF071 - of characters, not of path components
    return Completion(f"{head}{slash}{shared}", tuple(names) if len(names) > 1 else ())


def expanded(typed: str) -> Path:
    """Return the path with ``~`` replaced by the home directory. An unknown user's ``~name`` stays as it is."""
    try:
        return Path(typed).expanduser()
    except RuntimeError:
        return Path(typed)


def is_file(typed: str) -> bool:
    """Return whether the path names an existing file."""
    try:
        return expanded(typed).is_file()
    except OSError:  # The name is too long.
        return False


def _names(directory: Path, start: str, suffixes: Collection[str]) -> list[str]:
    """Return the names in ``directory`` that begin with ``start``. Directory names end in a slash."""
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry, _ in zip(entries, range(MOST), strict=False):
                if not entry.name.startswith(start) or (entry.name.startswith(".") and not start.startswith(".")):
                    continue
                if entry.is_dir():
                    found.append(f"{entry.name}/")
                elif Path(entry.name).suffix in suffixes:
                    found.append(entry.name)
    except (OSError, ValueError):
        return []
    return found
