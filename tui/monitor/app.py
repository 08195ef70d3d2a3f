"""The monitor: a terminal app for one session. The app reads events and writes requests; it never searches."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.filter import LineFilter, NoColor
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from engine.session.records.events import CommandHandled, Recorded
from engine.session.records.requests import CancelStop, SeedIdea, SeedKernel, Stop
from engine.session.store import SessionDamaged, SessionError, SessionPaths, is_bundled
from tui.monitor.delay import after
from tui.monitor.event_feed import Feed
from tui.monitor.host import Severity
from tui.monitor.messages import FeedArrived, InputHandled
from tui.monitor.notifications import Messenger, News
from tui.monitor.screens.monitor import MonitorScreen
from tui.monitor.settings import THEMES, Settings, load_settings, save_settings
from tui.monitor.steering.plans import GONE, History, Plan, why_not_steer
from tui.monitor.terminal import keyboard
from tui.monitor.terminal.ascii_mode import PlainCharacters
from tui.monitor.terminal.farewell import print_parting
from tui.monitor.terminal.terminal import (
    CLEAR_SEQUENCE,
    OrphanWatch,
    clipboard_sequence,
    exit_code_of,
    notification_sequence,
    shows_unicode,
    tmux_clipboard,
)
from tui.monitor.theme.depth import Depth, color_depth, prefer_no_color, theme_for
from tui.text import format as fmt
from tui.text.program import as_typed
from tui.text.sanitize import clean_lines, clean_paste, one_line
from tui.view.model import Model, Pending
from tui.view.source import ALIVE, SessionSource, Source

if TYPE_CHECKING:
    from asyncio import Task

    from engine.daemon.launch import EngineStart

MAX_FIELD, MAX_PASTE = 4_000, 1 << 20
"""Maximum length of pasted text, in characters, in a one-line field and elsewhere. Textual measures each character
repeatedly, so longer text would be slow."""
FLUSH_S = 0.22
"""Minimum time between two screen updates, in seconds."""
READ_PER_S = 40.0
"""Reading speed, in characters per second."""
LATE_S = 0.5
"""Seconds after which the app treats a key or pasted text as handled, even if no message says so."""
TICK_S, ENDED_TICK_S = 1.0, 10.0
"""Seconds between two updates of the displayed ages, in a running session and in an ended session."""
_PLAIN = PlainCharacters()
START_POLL_S = 0.1
ANSWER_S = 5.0
"""Seconds after seeding an idea during which the user still expects the editor to open."""


class MonitorApp(App[int]):
    """The app that shows one session.

    ``start`` is an engine that is already starting. ``start_engine`` starts another engine on the session, or is None
    if this monitor cannot start one.
    """

    TITLE = "kernel-tui"
    CSS_PATH = "monitor.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-normal"), (170, "-wide"), (250, "-huge")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]  # noqa: RUF012
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "detach", "detach", show=False),
        Binding("ctrl+c", "interrupt", "interrupt", show=False),
        Binding("ctrl+l", "redraw", "redraw", show=False, priority=True),  # also over dialogs
    ]

    def action_suspend_process(self) -> None:
        """Suspend the whole process group, since ``make`` or a script may have started the monitor."""
        if self._driver is not None and self._driver.can_suspend:
            with self.suspend():
                os.killpg(0, signal.SIGTSTP)

    def __init__(
        self,
        source: Source,
        *,
        start: EngineStart | None = None,
        start_engine: Callable[[], EngineStart] | None = None,
        settings: Settings | None = None,
        ascii_only: bool | None = None,
    ) -> None:
        keyboard.install()
        prefer_no_color()
        super().__init__()
        self.settings = settings if settings is not None else load_settings()
        chosen = ascii_only if ascii_only is not None else self.settings.ascii_glyphs
        self.ascii_only = chosen if chosen is not None else not shows_unicode()
        self.model = Model(source)
        self.history = History()
        self.monitor_screen = MonitorScreen(self.model, self)
        self.start_failure: SessionError | None = None
        """The reason why the last engine start failed, if it did."""
        self._start = start
        self._start_engine = start_engine
        self._starting: Task[Any] | None = None
        self._plans: dict[int, Plan] = {}
        self._tasks: set[Task[None]] = set()
        self._feed = Feed(source, self._wake)
        self._damage: str | None = None
        """The reason why the monitor could not apply an event, if any. The monitor then skips all later events."""
        self._notified = False
        self._flushed_at = 0.0
        self.news = News(self.model)
        self._messenger = Messenger(self._news_failed)
        self._typed: deque[events.Key | events.Paste] = deque()
        """Keys and pasted texts that are not handled yet, oldest first."""
        self._acts_on: Widget | None = None
        """The widget that is handling the oldest key or pasted text, or None."""
        self._watch = OrphanWatch(self._orphaned)

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = [*super().get_line_filters()]
        if self.no_color:  # Textual itself would draw in shades of gray.
            filters = [NoColor()]
        return [*filters, _PLAIN] if self.ascii_only else filters

    def get_default_screen(self) -> Screen[Any]:
        return self.monitor_screen

    def on_mount(self) -> None:
        self._apply_theme(self.settings.theme)
        self._watch_signals()
        self._watch.start()

    def begin(self) -> None:
        """Start following the session.

        The screen calls this method after its first paint, so as not to delay that paint.
        """
        if not gc.isenabled():  # The command disabled garbage collection for a fast start.
            gc.freeze()
            gc.enable()
        self._feed.start()
        if self._start is not None:
            self._starting = asyncio.create_task(self._see_started(self._start))
        self.set_interval(TICK_S, self._tick)
        self.set_interval(ENDED_TICK_S, partial(self._tick, ended=True))

    def on_unmount(self) -> None:
        self._watch.stop()
        self._feed.stop()

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and self.monitor_screen.is_mounted:
            self.monitor_screen.key_bar.heed()
        if not isinstance(event, events.Key | events.Paste) or event.is_forwarded:
            await super().on_event(event)
            return
        self._typed.append(event)
        if len(self._typed) == 1:
            await self._type(event)

    async def _type(self, event: events.Key | events.Paste) -> None:
        """Handle a key or pasted text. Later input waits until this input is handled, because a key may move the focus
        or open a dialog. Over a slow connection, several keys arrive at once. Mouse clicks do not wait.
        """
        if not self._typed or self._typed[0] is not event or self._acts_on is not None:
            return
        self._acts_on = target = self.focused or self.screen
        if isinstance(event, events.Paste):  # Clean the text, since input fields show it unchanged.
            in_one_line = isinstance(target, Input)
            await super().on_event(events.Paste(clean_paste(event.text[: MAX_FIELD if in_one_line else MAX_PASTE])))
        else:
            await super().on_event(event)
        # This message returns to the app once the target has handled the input.
        target.post_message(InputHandled(event))
        self.set_timer(LATE_S, partial(self._handled, event))  # A key that closes its dialog may discard the message.

    def on_input_handled(self, message: InputHandled) -> None:
        # A key such as enter only posts a message. Another round trip lets this message act first.
        is_first = not message.again and bool(self._typed) and self._typed[0] is message.input
        again = InputHandled(message.input, again=True)
        if not is_first or self._acts_on is None or not self._acts_on.post_message(again):
            self._handled(message.input)

    def _handled(self, event: events.Key | events.Paste) -> None:
        if not self._typed or self._typed[0] is not event:
            return
        self._typed.popleft()
        target, self._acts_on = self._acts_on, None
        if not self._typed:
            return
        following = partial(self._type, self._typed[0])
        if target is self.focused:
            self.call_later(following)
        else:  # A new dialog may still have to choose its focus.
            self.screen.call_after_refresh(following)
            self.set_timer(LATE_S, following)

    # New events

    def _wake(self) -> None:
        """Tell the app that the feed has new events. The feed's thread calls this method."""
        if not self._notified:
            self._notified = True
            self.post_message(FeedArrived())

    def on_feed_arrived(self) -> None:
        # Show the engine's answer to a key press immediately.
        wait = 0.0 if self.model.pending else self._flushed_at + FLUSH_S - time.monotonic()
        if wait <= 0:
            self.flush()
        else:
            after(self, wait, self.flush)

    def flush(self) -> None:
        """Apply the new events and show what they changed."""
        if not self.is_running or not self.monitor_screen.is_attached:
            return
        self._notified = False
        self._flushed_at = time.monotonic()
        updates, trouble = self._feed.take()
        model, screen = self.model, self.monitor_screen
        link_before = model.link.kind
        trouble_before = model.trouble
        replaced = False
        fresh: list[Recorded] = []
        readings = linked = told = False
        for update in updates:
            model.take(update)
            if update.state is not None:
                replaced, self._damage = True, None
            readings |= bool(update.readings)
            linked |= update.link is not None
            for recorded in update.events if self._damage is None else ():
                try:
                    model.state.apply(recorded)
                except SessionDamaged as error:
                    self._damage = error.brief
                    break
                told |= model.story.note(model.state, recorded)
                model.history.note(model.state, recorded)
                if isinstance(recorded.event, CommandHandled):
                    self._answered(recorded.event)
                fresh.append(recorded)
        model.trouble = self._damage or trouble
        if linked and model.link.kind == "ended" and link_before in ALIVE:
            told |= self._give_up_pending()
        with self.batch_update():
            if replaced:
                screen.replace_state()
            if updates or model.trouble != trouble_before:
                screen.take(fresh, readings=readings, told=told)
        if replaced:
            self.news.catch_up()
        if news := self.news.look():
            self.alert("; ".join(news))

    def _tick(self, *, ended: bool = False) -> None:
        if not self.is_running or not self.monitor_screen.is_attached:
            return
        if self.model.opened and (self.model.link.kind == "ended") == ended:
            self.monitor_screen.tick()

    # Steering

    def why_not_steer(self, doing: str = "") -> str | None:
        """Return why a request would not reach an engine, or None if it would.

        ``doing`` says what the request asks the engine to do.
        """
        return why_not_steer(self.model, doing)

    def steer(self, plan: Plan, then: Callable[[], None] | None = None) -> None:
        """Send a plan's request and mark its row as pending. ``then`` runs once the request is sent."""
        self.history.sent(plan)
        task = asyncio.create_task(self._send(plan, then))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, plan: Plan, then: Callable[[], None] | None = None) -> None:
        model = self.model
        self._feed.hurry()
        try:
            number = await asyncio.to_thread(model.source.send, plan.command)
        except SessionError as error:
            self.history.unanswered(plan)
            self.say(error.brief, severity="error")
            return
        except BaseException:
            self.history.unanswered(plan)
            raise
        self._plans[number] = plan
        if model.link.kind == "ended" and then is None:  # The engine ended before it could read the request.
            model.pending[number] = Pending(number, plan.command, plan.node, plan.text, model.now())
            self._give_up_pending()
            self.monitor_screen.take([], told=True)
            return
        model.pending[number] = Pending(number, plan.command, plan.node, plan.text, model.now())
        if (handled := model.state.handled.get(number)) is not None:
            self._answered(handled)
        self.monitor_screen.take([])
        if then is not None:
            then()

    def _give_up_pending(self) -> bool:
        """Report the requests that the engine had not answered when it ended, and return whether there were any."""
        left = self.model.give_up_pending()
        for one in left:
            # Keep the plan, since the next engine may answer its request.
            if (plan := self._plans.get(one.number)) is not None:
                self.history.unanswered(plan)
            seeds = isinstance(one.command, SeedIdea | SeedKernel)  # Its node is the parent, or the problem.
            where = f" {one.node}" if one.node is not None and not seeds else ""
            later = "" if isinstance(one.command, Stop | CancelStop) else "; the engine will handle it after a resume"
            text = f"{one.text}{where}: the engine ended before handling this request{later}"
            self.model.story.say(self.model.now(), "warning", text)
            self.say(text, severity="warning")
        return bool(left)

    def _answered(self, handled: CommandHandled) -> None:
        pending = self.model.answered(handled)
        plan = self._plans.pop(handled.command, None)
        if plan is None:
            return
        self.history.answered(plan, handled)
        if not handled.ok:
            self.say(handled.message, severity="error")
            if isinstance(plan.command, SeedKernel) and handled.node is not None:
                self.monitor_screen.tree_view.select(handled.node)  # Select the kernel that already has this source.
            return
        self.say(handled.message)
        if isinstance(plan.command, SeedKernel | SeedIdea) and handled.node is not None and pending is not None:
            self.call_later(self._show_seeded, handled.node, self.model.now() - pending.sent_at)

    def _show_seeded(self, node: str, waited_s: float) -> None:
        """Select the new node.

        For an edited kernel, show its diff. For an idea that only the user can implement, open the editor if the engine
        has answered within ``ANSWER_S``.
        """
        screen = self.monitor_screen
        state = self.model.state
        if node in state.ideas and state.ideas[node].variants:
            node = state.ideas[node].variants[0]
        # This counts as a move by the user, so the cursor no longer follows the best kernel.
        screen.tree_view.select(node)
        variant = state.variants.get(node)
        if variant is not None and variant.parent is not None:
            screen.detail.against = "parent"
            screen.detail.turn("Diff")
        idea = state.ideas.get(node)
        if idea is not None and idea.needs_kernel and waited_s < ANSWER_S and self.screen is screen:
            screen.call_after_refresh(screen.steering.write_for, idea)

    def start_engine(self) -> None:
        """Start an engine on a session that has no running engine."""
        if self.model.link.gone:
            self.say(GONE, severity="warning")
        elif self.model.link.kind in ("live", "stalled"):
            self.say(f"The engine is running (pid {self.model.link.pid}).")
        elif self.model.link.kind == "starting":
            self.say("The engine is starting.")
        elif self._start_engine is None or self.model.source.read_only:
            self.say(
                f"This monitor cannot start an engine. Run: kernel-tui resume {self.model.source.argument}",
                severity="warning",
            )
        elif self._starting is None or self._starting.done():
            self.say("Starting the engine …")
            self._starting = asyncio.create_task(self._start_again(self._start_engine))

    async def _start_again(self, start_engine: Callable[[], EngineStart]) -> None:
        try:
            start = await asyncio.to_thread(start_engine)
        except SessionError as error:
            self.say(error.brief, severity="error")
        else:
            if (pid := await self._see_started(start)) is not None:
                self.say(f"The engine is running (pid {pid}).")

    async def _see_started(self, start: EngineStart) -> int | None:
        """Wait for a started engine. Return its pid, or report why the start failed and return None."""
        try:
            pid = start.poll()
            while pid is None:
                await asyncio.sleep(START_POLL_S)
                pid = start.poll()
        except SessionError as error:
            self.start_failure = error
            self.model.story.say(self.model.now(), "error", error.brief)
            self.monitor_screen.take([], told=True)
            self.say(error.brief, severity="error")
            return None
        self.start_failure = None
        return pid

    # News

    def say(self, text: str, *, severity: Severity = "information") -> None:
        """Show a notice in place of the key bar. ``text`` may contain any characters."""
        if self.monitor_screen.is_mounted:
            word = one_line(as_typed(text), 400)
            least, most = (2.0, 4.0) if severity == "information" else (4.0, 7.0)
            self.monitor_screen.key_bar.say(word, severity, seconds=min(most, least + len(word) / READ_PER_S))

    def alert(self, text: str) -> None:
        """Notify a user who may be looking elsewhere, by bell or OSC 9 and by the configured command or webhook."""
        text = as_typed(text)
        self.ring(self.settings, text)
        if not self.is_web:  # Otherwise, each open page would repeat the alert.
            self._messenger.tell(self.settings, one_line(text))

    def ring(self, settings: Settings, text: str) -> None:
        """Ring the terminal's bell or send OSC 9, as the settings say."""
        if settings.notify == "bell":
            self.bell()
        elif settings.notify == "osc9":
            self.write_sequence(notification_sequence(text))

    def action_alerts(self) -> None:
        from tui.monitor.screens.alerts import AlertsScreen

        if self.is_web:  # An alert can run any command on this machine.
            self.say(
                "Choose alerts in a terminal, not in a browser, because an alert can run a command.", severity="warning"
            )
            return

        def chosen(settings: Settings | None) -> None:
            if settings is None:
                return
            self.settings = settings
            try:
                save_settings(settings)
            except OSError as error:
                self.say(f"Cannot save this choice, so it applies to this monitor only: {error}", severity="warning")
            else:
                self.say("Saved. The monitor will send alerts this way for every session.")

        self.push_screen(AlertsScreen(self.settings, self.ring), chosen)

    def _news_failed(self, text: str) -> None:
        """Report that the messenger could not deliver an alert. The messenger's threads call this method."""
        self.call_later(self._log_failure, text)

    def _log_failure(self, text: str) -> None:
        self.model.story.say(self.model.now(), "warning", text)
        self.monitor_screen.take([], told=True)

    def copy_text(self, text: str, what: str) -> None:
        """Copy ``text`` to the clipboard of the user's terminal. Works over SSH too."""
        self.write_sequence(clipboard_sequence(text))
        self.run_worker(lambda: tmux_clipboard(text), thread=True, group="clipboard")
        self.say(f"Copied {what} ({fmt.size(len(text.encode('utf-8', 'replace')))}, OSC 52).")

    def copy_to_clipboard(self, text: str) -> None:
        """Copy the selected text of an input field. Without a selection, leave the clipboard unchanged."""
        if text:
            super().copy_to_clipboard(text)

    def write_sequence(self, sequence: str) -> None:
        """Write an escape sequence to the terminal."""
        if self._driver is not None and not self.is_headless:
            self._driver.write(sequence)

    # The app's own keys

    def open_dialog(self, screen: Screen[Any], done: Callable[[Any], None] | None = None) -> None:
        """Show a dialog. ``done`` receives the dialog's result, or None if the user canceled."""
        self.push_screen(screen, done)

    def edit(self, text: str, file_name: str) -> str | None:
        """Open ``text`` in the user's editor.

        Returns the saved text, or None if nothing changed. Raises EditorError.
        """
        from tui.monitor.terminal.editor import edit_text

        return edit_text(self, text, file_name)

    def action_redraw(self) -> None:
        """Clear the terminal and paint every cell, in case another program has written over the screen."""
        self.write_sequence(CLEAR_SEQUENCE)
        # A plain refresh would paint only the cells that Textual considers changed.
        compositor = self.screen._compositor
        compositor._dirty_regions.add(compositor.size.region)
        self.screen.refresh()

    def action_detach(self) -> None:
        self.exit(0)

    def action_interrupt(self) -> None:
        """Say which key closes the monitor. Ctrl-C itself does nothing, so that it cannot end a search by mistake."""
        search = " (the search continues), or Q to stop the search" if self.model.link.kind in ALIVE else ""
        self.say(f"Press q to close the monitor{search}. Press y to copy the kernel.")

    def action_help(self) -> None:
        from tui.monitor.panes.key_bar import used_most
        from tui.monitor.screens.help import HelpScreen

        screen = self.monitor_screen
        steers = not self.model.source.read_only
        self.open_dialog(HelpScreen(screen.focused, used_most(screen.where()), steers=steers))

    def action_screenshot(self, filename: str | None = None, path: str | None = None) -> None:
        try:
            where = self.save_screenshot(filename, path)
        except OSError as error:
            self.say(f"Cannot save a screenshot: {error}", severity="error")
        else:
            self.say(f"Saved {where}")

    def save_screenshot(
        self, filename: str | None = None, path: str | None = None, time_format: str | None = None
    ) -> str:
        """Save the screen as an SVG file, and return its path. Raises OSError.

        The file goes to the session's directory. For a bundled session, the file goes to the current directory.
        """
        if self.is_web:
            raise PermissionError("a monitor in a browser does not write files")
        paths = self.model.source.paths
        directory = "." if is_bundled(paths) else str(paths.directory)
        return super().save_screenshot(filename, path or directory, time_format)

    @property
    def _depth(self) -> Depth:
        if self.no_color:
            return "none"
        return "truecolor" if self.is_headless else color_depth(self.console)

    def _apply_theme(self, wanted: str) -> None:
        if (theme := theme_for(self._depth, wanted)) in self.available_themes:
            self.theme = theme

    def action_theme(self) -> None:
        """List the themes that this terminal can show. Enter saves the highlighted theme; esc restores the old one."""
        from tui.monitor.theme.choice import ThemeScreen

        themes = [theme for theme in THEMES if theme_for(self._depth, theme) == theme]
        before = self.theme

        def chosen(theme: str | None) -> None:
            self._show_theme(theme or before)
            if theme is not None:
                self._save_theme(theme)

        saves = "use on this page" if self.is_web else "save for every session"
        self.open_dialog(ThemeScreen(themes, before, self._show_theme, saves=saves), chosen)

    def _show_theme(self, theme: str) -> None:
        if theme != self.theme:
            self.theme = theme
            self.monitor_screen.call_after_refresh(self.monitor_screen.show_all)

    def _save_theme(self, theme: str) -> None:
        self.settings.theme = theme
        if self.is_web:
            self.say(f"Theme {theme}, on this page only.")
            return
        try:
            save_settings(self.settings)
        except OSError as error:
            self.say(
                f"Cannot save theme {theme}, so it applies to this monitor only: {error}.",
                severity="warning",
            )
        else:
            self.say(f"Saved theme {theme} for every session.")

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        from tui.monitor.key_bindings import ACTIONS, REPLAY_ACTIONS

        for action in (*(REPLAY_ACTIONS if self.model.link.kind == "replay" else ()), *ACTIONS):
            if action.palette and not (action.group == "steer" and self.model.source.read_only):
                name = action.command

                async def run(name: str = name) -> None:
                    await self.monitor_screen.run_action(name)

                yield SystemCommand(f"{action.label}  ({action.shown_key})", action.help, run)

    def _watch_signals(self) -> None:
        """Exit cleanly on SIGTERM and SIGHUP, so that Textual restores the terminal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Only the main thread may set signal handlers.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.exit, 128 + number)

    def _orphaned(self) -> None:
        """Exit because the terminal is gone. The thread of ``OrphanWatch`` calls this method."""
        self.call_later(self.exit, 128 + signal.SIGHUP)


def run_monitor(paths: SessionPaths, *, read_only: bool = False, start: EngineStart | None = None) -> int:
    """Show a session until the user leaves, and return the exit code. The search continues.

    ``start`` is an engine that was just started on the session. If the start fails, this function prints the
    error last and returns the error's exit code.
    """

    def start_engine() -> EngineStart:
        from engine.daemon.launch import spawn_engine

        nonlocal start
        start = spawn_engine(paths)
        return start

    source = SessionSource(paths, read_only=read_only, starting=lambda: start is not None and start.under_way)
    app = MonitorApp(source, start=start, start_engine=start_engine)
    app.run()
    code = exit_code_of(app)
    if code < 128:
        print_parting(app.model, paths)
        if app.start_failure is not None and app.model.link.kind not in ALIVE and not code:
            print("\n".join(clean_lines(as_typed(f"Error: {app.start_failure}"))), file=sys.stderr)
            code = app.start_failure.exit_code
    return code
