"""The two status lines: best speedup, round, engine, device and time, then the current activity."""

from __future__ import annotations

import time
from collections import Counter
from datetime import date

from rich.cells import cell_len
from rich.style import Style
from textual.strip import Strip

from engine.devices.sample import DeviceSample
from engine.session.records.speedup_text import marked, speedup
from engine.session.records.verdict_text import is_uncertain
from engine.session.store import STOPPED_WORDS
from tui.monitor.panes.lines import EMPTY, LinesView, Part, line
from tui.monitor.panes.status.second_line import bests_line, news_of, notice_of
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.text.program import as_typed
from tui.view.activity import LIVE, now_of, overrun_of
from tui.view.model import Model
from tui.view.over_time.progress import SteadyEnd, progress_of
from tui.view.prompts import unanswered
from tui.view.spend import count, money

FAR_S = 1000 * 86400.0
"""Time until an estimated end, in seconds, from which the end is not worth showing."""
OTHER_PANES = 110
"""Minimum screen width, in cells, at which other panes appear beside the tree."""
COUNT_DIGITS = 4
"""Number of digits for which the counts of kernels have room on a wide screen. The parts after them then stay in place.
"""
IN_OTHER_PANES = 6
"""Lowest rank of the status parts that the panes beside the tree also show."""
FAILED = ("error",)
"""Stop reasons that are failures. All other stop reasons are normal ends of a search."""


class StatusLine(LinesView):
    """Two lines: the main figures, and the current activity or problem.

    Both lines are always present, so that the panes below never move.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, focusable=False)
        self._end = SteadyEnd()

    def show(self, model: Model, paused_view: bool, follow: bool) -> None:
        if not self.is_attached:
            return
        width = self.size.width or self.app.size.width
        palette = self.palette
        first = status_line(
            model, palette, width, ascii_only=self.ascii_only, held=paused_view, follow=follow, end=self._end
        )
        self.set_lines([first, self._second(model, palette, width)])

    def _second(self, model: Model, palette: Palette, width: int) -> Strip:
        if (notice := notice_of(model)) is not None:
            text = f" {as_typed(notice.text)}"
            for aside in notice.asides:
                text += f" {aside}" if cell_len(text) + cell_len(aside) < width else ""
            return line((fmt.pad(text, width), palette.alarm if notice.failed else palette.warn))
        if not model.opened:
            return EMPTY
        if (news := news_of(model)) is not None:
            return line((fmt.pad(f" {news}", width), palette.warn))
        if self.screen.has_class("-narrow") and len(model.state.problems) > 1:
            return bests_line(model, palette, width)
        text = f" {now_of(model)}"
        if cell_len(text) > width:
            text = f" {now_of(model, with_age=False)}"
        return line((fmt.fit(text, width), palette.dim))


def status_line(
    model: Model,
    palette: Palette,
    width: int,
    *,
    ascii_only: bool,
    held: bool = False,
    follow: bool = False,
    end: SteadyEnd | None = None,
) -> Strip:
    """Return the first status line: as many parts as fit, always in the same order.

    Figures that change often have a fixed width, so that the parts beside them stay in place. ``end`` is the estimated
    end that the line showed last.
    """
    state = model.state
    if not model.opened:
        return line((f" {model.source.name}", palette.title), ("  opening the session …", palette.dim))
    star = "*" if ascii_only else "★"
    speedups = [
        v.speedup for p in state.problems.values() if (v := model.best(p)) is not None and v.speedup is not None
    ]
    mean = fmt.geometric_mean(speedups)
    uncertain = any(is_uncertain(model.verdict_of_best(problem)) for problem in state.problems.values())
    best = (f" {star} {marked(speedup(mean), uncertain)}", palette.best)
    over = _over(len(speedups), len(state.problems))
    # Each part has a rank. A narrow screen drops parts from the highest rank down.
    shown: list[tuple[int, list[Part]]] = [
        (0, [best, (over, palette.dim)]),
        (3, [("following best", palette.accent)] if follow else []),
        (1, [("DISPLAY HELD (p)", palette.warn)] if held else []),
        (2, _place(model, palette)),
        (5, _work(model, palette, width)),
        (1, _link(model, palette)),
        (6, _device(model, palette)),
        (1, _clock(model, palette)),
        (3, _share(model, palette)),
        (4, _ends(model, palette, end or SteadyEnd())),
        (5, _spent(model, palette)),
        (1, _prompts(model, palette)),
        (8, [(f"{state.verdicts} verdict{'' if state.verdicts == 1 else 's'}", palette.dim)]),
        (3, [("read-only", palette.warn)] if model.source.read_only and model.link.kind != "replay" else []),
        (9, [(model.source.name, palette.dim)]),
    ]
    kept = [one for one in shown if one[1]]
    if _width(kept) > width:  # Drop the right end first, so that the other parts stay in place.
        kept.pop()
    if _width(kept) > width:
        kept[0] = (0, [best, (_over_medium(len(speedups), len(state.problems)), palette.dim)])
    while _width(kept) > width >= OTHER_PANES and max(rank for rank, _ in kept) >= IN_OTHER_PANES:
        kept.remove(max(kept, key=lambda one: one[0]))
    if _width(kept) > width:
        kept[0] = (0, [best, (_over_short(len(speedups), len(state.problems)), palette.dim)])
    while _width(kept) > width and len(kept) > 1:
        kept.remove(max(kept, key=lambda one: one[0]))
    strips = [line(*(["  "] if place else []), *parts) for place, (_, parts) in enumerate(kept)]
    return Strip.join(strips)


def _place(model: Model, palette: Palette) -> list[Part]:
    """Return the newest round or, if problems take turns, the number of the running problem and its turn's time."""
    state = model.state
    if not state.problems:
        return []
    if not state.takes_turns:
        newest = max((p.rounds[-1].number for p in state.problems.values() if p.rounds), default=0)
        of = f"/{model.rounds}" if model.rounds is not None else ""
        return [(f"round {newest}{of}", palette.text)]
    phases = list(state.phases().values())
    done = phases.count("done")
    if (turn := state.turn) is None:
        return [(f"{done}/{len(phases)} problems", palette.text)]
    spent = fmt.clock(model.turn_seconds())
    return [
        (f"problem {done + 1}/{len(phases)}", palette.text),
        (f" {spent}/{fmt.clock(turn.minutes * 60)}", palette.text),
    ]


def _width(parts: list[tuple[int, list[Part]]]) -> int:
    return sum(line(*one).cell_length for _, one in parts) + 2 * (len(parts) - 1)


def _work(model: Model, palette: Palette, width: int) -> list[Part]:
    flight = model.state.at_work()
    stages = Counter(variant.stage for variant in flight)
    waiting, queued = stages["waiting"], stages["queued"]
    busy = len(flight) - queued - waiting
    if model.link.kind in LIVE and not model.state.at_rest:
        digits = len(f"{busy}{waiting}{queued}")
        return [
            (f"{busy} running", palette.running if busy else palette.dim),
            (f" {waiting} waiting", palette.dim),
            (f" {queued} queued", palette.dim),
            (" " * (COUNT_DIGITS - digits) if width >= OTHER_PANES else "", palette.dim),
        ]
    not_judged = model.state.not_judged()
    return [(f"{not_judged} not judged", palette.dim)] if not_judged else []


def _clock(model: Model, palette: Palette) -> list[Part]:
    """Return the search time and its limit, or a replay's position and speed."""
    if model.link.kind == "replay" and model.playing is not None:
        return [(model.playing(), palette.text)]
    limit = fmt.clock(model.minutes * 60) if model.minutes is not None else ""
    over = overrun_of(model) is not None
    passed = fmt.clock(model.search_seconds()).rjust(len(limit))
    return [(f"{passed}/{limit}" if limit else passed, palette.warn if over else palette.dim)]


def _share(model: Model, palette: Palette) -> list[Part]:
    """Return the share of the search that is done."""
    progress = progress_of(model)
    return (
        [(f"{progress.share:.0%} of {progress.of}".ljust(len("100% of ") + len(progress.of)), palette.text)]
        if progress is not None
        else []
    )


def _ends(model: Model, palette: Palette, steady: SteadyEnd) -> list[Part]:
    """Return the search's estimated end, in local time. A search that is paused or will stop early has no known end."""
    progress = progress_of(model)
    if progress is None or progress.left_s is None or progress.left_s >= FAR_S or overrun_of(model) is not None:
        return []
    now = model.source.system_now()
    return [(f"ends {_moment(steady.at(now, progress.left_s, is_exact=progress.is_exact), now)}", palette.dim)]


def _moment(at: float, now: float) -> str:
    """Return the time of day ``at``, and the number of days from ``now`` until then if the day is not today."""
    then, today = (date.fromtimestamp(seconds) for seconds in (at, now))
    days = (then - today).days
    return f"~{time.strftime('%H:%M', time.localtime(at))}{f' +{days}d' if days else ''}"


def _spent(model: Model, palette: Palette) -> list[Part]:
    """Return the cost of model calls and its limit, or nothing for a session without model calls."""
    spend, limits = model.state.spending.total, model.limits
    if not spend.tokens and not spend.uncertain:
        return []
    if spend.dollars or limits.dollars is not None:
        limit = f"/{limits.dollars:g}" if limits.dollars is not None else ""
        return [(f"{money(spend.dollars)}{limit}", palette.text)]
    limit = f"/{count(limits.tokens)}" if limits.tokens is not None else ""
    return [(f"{count(spend.tokens)}{limit} tokens", palette.text)]


def _prompts(model: Model, palette: Palette) -> list[Part]:
    waiting = len(unanswered(model.state, model.directory))
    if not waiting:
        return []
    prompts = f"{waiting} prompt{'' if waiting == 1 else 's'}"
    return [(f"{prompts} unanswered" if model.link.kind == "replay" else f"{prompts} to answer (I)", palette.warn)]


def _over(done: int, problems: int) -> str:
    if problems <= 1:
        return " over eager"
    return f" over eager, geomean of {done}/{problems}"


def _over_medium(done: int, problems: int) -> str:
    return " eager" if problems <= 1 else f" eager, geomean {done}/{problems}"


def _over_short(done: int, problems: int) -> str:
    return " eager" if problems <= 1 else f" eager, {done}/{problems}"


def _link(model: Model, palette: Palette) -> list[Part]:
    kind, engine = model.engine, model.state.engine
    if (asked := next((one.text for one in model.pending.values() if one.node is None), None)) is not None:
        return [(f"{asked} …", palette.warn)]
    if overrun_of(model) is not None:
        return [("finishing", palette.warn)]
    if kind == "live" and model.state.paused:
        return [("search paused (P)" + (", then stops" if model.state.stop_planned else ""), palette.warn)]
    if kind == "live" and model.state.stop_planned:
        return [("stops after round (S)", palette.warn)]
    if kind in ("live", "finished"):
        return [(kind, palette.good)]
    if kind in ("stopped", "never ran"):
        words = STOPPED_WORDS.get(engine.stopped, kind) if engine is not None and engine.stopped is not None else kind
        return [(words, _end_style(model, palette))]
    return [(kind, palette.dim if kind in ("connecting", "starting", "replay") else palette.bad)]


def _end_style(model: Model, palette: Palette) -> Style:
    engine = model.state.engine
    return palette.bad if engine is not None and engine.stopped in FAILED else palette.warn


def _device(model: Model, palette: Palette) -> list[Part]:
    """Return the device load of the last reading, while the engine takes readings."""
    reading = model.latest()
    if reading is None or not reading.samples or model.link.kind not in LIVE:
        return []
    gpus = [sample for sample in reading.samples if sample.kind == "cuda"]
    shown: list[DeviceSample] = gpus or [sample for sample in reading.samples if sample.kind == "cpu"]
    rates = [sample.utilization for sample in shown if sample.utilization is not None]
    if not rates:
        return []
    label = "GPU" if gpus else "CPU"
    return [(f"{label} {sum(rates) / len(rates):.0f}%".ljust(len("GPU 100%")), palette.text)]
