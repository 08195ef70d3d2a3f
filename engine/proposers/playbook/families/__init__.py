"""Families of problems that the playbook knows: one file each, registered here."""

from __future__ import annotations

from engine.proposers.playbook.families.attention import Attention
from engine.proposers.playbook.families.base import Family
from engine.proposers.playbook.families.conv import Conv
from engine.proposers.playbook.families.matmul import Matmul
from engine.proposers.playbook.families.pointwise import Pointwise
from engine.proposers.playbook.families.rows import Rows

# Those with an operator of their own come first: their reason for a refusal says the most.
FAMILIES: tuple[Family, ...] = (Attention(), Conv(), Matmul(), Pointwise(), Rows())

__all__ = ["FAMILIES", "Family"]
