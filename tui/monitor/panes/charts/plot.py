"""Draw points and lines in a terminal with plotext, in the monitor's own styles.

plotext draws with numbered colors. Here, each number stands for a series, so that the palette decides the series'
style.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

LABEL_WIDTH = 6
"""Width of the vertical axis labels in cells, which is the same in all charts so that stacked charts align."""
DOTS_ACROSS, DOTS_DOWN = 2, 4
"""Columns and rows of dots in a braille character."""
_PLAIN = str.maketrans({"│": "|", "┤": "|", "─": "-", "┬": "+", "└": "+"})
"""ASCII replacements for the characters of the axes."""
_COLOR = re.compile(r"\x1b\[([0-9;]*)m")


class Tick(NamedTuple):
    at: float
    label: str


class Axis(NamedTuple):
    """An axis from ``low`` to ``high`` with its ticks."""

    low: float
    high: float
    ticks: Sequence[Tick]


class Series(Struct, frozen=True):
    """Points in one style. ``glyph`` marks each point. Without a glyph, a line of dots connects the points."""

    points: Sequence[tuple[float, float]]
    style: Style
    glyph: str = ""


class Dots(Struct, frozen=True):
    """Many points, each a dot."""

    points: Sequence[tuple[float, float]]
    style: Style


def plot(
    series: Sequence[Series | Dots], x: Axis, y: Axis, width: int, height: int, frame: Style, *, ascii_only: bool
) -> list[Strip]:
    """Return ``height`` lines of ``width`` cells. Later series cover earlier series. ``frame`` is the axes' style."""
    from plotext import figure, marker

    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    figure.axes(False, axis=0, side=1)
    figure.axes(False, axis=1, side=1)
    figure.legend(False)
    for number, axis in enumerate((x, y)):
        labels = [tick.label.rjust(LABEL_WIDTH - 1) if number else tick.label for tick in axis.ticks]
        ruler = figure.ruler(number, 0)
        ruler.lim(axis.low, axis.high)
        ruler.ticks([tick.at for tick in axis.ticks], labels)
    for number, one in enumerate(series, 1):
        points = _distinct(one.points, x, y, width, height) if isinstance(one, Dots) else one.points
        if not points:
            continue
        connected = isinstance(one, Series) and not one.glyph
        glyph = one.glyph if isinstance(one, Series) and one.glyph else ("-" if connected else ".")
        dots = glyph if ascii_only or (isinstance(one, Series) and one.glyph) else "braille"
        # A line to a point far outside, for instance after a jump of the clock, would cost plotext gigabytes of memory.
        across = [min(max(at, x.low), x.high) for at, _ in points]
        up = [min(max(value, y.low), y.high) for _, value in points]
        signal = figure.signal(across, up, marker=marker(dots, number))
        figure.draw(signal.lines() if connected else signal)
    styles = [frame, *(one.style for one in series)]
    return [_strip(text, styles, ascii_only=ascii_only) for text in figure.build().string().splitlines()[:height]]


def _distinct(
    points: Sequence[tuple[float, float]], x: Axis, y: Axis, width: int, height: int
) -> list[tuple[float, float]]:
    """Keep at most one point per dot of the canvas, since plotext takes 10 µs for each point."""
    across, down = DOTS_ACROSS * width / (x.high - x.low), DOTS_DOWN * height / (y.high - y.low)
    return list({(int(at * across), int(value * down)): (at, value) for at, value in points}.values())


def _strip(text: str, styles: Sequence[Style], *, ascii_only: bool) -> Strip:
    """Convert a line with color codes to a strip. ``38;5;N`` selects style N, and any other code selects the first
    style.
    """
    segments, style = [], styles[0]
    for place, piece in enumerate(_COLOR.split(text)):
        if place % 2:
            number = piece.rpartition("38;5;")[2] if "38;5;" in piece else ""
            style = styles[int(number)] if number.isdigit() and int(number) < len(styles) else styles[0]
        elif piece:
            segments.append(Segment(piece.translate(_PLAIN) if ascii_only else piece, style))
    return Strip(segments)


def nice_ticks(low: float, high: float, most: int) -> list[float]:
    """Return 2 to ``most`` + 1 evenly spaced round numbers between ``low`` and ``high``. ``most`` is at least 2."""
    span = max(high - low, 1e-12)
    power = 10.0 ** math.floor(math.log10(span / most))
    ticks: list[float] = []
    for step in (power, 2 * power, 5 * power, 10 * power):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last <= first:  # An axis needs two labels.
            break
        ticks = [number * step for number in range(first, last + 1)]
        if span / step <= most:
            break
    return ticks[:: math.ceil(len(ticks) / (most + 1)) or 1]


def time_ticks(seconds: float, most: int) -> list[float]:
    """Return 2 to ``most`` + 1 round times from 0 to ``seconds``. ``seconds`` is at least 1 and ``most`` at least 2."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
    step = next((one for one in steps if seconds / one <= most), 86400 * max(1, math.ceil(seconds / 86400 / most)))
    if step > seconds:  # An axis needs two labels.
        step = max(one for one in steps if one <= seconds)
    return [float(number * step) for number in range(int(seconds / step) + 1)]
