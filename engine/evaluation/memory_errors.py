"""Recognize errors that report a lack of device memory."""

from __future__ import annotations

import re

_RAN_OUT = re.compile(
    r"out of (device )?memory|OutOfMemory|ALLOC_FAILED|ALLOCATION_FAILED|cudaErrorMemoryAllocation"
    r"|more memory than the device has|can't allocate memory|launch returned 2$",
    re.IGNORECASE,
)
"""Messages of kernel-tui, CUDA, PyTorch and PyTorch's libraries. Status 2 is ``cudaErrorMemoryAllocation``."""


def tells_of_no_memory(text: str) -> bool:
    """Return whether an error message reports a lack of device memory."""
    return _RAN_OUT.search(text.strip()) is not None
