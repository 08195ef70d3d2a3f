"""Support renamed config keys: accept the old names, and report the new names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.config.source_locations import KeyPath, dotted, key_lines, line_of
from engine.config.toml_table import toml_table
from engine.system.text_file import UnreadableFile, read_text

RENAMED: dict[tuple[str, ...], str] = {
    ("bank",): "warm_start",
    ("search", "heat"): "runoff",
    ("search", "survivors"): "parents",
}
"""Map from the path of each old key to the key's new name in the same table."""


def with_new_names(table: dict[str, Any]) -> tuple[dict[str, Any], dict[KeyPath, KeyPath]]:
    """Return ``table`` with its old keys renamed, and a map from each renamed key's new path to its old path.

    If a file contains both names, keep the old name, which validation then reports as an unknown key.
    """
    places: dict[KeyPath, KeyPath] = {}
    for old, name in RENAMED.items():
        if _has(table, old) and not _has(table, new := (*old[:-1], name)):
            table = _renamed(table, old, name)
            places[new] = old
    return table, places


def lines_of(text: str, places: dict[KeyPath, KeyPath]) -> dict[KeyPath, int]:
    """Return the line of each key, as :func:`key_lines` does, and list renamed keys under their new names too."""
    lines = key_lines(text)
    for new, old in places.items():
        lines |= {(*new, *path[len(old) :]): line for path, line in lines.items() if path[: len(old)] == old}
    return lines


def deprecations(path: Path) -> list[str]:
    """Report each old key in a file, as ``config.toml:23: search.survivors is now called search.parents; ...``."""
    try:
        text = read_text(path).replace("\r\n", "\n")
        table = toml_table(text)
    except (UnreadableFile, ValueError):
        return []
    _, places = with_new_names(table)
    lines = key_lines(text)
    return [
        f"{path}:{line_of(lines, old)}: {dotted(old)} is now called {dotted(new)}; the old name still works"
        for new, old in places.items()
    ]


def _has(table: dict[str, Any], place: tuple[str, ...]) -> bool:
    for key in place[:-1]:
        inner = table.get(key)
        if not isinstance(inner, dict):
            return False
        table = inner
    return place[-1] in table


def _renamed(table: dict[str, Any], place: tuple[str, ...], name: str) -> dict[str, Any]:
    key, *rest = place
    if rest:
        return {**table, key: _renamed(table[key], tuple(rest), name)}
    return {(name if one == key else one): value for one, value in table.items()}
