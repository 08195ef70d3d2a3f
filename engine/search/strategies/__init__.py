"""Strategies for selecting the parents of the next round: one file each, with a common protocol.

To add a strategy, write a function in its own file and add its name to ``STRATEGIES`` and ``engine.config.schema``.
"""

from __future__ import annotations

from engine.search.strategies.base import Candidate, Selection, Strategy, ranking
from engine.search.strategies.beam import beam
from engine.search.strategies.greedy import greedy
from engine.search.strategies.random import random
from engine.search.strategies.serial import serial

__all__ = ["STRATEGIES", "Candidate", "Selection", "Strategy", "beam", "greedy", "random", "ranking", "serial"]

STRATEGIES: dict[str, Strategy] = {"beam": beam, "greedy": greedy, "serial": serial, "random": random}
"""Map from values of ``search.strategy`` to strategies."""
