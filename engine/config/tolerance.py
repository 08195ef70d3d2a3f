"""A verdict's tolerance: the maximum error of an output relative to the reference, and the tolerance's name in tables.

An element passes when ``|out - expected| <= tolerance * (rms(expected) + |expected|)``. A speedup means little without
its tolerance, because a looser tolerance admits cheaper arithmetic. Therefore every table of speedups names its
tolerance.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable

from engine.config.toml_table import toml_table

KERNELBENCH = "kernelbench"
"""KernelBench's tolerance: 1e-4 in fp32 and 1e-2 in half precision."""
CRFM = "crfm"
"""Stanford CRFM's tolerance for its "fast kernels": 1e-2 in every precision."""
DEFAULT = KERNELBENCH

ALLOWED = f'"{KERNELBENCH}" (1e-4 in fp32, 1e-2 in half precision), "{CRFM}" (1e-2) or a number between 0 and 1'
UNKNOWN = "unknown"
"""Tolerance name to display if the config is unreadable."""

SessionTolerance = str | float | None
"""A stored session's tolerance. None means that the session's config is unreadable."""

_ALIASES = {"published": CRFM}
"""Tolerance names in older configs and sessions, with their current names."""
_LOOSE, _TIGHT = 1e-2, 1e-4
_FULL_PRECISION = ("float32", "float64")
_MEANINGS = {KERNELBENCH: f"{KERNELBENCH} (1e-4 in fp32)", CRFM: f"{CRFM} (1e-2)"}


def canonical(value: object) -> SessionTolerance:
    """Convert a config value to a tolerance: a name, a number, or None if the value is invalid."""
    if isinstance(value, str):
        name = _ALIASES.get(value, value)
        return name if name in _MEANINGS else None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1:
        return float(value)
    return None


def largest_error(tolerance: str | float, dtype: str) -> float:
    """The maximum relative error for outputs of ``dtype``, for example "float32"."""
    if isinstance(tolerance, float):
        return tolerance
    return _TIGHT if tolerance == KERNELBENCH and dtype in _FULL_PRECISION else _LOOSE


def tolerance_in(config: str) -> SessionTolerance:
    """Read the tolerance from a session's frozen config (TOML)."""
    try:
        evaluation = toml_table(config).get("evaluation", {})
    except tomllib.TOMLDecodeError:
        return None
    return canonical(evaluation.get("tolerance", DEFAULT)) if isinstance(evaluation, dict) else None


def tolerance_of(digest: str, text: Callable[[str], str]) -> SessionTolerance:
    """Read a session's tolerance from the config in the blob ``digest``. ``text`` reads a blob."""
    return tolerance_in(text(digest)) if digest else None


def tolerance_name(tolerance: SessionTolerance) -> str:
    """Format a tolerance as one word: ``kernelbench``, ``crfm``, ``0.001``, ``unknown``."""
    if tolerance is None:
        return UNKNOWN
    return tolerance if isinstance(tolerance, str) else f"{tolerance:g}"


def tolerance_words(tolerance: SessionTolerance) -> str:
    """Format a tolerance with its value: ``kernelbench (1e-4 in fp32)``, ``crfm (1e-2)``, ``0.001``."""
    return _MEANINGS.get(tolerance_name(tolerance), tolerance_name(tolerance))


def tolerance_caption(tolerance: SessionTolerance) -> str:
    """The caption for a table of speedups: ``tolerance kernelbench (1e-4 in fp32)``."""
    return f"tolerance {tolerance_words(tolerance)}"


def short_caption(tolerance: SessionTolerance) -> str:
    """A short caption: ``tol. kernelbench``."""
    return f"tol. {tolerance_name(tolerance)}"


def shared_caption(tolerances: Iterable[SessionTolerance]) -> str | None:
    """The caption for a table with rows from several searches.

    Returns None if there are no rows or if the searches' tolerances differ. If the tolerances differ, the caller adds a
    :func:`tolerance_name` column to the table.
    """
    different = set(tolerances)
    return tolerance_caption(different.pop()) if len(different) == 1 else None
