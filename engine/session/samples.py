"""Device readings, thinned with age: a live strip needs every second, last week's search needs its shape."""

from __future__ import annotations

import sqlite3

from msgspec import Struct

THIN_EVERY_S = 60.0

STEPS: tuple[tuple[float, float], ...] = ((600.0, 10.0), (2 * 3600.0, 60.0), (24 * 3600.0, 600.0))
"""(age, step) in seconds: readings older than ``age`` are kept once per ``step``, the first of each."""


class Sample(Struct, frozen=True):
    """Readings of all devices at ``time`` (Unix seconds); ``json`` is as the engine stored it."""

    time: float
    json: str


def thin(connection: sqlite3.Connection, now: float) -> None:
    """Delete readings that are closer together than their age deserves. Within the caller's transaction.

    Ages are rounded to whole steps, so that a bucket is thinned only when it is complete.
    """
    for age, step in STEPS:
        connection.execute(
            "DELETE FROM sample WHERE time < :until AND id NOT IN ("
            " SELECT min(id) FROM sample WHERE time < :until GROUP BY CAST(time / :step AS INTEGER))",
            {"until": (now - age) // step * step, "step": step},
        )
