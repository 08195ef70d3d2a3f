"""Bars of a device's load, memory, power and temperature over the last minutes.

Every bar reaches from 0 to the limit of its figure, so all rows have one scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from msgspec import Struct
from rich.style import Style
from textual.strip import Strip

from engine.devices.sample import DeviceSample
from tui.monitor.panes.lines import Part, line
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.view.model import Model
from tui.view.over_time.readings import FIGURES, SPAN_S, Figure, binned, end_of_bins

NAME_WIDTH, VALUE_WIDTH, GAP = 7, 11, 2
"""Widths of a row's label, its current value, and the gap before its bars, in cells."""
LABEL_WIDTH = NAME_WIDTH + VALUE_WIDTH + GAP
MOST_BARS = 100
"""Maximum number of bars in a row. With more bars, some would have no reading, since readings are a second apart."""
SCALE = "bars: 0 to limit"
"""Explanation of the scale, under the labels."""
MISSING = "· "
"""Marks of a bin without a reading, in Unicode and in ASCII. They differ from the bar of a value of 0."""
AGO, NOW = f"{SPAN_S / 60:.0f} min ago", "now"
_LEVELS, _LEVELS_ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*#@"


class BarStyle(Struct, frozen=True):
    """How to draw bars: the number of lines of each row, the pane's width in cells, and the characters."""

    tall: int
    width: int
    ascii_only: bool

    @property
    def bars(self) -> int:
        """The number of bars in a row."""
        return bar_count(self.width - LABEL_WIDTH)


def bar_count(room: int) -> int:
    return max(1, min(MOST_BARS, room))


def figures_of(sample: DeviceSample) -> list[tuple[Figure, str]]:
    """Return the figures that the device reports, with their current values and units."""
    power = f"{sample.power_w or 0:.0f}"
    words: dict[Figure, str | None] = {
        "load": percent(sample.utilization),
        "memory": f"{fmt.size(sample.memory_used)}/{fmt.size(sample.memory_total)}"
        if sample.memory_used is not None
        else None,
        "power": (f"{power}/{sample.power_limit_w:.0f} W" if sample.power_limit_w else f"{power} W")
        if sample.power_w is not None
        else None,
        "temp": f"{sample.temperature_c:.0f} °C" if sample.temperature_c is not None else None,
    }
    return [(figure, text) for figure in FIGURES if (text := words[figure]) is not None]


def percent(value: float | None) -> str:
    return f"{value:.0f}%" if value is not None else "-"


def figure_rows(model: Model, sample: DeviceSample, palette: Palette, style: BarStyle) -> list[Strip]:
    """Return the rows of a device: each has a label, the current value, and bars. The load stands out."""
    lines = []
    for figure, words in figures_of(sample):
        is_load = figure == "load"
        name = (f"{figure:<{NAME_WIDTH}}", palette.dim)
        value = (f"{words:>{VALUE_WIDTH}}{' ' * GAP}", palette.running if is_load else palette.text)
        ink = palette.chart if is_load else palette.dim
        *upper, lowest = history_bars(model, sample.device, figure, style.bars, style.tall, style.ascii_only)
        lines += [line(" " * LABEL_WIDTH, (text, ink)) for text in upper]
        lines.append(line(name, value, *bar_parts(lowest, ink, palette)))
    return lines


def axis_row(palette: Palette, style: BarStyle) -> Strip:
    """Return the line under all rows: the scale of the bars, and the time axis."""
    return line((f"{SCALE:<{LABEL_WIDTH}}{axis_words(style.bars)}", palette.dim))


def axis_words(width: int) -> str:
    """Return the labels of a time axis of ``width`` cells, without a label for which there is no room."""
    left = AGO if width > len(AGO) + len(NOW) else ""
    right = NOW if width >= len(NOW) else ""
    return f"{left}{right:>{width - len(left)}}"


def history_bars(model: Model, device: str, figure: Figure, count: int, tall: int, ascii_only: bool) -> list[str]:
    """Return a figure's bars over the last minutes as ``tall`` lines of ``count`` cells."""
    newest = model.latest()
    end = end_of_bins(newest.time if newest is not None else None, model.now())
    return bars(binned(model.recent(), device, figure, end, count), tall, ascii_only=ascii_only)


def bar_parts(text: str, ink: Style, palette: Palette) -> list[Part]:
    """Return bars in the style ``ink``, and bins without a reading in a faint style."""
    return [("".join(run), palette.dim if missing else ink) for missing, run in groupby(text, MISSING.__contains__)]


def bars(shares: Sequence[float | None], tall: int, *, ascii_only: bool = False) -> list[str]:
    """Draw a bar of ``tall`` lines for each share, 0 to 1, from the top line to the bottom line.

    0 is the lowest bar, and a missing share has a mark of its own. The highest bar leaves a gap to the row above.
    """
    marks = _LEVELS_ASCII if ascii_only else _LEVELS
    full = len(marks) - 1
    most = full * tall - 1
    heights = [0 if share is None else max(1, round(share * most)) for share in shares]
    *upper, lowest = (
        "".join(marks[min(full, max(0, height - full * below))] for height in heights)
        for below in reversed(range(tall))
    )
    return [*upper, lowest.replace(marks[0], MISSING[ascii_only])]
