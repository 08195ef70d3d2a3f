"""A yes-or-no question. The first line asks; the other lines state the consequences."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.text.sanitize import clean_line


class ConfirmScreen(ModalScreen[bool]):
    """A dialog that returns True only for the key y, so that typing ahead cannot confirm by mistake."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,Y", "answer(True)", "yes", show=False),
        Binding("n,N,escape,q,enter", "answer(False)", "no", show=False),
    ]
    DEFAULT_CSS = """
    ConfirmScreen { align: center middle; }
    ConfirmScreen > Vertical {
        width: auto; max-width: 90%; height: auto; padding: 1 3; background: $surface; border: round $error;
    }
    ConfirmScreen Static { width: auto; max-width: 100%; }
    ConfirmScreen #question { text-style: bold; }
    ConfirmScreen #answers { margin-top: 1; color: $text-accent; }
    """

    def __init__(self, question: tuple[str, ...], *, yes: str = "yes", no: str = "no") -> None:
        super().__init__()
        self._question = tuple(clean_line(one, 300) for one in question)
        self._answers = f"y: {yes}    n, enter: {no}"

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._question[0], markup=False, id="question")
            for text in self._question[1:]:
                yield Static(text, markup=False)
            yield Static(self._answers, markup=False, id="answers")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)
