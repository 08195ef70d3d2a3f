"""The operator patterns that the playbook supports, one folder each. The first pattern that recognizes a problem
supplies a template per language.
"""

from __future__ import annotations

from engine.proposers.playbook.base import Pattern
from engine.proposers.playbook.patterns.attention.pattern import Attention
from engine.proposers.playbook.patterns.conv.pattern import Conv
from engine.proposers.playbook.patterns.copies.pattern import Copies
from engine.proposers.playbook.patterns.gemm.pattern import Matmul
from engine.proposers.playbook.patterns.grid_conv.pattern import GridConv
from engine.proposers.playbook.patterns.groups.pattern import Grouped
from engine.proposers.playbook.patterns.pointwise.pattern import Pointwise
from engine.proposers.playbook.patterns.pooling.pattern import Pooling
from engine.proposers.playbook.patterns.reductions.pattern import Reductions
from engine.proposers.playbook.patterns.rows.pattern import Rows
from engine.proposers.playbook.patterns.scans.pattern import Scans

# Patterns that look for a particular operator come first, because their refusals give the most specific reasons.
_SINGLE: tuple[Pattern, ...] = (
    Attention(),
    Conv(),
    GridConv(),
    Matmul(),
    Pooling(),
    Scans(),
    Pointwise(),
    Rows(),
    Reductions(),
    Copies(),
)
PATTERNS: tuple[Pattern, ...] = (*_SINGLE, Grouped(_SINGLE))

__all__ = ["PATTERNS", "Pattern"]
