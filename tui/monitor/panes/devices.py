"""The device pane: each device's load history, memory, power, temperature and clocks, and the kernels in progress."""

from __future__ import annotations

from msgspec.structs import replace
from textual.strip import Strip

from engine.devices.fact import DeviceFact
from engine.devices.sample import DeviceSample
from engine.session.records.events import DeviceAwaited
from engine.session.state.session_state import VariantState
from tui.monitor.panes.hosts import host_lines
from tui.monitor.panes.lines import EMPTY, LinesView, Part, line
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.text.glyphs import not_judged_words
from tui.text.sanitize import one_line
from tui.view.activity import LIVE, activity_of, baseline_beside
from tui.view.model import Model

MOST_LINES = 10
ON_DEVICE = ("timing", "checking")


class DevicePane(LinesView):
    _height = 0
    HELP = (
        "Each GPU: load, memory, power, temperature, clocks, throttling, and kernels in progress. With several hosts: "
        "a line per device (or per host, if there are many devices), and why a device was lost."
    )

    def show(self, model: Model) -> None:
        lines = device_lines(model, self.palette, self.size.width, ascii_only=self.ascii_only)
        # Never shrink, so that the panes below do not jump when a kernel starts or ends.
        self._height = max(self._height, min(len(lines), MOST_LINES))
        self.set_lines(lines + [EMPTY] * (self._height - len(lines)))


def device_lines(model: Model, palette: Palette, width: int, *, ascii_only: bool) -> list[Strip]:
    """Return the pane's lines: none while the session opens, and dim lines without a load history after it ends."""
    if model.is_opening:
        return []
    if model.link.kind == "ended":
        palette = replace(palette, text=palette.dim, bold=palette.dim, running=palette.dim, alarm=palette.dim)
    facts = model.state.devices
    if any(fact.host for fact in facts.values()):
        return [*_not_running(model, palette), *host_lines(model, palette), *_at_work(model, palette)]
    gpus = [fact for fact in facts.values() if fact.kind == "cuda"]
    reading = model.latest()
    samples = {sample.device: sample for sample in reading.samples} if reading is not None else {}
    lines: list[Strip] = []
    for number, gpu in enumerate(gpus):
        lines += _gpu(model, gpu, number, samples.get(gpu.id), palette, width, ascii_only=ascii_only)
    cpu = samples.get("cpu")
    if not gpus:
        cpus = [fact for fact in facts.values() if fact.kind == "cpu"]
        if facts or cpu:
            lines.append(line(("no NVIDIA GPU: kernels run on the CPU", palette.dim)))
        lines += _cpu(model, cpus[0] if cpus else None, cpu, palette, width, ascii_only=ascii_only)
    return [*_not_running(model, palette), *lines, *_at_work(model, palette)]


def _not_running(model: Model, palette: Palette) -> list[Strip]:
    """For a session without an engine, return a line with the time of the last readings."""
    if model.link.kind != "ended":
        return []
    reading = model.latest()
    words = "the engine is not running"
    if reading is not None:
        words += f"; last readings at {fmt.moment(reading.time, model.now())}"
    return [line((words, palette.warn))]


def _gpu(
    model: Model,
    fact: DeviceFact,
    number: int,
    sample: DeviceSample | None,
    palette: Palette,
    width: int,
    *,
    ascii_only: bool,
) -> list[Strip]:
    name = one_line(fact.name.removeprefix("NVIDIA "), 40)
    if sample is None:
        return [line((f"GPU {number} {name}", palette.bold), ("  no reading", palette.dim))]
    load = sample.utilization
    head: list[Part] = [(f"GPU {number} {name} ", palette.bold)]
    head.append((_load(model, load), palette.running))
    history = _history(model, fact.id, width - line(*head).cell_length, ascii_only=ascii_only)
    first = line(*head, (history, palette.chart))
    parts = [
        f"{fmt.size(sample.memory_used)}/{fmt.size(sample.memory_total)}",
        f"{sample.power_w:.0f}/{sample.power_limit_w or 0:.0f} W" if sample.power_w is not None else "- W",
        f"{sample.temperature_c:.0f} °C" if sample.temperature_c is not None else "- °C",
        f"{sample.clock_mhz}/{sample.memory_clock_mhz} MHz" if sample.clock_mhz is not None else "- MHz",
    ]
    second: list[Part] = [("  " + "  ".join(parts), palette.text)]
    if sample.throttle:
        second.append((f"  throttled: {', '.join(sample.throttle)}", palette.alarm))
    return [first, line(*second)]


def _cpu(
    model: Model,
    fact: DeviceFact | None,
    sample: DeviceSample | None,
    palette: Palette,
    width: int,
    *,
    ascii_only: bool,
) -> list[Strip]:
    name = one_line(fact.name, 34) if fact is not None else ""
    cores = f" {fact.cores} cores" if fact is not None else ""
    if sample is None:
        return [line((f"CPU {name}{cores}", palette.bold), ("  no reading", palette.dim))]
    head = f"CPU{cores} {_load(model, sample.utilization)}"
    history = _history(model, "cpu", width - len(head), ascii_only=ascii_only)
    facts = [
        f"{fmt.size(sample.memory_used)}/{fmt.size(sample.memory_total)}",
        f"load {sample.load:.1f}" if sample.load is not None else "",
        f"{sample.temperature_c:.0f} °C" if sample.temperature_c is not None else "",
        name,
    ]
    return [
        line((head, palette.bold), (history, palette.chart)),
        line(("  " + "  ".join(part for part in facts if part), palette.text)),
    ]


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


def _load(model: Model, percent: float | None) -> str:
    was = "last " if model.link.kind == "ended" else ""
    return f"{was}{percent:.0f}% " if percent is not None else "- "


def _history(model: Model, device: str, room: int, *, ascii_only: bool) -> str:
    """Return the load as a chart, or "" once the session has ended. An idle device still gets a thin trace."""
    if model.link.kind == "ended":
        return ""
    rates = []
    for reading in model.recent()[-120:]:
        sample = next((sample for sample in reading.samples if sample.device == device), None)
        rates.append(max(0.01, sample.utilization or 0.0) if sample is not None else 0.0)
    return fmt.sparkline(rates, max(0, min(60, room)), top=100, ascii_only=ascii_only)
