"""The session picker: a list of all saved sessions, newest first, then the examples that ship with kernel-tui. The
picker can also compare marked sessions.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from engine.config.tolerance import short_caption
from engine.session.store import SessionError, SessionPaths, SessionSummary, list_sessions
from tui.compare.comparison import MOST
from tui.monitor.settings import Settings, load_settings
from tui.monitor.terminal import keyboard
from tui.monitor.terminal.terminal import exit_code_of, shows_unicode
from tui.monitor.theme.depth import color_depth, prefer_no_color, theme_for
from tui.text import format as fmt
from tui.text.program import as_typed
from tui.text.sanitize import one_line
from tui.view.next_steps import note_of

if TYPE_CHECKING:
    from tui.view.session_figures import FollowedSession

REFRESH_S = 5.0
KEYS = "enter open    space mark    c compare    q quit    ? help"
HELP = f"""\
enter, click   open the session
j k, ↓ ↑       select the next or previous session
space          mark the session, or unmark it; at most {MOST} sessions
c              compare the marked sessions; if only one is marked,
               compare it with the selected session
q              quit
? esc          close this help"""
NAME_WIDTH = 28
STATE_WIDTH = 15
INDENT = 2 + STATE_WIDTH
BESTS_LEAST = 60
"""Minimum free width, in cells, for showing the speedups on the same line as the session's name."""
STYLES = {"running": "bold green", "finished": "green", "stopped": "yellow", "died": "bold red", "unreadable": "red"}


class PickerApp(App[Path]):
    """An app that returns the chosen session's directory, or None if the user quits."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "leave", show=False),
        Binding("question_mark", "help", "help", show=False),
        Binding("escape", "close_help", "close help", show=False),
        Binding("j", "down", "down", show=False),
        Binding("k", "up", "up", show=False),
        Binding("space", "mark", "mark", show=False),
        Binding("c", "compare", "side by side", show=False),
    ]
    CSS = """
    PickerApp OptionList { height: 1fr; border: none; background: $background; }
    PickerApp Static { height: 1; background: $panel; padding: 0 1; }
    PickerApp #help { height: auto; display: none; }
    """
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, root: Path, *, settings: Settings | None = None) -> None:
        keyboard.install()
        prefer_no_color()
        super().__init__()
        self._settings = settings if settings is not None else load_settings()
        chosen = self._settings.ascii_glyphs
        self.ascii_only = chosen if chosen is not None else not shows_unicode()
        self._root = root
        self._shown: list[SessionSummary] = []
        self._marked: list[Path] = []

    def save_screenshot(
        self, filename: str | None = None, path: str | None = None, time_format: str | None = None
    ) -> str:
        """Save the screen as an SVG file in the sessions directory, and return its path. Raises OSError."""
        return super().save_screenshot(filename, path or str(self._root), time_format)

    def compose(self) -> ComposeResult:
        yield Static(f"Sessions in {one_line(str(self._root), 200)}", markup=False, id="title")
        self.choices = OptionList(id="sessions", markup=False)
        self.keys = Static(KEYS, markup=False, id="keys")
        self.help_lines = Static(HELP.replace("↓ ↑", "down up") if self.ascii_only else HELP, markup=False, id="help")
        yield self.choices
        yield self.help_lines
        yield self.keys

    @property
    def _room(self) -> int:
        """Return the width available for an entry, without padding and scrollbar."""
        return max(40, self.size.width - 5)

    async def on_resize(self) -> None:
        if self._shown:
            self._show(self._shown)

    async def on_mount(self) -> None:
        depth = "truecolor" if self.is_headless else color_depth(self.console)
        theme = theme_for("none" if self.no_color else depth, self._settings.theme)
        if theme in self.available_themes:
            self.theme = theme
        await self._refill()
        self.set_interval(REFRESH_S, self._refill)

    async def _refill(self) -> None:
        found = await asyncio.to_thread(_listed, self._root)
        if found == self._shown:
            return
        self._show(found)

    def _show(self, found: list[SessionSummary]) -> None:
        self._shown = found
        choices = self.choices
        before = choices.highlighted
        choices.clear_options()
        self._marked = [directory for directory in self._marked if any(one.directory == directory for one in found)]
        entries = [Option(entry(one, self._room, marked=one.directory in self._marked)) for one in found]
        choices.add_options(entries or [Option("There are no sessions yet.", disabled=True)])
        choices.highlighted = min(before or 0, len(found) - 1) if found else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.exit(self._shown[event.option_index].directory)

    def action_down(self) -> None:
        self.choices.action_cursor_down()

    def action_up(self) -> None:
        self.choices.action_cursor_up()

    def action_help(self) -> None:
        """Show the keys and what they do, or hide them."""
        self.help_lines.display = not self.help_lines.display

    def action_close_help(self) -> None:
        """Hide the help. Esc never quits, because in other screens it only goes back."""
        if not self.help_lines.display:
            self._say(f"Press q to quit.    {KEYS}")
        self.help_lines.display = False

    def action_mark(self) -> None:
        """Mark the session for a comparison, or unmark it."""
        choices = self.choices
        if (place := choices.highlighted) is None or place >= len(self._shown):
            return
        one = self._shown[place]
        if one.directory in self._marked:
            self._marked.remove(one.directory)
        elif len(self._marked) == MOST:
            self._say(f"You can mark at most {MOST} sessions.")
            return
        else:
            self._marked.append(one.directory)
        choices.replace_option_prompt_at_index(place, entry(one, self._room, marked=one.directory in self._marked))
        self._say(f"{len(self._marked)} marked    {KEYS}" if self._marked else KEYS)
        choices.highlighted = min(place + 1, len(self._shown) - 1)

    def action_compare(self) -> None:
        """Compare the marked sessions. If only one session is marked, compare it with the selected session."""
        chosen = list(self._marked)
        place = self.choices.highlighted
        if len(chosen) == 1 and place is not None and self._shown[place].directory not in chosen:
            chosen.append(self._shown[place].directory)
        if len(chosen) < 2:
            self._say("Mark at least two sessions with space, then press c to compare them.")
            return
        self._say("Reading …")
        self.run_worker(self._compare(chosen), exclusive=True)

    async def _compare(self, chosen: list[Path]) -> None:
        from tui.monitor.screens.compare import SessionsScreen

        try:
            sessions = await asyncio.to_thread(_followed, chosen)
        except SessionError as error:
            self._say(one_line(as_typed(str(error)), 400))
            return
        self._say(KEYS)
        await self.push_screen(SessionsScreen(sessions))

    def _say(self, text: str) -> None:
        self.keys.update(text)


def _listed(root: Path) -> list[SessionSummary]:
    """Return the sessions under ``root``, with the notes of ``kernel-tui sessions``. Examples come last."""
    found = [replace(one, note=note_of(one)) for one in list_sessions(root)]
    return sorted(found, key=lambda one: one.is_example)


def _followed(chosen: list[Path]) -> list[FollowedSession]:
    from tui.view.session_figures import FollowedSession

    sessions: list[FollowedSession] = []
    try:
        for directory in chosen:
            sessions.append(FollowedSession(SessionPaths.at(directory)))
    except SessionError:
        for session in sessions:
            session.close()
        raise
    return sessions


def entry(one: SessionSummary, width: int, *, marked: bool = False) -> Text:
    """Format a session's entry: mark, state, name, time, verdicts and best speedups.

    On a narrow screen, the speedups are on a second line.
    """
    bests = "  ".join([short_caption(one.tolerance), *sorted(one.bests)]) if one.best else ""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.created)) if one.created else " " * 16
    name, verdicts = fmt.pad(one_line(one.name, 60), NAME_WIDTH), f" {when} {one.verdicts:>6} verdicts"
    head = Text.assemble(
        ("+ " if marked else "  ", "bold"),
        (f"{one.state_words:<{STATE_WIDTH}}", "" if one.is_example else STYLES.get(one.state, "")),
        (name, "bold"),
        verdicts,
    )
    found = one_line(bests or as_typed(one.note), 300)
    if width - head.cell_len >= BESTS_LEAST:
        return head.append("  " + fmt.fit(found, width - head.cell_len - 2))
    return head.append("\n" + " " * INDENT + fmt.fit(found, width - INDENT), "dim")


def pick_session(root: Path) -> SessionPaths | None:
    """Let the user choose a session under ``root``. Returns None if the user quits.

    Raises SystemExit after an exception in the app.
    """
    app = PickerApp(root)
    chosen = app.run()
    if code := exit_code_of(app):
        sys.exit(code)
    return SessionPaths.at(chosen) if chosen is not None else None
