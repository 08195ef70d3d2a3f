"""The table that a TOML text holds, and one kind of error for all that is none."""

from __future__ import annotations

import tomllib
from typing import Any

_MOST_DEEP = 64
"""Tables and arrays within each other that a text may have: ten times what any config needs."""
_TOO_DEEP = "arrays or tables are nested too deep"


def toml_table(text: str) -> dict[str, Any]:
    """As ``tomllib.loads``. What is nested so deep that reading or walking through it would overflow is no TOML either:
    raises ``tomllib.TOMLDecodeError``."""
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
