"""The charts of one problem's search, as lines: speedup by time and by verdicts, device activity, and spending."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from rich.cells import cell_len
from rich.style import Style
from textual.strip import Strip

from engine.session.records.verdict_text import speedup_words
from tui.monitor.panes.charts.plot import LABEL_WIDTH, Axis, Dots, Series, Tick, nice_ticks, plot, time_ticks
from tui.monitor.panes.lines import EMPTY, Part, line
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.text.sanitize import one_line
from tui.view.model import Model
from tui.view.over_time.history import Point, Spent, Trajectory
from tui.view.over_time.occupancy import Shares
from tui.view.spend import count, money

SIDE_BY_SIDE = 76
"""Minimum width, in cells, of a pane for charts in two columns."""
GAP = 2
"""Number of cells between two columns."""
LEAST, MOST = 6, 18
"""Minimum and maximum number of lines of a plot with its axis. The minimum has room for three labels."""
WORK_LINES = 4
"""Number of lines in the chart of device work, not counting its axis."""
LOG_FROM = 6.0
"""Ratio of the largest to the smallest speedup at which the speedup axis becomes logarithmic."""
SLOW = 0.5
"""Share of the median speedup below which the axis omits speedups, so that a slow kernel does not flatten the
others."""
LEAST_ROOM = 0.02
"""Minimum margin of the speedup axis, as a share of the largest speedup, so that three-digit labels differ."""
LEAST_S = 10.0
"""Shortest time axis, in seconds."""
LONGEST_NAME = 24
"""Maximum width of a problem's name in the heading, in cells."""
NAME_GAPS = 3
"""Number of spaces around the problem's name in the heading."""


def chart_lines(
    model: Model, problem: str | None, palette: Palette, width: int, height: int, *, ascii_only: bool
) -> list[Strip]:
    """Return the charts of ``problem`` for a pane of ``width`` by ``height`` cells. The pane scrolls longer charts."""
    trajectory = model.history.problems.get(problem or "", Trajectory())
    seconds = max(LEAST_S, model.search_seconds())
    seconds = _whole_columns(seconds, width)
    artist = _Artist(model, palette, seconds, ascii_only)
    spends = has_spending(model)
    columns = 2 if width >= SIDE_BY_SIDE else 1
    each = (width - GAP * (columns - 1)) // columns
    work_height = WORK_LINES + 3
    rows = (2 if spends else 1) if columns == 2 else (3 if spends else 2)
    room = (height - (0 if columns == 2 else work_height)) // (2 if columns == 2 else rows)
    tall = max(LEAST + 1, min(MOST + 1, room))
    heading = _heading(model, problem, palette, each, ascii_only=ascii_only)
    charts = [
        [heading, *artist.speedups(trajectory, each, tall - 1)],
        [line(("by verdicts", palette.title)), *artist.speedups(trajectory, each, tall - 1, by_verdicts=True)],
        artist.work(each, tall if columns == 2 else work_height),
        *([artist.spending(model.history.spent, each, tall)] if spends else []),
    ]
    if columns == 1:
        return [strip.crop(0, width) for chart in charts for strip in chart]
    return [strip for place in range(0, len(charts), 2) for strip in _beside(charts[place : place + 2], each)]


def _whole_columns(seconds: float, width: int) -> float:
    """Round the end of the time axis up to a whole column, so that charts do not change every second."""
    column = seconds / max(20, width)
    step = 2.0 ** math.ceil(math.log2(column))
    return math.ceil(seconds / step) * step


def has_spending(model: Model) -> bool:
    spent = model.history.spent
    return bool(spent) and (spent[-1].tokens > 0 or spent[-1].dollars > 0)


def _heading(model: Model, problem: str | None, palette: Palette, width: int, *, ascii_only: bool) -> Strip:
    """Return the first chart's heading. A narrow heading shortens its title and the problem's name."""
    found = model.state.problems.get(problem or "")
    best = model.best(found) if found is not None else None
    title = "best speedup over eager"
    if best is None:
        return line((title, palette.title))
    figure = speedup_words(best.verdict)
    name = one_line(best.problem, LONGEST_NAME)
    if len(title) + cell_len(name) + len(figure) + NAME_GAPS > width:
        title = "best speedup"
        name = one_line(best.problem, max(1, min(LONGEST_NAME, width - len(title) - len(figure) - NAME_GAPS)))
    if ascii_only:
        name = name.replace("…", "~")
    return line((title, palette.title), (f"  {name} ", palette.dim), (figure, palette.best))


def _beside(charts: Sequence[list[Strip]], width: int) -> list[Strip]:
    height = max(len(chart) for chart in charts)
    rows = []
    for place in range(height):
        cells = [chart[place] if place < len(chart) else EMPTY for chart in charts]
        padded = [cell.adjust_cell_length(width + GAP) for cell in cells[:-1]]
        rows.append(Strip.join([*padded, cells[-1]]))
    return rows


class Work(NamedTuple):
    """A kind of device work, with its chart mark in Unicode and in ASCII."""

    name: str
    mark: str
    plain: str
    style: Style


class _Artist:
    """Draw a pane's charts with one palette over one span of time."""

    def __init__(self, model: Model, palette: Palette, seconds: float, ascii_only: bool) -> None:
        self._model = model
        self._palette = palette
        self._seconds = seconds
        self._ascii = ascii_only

    def speedups(self, trajectory: Trajectory, width: int, height: int, *, by_verdicts: bool = False) -> list[Strip]:
        """Draw every correct kernel as a dot, the best so far as a line, and each new best as a star."""
        palette = self._palette
        if not trajectory.timed and not trajectory.bests:
            return [line(("  no correct kernel yet", palette.dim)), *[EMPTY] * (height - 1)]
        y, scale = _speedup_axis([one.speedup for one in (*trajectory.timed, *trajectory.bests)], height)
        verdicts = float(max(4, len(trajectory.judged)))
        x = self._verdict_axis(verdicts, width) if by_verdicts else self._time_axis(width)

        def place(one: Point) -> tuple[float, float]:
            return float(one.verdicts) if by_verdicts else one.seconds, scale(one.speedup)

        bests = [place(one) for one in trajectory.bests]
        steps = [point for before, after in pairwise(bests) for point in _step(before, after)]
        best = [*bests[:1], *steps, (x.high, bests[-1][1])] if bests else []
        star = "*" if self._ascii else "★"
        series: list[Series | Dots] = [
            Dots([place(one) for one in trajectory.timed], palette.dim),
            Series(best, palette.chart),
            Series(bests, palette.best, star),
        ]
        return plot(series, x, y, width, height, palette.dim, ascii_only=self._ascii)

    def spending(self, spent: Sequence[Spent], width: int, height: int) -> list[Strip]:
        """Draw the dollars over time, or the tokens if no price is known."""
        palette = self._palette
        in_dollars = spent[-1].dollars > 0
        values = [one.dollars if in_dollars else float(one.tokens) for one in spent]
        total = max(values)
        words: Callable[[float], str] = money if in_dollars else _tokens
        short: Callable[[float], str] = (lambda value: f"${value:g}") if in_dollars else _tokens
        ticks = [Tick(value, short(value)) for value in nice_ticks(0.0, total, max(2, height // 3))]
        points = [(0.0, 0.0)]
        for one, value in zip(spent, values, strict=True):
            points += _step(points[-1], (one.seconds, value))
        points.append((self._seconds, values[-1]))
        x, y = self._time_axis(width), Axis(0.0, total * 1.05, ticks)
        what = "dollars spent" if in_dollars else "tokens spent"
        heading = line((what, palette.title), (f"  {words(total)}", palette.text))
        drawn = plot([Series(points, palette.accent)], x, y, width, height - 1, palette.dim, ascii_only=self._ascii)
        return [heading, *drawn]

    def work(self, width: int, height: int) -> list[Strip]:
        """Draw how devices divided their time, as stacked areas: timing at the bottom, then checking and building."""
        palette, model = self._palette, self._model
        rows, columns = height - 3, max(1, width - LABEL_WIDTH)
        now = model.search_seconds()
        drawn = max(1, min(columns, round(columns * now / self._seconds)))
        shares = model.history.occupancy.shares(now, drawn)
        mean = Shares(*(sum(one[place] for one in shares) / len(shares) for place in range(3)))
        works = [Work("timing", "█", "#", palette.chart), Work("checking", "▓", "+", palette.accent),
                 Work("building", "░", ".", palette.dim)]  # fmt: skip
        legend = self._legend(mean, works, width)
        marks = [(one.plain if self._ascii else one.mark, one.style) for one in works]
        side, corner, edge = ("|", "+", "-") if self._ascii else ("┤", "└", "─")
        lines = [legend]
        for row in range(rows):
            level = (rows - row - 0.5) / rows
            label = "100%" if row == 0 else "0%" if row == rows - 1 else ""
            plain_side = "|" if self._ascii else "│"
            head = f"{label:>{LABEL_WIDTH - 1}}{side if label else plain_side}"
            lines.append(line((head, palette.dim), *_cells(shares, level, marks)))
        return [*lines, *self._time_line(width, columns, corner, edge)]

    def _legend(self, mean: Shares, works: Sequence[Work], width: int) -> Strip:
        """Return the longest legend that fits: all shares, all shares except idle, or names only."""
        palette, found = self._palette, EMPTY
        for shares, idle in ((True, True), (True, False), (False, False)):
            parts: list[Part] = [("devices ", palette.title)]
            for work, share in zip(works, mean, strict=True):
                text = f" {work.name} {share:.0%}" if shares else f" {work.name}"
                parts += [(f" {work.plain if self._ascii else work.mark}", work.style), (text, palette.text)]
            found = line(*parts, (f"  idle {mean.idle:.0%}" if idle else "", palette.dim))
            if found.cell_length <= width:
                break
        return found

    def _time_line(self, width: int, columns: int, corner: str, edge: str) -> list[Strip]:
        """Draw a time axis under device activity."""
        tick = "+" if self._ascii else "┬"
        axis, labels = [edge] * columns, [" "] * (columns + LABEL_WIDTH)
        for one in self._time_axis(width).ticks:
            at = min(columns - 1, round(one.at / self._seconds * (columns - 1)))
            axis[at] = tick
            start = min(len(labels) - len(one.label), max(LABEL_WIDTH, LABEL_WIDTH + at - len(one.label) // 2))
            if start >= 0:
                labels[start : start + len(one.label)] = one.label
        head = " " * (LABEL_WIDTH - 1) + corner
        dim = self._palette.dim
        return [line((head + "".join(axis), dim)), line(("".join(labels), dim))]

    def _time_axis(self, width: int) -> Axis:
        most = max(2, (width - LABEL_WIDTH) // 12)
        ticks = [Tick(at, fmt.clock(at)) for at in time_ticks(self._seconds, most)]
        return Axis(0.0, self._seconds, ticks)

    def _verdict_axis(self, verdicts: float, width: int) -> Axis:
        most = max(2, (width - LABEL_WIDTH) // 12)
        ticks = [at for at in nice_ticks(0.0, verdicts, most) if at == int(at)]
        return Axis(0.0, verdicts, [Tick(at, f"{at:.0f}") for at in ticks])


def _tokens(number: float) -> str:
    return count(int(number))


def _step(before: tuple[float, float], after: tuple[float, float]) -> list[tuple[float, float]]:
    return [(after[0], before[1]), after]


def _cells(shares: Sequence[Shares], level: float, marks: Sequence[tuple[str, Style]]) -> list[Part]:
    """Return one row of the chart of device work, as runs of one style. ``level`` is the row's height, 0 to 1."""
    parts: list[tuple[str, Style]] = []
    for one in shares:
        below = 0.0
        mark, style = " ", Style.null()
        for share, (glyph, ink) in zip(one, marks, strict=True):
            below += share
            if level <= below:
                mark, style = glyph, ink
                break
        if parts and parts[-1][1] == style:
            parts[-1] = (parts[-1][0] + mark, style)
        else:
            parts.append((mark, style))
    return list(parts)


def _speedup_axis(values: Sequence[float], height: int) -> tuple[Axis, Callable[[float], float]]:
    """Return the speedup axis and a function that maps a speedup to it.

    The axis leaves out slow outliers, which ``plot`` draws at the bottom edge. A wide range gets a logarithmic axis.
    """
    positive = [one for one in values if one > 0] or [1.0]
    slow = SLOW * median(positive)
    low, high = min(one for one in positive if one >= slow), max(positive)
    most = max(2, height // 3)
    if high / low >= LOG_FROM:
        room = 0.06 * math.log10(high / low)
        start, end = math.log10(low) - room, math.log10(high) + 2 * room
        for factors in ((1, 2, 5), (1, 3), (1,)):
            marks = [factor * 10.0**power for power in range(-3, 7) for factor in factors]
            marks = [one for one in marks if start <= math.log10(one) <= end]
            if len(marks) <= max(3, height // 2):
                break
        return Axis(start, end, [Tick(math.log10(one), f"{one:g}x") for one in marks]), _log
    room = max(0.08 * (high - low), LEAST_ROOM * high)
    start, end = max(0.0, low - room), high + 2 * room
    return Axis(start, end, _labeled(nice_ticks(start, end, most))), float


def _labeled(speedups: Sequence[float]) -> list[Tick]:
    """Label speedups with three digits at most and, if the labels fit the axis, with equally many decimals."""
    labels = [f"{one:.3g}x" for one in speedups]
    decimals = max(len(label.partition(".")[2].removesuffix("x")) for label in labels)
    aligned = [f"{one:.{decimals}f}x" for one in speedups]
    shown = aligned if max(map(len, aligned)) < LABEL_WIDTH else labels
    return [Tick(one, label) for one, label in zip(speedups, shown, strict=True)]


def _log(speedup: float) -> float:
    return math.log10(max(speedup, 1e-9))
