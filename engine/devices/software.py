"""Compare the software of hosts that judge kernels for one search: compilers, PyTorch build, and driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine.devices.fact import DeviceFact


def usual_software(facts: Iterable[DeviceFact]) -> tuple[str, ...]:
    """Return the most common set of versions; in a tie, the first set; () if all versions are unknown."""
    counts = Counter(one.software for one in facts if one.software)
    return counts.most_common(1)[0][0] if counts else ()


def versions_beside(software: tuple[str, ...], usual: tuple[str, ...]) -> str:
    """Name the versions in ``software`` that ``usual`` lacks, such as ``g++ 13.2.0``; "" if ``usual`` is unknown."""
    return ", ".join(one for one in software if one not in usual) if usual else ""
