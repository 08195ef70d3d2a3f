"""Expand the globs in a config. This module limits the time and the number of matches, because a glob may match a whole
file system.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

MOST_S = 10.0
"""Time limit for expanding a glob, in seconds."""
MOST_FILES = 10_000
"""Maximum number of files or directories that a glob may match."""


class TooWide(Exception):
    """A glob exceeds a limit. The message continues a sentence that begins with the glob."""


def has_magic(pattern: Path | str) -> bool:
    return glob.has_magic(str(pattern))


def matches(pattern: Path) -> list[Path]:
    """Expand a glob to a sorted list of files and directories. ``**`` does not follow symbolic links.

    Unreadable directories count as empty. Raises ``TooWide``.
    """
    first = next((place for place, part in enumerate(pattern.parts) if has_magic(part)), len(pattern.parts))
    found: dict[Path, None] = {}
    deadline = time.monotonic() + MOST_S
    for looked_at, match in enumerate(_walk(Path(*pattern.parts[:first]), pattern.parts[first:])):
        if match is not None:
            found[match] = None
        if len(found) > MOST_FILES:
            raise TooWide(f"matches more than {MOST_FILES:,} files; use a narrower pattern")
        if time.monotonic() > deadline:
            raise TooWide(
                f"takes more than {MOST_S:g} s to expand ({looked_at:,} entries so far); use a narrower pattern"
            )
    return sorted(found)


def _walk(top: Path, parts: tuple[str, ...]) -> Iterator[Path | None]:
    """Yield each match of ``parts`` below ``top``, and None for each directory entry scanned."""
    left = [(top, parts)]
    while left:
        directory, parts = left.pop()
        plain = next((place for place, part in enumerate(parts) if has_magic(part)), len(parts))
        directory, parts = directory.joinpath(*parts[:plain]), parts[plain:]
        if not parts:
            yield directory if os.path.exists(directory) else None  # noqa: PTH110 - Path.exists may raise.
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
