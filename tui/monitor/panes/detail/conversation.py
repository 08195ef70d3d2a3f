"""Calls tab: the model calls behind an idea or a kernel, with replies, tokens and cost. The tab shows the beginning of
each finished reply, and the end of a reply that is still streaming. The key ``v`` shows whole prompts and replies.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator

import msgspec
from msgspec import Struct, field
from rich.style import Style
from textual.strip import Strip

from engine.proposers.llm.model_protocol import Prompt
from engine.proposers.partial_replies import Partial
from engine.session.records.model_calls import call_name, failure_words
from engine.session.state.session_state import VariantState
from engine.session.state.spend import MANUAL, CallState
from tui.monitor.panes.detail.text import wrapped
from tui.monitor.panes.lines import Part, line
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.text.sanitize import MAX_LINE, MAX_LINES, clean_lines, left_out, lines_in, one_line
from tui.view.conversation import ENDS, Calls, Turn, call_figures, conversation_of, text_so_far, who_wrote
from tui.view.model import Model
from tui.view.row import Row

LIVE_LINES, LIVE_CALLS = 12, 4
"""Maximum number of lines shown from the end of a streaming reply, and maximum number of streaming replies shown."""
LISTEN_S = 0.2
LAST_LINES, EARLIER_LINES = 60, 8
"""Maximum number of lines shown from the start of the last reply, and from the start of an earlier reply."""
KEPT_TEXTS = 6
CUT = MAX_LINE - 100


class Conversation(Struct):
    """The tab's content. ``whole`` is true if the tab shows prompts and replies in full."""

    model: Model
    whole: bool = False
    live: bool = False
    """Whether the tab shows a call in flight or a pending retry, and so needs an update soon."""
    _calls: Calls = field(default_factory=Calls)
    _turns: list[Turn] = field(default_factory=list)
    _partials: dict[str, Partial] = field(default_factory=dict)
    _heard: tuple[tuple[str, ...], float] = ((), 0.0)
    _texts: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _drawn: tuple[tuple[object, ...], list[Strip]] | None = None

    def look(self, row: Row | None, subject: VariantState | None) -> tuple[object, ...]:
        """Read everything that ``lines`` depends on, and return it as a cache key."""
        self._turns = conversation_of(self.model.state, self._calls, row, subject)
        moving = [turn.call for turn in self._turns if turn.call.flying or turn.call.wait_s is not None]
        self.live = bool(moving) and self.model.link.kind in ("live", "stalled", "replay")
        self._listen([call for call in moving if call.flying][:LIVE_CALLS])
        second = int(self.model.now()) if self.live else 0
        return (*self._settled(), self.model.link.kind, second, *((n, p.characters) for n, p in self._partials.items()))

    def _listen(self, flying: list[CallState]) -> None:
        """Read the streaming replies, at most once per ``LISTEN_S`` for the same calls."""
        whom, now = (self.model.link.kind, *(call.id for call in flying)), time.monotonic()
        if whom == self._heard[0] and now - self._heard[1] < LISTEN_S:
            return
        self._heard = (whom, now)
        found = ((call.id, text_so_far(self.model, call)) for call in flying)
        self._partials = {name: partial for name, partial in found if partial is not None}

    def lines(self, row: Row | None, subject: VariantState | None, palette: Palette, width: int) -> list[Strip]:
        """Return the tab's lines, as of the last ``look``. Raises SessionError if it cannot read a prompt or reply."""
        if not self._turns:
            return wrapped(who_wrote(self.model.state, row, subject), palette.dim, width)
        moving = [turn for turn in self._turns if turn.call.flying]
        settled = [turn for turn in self._turns if not turn.call.flying]
        lines = [strip for turn in moving for strip in self._moving(turn, palette, width)]
        waits = any(turn.call.wait_s is not None for turn in settled)
        key = (*self._settled(), palette, width, int(self.model.now()) if waits else 0)
        if self._drawn is None or self._drawn[0] != key:
            drawn = [strip for turn in settled for strip in self._ended(turn, turn is settled[-1], palette, width)]
            self._drawn = (key, drawn)
        return [*self._head(palette), *lines, *self._drawn[1]]

    def _settled(self) -> tuple[object, ...]:
        """Return the cache key of the ended calls."""
        return (
            self.whole,
            *((one.id, one.attempts, one.flying, one.reply, one.wait_s) for one in (turn.call for turn in self._turns)),
        )

    def _head(self, palette: Palette) -> list[Strip]:
        count = len(self._turns)
        more = "to shorten them" if self.whole else "for whole prompts and replies"
        return [line((f"{count} call{'' if count == 1 else 's'}; press v {more}", palette.dim))]

    # One call

    def _moving(self, turn: Turn, palette: Palette, width: int) -> Iterator[Strip]:
        call, partial = turn.call, self._partials.get(turn.call.id)
        yield from self._title(turn, palette)
        manual = call.provider == MANUAL  # A person may still reply after the engine has ended.
        since = fmt.age((self.model.now() if manual else self.model.clock()) - call.started_at)
        if manual:
            how = "" if self.model.link.kind == "replay" else " (press I)"
            yield line((f"waiting {since} for a reply by hand{how}: {call_name(call.site)}", palette.warn))
        elif self.model.link.kind not in ("live", "stalled", "replay"):
            yield line(("in flight when the engine ended; after a resume, the engine repeats the call", palette.warn))
        elif partial is None:
            tried = f", attempt {call.attempts}" if call.attempts > 1 else ""
            yield line((f"in flight for {since}{tried}; no text yet", palette.running))
        else:
            yield line((f"streaming for {since}, {partial.characters:,} characters so far", palette.running))
        if partial is not None:
            said = clean_lines(partial.text[-LIVE_LINES * max(20, width) :])[-LIVE_LINES:]
            tail = [
                strip
                for text in said
                for strip in wrapped(text, palette.text, width, 2, is_message=False) or [line("")]
            ]
            yield from tail[-LIVE_LINES:]
        if self.whole:
            yield from self._prompt(call, palette, width)

    def _ended(self, turn: Turn, last: bool, palette: Palette, width: int) -> Iterator[Strip]:
        call = turn.call
        yield from self._title(turn, palette)
        yield from wrapped("; ".join(call_figures(call)), palette.text, width)
        for text, style in _troubles(call, self.model.clock(), palette):
            yield from wrapped(text, style, width)
        if self.whole:
            yield from self._prompt(call, palette, width)
        if call.reply is not None:
            room = None if self.whole else LAST_LINES if last else EARLIER_LINES
            yield line(("reply", palette.accent))
            yield from _block(self._text(call.reply), palette, width, room)

    def _title(self, turn: Turn, palette: Palette) -> Iterator[Strip]:
        call = turn.call
        parts: list[Part] = [(one_line(turn.about, 80), palette.title), ("  by ", palette.dim)]
        parts.append((one_line(call.model, 80), palette.bold))
        if call.provider != call.model:
            parts.append((f" ({one_line(call.provider, 40)})", palette.dim))
        if call.answered not in ("", call.model):
            parts.append((f", answered by {one_line(call.answered, 80)}", palette.dim))
        yield line("")
        yield line(*parts)

    def _prompt(self, call: CallState, palette: Palette, width: int) -> Iterator[Strip]:
        text = self._text(call.prompt)
        try:
            prompt = Prompt.decode(text)
        except msgspec.MsgspecError:
            yield line(("prompt, as recorded", palette.accent))
            yield from _block(text, palette, width, None)
            return
        for name, part in (("system prompt", prompt.system), ("prompt", prompt.user)):
            yield line((name, palette.accent))
            yield from _block(part, palette, width, None)

    def _text(self, digest: str) -> str:
        """Return a recorded text. The tab caches the last few texts."""
        if (known := self._texts.get(digest)) is None:
            known = self._texts[digest] = self.model.source.text(digest)
        self._texts.move_to_end(digest)
        while len(self._texts) > KEPT_TEXTS:
            self._texts.popitem(last=False)
        return known


def _troubles(call: CallState, now: float, palette: Palette) -> Iterator[tuple[str, Style]]:
    canceled = call.failure == "cancelled"  # The search repeats the request if its result is still missing.
    if call.failure is not None:
        said = f"{failure_words(call.failure)}: {one_line(call.message, 600)}"
        yield said, palette.dim if canceled else palette.bad
    if call.wait_s is not None and call.ended_at is not None:
        yield f"retry in {fmt.age(call.ended_at + call.wait_s - now)}", palette.warn
    elif call.failure is not None and not canceled:
        yield "given up", palette.dim
    if call.reply is not None and (end := ENDS.get(call.finish)):
        yield end, palette.warn


def _block(text: str, palette: Palette, width: int, room: int | None) -> list[Strip]:
    """Return ``text`` as indented lines, at most ``room`` of them. Code between fences has its own color."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")
    most = MAX_LINES if room is None else room
    strips: list[Strip] = []
    code = False
    for one, seen in _broken(text):
        fence = one.lstrip().startswith("```")
        style = palette.dim if fence else palette.string if code else palette.text
        strips += wrapped(one, style, width, 2, is_message=False) if one else [line("")]
        code ^= fence
        if len(strips) > most:
            unseen = lines_in(text[seen:])
            note = left_out(unseen) if unseen > 1 else left_out(len(text) - seen, of="character")
            strips[most:] = [line((f"  {note if room is None else '… more (v)'}", palette.dim))]
            break
    return strips or [line(("  (empty)", palette.dim))]


def _broken(text: str) -> Iterator[tuple[str, int]]:
    """Yield the lines of ``text``, each with the offset of its end. Split lines longer than ``CUT``."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = end if end >= 0 else len(text)
        stop = min(end, start + CUT)
        yield text[start:stop], stop
        start = stop + 1 if stop == end else stop
