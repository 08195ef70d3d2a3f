"""The status line: what matters first. Best speedup, round, what runs, device, time spent, link to the engine."""

from __future__ import annotations

from textual.strip import Strip

from engine.devices import DeviceSample
from tui import format as fmt
from tui.model import Model
from tui.palette import Palette
from tui.sanitize import one_line
from tui.widgets.lines import LinesView, Part, line


class StatusLine(LinesView):
    """One line at the top, and a second, loud one when something is wrong."""

    _height = 1

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, focusable=False)

    def show(self, model: Model, paused_view: bool, follow: bool) -> None:
        width = self.size.width or self.app.size.width
        lines = [status_line(model, self.palette, width, ascii_only=self.ascii_only, held=paused_view, follow=follow)]
        if (alarm := alarm_of(model)) is not None:
            lines.append(line((fmt.pad(f" {alarm}", width), self.palette.alarm)))
        if self.screen.has_class("-narrow") and len(model.state.problems) > 1:
            lines.append(bests_line(model, self.palette, width))
        self.set_lines(lines)
        if self._height != len(lines):
            self._height = len(lines)
            self.styles.height = len(lines)


def status_line(
    model: Model, palette: Palette, width: int, *, ascii_only: bool, held: bool = False, follow: bool = False
) -> Strip:
    """The parts in the order of their weight, for as many as fit."""
    state = model.state
    if not model.opened:
        return line((f" {model.source.name}", palette.title), ("  opening the session …", palette.dim))
    star = "*" if ascii_only else "★"
    factors = [v.speedup for p in state.problems.values() if (v := model.best(p)) is not None and v.speedup is not None]
    mean = fmt.geometric_mean(factors)
    parts: list[list[Part]] = [
        [(f" {star} {fmt.speedup(mean)}", palette.best), (_over(len(factors), len(state.problems)), palette.dim)]
    ]
    if state.problems:
        newest = max((p.rounds[-1].number for p in state.problems.values() if p.rounds), default=0)
        of = f"/{model.rounds}" if model.rounds is not None else ""
        parts.append([(f"round {newest}{of}", palette.text)])
    flight = state.in_flight()
    queued = sum(variant.stage == "queued" for variant in flight)
    busy = len(flight) - queued
    if flight and not _live(model):
        parts.append([(f"{len(flight)} unfinished", palette.dim)])
    elif _live(model):
        parts.append(
            [(f"{busy} running", palette.running if busy else palette.dim), (f" {queued} queued", palette.dim)]
        )
    parts.append(_link(model, palette))
    parts.append(_device(model, palette))
    limit = f"/{fmt.clock(model.minutes * 60)}" if model.minutes is not None else ""
    parts.append([(f"{fmt.clock(model.search_seconds())}{limit}", palette.dim)])
    parts.append([(f"{state.verdicts} verdicts", palette.dim)])
    if held:
        parts.insert(1, [("DISPLAY HELD (p)", palette.warn)])
    if follow:
        parts.insert(1, [("following best", palette.accent)])
    if model.source.read_only:
        parts.append([("read-only", palette.warn)])
    parts.append([(model.source.name, palette.dim)])
    return _joined(parts, width)


def bests_line(model: Model, palette: Palette, width: int) -> Strip:
    """Where there is no room for the scoreboard: every problem's best speedup in one line."""
    problems = list(model.state.problems.values())
    room = max(6, (width - 1) // len(problems) - 9)
    parts: list[Part] = [" "]
    for problem in problems:
        best = model.best(problem)
        factor = best.speedup if best is not None else None
        style = palette.best if factor is not None and factor > 1 else palette.text
        parts += [(fmt.fit(problem.id, room), palette.dim), (f" {fmt.speedup(factor)}  ", style)]
    return line(*parts).crop(0, width)


def alarm_of(model: Model) -> str | None:
    """What a person must know and do now, or None."""
    link, engine = model.link, model.state.engine
    resume = f"R resumes it (kernel-tui resume {model.source.argument})"
    if model.trouble is not None:
        return one_line(model.trouble)
    if not model.opened:
        return None
    if model.engine == "stalled":
        return f"ENGINE STALLED: no sign of life for {link.heartbeat_age_s or 0:.0f} s (pid {link.pid})"
    if model.engine == "dead" and engine is not None:
        return f"ENGINE DEAD (pid {engine.pid}): ended without a word. {resume}"
    if model.engine == "ended early":
        return f"ENGINE ENDED: {one_line(link.message, 160)} {resume}"
    if model.engine == "stopped" and engine is not None and engine.stopped == "budget":
        return "THE BUDGET IS SPENT, the search has stopped. M gives it more and goes on."
    if model.engine == "stopped" and engine is not None:
        return f"ENGINE STOPPED ({engine.stopped}). R resumes it. {one_line(engine.message, 160)}"
    return f"NO ENGINE has run on this session. {resume}" if model.engine == "never ran" else None


def _over(done: int, problems: int) -> str:
    if problems <= 1:
        return " over eager"
    return f" over eager, mean of {done}/{problems}"


def _live(model: Model) -> bool:
    return model.link.kind in ("live", "stalled", "replay")


def _link(model: Model, palette: Palette) -> list[Part]:
    kind = model.engine
    if kind == "live" and model.state.paused:
        return [("search paused (P)", palette.warn)]
    if kind in ("live", "finished"):
        return [(kind, palette.good)]
    return [(kind, palette.dim if kind in ("connecting", "replay") else palette.bad)]


def _device(model: Model, palette: Palette) -> list[Part]:
    reading = model.latest()
    if reading is None or not reading.samples:
        return []
    gpus = [sample for sample in reading.samples if sample.kind == "cuda"]
    shown: list[DeviceSample] = gpus or [sample for sample in reading.samples if sample.kind == "cpu"]
    rates = [sample.utilization for sample in shown if sample.utilization is not None]
    if not rates:
        return []
    label = "GPU" if gpus else "CPU"
    return [(f"{label} {sum(rates) / len(rates):.0f}%", palette.text)]


def _joined(parts: list[list[Part]], width: int) -> Strip:
    strip = line(*parts[0])
    for part in parts[1:]:
        if not part:
            continue
        addition = line("  ", *part)
        if strip.cell_length + addition.cell_length > width:
            continue
        strip = Strip.join([strip, addition])
    return strip
