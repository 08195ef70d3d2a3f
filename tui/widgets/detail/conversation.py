"""Tab Calls: those that wrote an idea or a kernel, with prompt, reply, tokens and price; and the text so far
of those under way. Replies are shown by their beginnings, prompts not at all, until somebody asks for the whole."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator

import msgspec
from msgspec import Struct, field
from rich.style import Style
from textual.strip import Strip

from engine.models.protocol import Prompt, call_name, failure_words
from engine.proposers.partial import Partial
from engine.spend import MANUAL, CallState
from engine.state import VariantState
from tui import format as fmt
from tui.conversation import Calls, Turn, conversation_of, text_so_far, who_wrote
from tui.model import Model
from tui.palette import Palette
from tui.row import Row
from tui.sanitize import MAX_LINE, MAX_LINES, clean_lines, left_out, lines_in, one_line
from tui.widgets.detail.text import wrapped
from tui.widgets.lines import Part, line

LIVE_LINES, LIVE_CALLS = 12, 4
"""Last lines of a reply that streams, and of how many replies."""
LISTEN_S = 0.2
LAST_LINES, EARLIER_LINES = 60, 8
"""First lines of the last reply of a conversation, and of those before it."""
KEPT_TEXTS = 6
CUT = MAX_LINE - 100
ENDS = {"stop": "", "length": "cut off at the output limit", "refusal": "refused by the model or its filter"}


class Conversation(Struct):
    """What the tab shows of ``model``. ``whole``: prompts and replies in full."""

    model: Model
    whole: bool = False
    live: bool = False
    """Whether a call under way is on show, so that somebody should look again soon."""
    _calls: Calls = field(default_factory=Calls)
    _turns: list[Turn] = field(default_factory=list)
    _partials: dict[str, Partial] = field(default_factory=dict)
    _heard: tuple[tuple[str, ...], float] = ((), 0.0)
    _texts: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _drawn: tuple[tuple[object, ...], list[Strip]] | None = None

    def look(self, row: Row | None, subject: VariantState | None) -> tuple[object, ...]:
        """What the lines depend on now; remembers it for ``lines``."""
        self._turns = conversation_of(self.model.state, self._calls, row, subject)
        moving = [turn.call for turn in self._turns if turn.call.flying or turn.call.wait_s is not None]
        self.live = bool(moving) and self.model.link.kind in ("live", "stalled", "replay")
        self._listen([call for call in moving if call.flying][:LIVE_CALLS])
        second = int(self.model.now()) if self.live else 0
        return (*self._settled(), self.model.link.kind, second, *((n, p.characters) for n, p in self._partials.items()))

    def _listen(self, flying: list[CallState]) -> None:
        """Read what calls under way have said, unless that was just done."""
        whom, now = (self.model.link.kind, *(call.id for call in flying)), time.monotonic()
        if whom == self._heard[0] and now - self._heard[1] < LISTEN_S:
            return
        self._heard = (whom, now)
        found = ((call.id, text_so_far(self.model, call)) for call in flying)
        self._partials = {name: partial for name, partial in found if partial is not None}

    def lines(self, row: Row | None, subject: VariantState | None, palette: Palette, width: int) -> list[Strip]:
        """After ``look``. Raises SessionError if a text cannot be read."""
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
        """What all but the calls under way depend on."""
        return (
            self.whole,
            *((one.id, one.attempts, one.flying, one.reply, one.wait_s) for one in (turn.call for turn in self._turns)),
        )

    def _head(self, palette: Palette) -> list[Strip]:
        count = len(self._turns)
        more = "shortens them" if self.whole else "shows the prompts and replies whole"
        return [line((f"{count} call{'' if count == 1 else 's'}; v {more}", palette.dim))]

    # One call

    def _moving(self, turn: Turn, palette: Palette, width: int) -> Iterator[Strip]:
        call, partial = turn.call, self._partials.get(turn.call.id)
        yield from self._title(turn, palette)
        since = fmt.age(self.model.now() - call.started_at)
        if call.provider == MANUAL:
            how = "" if self.model.link.kind == "replay" else " (I answers it)"
            yield line((f"waits for a reply by hand for {since}{how}: {call_name(call.site)}", palette.warn))
        elif self.model.link.kind not in ("live", "stalled", "replay"):
            yield line(("was under way when the engine ended; one that is resumed asks again", palette.warn))
        elif partial is None:
            tried = f", attempt {call.attempts}" if call.attempts > 1 else ""
            yield line((f"under way for {since}{tried}; no word yet", palette.running))
        else:
            yield line((f"writes for {since}, {partial.characters:,} characters so far", palette.running))
        if partial is not None:
            said = clean_lines(partial.text[-LIVE_LINES * max(20, width) :])[-LIVE_LINES:]
            tail = [strip for text in said for strip in wrapped(text, palette.text, width, 2) or [line("")]]
            yield from tail[-LIVE_LINES:]
        if self.whole:
            yield from self._prompt(call, palette, width)

    def _ended(self, turn: Turn, last: bool, palette: Palette, width: int) -> Iterator[Strip]:
        call = turn.call
        yield from self._title(turn, palette)
        yield from wrapped("; ".join(_figures(call)), palette.text, width)
        for text, style in _troubles(call, self.model.now(), palette):
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
            yield line(("prompt, as it was recorded", palette.accent))
            yield from _block(text, palette, width, None)
            return
        for name, part in (("system prompt", prompt.system), ("prompt", prompt.user)):
            yield line((name, palette.accent))
            yield from _block(part, palette, width, None)

    def _text(self, digest: str) -> str:
        """A recorded text; the few that were shown last are kept."""
        if (known := self._texts.get(digest)) is None:
            known = self._texts[digest] = self.model.source.text(digest)
        self._texts.move_to_end(digest)
        while len(self._texts) > KEPT_TEXTS:
            self._texts.popitem(last=False)
        return known


def _figures(call: CallState) -> Iterator[str]:
    """How long it took, what it read and wrote, what it cost."""
    seconds = call.ended_at - call.started_at if call.ended_at is not None else None
    took = "" if seconds is None else f"{max(0.0, seconds):.1f}s" if seconds < 10 else fmt.age(seconds)
    if call.reply is not None and took:
        yield f"answered after {took}" + (f", at attempt {call.attempts}" if call.attempts > 1 else "")
    elif took:
        yield f"{call.attempts} attempt{'' if call.attempts == 1 else 's'} in {took}"
    usage = call.usage
    if usage is not None and usage.total:
        cached = f" ({usage.cached:,} cached)" if usage.cached else ""
        thought = f" ({usage.reasoning:,} thought)" if usage.reasoning else ""
        yield f"{usage.input:,} tokens in{cached}, {usage.output:,} out{thought}"
        yield f"${call.dollars:.4f}" if call.dollars is not None else "price unknown"
    elif usage is None and call.reply is not None:
        yield "the server did not say how many tokens"
    if call.tier not in ("", "default", "auto"):
        yield f"tier {one_line(call.tier, 40)}"


def _troubles(call: CallState, now: float, palette: Palette) -> Iterator[tuple[str, Style]]:
    if call.failure is not None:
        yield f"{failure_words(call.failure)}: {one_line(call.message, 600)}", palette.bad
    if call.wait_s is not None and call.ended_at is not None:
        yield f"asked again in {fmt.age(call.ended_at + call.wait_s - now)}", palette.warn
    elif call.failure is not None:
        yield "given up", palette.dim
    if call.reply is not None and (end := ENDS.get(call.finish)):
        yield end, palette.warn


def _block(text: str, palette: Palette, width: int, room: int | None) -> list[Strip]:
    """A text, indented; of a longer one the first ``room`` lines on the screen. Code between fences has a colour."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")
    most = MAX_LINES if room is None else room
    strips: list[Strip] = []
    code = False
    for one, seen in _broken(text):
        fence = one.lstrip().startswith("```")
        style = palette.dim if fence else palette.string if code else palette.text
        strips += wrapped(one, style, width, 2) if one else [line("")]
        code ^= fence
        if len(strips) > most:
            unseen = lines_in(text[seen:])
            note = left_out(unseen) if unseen > 1 else left_out(len(text) - seen, of="character")
            strips[most:] = [line((f"  {note if room is None else '… more (v)'}", palette.dim))]
            break
    return strips or [line(("  (empty)", palette.dim))]


def _broken(text: str) -> Iterator[tuple[str, int]]:
    """The lines of ``text``, those that are too long to be shown in parts; each with the place where it ends."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = end if end >= 0 else len(text)
        stop = min(end, start + CUT)
        yield text[start:stop], stop
        start = stop + 1 if stop == end else stop
