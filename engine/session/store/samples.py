"""Thin out old device readings. A live display needs a reading per second, but an old search needs only the trend."""

from __future__ import annotations

import sqlite3

from msgspec import Struct

THIN_EVERY_S = 60.0

STEPS: tuple[tuple[float, float], ...] = ((600.0, 10.0), (2 * 3600.0, 60.0), (24 * 3600.0, 600.0))
"""How to thin out device readings: (age, step) in seconds. Of readings older than ``age``, the writer keeps only the
first per ``step``.
"""


class Sample(Struct, frozen=True):
    """All devices' readings at ``time`` (Unix seconds). ``json`` is the stored text."""

    time: float
    json: str


def thin(connection: sqlite3.Connection, now: float) -> None:
    """Delete readings that are closer together than their age allows. The caller must commit the deletion.

    Readings in a step stay unchanged until the whole step is older than ``age``.
    """
    for age, step in STEPS:
        connection.execute(
            "DELETE FROM sample WHERE time < :until AND id NOT IN ("
            " SELECT min(id) FROM sample WHERE time < :until GROUP BY CAST(time / :step AS INTEGER))",
            {"until": (now - age) // step * step, "step": step},
        )
