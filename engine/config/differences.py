"""Describe the differences between two configs as text."""

from __future__ import annotations

from typing import Any

from engine.config.schema import Config
from engine.config.source_locations import KeyPath, dotted

_SHOWN_CHARS = 40


def differences(before: Config, now: Config) -> list[str]:
    """List the keys with different values, for example ``search.rounds 4 -> 2``. Omit long values."""
    old, new = (dict(_leaves((), one.model_dump(mode="json"))) for one in (before, now))
    return [_words(key, old, new) for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]


def _leaves(path: KeyPath, value: Any) -> list[tuple[KeyPath, Any]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _leaves((*path, key), inner)]
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return [leaf for place, inner in enumerate(value) for leaf in _leaves((*path, place), inner)]
    return [(path, value)]


def _words(key: KeyPath, old: dict[KeyPath, Any], new: dict[KeyPath, Any]) -> str:
    before, now = (_shown(values.get(key)) for values in (old, new))
    change = f"{before} -> {now}"
    return f"{dotted(key)} {change}" if len(change) <= _SHOWN_CHARS else dotted(key)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
