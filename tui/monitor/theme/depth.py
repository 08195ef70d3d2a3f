"""Detect the terminal's color depth, and choose a theme that suits it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console

Depth = Literal["none", "16", "256", "truecolor"]
_DEPTHS: dict[str | None, Depth] = {"standard": "16", "windows": "16", "256": "256", "truecolor": "truecolor"}
COLORLESS = ("dumb", "vt100", "vt220")
"""Terminals that never draw color."""
LIGHT, DARK = "ansi-light", "ansi-dark"


def prefer_no_color() -> None:
    """Set NO_COLOR for terminals without color. Call this function before creating an app, because the app reads
    NO_COLOR.
    """
    if os.environ.get("TERM") in COLORLESS:
        os.environ.setdefault("NO_COLOR", "1")


def color_depth(console: Console) -> Depth:
    """Return the console's color depth, which depends on COLORTERM and TERM."""
    return _DEPTHS.get(console.color_system, "none")


def theme_for(depth: Depth, wanted: str) -> str:
    """Return the ``wanted`` theme or, with only 16 colors, the light or dark ANSI theme.

    Rich would map other themes' colors to these 16 colors, where good and bad become the same gray.
    """
    if depth in ("256", "truecolor") or wanted in (LIGHT, DARK):
        return wanted
    return LIGHT if "light" in wanted else DARK
