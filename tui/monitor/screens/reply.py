"""Answer prompts by hand: copy a prompt, ask any model, and paste its reply."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static, TextArea
from textual.widgets.option_list import Option

from engine.proposers.mailbox import MAX_READ_BYTES, RULER, Mailbox
from engine.session.store import SessionError
from tui.monitor.host import Host
from tui.monitor.panes.detail.text import wrapped
from tui.monitor.panes.lines import LinesView, line
from tui.monitor.terminal.editor import EditorError
from tui.text.program import as_typed
from tui.text.sanitize import one_line
from tui.view.model import Model

REFRESH_S = 0.5
HINT = "tab: next field    ctrl+y: copy the prompt    ctrl+s: submit the reply    ctrl+e: $EDITOR    esc: close"


class ReplyScreen(ModalScreen[None]):
    """A dialog that writes replies to the session's mailbox, as ``kernel-tui reply`` does.

    The dialog works without a running engine. When the user resumes the session, the engine reads the replies.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", show=False),
        Binding("ctrl+s", "deliver", "submit", show=False, priority=True),
        Binding("ctrl+y", "copy_prompt", "copy the prompt", show=False, priority=True),
        Binding("ctrl+e", "editor", "editor", show=False, priority=True),
    ]
    DEFAULT_CSS = """
    ReplyScreen { align: center middle; }
    ReplyScreen > Vertical {
        width: 96%; max-width: 120; height: 94%; padding: 0 1; background: $surface; border: round $primary;
    }
    ReplyScreen Static { height: auto; }
    ReplyScreen #title { text-style: bold; }
    ReplyScreen .label { color: $text-primary; }
    ReplyScreen OptionList { height: auto; max-height: 20%; background: $surface; border: none; padding: 0; }
    ReplyScreen OptionList:focus { border: none; }
    ReplyScreen LinesView { height: 3fr; background: $panel; }
    ReplyScreen TextArea { height: 2fr; border: none; padding: 0; background: $panel; }
    ReplyScreen #hint { color: $text-muted; }
    ReplyScreen #said { color: $text-warning; }
    ReplyScreen.-tall .label, ReplyScreen.-tall #hint { margin-top: 1; }
    ReplyScreen.-narrow > Vertical { width: 100%; }
    ReplyScreen.-short > Vertical { height: 100%; }
    """

    def __init__(self, model: Model, directory: Path, host: Host) -> None:
        super().__init__()
        self._host = host
        self._model = model
        self._mailbox = Mailbox(directory)
        self._waiting: list[str] = []
        self._left: list[str] | None = None
        self._answered: set[str] = set()
        self._prompt = ""

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static("Prompts that are waiting for a reply", markup=False, id="title")
            yield OptionList(markup=False, id="calls")
            yield Static("Prompt for the model", markup=False, classes="label")
            yield LinesView(id="prompt")
            yield Static("Paste the model's whole reply here", markup=False, classes="label")
            yield TextArea("", id="reply", soft_wrap=True, tab_behavior="focus")
            yield Static("", markup=False, id="said")
            yield Static(HINT, markup=False, id="hint")

    def on_mount(self) -> None:
        self._look()
        self.query_one("#calls").focus()
        self.set_interval(REFRESH_S, self._look)

    @property
    def call(self) -> str | None:
        """The selected prompt."""
        place = self.query_one("#calls", OptionList).highlighted
        return self._waiting[place] if place is not None and place < len(self._waiting) else None

    def on_option_list_option_highlighted(self) -> None:
        self._show_prompt()

    def on_option_list_option_selected(self) -> None:
        self.query_one("#reply").focus()

    def on_paste(self, event: events.Paste) -> None:
        """Paste text into the reply even if the list or the prompt has the focus."""
        reply = self.query_one("#reply", TextArea)
        if not reply.has_focus:  # A focused text area inserts the text itself.
            reply.focus()
            reply.insert(event.text)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_prompt)

    def action_copy_prompt(self) -> None:
        if self.call is not None and self._prompt:
            self._host.copy_text(self._prompt, f"the prompt of {self.call}")
            self._say(f"Copied the prompt of {self.call} (OSC 52).")

    async def action_deliver(self) -> None:
        await self._deliver(self.query_one("#reply", TextArea).text)

    async def action_editor(self) -> None:
        call = self.call
        if call is None:
            return
        try:
            text = self._host.edit(self.query_one("#reply", TextArea).text, f"{call}.md")
        except EditorError as error:
            self._say(f"{error} Nothing was submitted.")
            return
        if text is None:
            self._say("Nothing changed, so nothing was submitted.")
        else:
            await self._deliver(text)

    async def _deliver(self, text: str) -> None:
        call = self.call
        if call is None:
            if self._waiting:
                self._say("Select the prompt that this text answers.")
            return
        if self._model.source.read_only:
            self._say("This monitor is read-only.")
        elif not text.strip():
            self._say("The reply is empty.")
        elif len(text.encode(errors="replace")) > MAX_READ_BYTES:
            self._say(f"The reply exceeds the maximum of {MAX_READ_BYTES >> 20} MiB.")
        elif call not in self._mailbox.waiting():
            self._say(f"{call} is no longer waiting for a reply.")
        elif call not in self._answered and self._mailbox.has_reply(call):
            self._say(f"{call} already has a reply from elsewhere, which the engine has not read yet.")
        else:
            try:
                await asyncio.to_thread(self._mailbox.deliver, call, text)
            except SessionError as error:
                self._say(str(error))
                return
            self._answered.add(call)
            self.query_one("#reply", TextArea).text = ""
            live = self._model.link.kind in ("live", "stalled")
            reads = "the engine will now read it" if live else "press esc, then R to resume the search"
            self._say(f"{call}: reply submitted; {reads}.")
            self._look()

    def _look(self) -> None:
        """Update the list of prompts. An answered prompt stays until the engine has read the reply."""
        found = self._mailbox.waiting()
        left = [call for call in found if not self._has_reply(call)]
        waiting = [*left, *(call for call in found if call not in left)]
        if waiting == self._waiting and self._left == left:
            return
        before, self._waiting, self._left = self.call, waiting, left
        choices = self.query_one("#calls", OptionList)
        choices.clear_options()
        choices.add_options([Option(_entry(call, answered=call not in left)) for call in waiting])
        if waiting:
            typed = self.query_one("#reply", TextArea).text.strip()
            keeps = before in left or (typed and before in waiting)  # The user's text answers that prompt.
            if typed and before is not None and before not in waiting:
                self._say(f"{before} is no longer waiting for a reply. Select the prompt that this text answers.")
                choices.highlighted = None
            else:
                choices.highlighted = waiting.index(before if keeps and before else (left or waiting)[0])
        title = f"{len(left)} prompt{' is' if len(left) == 1 else 's are'} waiting for a reply"
        self.query_one("#title", Static).update(title)
        self._show_prompt()

    def _has_reply(self, call: str) -> bool:
        return call in self._answered or self._mailbox.has_reply(call)

    def _show_prompt(self) -> None:
        view = self.query_one("#prompt", LinesView)
        palette, call = view.palette, self.call
        self._prompt = ""
        if call is None:
            said = "No prompt is selected." if self._waiting else "No prompt is waiting for a reply."
            view.set_lines([line((said, palette.dim))])
            return
        try:
            whole = (self._mailbox.outbox / f"{call}.md").read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            view.set_lines([line((f"Cannot read the prompt: {error}", palette.warn))])
            return
        self._prompt = whole.partition(f"{RULER}\n")[2] or whole
        whole = str(self._mailbox.outbox / f"{call}.md")
        width = view.scrollable_content_region.width
        view.set_lines(wrapped(self._prompt, palette.text, width, whole=whole, is_message=False))

    def _say(self, text: str) -> None:
        self.query_one("#said", Static).update(one_line(as_typed(text), 300))


def _entry(call: str, *, answered: bool) -> Text:
    done = "  answered, not read yet" if answered else ""
    return Text.assemble((one_line(call, 100), "bold"), (done, "green"), no_wrap=True, overflow="ellipsis")
