"""Choose how to send alerts: bell or OSC 9, a command, and a webhook. The monitor remembers the choice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, Literal

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tui.monitor.notifications import post_webhook, run_command
from tui.monitor.settings import Settings
from tui.text.sanitize import one_line

Way = Literal["bell", "osc9", "off"]
WAYS: tuple[tuple[Way, str], ...] = (
    ("bell", "the terminal's bell"),
    ("osc9", "a desktop notification (OSC 9: kitty, WezTerm, iTerm2, Windows Terminal, foot)"),
    ("off", "no alert in the terminal"),
)
TRIAL = "kernel-tui: this is a test alert"


class AlertsScreen(ModalScreen[Settings | None]):
    """A dialog that returns the chosen settings, or None if the user cancels. ``ring`` sends a test alert to the
    terminal.
    """

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

    def __init__(self, settings: Settings, ring: Callable[[Settings, str], None]) -> None:
        super().__init__()
        self._ring = ring
        self._settings = settings

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(
                "Alerts: new best kernels, waiting prompts, used-up budgets, stalled or dead engines, "
                "and ended searches",
                markup=False,
            )
            yield OptionList(*(Option(f"{way}: {about}") for way, about in WAYS), markup=False, id="ways")
            yield Static("Command to run, with the alert as the last argument and in KERNEL_TUI_NEWS", markup=False)
            yield Input(self._settings.command, placeholder="for example: notify-send kernel-tui", id="command")
            yield Static('Webhook, which receives a POST of {"text": "the alert"}', markup=False)
            yield Input(self._settings.webhook, placeholder="https://…", id="webhook")
            yield Static("enter: save    ctrl+t: test    tab: next field    esc: cancel", markup=False)
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
        """Send a test alert in every chosen way, and show the outcome."""
        settings = self._chosen()
        self._ring(settings, TRIAL)
        self.query_one("#outcome", Static).update("Testing …")
        self.run_worker(self._deliver(settings), exclusive=True)

    async def _deliver(self, settings: Settings) -> None:
        outcomes = [{"bell": "the bell rang", "osc9": "OSC 9 was sent", "off": "no sound"}[settings.notify]]
        if settings.command:
            failure = await asyncio.to_thread(run_command, settings.command, TRIAL)
            outcomes.append(failure or "the command ran")
        if settings.webhook:
            failure = await asyncio.to_thread(post_webhook, settings.webhook, TRIAL)
            outcomes.append(failure or "the webhook accepted the alert")
        self.query_one("#outcome", Static).update(one_line("; ".join(outcomes), 300))

    def _chosen(self) -> Settings:
        way = WAYS[self.query_one("#ways", OptionList).highlighted or 0][0]
        command, webhook = (self.query_one(name, Input).value.strip() for name in ("#command", "#webhook"))
        return replace(self._settings, notify=way, command=command, webhook=webhook)
