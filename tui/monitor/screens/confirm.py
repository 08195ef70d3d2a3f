"""Small dialogs: a yes-or-no question, and a notice. The first line contains the question or the statement, and the
other lines explain it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Key, Paste
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.text.program import as_typed
from tui.text.sanitize import clean_line

AGAIN_S = 1.0


def _css(screen: str, border: str) -> str:
    return f"""
    {screen} {{ align: center middle; }}
    {screen} > Vertical {{
        width: auto; max-width: 90%; height: auto; padding: 1 3; background: $surface; border: round ${border};
    }}
    {screen} Static {{ width: auto; max-width: 100%; }}
    {screen} #question {{ text-style: bold; }}
    {screen} #answers {{ margin-top: 1; color: $text-accent; }}
    """


class ConfirmScreen(ModalScreen[bool]):
    """A dialog that returns True only for the key y, so that typing ahead cannot confirm by mistake."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,Y", "answer(True)", "yes", show=False),
        Binding("n,N,escape,q,enter", "answer(False)", "no", show=False),
    ]
    DEFAULT_CSS = _css("ConfirmScreen", "error")

    def __init__(self, question: Callable[[], tuple[str, ...]], *, yes: str = "yes", no: str = "no") -> None:
        """``question`` returns the lines. The dialog calls ``question`` every second, because the lines may change
        while the dialog is open.
        """
        super().__init__()
        self._question = question
        self._answers = f"y: {yes}    n, enter: {no}"

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(markup=False, id="question")
            yield Static(markup=False, id="consequences")
            yield Static(self._answers, markup=False, id="answers")

    def on_mount(self) -> None:
        self._show()
        self.set_interval(AGAIN_S, self._show)

    def lines(self) -> tuple[str, ...]:
        """Return the lines of the question, without characters that a terminal would interpret."""
        return tuple(clean_line(as_typed(one), 300) for one in self._question())

    def _show(self) -> None:
        first, *rest = self.lines()
        self.query_one("#question", Static).update(first)
        self.query_one("#consequences", Static).update("\n".join(rest))

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class NoticeScreen(ModalScreen[None]):
    """A notice in place of a dialog with a text field.

    No letter key closes the notice, so that typed text does nothing. The notice then says that the text is discarded.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter", "dismiss(None)", "close", show=False)]
    DEFAULT_CSS = _css("NoticeScreen", "warning")

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self._lines = tuple(clean_line(as_typed(one), 300) for one in lines)

    def compose(self) -> ComposeResult:
        first, *rest = self._lines
        with Vertical():
            yield Static(first, markup=False, id="question")
            if rest:
                yield Static("\n".join(rest), markup=False)
            yield Static("esc, enter: close", markup=False, id="answers")

    def on_key(self, event: Key) -> None:
        if event.is_printable:
            self._say_discarded()

    def on_paste(self, event: Paste) -> None:
        self._say_discarded()

    def _say_discarded(self) -> None:
        self.query_one("#answers", Static).update("What you type here is discarded.    esc, enter: close")
