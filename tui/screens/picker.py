"""The session picker: every saved session in one list, newest first."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from engine.session import SessionPaths, SessionSummary, list_sessions
from tui import format as fmt
from tui.sanitize import one_line
from tui.settings import Settings, load_settings

REFRESH_S = 5.0
STYLES = {"running": "bold green", "finished": "green", "stopped": "yellow", "died": "bold red", "unreadable": "red"}


class PickerApp(App[Path]):
    """Returns the directory of the chosen session, None if a person leaves."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape", "quit", "leave", show=False),
        Binding("j", "down", "down", show=False),
        Binding("k", "up", "up", show=False),
    ]
    CSS = """
    PickerApp OptionList { height: 1fr; border: none; background: $background; }
    PickerApp Static { height: 1; background: $panel; padding: 0 1; }
    """
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, root: Path, *, settings: Settings | None = None) -> None:
        super().__init__()
        self._settings = settings if settings is not None else load_settings()
        self._root = root
        self._shown: list[SessionSummary] = []

    def compose(self) -> ComposeResult:
        yield Static(f"Sessions in {one_line(str(self._root), 200)}", markup=False, id="title")
        yield OptionList(id="sessions", markup=False)
        yield Static("enter open    q leave", markup=False)

    async def on_mount(self) -> None:
        if self._settings.theme in self.available_themes:
            self.theme = self._settings.theme
        await self._refill()
        self.set_interval(REFRESH_S, self._refill)

    async def _refill(self) -> None:
        found = await asyncio.to_thread(list_sessions, self._root)
        if found == self._shown:
            return
        self._shown = found
        choices = self.query_one(OptionList)
        before = choices.highlighted
        choices.clear_options()
        choices.add_options([Option(entry(one)) for one in found] or [Option("no session yet", disabled=True)])
        choices.highlighted = min(before or 0, len(found) - 1) if found else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.exit(self._shown[event.option_index].directory)

    def action_down(self) -> None:
        self.query_one(OptionList).action_cursor_down()

    def action_up(self) -> None:
        self.query_one(OptionList).action_cursor_up()


def entry(one: SessionSummary) -> Text:
    """One session as a line: state, name, when, verdicts, best speedups."""
    bests = "  ".join(f"{name} {fmt.speedup(factor)}" for name, factor in sorted(one.best.items()))
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.created)) if one.created else " " * 16
    return Text.assemble(
        (f"{one.state:<11}", STYLES.get(one.state, "")),
        (fmt.pad(one_line(one.name, 60), 28), "bold"),
        f"{when}  {one.verdicts:>6} verdicts  ",
        one_line(bests or one.note, 300),
        no_wrap=True,
        overflow="ellipsis",
    )


def pick_session(root: Path) -> SessionPaths | None:
    """Let a person choose a session below ``root``; None if they leave."""
    chosen = PickerApp(root).run()
    return SessionPaths.at(chosen) if chosen is not None else None
