"""The report's charts, drawn by Matplotlib: speedup over time and over verdicts, verdicts by round, and spending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup
from msgspec import Struct

from engine.session.records.verdict import Status
from tui.report.svg import INKS, inline_svg
from tui.text.sanitize import one_line
from tui.view.over_time.history import History, Spent, Trajectory
from tui.view.spend import count, money

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN = 10.6
"""Width of a figure, in inches. The page scales the figure to the width of the page's text."""
FONT_PT = 9.5
LOG_FROM = 6.0
"""Minimum ratio of the largest to the smallest speedup at which the axis is logarithmic."""

EAGER_BELOW = 4.0
"""Speedup that all kernels must exceed before the axis omits eager, so that differences between kernels stay
visible."""


class Group(NamedTuple):
    """Statuses that share a color in the charts."""

    name: str
    ink: str
    statuses: tuple[Status, ...]


GROUPS = (
    Group("correct", "good", ("correct",)),
    Group("wrong", "bad", ("wrong", "out_of_bounds")),
    Group("does not build", "failed", ("build_error",)),
    Group("crashed or stopped", "warn", ("crashed", "timeout", "memory", "forbidden")),
    Group("cheating or library", "other", ("cheating", "library")),
    Group("not judged", "faint", ("error", "cancelled")),
)


class RoundCounts(Struct, frozen=True):
    """A round's verdicts by status."""

    number: int
    statuses: Mapping[str, int]

    def of(self, group: Group) -> int:
        return sum(self.statuses.get(status, 0) for status in group.statuses)


def problem_chart(
    name: str,
    label: str,
    trajectory: Trajectory,
    rounds: Sequence[RoundCounts],
    seconds: float,
    over_eager: float | None,
) -> Markup:
    """Draw a problem's search: best speedup over time and over verdicts, and the verdicts of each round.

    Args:
        name: Prefix of the ids in the SVG.
        label: A description of the chart, for screen readers.
        trajectory: The problem's verdicts and new bests.
        rounds: The problem's verdicts by round.
        seconds: The session's search time.
        over_eager: Speedup of torch.compile over eager, or None if torch.compile was not timed.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    with rc_context(_settings(name)):
        figure = Figure(figsize=(WIDTH_IN, 2.7), layout=ConstrainedLayoutEngine(wspace=0.04))
        over_time, over_verdicts, by_round = figure.subplots(1, 3, width_ratios=(4, 4, 2.4))
        over_verdicts.sharey(over_time)
        unit, per_unit = _unit_of_time(seconds)
        verdicts = max(1, len(trajectory.judged))
        _speedups(over_time, trajectory, [one.seconds / per_unit for one in trajectory.timed],
                  [one.seconds / per_unit for one in trajectory.bests], seconds / per_unit)  # fmt: skip
        _speedups(over_verdicts, trajectory, [float(one.verdicts) for one in trajectory.timed],
                  [float(one.verdicts) for one in trajectory.bests], float(verdicts))  # fmt: skip
        _scale(over_time, trajectory, over_eager)
        over_verdicts.tick_params(labelleft=False)
        for axes in (over_time, over_verdicts):
            _baselines(axes, over_eager, named=axes is over_verdicts)
        over_time.set_title("best speedup over eager, by search time", loc="left")
        over_verdicts.set_title("by verdicts", loc="left")
        over_time.set_xlabel(unit)
        over_verdicts.set_xlabel("verdicts")
        over_time.set_xlim(0, max(seconds / per_unit, 1e-3) * 1.02)
        over_verdicts.set_xlim(0, verdicts * 1.02)
        over_verdicts.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        _by_round(by_round, rounds)
        return inline_svg(figure, name, label)


def spend_chart(spent: Sequence[Spent], seconds: float) -> Markup:
    """Draw the spending over time: dollars, or tokens if no price is known. ``spent`` is not empty."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    in_dollars = spent[-1].dollars > 0
    unit, per_unit = _unit_of_time(seconds)
    with rc_context(_settings("spend")):
        figure = Figure(figsize=(WIDTH_IN, 1.9), layout="constrained")
        axes = figure.subplots()
        values = [one.dollars if in_dollars else float(one.tokens) for one in spent]
        times = [one.seconds / per_unit for one in spent]
        axes.step([0.0, *times, seconds / per_unit], [0.0, *values, values[-1]], where="post", color=INKS["accent"])
        axes.set_xlim(0, max(seconds / per_unit, 1e-3) * 1.02)
        axes.set_ylim(0, max(values) * 1.12 or 1)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        words = money if in_dollars else _tokens
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: words(value)))
        axes.set_title(f"{'dollars' if in_dollars else 'tokens'} spent on models, by search time", loc="left")
        axes.set_xlabel(unit)
        return inline_svg(figure, "spend", f"spending over time, {words(values[-1])} in total")


def _tokens(number: float) -> str:
    return count(int(number))


def has_spending(history: History) -> bool:
    """Return whether any model reported tokens or dollars."""
    return bool(history.spent) and (history.spent[-1].tokens > 0 or history.spent[-1].dollars > 0)


def _speedups(axes: Axes, trajectory: Trajectory, xs: list[float], bests: list[float], end: float) -> None:
    """Draw every correct kernel as a dot, the best so far as a line, and each new best as a disk."""
    axes.plot(xs, [one.speedup for one in trajectory.timed], linestyle="none", marker="o", markersize=2.6,
              markeredgewidth=0, color=INKS["muted"], alpha=0.55)  # fmt: skip
    if not bests:
        return
    reached = [one.speedup for one in trajectory.bests]
    axes.step([*bests, max(end, bests[-1])], [*reached, reached[-1]], where="post", color=INKS["accent"], linewidth=1.5)
    axes.plot(bests, reached, linestyle="none", marker="o", markersize=5, color=INKS["accent"],
              markeredgecolor=INKS["paper"], markeredgewidth=0.8)  # fmt: skip
    last = trajectory.bests[-1]
    left = bests[-1] > 0.5 * end
    axes.annotate(
        one_line(last.variant, 40),
        (bests[-1], last.speedup),
        xytext=(-3 if left else 3, 6),
        textcoords="offset points",
        ha="right" if left else "left",
        color=INKS["ink"],
        weight="bold",
        parse_math=False,
    )


def _scale(axes: Axes, trajectory: Trajectory, over_eager: float | None) -> None:
    """Choose the range of the speedup axis.

    The range includes torch.compile and, unless all speedups are much higher, eager.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    shown = [one.speedup for one in (*trajectory.timed, *trajectory.bests) if one.speedup > 0]
    shown += [over_eager] if over_eager is not None else []
    low, high = min(shown, default=1.0), max(shown, default=1.0)
    if low < EAGER_BELOW:
        low, high = min(low, 1.0), max(high, 1.0)
    if high / low >= LOG_FROM:
        axes.set_yscale("log")
        room = (high / low) ** 0.07
        axes.set_ylim(low / room, high * room**2)
        near = high / low < 100
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if near else (1.0,)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        room = 0.14 * (high - low or 0.5)
        axes.set_ylim(max(0.0, low - room), high + 1.4 * room)
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))


def _baselines(axes: Axes, over_eager: float | None, *, named: bool) -> None:
    """Draw eager and torch.compile as lines. Only one of two neighboring charts labels these lines."""
    low, high = axes.get_ylim()
    lines = {"eager": 1.0} | ({"torch.compile": over_eager} if over_eager is not None else {})
    lines = {name: speedup for name, speedup in lines.items() if low <= speedup <= high}
    for name, speedup in lines.items():
        axes.axhline(speedup, color=INKS["muted"], linewidth=0.8, dashes=(1, 0) if name == "eager" else (4, 3))
    if not named:
        return
    heights = [float(axes.transData.transform((0, speedup))[1]) for speedup in lines.values()]
    if len(heights) == 2 and abs(heights[0] - heights[1]) < 1.4 * FONT_PT:
        lines = {", ".join(lines): max(lines.values())}
    for name, speedup in lines.items():
        axes.annotate(name, (1, speedup), xycoords=("axes fraction", "data"), xytext=(4, 0), va="center",
                      textcoords="offset points", color=INKS["muted"], annotation_clip=False)  # fmt: skip


def _by_round(axes: Axes, rounds: Sequence[RoundCounts]) -> None:
    """Draw a stacked bar for each round, from top to bottom."""
    from matplotlib.ticker import FixedLocator, MaxNLocator

    numbers, left = [one.number for one in rounds], [0] * len(rounds)
    for group in GROUPS:
        widths = [one.of(group) for one in rounds]
        if any(widths):
            axes.barh(numbers, widths, left=left, height=0.66, color=INKS[group.ink])
            left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set_title("verdicts by round", loc="left")
    axes.set_xlabel("verdicts")
    axes.set_ylabel("round")
    axes.set_xlim(0, max([*left, 1]) * 1.05)
    axes.set_ylim(max([*numbers, 4]) + 0.6, -0.6)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True) if len(rounds) > 6 else FixedLocator(numbers))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.grid(visible=False, axis="y")


def _unit_of_time(seconds: float) -> tuple[str, float]:
    """Return the unit for a time axis that spans ``seconds``, and the unit's length in seconds."""
    if seconds < 180:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 3 * 3600 else ("hours", 3600.0)


def _settings(name: str) -> Any:
    """Return Matplotlib settings that keep text as text in the SVG and draw identical files from identical data."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": FONT_PT,
        "axes.titlesize": FONT_PT,
        "axes.titlecolor": INKS["ink"],
        "axes.labelsize": FONT_PT,
        "axes.labelcolor": INKS["muted"],
        "axes.edgecolor": INKS["rule"],
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "grid.color": INKS["rule"],
        "grid.linewidth": 0.6,
        "text.color": INKS["ink"],
        "text.parse_math": False,
        "xtick.color": INKS["rule"],
        "ytick.color": INKS["rule"],
        "xtick.labelcolor": INKS["muted"],
        "ytick.labelcolor": INKS["muted"],
        "ytick.major.size": 0,
        "xtick.major.size": 3,
        "lines.solid_capstyle": "butt",
    }
