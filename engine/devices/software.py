"""Compare the software of hosts that judge for one search: compilers, PyTorch's build, the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine.devices.fact import DeviceFact


def usual_software(facts: Iterable[DeviceFact]) -> tuple[str, ...]:
    """Return the software of most devices; of the first of them if two are as frequent; () if unknown."""
    counts = Counter(one.software for one in facts if one.software)
    return counts.most_common(1)[0][0] if counts else ()


def versions_beside(software: tuple[str, ...], usual: tuple[str, ...]) -> str:
    """Name the versions in ``software`` that ``usual`` lacks: ``g++ 13.2.0``; "" if there is none or one is unknown."""
    return ", ".join(one for one in software if one not in usual) if usual else ""
