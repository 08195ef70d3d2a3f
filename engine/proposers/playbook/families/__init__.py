"""Families of problems that the playbook knows: one file each, registered here."""

from __future__ import annotations

from engine.proposers.playbook.families.base import Family
from engine.proposers.playbook.families.pointwise import Pointwise
from engine.proposers.playbook.families.rows import Rows

FAMILIES: tuple[Family, ...] = (Pointwise(), Rows())

__all__ = ["FAMILIES", "Family"]
