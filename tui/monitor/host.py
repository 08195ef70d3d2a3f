"""The protocol that screens use to call the app without importing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from textual.screen import Screen

from tui.monitor.steering.plans import History, Plan

Severity = Literal["information", "warning", "error"]


class Host(Protocol):
    """The app's methods that its screens call."""

    history: History

    @property
    def is_web(self) -> bool:
        """Whether the monitor runs in a browser. A user in a browser must not be able to read this machine's files or
        run programs on it.
        """

    def begin(self) -> None:
        """Start following the session. The screen calls this method once the first paint is done."""

    def say(self, text: str, *, severity: Severity = "information") -> None:
        """Show a notice in place of the key bar."""

    def why_not_steer(self, doing: str = "") -> str | None:
        """Return why a request would not reach an engine, or None if it would.

        ``doing`` says what the request asks the engine to do.
        """

    def steer(self, plan: Plan, then: Callable[[], None] | None = None) -> None:
        """Send the plan's request to the engine. ``then`` runs once the request is sent."""

    def start_engine(self) -> None:
        """Start an engine on a session that has no running engine."""

    def copy_text(self, text: str, what: str) -> None:
        """Copy ``text`` to the clipboard of the user's terminal. ``what`` names the text in the notice."""

    def edit(self, text: str, file_name: str) -> str | None:
        """Open ``text`` in the user's editor. Return the saved text, or None if nothing changed. Raises EditorError."""

    def open_dialog(self, screen: Screen[Any], done: Callable[[Any], None] | None = None) -> None:
        """Show a dialog. ``done`` receives the dialog's result, or None if the user canceled."""
