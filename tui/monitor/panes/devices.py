"""The device pane: each device's load, memory, power and temperature over time, and the kernels in progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from textual.strip import Strip

from engine.devices.fact import DeviceFact
from engine.devices.sample import DeviceSample
from engine.session.records.events import DeviceAwaited
from engine.session.state.session_state import VariantState
from tui.monitor.panes.charts.readings import (
    GAP,
    BarStyle,
    axis_row,
    axis_words,
    bar_count,
    bar_parts,
    figure_rows,
    figures_of,
    history_bars,
)
from tui.monitor.panes.hosts import host_lines
from tui.monitor.panes.lines import EMPTY, LinesView, Part, line
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.text.glyphs import not_judged_words
from tui.text.sanitize import one_line
from tui.view.activity import LIVE, activity_of, baseline_beside
from tui.view.model import Model
from tui.view.over_time.readings import FIGURES, Figure

MOST_LINES = 10
"""Maximum height that the pane keeps after kernels have ended, in lines."""
ROOM = 11
"""Height of the pane at 120 columns, in lines."""
FOR_KERNELS = 3
"""Minimum number of lines for kernels in progress. If rows for each figure would leave less room, each device gets one
line."""
TALL = 2
"""Number of lines of each figure's bars in a zoomed pane with room for them."""
NAME_MOST = 16
"""Maximum width of a GPU's name in a table of GPUs, in cells."""
LEAST: dict[Figure, int] = {"load": 4, "memory": 9, "power": 5, "temp": 5}
"""Minimum width of the columns, in cells. With it, the bars keep their place when a figure gets another digit."""
ON_DEVICE = ("timing", "checking")


class DevicePane(LinesView):
    _height = 0
    _model: Model | None = None
    HELP = (
        "Each device: load, memory, power, temperature, clocks, throttling, and kernels in progress. The bars show the "
        "last 5 minutes. A bar has its full height at 100% load, all memory, the power limit, or 100 °C. A dot means "
        "no reading. Where space is short, each device gets one line, with bars of its load. With several hosts: a "
        "line per device (or per host, if there are many devices), and why a device was lost."
    )

    def on_resize(self) -> None:
        if self._model is not None:
            self.show(self._model)

    def show(self, model: Model) -> None:
        self._model = model
        most = self.styles.max_height
        room = int(most.value) if most is not None and most.is_cells else max(self.size.height, 1)
        width = self.size.width - 1  # for the scrollbar
        lines = device_lines(model, self.palette, width, ascii_only=self.ascii_only, room=room)
        # Never shrink, so that the panes below do not jump when a kernel starts or ends.
        self._height = max(self._height, min(len(lines), MOST_LINES))
        self.set_lines(lines + [EMPTY] * (self._height - len(lines)))


def device_lines(model: Model, palette: Palette, width: int, *, ascii_only: bool, room: int = ROOM) -> list[Strip]:
    """Return the pane's lines: none while the session opens, and dim lines without bars after it ends.

    ``room`` is the height of the pane, in lines.
    """
    if model.is_opening:
        return []
    if model.link.kind == "ended":
        palette = replace(palette, text=palette.dim, bold=palette.dim, running=palette.dim, alarm=palette.dim)
    facts = model.state.devices
    if any(fact.host for fact in facts.values()):
        return [*_not_running(model, palette), *host_lines(model, palette), *_at_work(model, palette)]
    reading = model.latest()
    samples = {sample.device: sample for sample in reading.samples} if reading is not None else {}
    shown = [fact for fact in facts.values() if fact.kind == "cuda"]
    if not shown:
        shown = [fact for fact in facts.values() if fact.kind == "cpu"][:1]
    devices = [_Device(number, fact, samples.get(fact.id)) for number, fact in enumerate(shown)]
    if model.link.kind == "ended":
        lines = [_last(device, palette) for device in devices]
    else:
        lines = _live(model, devices, palette, BarStyle(1, width, ascii_only), room)
    return [*_not_running(model, palette), *lines, *_at_work(model, palette)]


class _Device(NamedTuple):
    number: int
    fact: DeviceFact
    sample: DeviceSample | None

    @property
    def name(self) -> str:
        if self.fact.kind == "cpu":
            return "CPU"
        return f"GPU {self.number} {one_line(self.fact.name.removeprefix('NVIDIA '), 40)}"


def _last(device: _Device, palette: Palette) -> Strip:
    """Return a device's last figures in one line, for a session without an engine."""
    words = "  ".join(text for _, text in figures_of(device.sample)) if device.sample is not None else ""
    return line((device.name, palette.bold), (f"  last {words}" if words else "  no reading", palette.dim))


def _live(model: Model, devices: Sequence[_Device], palette: Palette, style: BarStyle, room: int) -> list[Strip]:
    """Return rows for each figure of each device or, if there is no room for them, one line for each device."""
    figures = sum(len(figures_of(device.sample)) for device in devices if device.sample is not None)
    if not figures:
        return [line((device.name, palette.bold), ("  no reading", palette.dim)) for device in devices]
    rest = len(devices) + 1 + FOR_KERNELS  # headings, and the time axis
    if figures + rest > room:
        return _table(model, devices, palette, style)
    if room > ROOM and TALL * figures + rest <= room:
        style = replace(style, tall=TALL)
    lines: list[Strip] = []
    for device in devices:
        lines.append(_heading(device, palette, style.width))
        if device.sample is not None:
            lines += figure_rows(model, device.sample, palette, style)
    return [*lines, axis_row(palette, style)]


def _heading(device: _Device, palette: Palette, width: int) -> Strip:
    """Return a device's name, why it is throttled, and as many of the figures without a limit as fit."""
    parts: list[Part] = [(device.name, palette.bold)]
    if device.sample is None:
        return line(*parts, ("  no reading", palette.dim))
    if device.sample.throttle:
        parts += ["  ", (f"throttled: {', '.join(device.sample.throttle)}", palette.alarm)]
    for text in _unlimited(device.fact, device.sample):
        if line(*parts, text).cell_length <= width:
            parts.append((text, palette.dim))
    return line(*parts)


def _unlimited(fact: DeviceFact, sample: DeviceSample) -> Iterator[str]:
    """Yield the figures without a limit, the most important first."""
    if sample.clock_mhz is not None:
        yield f"  clock {sample.clock_mhz} MHz"
    if sample.memory_clock_mhz is not None:
        yield f", memory {sample.memory_clock_mhz} MHz"
    if fact.kind == "cpu":
        yield f" {one_line(fact.name, 34)}"
        yield f"  {fact.cores} cores"
        yield f", load average {sample.load:.1f}" if sample.load is not None else ""
        yield ", no NVIDIA GPU"


def _table(model: Model, devices: Sequence[_Device], palette: Palette, style: BarStyle) -> list[Strip]:
    """Return one line for each device, with bars of its load, under a line with column names and the time axis."""
    name_width = min(NAME_MOST, max(len(device.name) for device in devices))
    cells = [_cells(device.sample) for device in devices]
    known = [figure for figure in FIGURES if figure == "load" or any(figure in row for row in cells)]
    widths = [max(LEAST[figure], *(len(row.get(figure, "")) for row in cells)) for figure in known]
    count = bar_count(style.width - name_width - sum(widths) - GAP * (len(widths) + 1))
    gap = " " * GAP

    def right(texts: Iterable[str]) -> str:
        return "".join(f"{gap}{text:>{width}}" for text, width in zip(texts, widths[1:], strict=True))

    head = f"{'':<{name_width}}{gap}{known[0]:>{widths[0]}}{gap}{axis_words(count)}{right(known[1:])}"
    lines = [line((head, palette.dim))]
    for device, row in zip(devices, cells, strict=True):
        load, *others = (row.get(figure, "-") for figure in known)
        (bars,) = history_bars(model, device.fact.id, "load", count, 1, style.ascii_only)
        lines.append(
            line(
                (fmt.pad(device.name, name_width), palette.bold),
                (f"{gap}{load:>{widths[0]}}{gap}", palette.running),
                *bar_parts(bars, palette.chart, palette),
                (right(others), palette.text),
            )
        )
        if device.sample is not None and device.sample.throttle:
            lines.append(line("  ", (f"throttled: {', '.join(device.sample.throttle)}", palette.alarm)))
    return lines


def _cells(sample: DeviceSample | None) -> dict[Figure, str]:
    """Return a device's figures for the table, where there is no room for the power limit."""
    cells = dict(figures_of(sample)) if sample is not None else {}
    if sample is not None and sample.power_w is not None:
        cells["power"] = f"{sample.power_w:.0f} W"
    return cells


def _not_running(model: Model, palette: Palette) -> list[Strip]:
    """For a session without an engine, return a line with the time of the last readings."""
    if model.link.kind != "ended":
        return []
    reading = model.latest()
    words = "the engine is not running"
    if reading is not None:
        words += f"; last readings at {fmt.moment(reading.time, model.now())}"
    return [line((words, palette.warn))]


def _keeper(wait: DeviceAwaited) -> str:
    """Say why the search is waiting for the device or its memory."""
    if wait.needed_bytes:
        return f"waiting for {fmt.size(wait.needed_bytes)} of memory, {fmt.size(wait.free_bytes)} free"
    return f"in use by pid {wait.pid}"


def _at_work(model: Model, palette: Palette) -> list[Strip]:
    flight, left = model.state.at_work(), model.state.left_to_resume()
    if model.link.kind == "ended" or model.state.at_rest:
        which = "them" if left == model.state.not_judged() else str(left)
        resumed = f"; a resume continues with {which}" if left else ""
        return [line((f"  {words}{resumed}", palette.dim))] if (words := not_judged_words(model.state)) else []
    busy = [variant for variant in flight if variant.stage not in (None, "queued")]
    busy.sort(key=lambda variant: (variant.stage not in ON_DEVICE, variant.stage_since))
    lines = [_worker(model, variant, palette) for variant in busy[:12]]
    queued = len(flight) - len(busy)
    if len(busy) > 12:
        lines.append(line((f"  and {len(busy) - 12} more in progress", palette.dim)))
    if queued:
        lines.append(line((f"  {queued} queued", palette.dim)))
    if model.wait is not None:
        lines.insert(0, line((f"  {_keeper(model.wait)}", palette.warn)))
    if not busy and model.wait is None and model.link.kind in LIVE:
        if (bare := baseline_beside(model)) is not None:
            now: str | None = f"timing torch.compile on {bare.id}"
        else:
            now = None if model.state.paused else activity_of(model)
        lines.append(line((f"  {now or 'no kernels in progress'}", palette.dim)))
    return lines


def _worker(model: Model, variant: VariantState, palette: Palette) -> Strip:
    on_device = variant.stage in ON_DEVICE
    return line(
        (f"  {variant.id:<6}", palette.bold),
        (f"{variant.stage:<9}", palette.running if on_device else palette.text),
        (f"{fmt.clock(model.clock() - variant.stage_since):>6}  ", palette.text),
        (f"{variant.problem}", palette.dim),
        (f"  on {one_line(variant.device.partition('/')[0], 12)}" if variant.device else "", palette.dim),
        ("  on the device" if on_device and not variant.device else "", palette.accent),
    )
