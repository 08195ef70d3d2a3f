"""The categories of ideas, and the category names that people and models read."""

from __future__ import annotations

from typing import Literal

Category = Literal["memory", "latency", "precision", "compute", "parallelism", "control", "first", "other"]
"""An idea's category. It is one of the optimization categories of Stanford CRFM's "fast kernels", ``first`` for first
kernels, or ``other`` for seeds. :data:`CATEGORY_NAMES` lists the full names.
"""

CATEGORY_NAMES: dict[str, str] = {
    "memory": "memory access",
    "latency": "asynchrony and latency hiding",
    "precision": "data type and precision",
    "compute": "compute and instruction",
    "parallelism": "parallelism and occupancy",
    "control": "control flow and loops",
    "first": "first kernel",
    "other": "other",
}
