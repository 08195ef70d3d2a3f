"""Format figures and names for the screen: short, aligned, and with units."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from math import exp, log

from rich.cells import cell_len, set_cell_size

SPARKS = " ▁▂▃▄▅▆▇█"
SPARKS_ASCII = " .:-=+*#@"


_SPELLINGS = {"vectorise": "vectorize"}
"""American spellings of words in stored names."""


def transformation_label(name: str) -> str:
    """Format a transformation's stored name, such as ``share rows + unroll depth`` for ``share_rows+unroll_depth``."""
    parts = (part.strip().replace("_", " ") for part in name.replace(":", ": ").split("+"))
    return " + ".join(" ".join(_SPELLINGS.get(word, word) for word in part.split(" ")) for part in parts)


def milliseconds(value: float | None) -> str:
    """Format milliseconds with three or four digits, such as ``0.0123``, ``0.843``, ``12.35`` or ``1234``."""
    if value is None:
        return "-"
    for bound, digits in ((0.1, 4), (10, 3), (100, 2), (1000, 1)):
        if round(value, digits) < bound:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def change(value: float | None) -> str:
    """Format a relative change as ``+4.2%`` or ``-31%``, or as ``x12`` for tenfold or more."""
    if value is None:
        return ""
    if value >= 9:
        return f"x{value + 1:.0f}"
    percent = round(value * 100, 1) + 0.0  # Adding 0.0 removes the sign of a negative zero.
    return f"{percent:+.1f}%" if abs(percent) < 10 else f"{value * 100:+.0f}%"


def age(seconds: float) -> str:
    """Format a duration with one unit, such as ``8s``, ``3m``, ``2h`` or ``5d``."""
    seconds = max(0.0, seconds)
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{seconds // 60:.0f}m"
    if seconds < 86400 * 2:
        return f"{seconds // 3600:.0f}h"
    return f"{seconds // 86400:.0f}d"


def moment(at: float, now: float) -> str:
    """Format a time in the last 24 hours as ``14:03:07``, and an earlier time with its date.

    ``at`` and ``now`` are in Unix seconds.
    """
    return time.strftime("%H:%M:%S" if now - at < 86400 else "%Y-%m-%d %H:%M", time.localtime(at))


def clock(seconds: float) -> str:
    """Format a duration as minutes and seconds, ``3:07``, or with hours, ``1:03:07``."""
    whole = int(max(0.0, seconds))
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def duration(seconds: float) -> str:
    """Format a duration in its two largest units, such as ``7 h 12 m``, ``3 m 20 s`` or ``40 s``."""
    finest = 1 if seconds < 3600 else 60 if seconds < 86400 else 3600
    whole = finest * round(max(0.0, seconds) / finest)
    parts = ((whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s"))
    first = next((place for place, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count) or "0 s"


def size(count: int | None) -> str:
    """Format bytes in binary units: ``512B``, ``1.5M`` or ``141G``."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "K", "M", "G"):
        if value < 1000:
            return f"{value:.1f}{unit}" if value < 10 and unit != "B" else f"{value:.0f}{unit}"
        value /= 1024
    return f"{value:.1f}T"


def sparkline(
    values: list[float], width: int, *, bottom: float = 0.0, top: float | None = None, ascii_only: bool = False
) -> str:
    """Draw the last ``width`` values as a bar chart from ``bottom`` to ``top`` (default: the maximum value).

    A value of 0 means that the value is missing.
    """
    marks = SPARKS_ASCII if ascii_only else SPARKS
    shown = values[-width:] if width > 0 else []
    top = max(shown, default=0.0) if top is None else top
    if top <= bottom:
        return marks[0] * len(shown)
    steps = len(marks) - 1
    return "".join(
        marks[max(1, min(steps, round((value - bottom) / (top - bottom) * steps)))] if value > 0 else marks[0]
        for value in shown
    )


def bar(share: float, width: int, *, ascii_only: bool = False) -> str:
    """Draw a gauge of ``width`` cells, filled to ``share`` (0 to 1)."""
    full = round(min(1.0, max(0.0, share)) * width)
    return ("#" if ascii_only else "━") * full + ("." if ascii_only else "─") * (width - full)


def fit(text: str, width: int) -> str:
    """Cut ``text`` to ``width`` terminal cells. A cut text ends in ``…``."""
    if text.isascii():
        if len(text) <= width:
            return text
    elif cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 0 else ""


def fit_apart(names: Sequence[str], width: int) -> list[str]:
    """Cut names to ``width`` terminal cells so that they stay different.

    If a name would look like another name after the cut, omit the start that both share: beside ``layernorm``,
    ``layernorm_shifted`` becomes ``…_shifted``.
    """
    shown = []
    for place, name in enumerate(names):
        others = (*names[:place], *names[place + 1 :])
        shared = max((_shared_start(name, other) for other in others), default=0)
        cut = fit(name, width)
        if cut != name and shared >= len(cut) - 1:
            end = min(shared, len(name) - width + 1)  # Fill the width.
            cut = fit(f"…{name[end:]}", width)
        shown.append(cut)
    return shown


def _shared_start(first: str, second: str) -> int:
    """Return the length of the longest common prefix."""
    differing = (place for place, pair in enumerate(zip(first, second, strict=False)) if len({*pair}) > 1)
    return next(differing, min(len(first), len(second)))


def pad(text: str, width: int) -> str:
    """Cut or pad ``text`` to exactly ``width`` terminal cells."""
    shown = fit(text, width)
    return shown + " " * (width - (len(shown) if shown.isascii() else cell_len(shown)))


def geometric_mean(values: Iterable[float]) -> float | None:
    logs = [log(value) for value in values if value > 0]
    return exp(sum(logs) / len(logs)) if logs else None
