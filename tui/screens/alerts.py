"""How news reaches a person who looks elsewhere: bell or OSC 9, their own command, a webhook. Kept for next time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tui.news import post_webhook, run_command
from tui.sanitize import one_line
from tui.settings import Settings

if TYPE_CHECKING:
    from tui.app import MonitorApp

Way = Literal["bell", "osc9", "off"]
WAYS: tuple[tuple[Way, str], ...] = (
    ("bell", "the terminal's bell"),
    ("osc9", "a notification of the desktop (OSC 9: kitty, WezTerm, iTerm2, Windows Terminal, foot)"),
    ("off", "neither"),
)
TRIAL = "kernel-tui: this is how news will reach you"


class AlertsScreen(ModalScreen[Settings | None]):
    """Dismisses with the settings to keep, None to leave them as they were."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "cancel", show=False),
        Binding("ctrl+s", "keep", "keep", show=False, priority=True),
        Binding("ctrl+t", "try_it", "try it", show=False, priority=True),
    ]
    DEFAULT_CSS = """
    AlertsScreen { align: center middle; }
    AlertsScreen > Vertical {
        width: 90%; max-width: 100; height: auto; max-height: 100%; padding: 0 2; background: $surface;
        border: round $primary;
    }
    AlertsScreen OptionList { height: 3; background: $surface; border: none; }
    AlertsScreen OptionList:focus { border: none; }
    AlertsScreen Static { height: auto; }
    AlertsScreen #outcome { color: $text-accent; }
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static("News: a new best kernel, a stalled or dead engine, a spent budget, the end", markup=False)
            yield OptionList(*(Option(f"{way}: {about}") for way, about in WAYS), markup=False, id="ways")
            yield Static("A command; it gets the news as its last argument and in KERNEL_TUI_NEWS", markup=False)
            yield Input(self._settings.command, placeholder="such as: notify-send kernel-tui", id="command")
            yield Static('A webhook; it is sent {"text": "the news"}', markup=False)
            yield Input(self._settings.webhook, placeholder="https://…", id="webhook")
            yield Static("enter: keep    ctrl+t: try it    tab: next    esc: cancel", markup=False)
            yield Static("", markup=False, id="outcome")

    def on_mount(self) -> None:
        ways = self.query_one("#ways", OptionList)
        ways.highlighted = [way for way, _ in WAYS].index(self._settings.notify)
        ways.focus()

    def on_option_list_option_selected(self) -> None:
        self.action_keep()

    def on_input_submitted(self) -> None:
        self.action_keep()

    def action_keep(self) -> None:
        self.dismiss(self._chosen())

    async def action_try_it(self) -> None:
        """Send a news every way that is chosen, and say what came of it."""
        settings = self._chosen()
        cast("MonitorApp", self.app).ring(settings, TRIAL)
        self.query_one("#outcome", Static).update("trying …")
        self.run_worker(self._deliver(settings), exclusive=True)

    async def _deliver(self, settings: Settings) -> None:
        outcomes = [{"bell": "the bell was rung", "osc9": "OSC 9 was sent", "off": "no sound"}[settings.notify]]
        if settings.command:
            failure = await asyncio.to_thread(run_command, settings.command, TRIAL)
            outcomes.append(failure or "the command ran")
        if settings.webhook:
            failure = await asyncio.to_thread(post_webhook, settings.webhook, TRIAL)
            outcomes.append(failure or "the webhook took it")
        self.query_one("#outcome", Static).update(one_line("; ".join(outcomes), 300))

    def _chosen(self) -> Settings:
        way = WAYS[self.query_one("#ways", OptionList).highlighted or 0][0]
        command, webhook = (self.query_one(name, Input).value.strip() for name in ("#command", "#webhook"))
        return replace(self._settings, notify=way, command=command, webhook=webhook)
