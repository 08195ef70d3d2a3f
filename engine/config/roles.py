"""The tasks that a proposer can have. This module is separate from the schema, so that the monitor need not import
pydantic.
"""

from __future__ import annotations

from typing import Literal

Role = Literal["ideas", "code", "fixes"]
"""A proposer's task: to write ideas, to write kernels (``code``), or to repair failed kernels (``fixes``)."""
