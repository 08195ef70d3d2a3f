"""Seed a kernel: from a file, by pasting, or in the editor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec import Struct
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea

from engine.problem.c_header import COMPILED, prototype
from engine.problem.spec import LANGUAGE_OF_SUFFIX, LANGUAGE_TITLES, Language, language_of_file, suffix_of
from engine.session.state.session_state import IdeaState, ProblemState
from engine.system.text_file import UnreadableFile, read_text
from tui.monitor.terminal.path_completion import Completion, complete, expanded, is_file
from tui.text.sanitize import one_line


class KernelRequest(Struct, frozen=True):
    """The kernel to seed.

    If ``source`` is None, the monitor opens the editor. If ``language`` is None, the problem's own language applies.
    ``file`` is the absolute path of the source, or "" without a file.
    """

    source: str | None
    text: str
    language: Language | None = None
    file: str = ""


class PathInput(Input):
    """An input for a path. Tab completes the path, or goes to the next field if the path is empty or complete."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "complete", "complete the path", show=False)]

    def action_complete(self) -> None:
        found = complete(self.value, LANGUAGE_OF_SUFFIX) if self.value else Completion("")
        screen, typed = self.screen, self.value
        if found.text != typed:
            self.value = found.text
            self.cursor_position = len(found.text)
        elif not typed or is_file(typed):
            screen.focus_next()
        elif not found.candidates and isinstance(screen, SeedKernelScreen):
            screen.complain(f"No directory or kernel file ({', '.join(LANGUAGE_OF_SUFFIX)}) begins with {typed}")
        if isinstance(screen, SeedKernelScreen):
            screen.suggest(found)


class SeedKernelScreen(ModalScreen[KernelRequest | None]):
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
    SeedKernelScreen #candidates { color: $text-muted; max-height: 3; }
    SeedKernelScreen #problem { color: $text-error; }
    """

    def __init__(
        self,
        problem: ProblemState,
        idea: IdeaState | None = None,
        waiting: Sequence[IdeaState] = (),
        *,
        same_source: Callable[[str], str | None],
        only_pasted: bool = False,
    ) -> None:
        """``idea`` is the idea that the kernel implements, if any. ``waiting`` contains the ideas without a kernel.

        ``same_source`` returns the kernel that already has a source, if any. ``only_pasted`` is true if the user must
        not read this machine's files.
        """
        super().__init__()
        self._problem, self._idea, self._waiting = problem, idea, waiting
        self._same_source = same_source
        self._only_pasted = only_pasted
        self._suggested = Completion("")

    def compose(self) -> ComposeResult:
        with Vertical():
            languages = " or ".join(LANGUAGE_TITLES[language] for language in self._problem.languages)
            yield Static(f"Seed a {languages} kernel for {one_line(self._problem.id, 60)}", markup=False)
            compiled = next((language for language in self._problem.languages if language in COMPILED), None)
            if compiled is not None:
                yield Static(one_line(prototype(self._problem.spec, compiled), 600), markup=False)
            if self._idea is not None:
                yield Static(f"For idea {self._idea.id}: {one_line(self._idea.text, 300)}", markup=False)
            elif self._waiting:
                names = ", ".join(one.id for one in self._waiting[:5])
                how = "To write a kernel for an idea, cancel, select the idea, and press e."
                hint = f"Ideas without a kernel: {names}. {how}"
                yield Static(hint, markup=False)
            if not self._only_pasted:
                suffixes = " or ".join(dict.fromkeys(suffix_of(language) for language in self._problem.languages))
                yield PathInput(placeholder=f"path of a {suffixes} file (tab completes)", id="path")
            yield Static("", markup=False, id="problem")
            yield Static("", markup=False, id="candidates")
            here = "paste its source here" if self._only_pasted else "or paste its source here"
            yield TextArea("", id="pasted", soft_wrap=False, tab_behavior="focus", placeholder=here)
            from_file, editor = ("", "") if self._only_pasted else ("enter: submit the file   ", "ctrl+e: $EDITOR   ")
            yield Static(f"{from_file}ctrl+s: submit the pasted text   {editor}esc: cancel", markup=False)

    def on_mount(self) -> None:
        self.query_one("#pasted" if self._only_pasted else "#path").focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.complain("")
        if event.value != self._suggested.text:
            self.suggest(Completion(event.value))

    def suggest(self, found: Completion) -> None:
        """Show the possible completions of the path."""
        self._suggested = found
        self.query_one("#candidates", Static).update(one_line(", ".join(found.candidates), 400))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if not event.value.strip():
            self.complain("Type the path of a kernel file, or paste its source below.")
            return
        path = expanded(event.value.strip())
        try:
            source = read_text(path)
        except UnreadableFile as error:
            self.complain(f"Cannot read the file: {error}")
            return
        language = language_of_file(path.suffix, source)
        if language is None:
            self.complain(f"{path.name} is not a kernel file: its name must end in {', '.join(LANGUAGE_OF_SUFFIX)}.")
            return
        self._submit(KernelRequest(source, f"seeded from {path.name}", language, str(path.resolve())), source)

    def action_submit(self) -> None:
        text = self.query_one("#pasted", TextArea).text
        if text.strip():
            self._submit(KernelRequest(text, "seeded by pasting"), text)
        else:
            self.complain("Paste a kernel first.")

    def _submit(self, request: KernelRequest, source: str) -> None:
        """Close the dialog, unless the engine would refuse the source because a kernel already has it."""
        if (same := self._same_source(source)) is None:
            self.dismiss(request)
        else:
            again = f"To judge {same} again, press esc, select it, and press r."
            self.complain(f"{same} already has this source. Change the source. {again}")

    def action_editor(self) -> None:
        self.dismiss(KernelRequest(None, "seeded from the editor"))

    def complain(self, text: str) -> None:
        """Say what is wrong with the path or the pasted text."""
        self.query_one("#problem", Static).update(one_line(text, 300))
