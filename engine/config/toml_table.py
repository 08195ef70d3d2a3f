"""Parse TOML into a table, and raise the same exception for all invalid text."""

from __future__ import annotations

import tomllib
from typing import Any

_MOST_DEEP = 64
"""Maximum nesting depth of tables and arrays, ten times as deep as any config needs."""
_TOO_DEEP = "tables or arrays are nested too deeply"


def toml_table(text: str) -> dict[str, Any]:
    """Parse TOML like ``tomllib.loads``, but also reject nesting that could overflow the stack.

    Raises:
        tomllib.TOMLDecodeError: The text is not TOML, or is nested too deeply.
    """
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError(_TOO_DEEP) from None
    level: list[Any] = [table]
    for _ in range(_MOST_DEEP):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return table
    raise tomllib.TOMLDecodeError(_TOO_DEEP)


def _inside(value: dict[str, Any] | list[Any]) -> list[Any]:
    values = value.values() if isinstance(value, dict) else value
    return [one for one in values if isinstance(one, dict | list)]
