"""The status line: what matters first. Best speedup, round, what runs, link to the engine, device, time spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from textual.strip import Strip

from engine.devices import DeviceSample
from engine.factor import marked, speedup
from tui import format as fmt
from tui.activity import LIVE, activity_of, now_of, overrun_of, owed_of, reopening_of, waiting_of
from tui.certainty import factor_words, interval_words, is_unsure
from tui.conversation import prompts_waiting
from tui.going_on import more_minutes, resume_command
from tui.model import Model
from tui.palette import Palette
from tui.sanitize import one_line
from tui.spend import count, money
from tui.widgets.lines import EMPTY, LinesView, Part, line


class StatusLine(LinesView):
    """A line with what matters first, and one that says what goes on, or what is wrong. Both are always there, so that
    nothing below moves when there is something to say."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, focusable=False)

    def show(self, model: Model, paused_view: bool, follow: bool) -> None:
        if not self.is_attached:
            return
        width = self.size.width or self.app.size.width
        palette = self.palette
        first = status_line(model, palette, width, ascii_only=self.ascii_only, held=paused_view, follow=follow)
        self.set_lines([first, self._second(model, palette, width)])

    def _second(self, model: Model, palette: Palette, width: int) -> Strip:
        if (alarm := alarm_of(model)) is not None:
            return line((fmt.pad(f" {alarm}", width), palette.alarm))
        if not model.opened:
            return EMPTY
        if (news := _news(model)) is not None:
            return line((fmt.pad(f" {news}", width), palette.warn))
        if self.screen.has_class("-narrow") and len(model.state.problems) > 1:
            return bests_line(model, palette, width)
        return line((fmt.fit(f" {now_of(model)}", width), palette.dim))


def status_line(
    model: Model, palette: Palette, width: int, *, ascii_only: bool, held: bool = False, follow: bool = False
) -> Strip:
    """As many parts as fit, always in the same order."""
    state = model.state
    if not model.opened:
        return line((f" {model.source.name}", palette.title), ("  opening the session …", palette.dim))
    star = "*" if ascii_only else "★"
    factors = [v.speedup for p in state.problems.values() if (v := model.best(p)) is not None and v.speedup is not None]
    mean = fmt.geometric_mean(factors)
    unsure = any(is_unsure(model.verdict_of_best(problem)) for problem in state.problems.values())
    best = (f" {star} {marked(speedup(mean), unsure)}", palette.best)
    over = _over(len(factors), len(state.problems))
    newest = max((p.rounds[-1].number for p in state.problems.values() if p.rounds), default=0)
    of = f"/{model.rounds}" if model.rounds is not None else ""
    # Each with the order in which it goes where there is no room: what a person looks for most goes last.
    shown: list[tuple[int, list[Part]]] = [
        (0, [best, (over, palette.dim)]),
        (3, [("following best", palette.accent)] if follow else []),
        (1, [("DISPLAY HELD (p)", palette.warn)] if held else []),
        (2, [(f"round {newest}{of}", palette.text)] if state.problems else []),
        (4, _work(model, palette)),
        (1, _link(model, palette)),
        (5, _device(model, palette)),
        (1, _clock(model, palette)),
        (6, _spent(model, palette)),
        (1, _prompts(model, palette)),
        (8, [(f"{state.verdicts} verdict{'' if state.verdicts == 1 else 's'}", palette.dim)]),
        (3, [("read-only", palette.warn)] if model.source.read_only and model.link.kind != "replay" else []),
        (9, [(model.source.name, palette.dim)]),
    ]
    kept = [one for one in shown if one[1]]
    if _width(kept) > width:  # at the right end first, so that the others stay in their places
        kept.pop()
    if _width(kept) > width:
        kept[0] = (0, [best, (_over_short(len(factors), len(state.problems)), palette.dim)])
    while _width(kept) > width and len(kept) > 1:
        kept.remove(max(kept, key=lambda one: one[0]))
    strips = [line(*(["  "] if place else []), *parts) for place, (_, parts) in enumerate(kept)]
    return Strip.join(strips)


def _width(parts: list[tuple[int, list[Part]]]) -> int:
    return sum(line(*one).cell_length for _, one in parts) + 2 * (len(parts) - 1)


def _work(model: Model, palette: Palette) -> list[Part]:
    flight = model.state.in_flight()
    stages = Counter(variant.stage for variant in flight)
    waiting, queued = stages["waiting"], stages["queued"]
    busy = len(flight) - queued - waiting
    if model.link.kind in LIVE:
        return [
            (f"{busy} running", palette.running if busy else palette.dim),
            (f" {waiting} waiting" if waiting else "", palette.dim),
            (f" {queued} queued", palette.dim),
        ]
    return [(f"{len(flight)} unfinished", palette.dim)] if flight else []


def _clock(model: Model, palette: Palette) -> list[Part]:
    """Time of search and its limit; a replay's own place and speed."""
    if model.link.kind == "replay" and model.playing is not None:
        return [(model.playing(), palette.text)]
    limit = f"/{fmt.clock(model.minutes * 60)}" if model.minutes is not None else ""
    over = overrun_of(model) is not None
    return [(f"{fmt.clock(model.search_seconds())}{limit}", palette.warn if over else palette.dim)]


def _spent(model: Model, palette: Palette) -> list[Part]:
    """What models have cost, and its limit; nothing where none is used, or where they cost nothing."""
    spend, limits = model.state.spending.total, model.limits
    if not spend.tokens and not spend.uncertain:
        return []
    if spend.dollars or limits.dollars is not None:
        limit = f"/{limits.dollars:g}" if limits.dollars is not None else ""
        return [(f"{money(spend.dollars)}{limit}", palette.text)]
    limit = f"/{count(limits.tokens)}" if limits.tokens is not None else ""
    return [(f"{count(spend.tokens)}{limit} tokens", palette.text)]


def _prompts(model: Model, palette: Palette) -> list[Part]:
    waiting = prompts_waiting(model)
    if not waiting:
        return []
    prompts = f"{waiting} prompt{'' if waiting == 1 else 's'}"
    return [(f"{prompts} unanswered" if model.link.kind == "replay" else f"{prompts} to answer (I)", palette.warn)]


def bests_line(model: Model, palette: Palette, width: int) -> Strip:
    """Where there is no room for the scoreboard: every problem's best speedup in one line."""
    whole = line(*_bests(model, palette, width, intervals=True))
    if whole.cell_length <= width:
        return whole
    room = max(6, (width - 1) // len(model.state.problems) - 9)
    return line(*_bests(model, palette, room, intervals=False)).crop(0, width)


def _bests(model: Model, palette: Palette, room: int, *, intervals: bool) -> Iterator[Part]:
    """``room``: columns of a problem's name. ``intervals``: with these."""
    yield " "
    for problem in model.state.problems.values():
        verdict = model.verdict_of_best(problem)
        factor = verdict.speedup if verdict is not None else None
        yield fmt.fit(problem.id, room), palette.dim
        yield f" {factor_words(verdict)} ", palette.best if factor is not None and factor > 1 else palette.text
        yield f"{interval_words(verdict)}  " if intervals and interval_words(verdict) else " ", palette.dim


def alarm_of(model: Model) -> str | None:
    """What a person must know and do now, or None."""
    link, engine = model.link, model.state.engine
    resume = f"R resumes it (kernel-tui resume {model.source.argument})"
    if model.engine == "gone":
        ends = f" Its engine (pid {link.pid}) ends by itself within a minute." if link.pid is not None else ""
        where = one_line(model.source.argument, 200)
        return f"SESSION MOVED OR DELETED. Open it where it is now: kernel-tui attach DIRECTORY.{ends} It was {where}."
    if model.trouble is not None:
        return one_line(model.trouble)
    if not model.opened:
        return None
    if model.engine == "stalled":
        return f"ENGINE STALLED: {one_line(link.message)}"
    again = "R resumes it."
    more = "M gives it more and goes on."
    if model.source.read_only:
        resume = again = more = f"Shell: {resume_command(model)}"
    elif more_minutes(model) is not None:
        resume = again = "Its minutes are spent: M gives it more and goes on."
    if model.engine == "dead" and engine is not None:
        return f"ENGINE DEAD (pid {engine.pid}), without a word. {resume}"
    if model.engine == "ended early":
        return f"ENGINE ENDED: {one_line(link.message, 160)} {resume}"
    if model.engine == "stopped" and engine is not None and engine.stopped == "budget":
        return f"BUDGET SPENT. {more}"
    if model.engine == "stopped" and engine is not None and engine.stopped == "stopped":
        return f"ENGINE STOPPED, as asked. {again}"
    if model.engine == "stopped" and engine is not None:
        return f"ENGINE STOPPED ({engine.stopped}). {again} {one_line(engine.message, 160)}"
    return f"NO ENGINE has run on this session. {resume}" if model.engine == "never ran" else None


def _news(model: Model) -> str | None:
    """What happens while no kernel shows it: the first seconds, a device that is held, the end."""
    limits = model.source.limits
    known = overrun_of(model) or waiting_of(model) or reopening_of(model.state) or owed_of(model.state, limits)
    if known is None and model.state.variants:
        return None
    said = activity_of(model)
    return f"{said[0].upper()}{said[1:]} …" if said is not None else None


def _over(done: int, problems: int) -> str:
    if problems <= 1:
        return " over eager"
    return f" over eager, geomean of {done}/{problems}"


def _over_short(done: int, problems: int) -> str:
    return " eager" if problems <= 1 else f" geomean {done}/{problems}"


def _link(model: Model, palette: Palette) -> list[Part]:
    kind = model.engine
    if (asked := next((one.text for one in model.pending.values() if one.node is None), None)) is not None:
        return [(f"{asked} …", palette.warn)]
    if overrun_of(model) is not None:
        return [("finishing", palette.warn)]
    if kind == "live" and model.state.paused:
        return [("search paused (P)", palette.warn)]
    if kind in ("live", "finished"):
        return [(kind, palette.good)]
    return [(kind, palette.dim if kind in ("connecting", "starting", "replay") else palette.bad)]


def _device(model: Model, palette: Palette) -> list[Part]:
    """What its last reading says, while there are new ones; the Devices pane says how old others are."""
    reading = model.latest()
    if reading is None or not reading.samples or model.link.kind not in LIVE:
        return []
    gpus = [sample for sample in reading.samples if sample.kind == "cuda"]
    shown: list[DeviceSample] = gpus or [sample for sample in reading.samples if sample.kind == "cpu"]
    rates = [sample.utilization for sample in shown if sample.utilization is not None]
    if not rates:
        return []
    label = "GPU" if gpus else "CPU"
    return [(f"{label} {sum(rates) / len(rates):.0f}%", palette.text)]
