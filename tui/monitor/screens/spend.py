"""The cost of model calls: against each limit, by model, problem, round and idea, and per percent gained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.strip import Strip

from engine.config.tolerance import short_caption
from engine.session.budget import Cap
from engine.session.records.model_calls import failure_words
from engine.session.state.spend import Amount
from tui.monitor.panes.detail.text import wrapped
from tui.monitor.panes.lines import LinesView, Part, line
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.text.sanitize import one_line
from tui.view.model import Model
from tui.view.spend import Share, SpendTable, count, money, refusals, spend_table

EVERY_S = 1.0
IDEAS = 15
"""Number of ideas listed, most expensive first."""
GAUGE = 16
WIDE = 92
"""Minimum width, in cells, for the columns of failed calls and cached tokens."""


class SpendScreen(ModalScreen[str | None]):
    """A dialog that returns "budget" if the user wants to change the limits."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,dollar_sign,q,enter", "dismiss(None)", "close", show=False),
        Binding("M", "dismiss('budget')", "change the limits", show=False),
    ]
    DEFAULT_CSS = """
    SpendScreen { align: center middle; }
    SpendScreen LinesView {
        width: 96%; max-width: 110; height: 90%; padding: 0 1; background: $surface; border: round $primary;
    }
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def compose(self) -> ComposeResult:
        yield LinesView(id="spend")

    def on_mount(self) -> None:
        self.query_one("#spend", LinesView).focus()
        self.set_interval(EVERY_S, self._show)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        view = self.query_one("#spend", LinesView)
        width = view.scrollable_content_region.width
        table = spend_table(self._model)
        view.set_lines(list(spend_lines(self._model, table, view.palette, width, ascii_only=view.ascii_only)))


def spend_lines(model: Model, table: SpendTable, palette: Palette, width: int, *, ascii_only: bool) -> Iterator[Strip]:
    total = table.total
    limits = "" if model.source.read_only else "M: change the limits   "
    yield line(("Cost of model calls", palette.title), (f"   {limits}esc: close", palette.dim))
    yield line("")
    yield from _limits(model, total, palette, ascii_only=ascii_only)
    words = _bought(table, short_caption(model.limits.tolerance))
    if words:
        yield from wrapped(words, palette.good, width)
    for text, style in _remarks(model, palette):
        yield from wrapped(text, style, width)
    ideas = table.ideas[:IDEAS]
    left = len(table.ideas) - len(ideas)
    parts = (
        ("by model", table.models),
        ("by problem", table.problems if len(table.problems) > 1 else []),
        ("by round", table.rounds),
        (f"by idea{f', the {IDEAS} most expensive' if left else ''}; kernels and repairs only", ideas),
    )
    titles = " ".join(f"{name:>{room}}" for name, room in _columns(width))
    room = max(12, width - len(titles) - 1)
    for title, shares in parts:
        if shares:
            yield line("")
            if len(title) > room:
                yield line((title, palette.title))
            head = title if len(title) <= room else ""
            yield line((fmt.pad(head, room), palette.title), (titles, palette.dim))
            yield from (_row(share, room, width, palette) for share in shares)


def _columns(width: int) -> list[tuple[str, int]]:
    """Return the columns that fit, with the width of each."""
    columns = [("calls", 7), ("failed", 6), ("in", 7), ("cached", 7), ("out", 7), ("dollars", 9), ("gained", 7)]
    return [one for one in (*columns, ("per 1%", 8)) if width >= WIDE or one[0] not in ("failed", "cached")]


def _remarks(model: Model, palette: Palette) -> Iterator[tuple[str, Style]]:
    """Yield remarks on failed, pending and unpriced calls."""
    spending = model.state.spending
    spend, held = spending.total, spending.held
    for name, call in refusals(model.state).items():
        why = f"{failure_words(call.failure or '')}: {one_line(call.message, 300)}"
        yield f"No more calls to {name}: {why}", palette.bad
    if again := [call for call in spending.calls.values() if call.wait_s is not None and not call.flying]:
        whys = sorted({failure_words(call.failure or "") for call in again})
        yield f"{_many(len(again), 'call')} waiting for a retry: {', '.join(whys)}.", palette.warn
    if spend.uncertain:
        ended = _many(spend.uncertain, "attempt")
        most = _amount(spend.unknown)
        yield (
            f"{ended} unconfirmed: the provider did not report the cost. Limits assume the maximum cost, {most}.",
            palette.warn,
        )
    if held.tokens:
        yield f"Reserved for {_many(len(spending.flying), 'call')} in flight: {_amount(held)}.", palette.dim
    if spend.unpriced:
        yield f"The dollar amounts exclude {_many(spend.unpriced, 'reply')} whose price is unknown.", palette.warn


def _amount(amount: Amount) -> str:
    return f"{count(amount.tokens)} tokens" + (f" and {money(amount.dollars)}" if amount.dollars is not None else "")


def _limits(model: Model, total: Share, palette: Palette, *, ascii_only: bool) -> Iterator[Strip]:
    """Yield the used share of each limit, and highlight nearly exhausted limits."""
    spend, cap, at_most = total.spend, total.cap, total.spend.at_most
    minutes = model.search_seconds()
    limit_s = model.minutes * 60 if model.minutes is not None else None
    rows = (
        ("dollars", money(spend.dollars), cap.dollars, money(cap.dollars), at_most.dollars or spend.dollars),
        ("tokens", f"{spend.tokens:,}", cap.tokens, f"{cap.tokens or 0:,}", float(at_most.tokens)),
        ("calls", f"{spend.calls:,}", cap.calls, f"{cap.calls or 0:,}", float(spend.calls)),
        ("minutes", fmt.clock(minutes), limit_s, fmt.clock(limit_s or 0), minutes),
    )
    for name, spent, limit, shown, used in rows:
        if limit is None:
            yield line((f"{name:<9}", palette.dim), (f"{spent:>13}", palette.bold), ("  no limit", palette.dim))
            continue
        share = used / limit if limit else 1.0
        style: Style = palette.bad if share >= 0.95 else palette.warn if share >= 0.8 else palette.chart
        yield line(
            (f"{name:<9}", palette.dim),
            (f"{spent:>13}", palette.bold),
            (f" of {shown:<13}", palette.text),
            (fmt.bar(share, GAUGE, ascii_only=ascii_only), style),
            (f" {share * 100:.0f}%", style),
        )


def _bought(table: SpendTable, tolerance: str) -> str:
    """Return the cost per percent of speedup gained. The kernels met ``tolerance``."""
    total = table.total
    if total.gain <= 0:
        return ""
    each = total.dollars_per_percent
    price = f"; {money(each)} per 1% gained" if each is not None else ""
    mean = f", the mean of {total.problems} problems" if total.problems > 1 else ""
    return f"Gained {fmt.change(total.gained)} over eager ({tolerance}){mean}{price}."


def _row(share: Share, room: int, width: int, palette: Palette) -> Strip:
    spend, usage = share.spend, share.spend.usage
    gained = share.gain > 0
    cells = {
        "calls": (_of(spend.calls, share.cap), palette.text),
        "failed": (str(spend.failed or ""), palette.bad),
        "in": (count(usage.input), palette.text),
        "cached": (count(usage.cached) if usage.cached else "", palette.dim),
        "out": (count(usage.output), palette.text),
        "dollars": (money(spend.dollars) if not spend.unpriced or spend.dollars else "unknown", palette.text),
        "gained": (fmt.change(share.gained) if gained else "", palette.good),
        "per 1%": (money(share.dollars_per_percent) if gained else "", palette.text),
    }
    name, limit = fmt.fit(one_line(share.name, 80), room), _cap_words(share.cap)
    parts: list[Part] = [(name, palette.bold), (fmt.pad(limit, room - cell_len(name)), palette.dim)]
    for place, (name, wide) in enumerate(_columns(width)):
        text, style = cells[name]
        parts.append((f"{' ' if place else ''}{text:>{wide}}", style))
    return line(*parts)


def _many(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _of(calls: int, cap: Cap) -> str:
    return f"{calls:,}" if cap.calls is None else f"{calls:,}/{cap.calls}"


def _cap_words(cap: Cap) -> str:
    """Format the limits of a model or problem."""
    words = [money(cap.dollars)] if cap.dollars is not None else []
    words += [f"{count(cap.tokens)} tokens"] if cap.tokens is not None else []
    return f"  of {', '.join(words)}" if words else ""
