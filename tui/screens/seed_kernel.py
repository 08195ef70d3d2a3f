"""Seed a kernel: from a file, by pasting, or in the editor."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from msgspec import Struct
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea

from engine.problem.spec import FORM_OF_SUFFIX, Form
from engine.state import ProblemState
from engine.text_file import UnreadableFile, read_text
from tui.sanitize import one_line


class KernelWish(Struct, frozen=True):
    """``source`` is None where the person wants the editor. ``form`` is None for the problem's own."""

    source: str | None
    text: str
    form: Form | None = None


class SeedKernelScreen(ModalScreen[KernelWish | None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "cancel", show=False),
        Binding("ctrl+e", "editor", "editor", show=False, priority=True),
        Binding("ctrl+s", "submit", "submit", show=False, priority=True),
    ]
    DEFAULT_CSS = """
    SeedKernelScreen { align: center middle; }
    SeedKernelScreen > Vertical {
        width: 90%; max-width: 110; height: 80%; padding: 1 2; background: $surface; border: round $primary;
    }
    SeedKernelScreen Static { height: auto; }
    SeedKernelScreen TextArea { height: 1fr; margin: 1 0; }
    SeedKernelScreen #problem { color: $text-error; }
    """

    def __init__(self, problem: ProblemState) -> None:
        super().__init__()
        self._problem = problem

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(f"Seed a .{self._problem.form} kernel for {one_line(self._problem.id, 60)}", markup=False)
            yield Input(placeholder=f"path of a .{self._problem.form} file, then enter", id="path")
            yield TextArea(
                "", id="pasted", soft_wrap=False, tab_behavior="focus", placeholder="or its source, pasted; then ctrl+s"
            )
            yield Static("enter: file   ctrl+s: pasted text   ctrl+e: $EDITOR   esc: cancel", markup=False)
            yield Static("", markup=False, id="problem")

    def on_mount(self) -> None:
        self.query_one("#path", Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        path = Path(event.value.strip()).expanduser()
        try:
            source = read_text(path)
        except UnreadableFile as error:
            self._complain(f"Cannot be read: {error}")
            return
        form = FORM_OF_SUFFIX.get(path.suffix)
        if form is None:
            self._complain(f"{path.name}: a kernel file ends in {', '.join(FORM_OF_SUFFIX)}.")
            return
        self.dismiss(KernelWish(source, f"seeded from {path.name}", form))

    def action_submit(self) -> None:
        text = self.query_one("#pasted", TextArea).text
        if text.strip():
            self.dismiss(KernelWish(text, "seeded by pasting"))
        else:
            self._complain("Nothing is pasted yet.")

    def action_editor(self) -> None:
        self.dismiss(KernelWish(None, "seeded from the editor"))

    def _complain(self, text: str) -> None:
        self.query_one("#problem", Static).update(one_line(text, 300))
