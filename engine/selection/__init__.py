"""Who is carried on to the next round, and why: one strategy a file, behind one small protocol.

A new strategy is a function in a file of its own, an entry in ``STRATEGIES`` and a name in ``engine.config``.
"""

from __future__ import annotations

from engine.selection.base import Candidate, Selection, Strategy, ranking
from engine.selection.beam import beam
from engine.selection.greedy import greedy
from engine.selection.random import random
from engine.selection.serial import serial

__all__ = ["STRATEGIES", "Candidate", "Selection", "Strategy", "beam", "greedy", "random", "ranking", "serial"]

STRATEGIES: dict[str, Strategy] = {"beam": beam, "greedy": greedy, "serial": serial, "random": random}
"""By the name that ``search.strategy`` gives."""
