"""The monitor: a terminal app over one session. It reads events and writes commands; it never searches."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input

from engine.commands import SeedIdea, SeedKernel, Stop
from engine.events import CommandHandled, Recorded
from engine.session import SessionDamaged, SessionError, SessionPaths
from tui import format as fmt
from tui import reading
from tui.delay import after
from tui.feed import Feed
from tui.model import Model, Pending
from tui.news import Messenger, News
from tui.parting import print_parting
from tui.plain import PlainCharacters
from tui.sanitize import clean_lines, clean_paste, one_line
from tui.screens.monitor import MonitorScreen
from tui.settings import THEMES, Settings, load_settings, save_settings
from tui.source import ALIVE, SessionSource, Source
from tui.steering import History, Plan
from tui.terminal import (
    OrphanWatch,
    clipboard_sequence,
    exit_code_of,
    notification_sequence,
    shows_unicode,
    tmux_clipboard,
)

if TYPE_CHECKING:
    from asyncio import Task

    from engine.launch import EngineStart

MAX_FIELD, MAX_PASTE = 4_000, 1 << 20
"""Characters taken of what is pasted into one line, and anywhere: Textual measures each of them again and again."""
FLUSH_S = 0.22
"""The screen takes in what is new at most this often."""
READ_PER_S = 40.0
"""Characters that are read in a second."""
TICK_S, ENDED_TICK_S = 1.0, 10.0
"""How often ages are drawn anew: of a session that goes on, and of one that has ended."""
_PLAIN = PlainCharacters()
START_POLL_S = 0.1
ANSWER_S = 5.0
"""A person who seeded an idea still waits for what becomes of it."""
GONE = "The session was moved or deleted. Open it where it is now: kernel-tui attach DIRECTORY"
FINISHED = "The search is finished. M gives it more rounds and goes on."
Severity = Literal["information", "warning", "error"]


class MonitorApp(App[int]):
    """``start``: an engine that is on its way already. ``start_engine`` starts one on the session again, or is None
    where that cannot be done from here."""

    TITLE = "kernel-tui"
    CSS_PATH = "monitor.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-normal"), (170, "-wide"), (250, "-huge")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]  # noqa: RUF012
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "screen.detach", "detach", show=False),
        Binding("ctrl+c", "screen.interrupt", "interrupt", show=False),
    ]

    def action_suspend_process(self) -> None:
        """All of the job stops, as by a terminal's own Ctrl-Z: where ``make`` or a script has started the monitor, no
        shell would come back for the monitor alone."""
        if self._driver is not None and self._driver.can_suspend:
            with self.suspend():
                os.killpg(0, signal.SIGTSTP)

    class FeedArrived(Message):
        """The feed's thread has something new."""

    def __init__(
        self,
        source: Source,
        *,
        start: EngineStart | None = None,
        start_engine: Callable[[], EngineStart] | None = None,
        settings: Settings | None = None,
        ascii_only: bool | None = None,
    ) -> None:
        reading.install()
        super().__init__()
        self.settings = settings if settings is not None else load_settings()
        chosen = ascii_only if ascii_only is not None else self.settings.ascii_glyphs
        self.ascii_only = chosen if chosen is not None else not shows_unicode()
        self.model = Model(source)
        self.history = History()
        self.monitor_screen = MonitorScreen(self.model)
        self.start_failure: SessionError | None = None
        """Why the engine that was started last did not get its session."""
        self._start = start
        self._start_engine = start_engine
        self._starting: Task[Any] | None = None
        self._plans: dict[int, Plan] = {}
        self._tasks: set[Task[None]] = set()
        self._feed = Feed(source, self._wake)
        self._damage: str | None = None
        """Why events that came while the session was open could not be folded; nothing after them is."""
        self._notified = False
        self._flushed_at = 0.0
        self.news = News(self.model)
        self._messenger = Messenger(self._news_failed)
        self._watch = OrphanWatch(self._orphaned)

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = super().get_line_filters()
        return [*filters, _PLAIN] if self.ascii_only else filters

    def get_default_screen(self) -> Screen[Any]:
        return self.monitor_screen

    def on_mount(self) -> None:
        if self.settings.theme in self.available_themes:
            self.theme = self.settings.theme
        self._watch_signals()
        self._watch.start()

    def begin(self) -> None:
        """Called by the monitor's screen once it is there: the first paint does not wait for the session."""
        if not gc.isenabled():  # the command that opened the monitor has paused it
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
        if isinstance(event, events.Paste) and not event.is_forwarded:  # fields show what is pasted as it is
            in_one_line = isinstance(self.screen.focused, Input)
            event = events.Paste(clean_paste(event.text[: MAX_FIELD if in_one_line else MAX_PASTE]))
        await super().on_event(event)

    # What is new

    def _wake(self) -> None:
        """Called from the feed's thread."""
        if not self._notified:
            self._notified = True
            self.post_message(self.FeedArrived())

    def on_monitor_app_feed_arrived(self) -> None:
        # Whoever has just pressed a key and waits for the engine's answer sees it as soon as it is there.
        wait = 0.0 if self.model.pending else self._flushed_at + FLUSH_S - time.monotonic()
        if wait <= 0:
            self.flush()
        else:
            after(self, wait, self.flush)

    def flush(self) -> None:
        """Fold what has come and show it."""
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

    def why_not_steer(self) -> str | None:
        """Why a command would reach nobody, or None."""
        if self.model.source.read_only:
            return "This monitor is read-only."
        if self.model.link.gone:
            return GONE
        if self.model.engine == "finished":
            return FINISHED
        if self.model.link.kind == "ended":
            return "No engine runs on this session. R starts it again."
        return None if self.model.opened else "The session is still being opened."

    def steer(self, plan: Plan, then: Callable[[], None] | None = None) -> None:
        """Send a plan's command; its row shows it pending until the engine has answered. ``then``: once it is sent."""
        task = asyncio.create_task(self._send(plan, then))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, plan: Plan, then: Callable[[], None] | None = None) -> None:
        model = self.model
        self._feed.hurry()
        try:
            number = await asyncio.to_thread(model.source.send, plan.command)
        except SessionError as error:
            self.say(error.brief, severity="error")
            return
        self._plans[number] = plan
        if model.link.kind == "ended" and then is None:  # it ended while the command was being written
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
        """The engine has ended: what it has not answered is said to be undone. Whether there was such a thing."""
        left = self.model.give_up_pending()
        for one in left:
            self._plans.pop(one.number, None)
            where = f" {one.node}" if one.node is not None else ""
            later = "" if isinstance(one.command, Stop) else "; one that is resumed does it"
            text = f"{one.text}{where}: not carried out, the engine ended{later}"
            self.model.story.say(self.model.now(), "warning", text)
            self.say(text, severity="warning")
        return bool(left)

    def _answered(self, handled: CommandHandled) -> None:
        pending = self.model.answered(handled)
        plan = self._plans.pop(handled.command, None)
        if plan is None:
            return
        if not handled.ok:
            self.say(handled.message, severity="error")
            return
        self.history.happened(plan, handled)
        self.say(handled.message)
        if isinstance(plan.command, SeedKernel | SeedIdea) and handled.node is not None:
            waited_s = self.model.now() - pending.sent_at if pending is not None else 0.0
            self.call_later(self._show_seeded, handled.node, waited_s)

    def _show_seeded(self, node: str, waited_s: float) -> None:
        """Go to what was just made. A kernel that was edited shows what was changed; an idea that nobody else can write
        for opens the person's editor, unless the answer took so long that they do something else by now."""
        screen = self.monitor_screen
        state = self.model.state
        if node in state.ideas and state.ideas[node].variants:
            node = state.ideas[node].variants[0]
        screen.tree_view.select(node, by_hand=False)
        variant = state.variants.get(node)
        if variant is not None and variant.parent is not None:
            screen.detail.against = "parent"
            screen.detail.turn("Diff")
        idea = state.ideas.get(node)
        if idea is not None and idea.waiting is not None and waited_s < ANSWER_S and self.screen is screen:
            screen.call_after_refresh(screen.write_for, idea)

    def start_engine(self) -> None:
        """Start a dead or stopped session's engine again."""
        if self.model.link.gone:
            self.say(GONE, severity="warning")
        elif self.model.link.kind in ("live", "stalled"):
            self.say(f"The engine runs (pid {self.model.link.pid}).")
        elif self.model.link.kind == "starting":
            self.say("The engine is starting.")
        elif self._start_engine is None or self.model.source.read_only:
            self.say(
                f"From here it cannot be started: kernel-tui resume {self.model.source.argument}", severity="warning"
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
                self.say(f"The engine runs (pid {pid}).")

    async def _see_started(self, start: EngineStart) -> int | None:
        """What becomes of an engine that was started: its pid; None if it did not get so far, which is said."""
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
        """A word in the line of the keys, where it covers nothing else. ``text`` may come from anywhere."""
        if self.monitor_screen.is_mounted:
            word = one_line(text, 400)
            least, most = (2.0, 4.0) if severity == "information" else (4.0, 7.0)
            self.monitor_screen.key_bar.say(word, severity, seconds=min(most, least + len(word) / READ_PER_S))

    def alert(self, text: str) -> None:
        """News for a person who looks elsewhere: bell or OSC 9, and their command or webhook."""
        self.ring(self.settings, text)
        self._messenger.tell(self.settings, one_line(text))

    def ring(self, settings: Settings, text: str) -> None:
        """The terminal's part of news."""
        if settings.notify == "bell":
            self.bell()
        elif settings.notify == "osc9":
            self.write_sequence(notification_sequence(text))

    def choose_alerts(self) -> None:
        from tui.screens.alerts import AlertsScreen

        def chosen(settings: Settings | None) -> None:
            if settings is None:
                return
            self.settings = settings
            try:
                save_settings(settings)
            except OSError as error:
                self.say(f"Kept for this monitor only: {error}", severity="warning")
            else:
                self.say("News will reach you so, here and in other sessions.")

        self.push_screen(AlertsScreen(self.settings), chosen)

    def _news_failed(self, text: str) -> None:
        """Called from a messenger's thread."""
        self.call_later(self._log_failure, text)

    def _log_failure(self, text: str) -> None:
        self.model.story.say(self.model.now(), "warning", text)
        self.monitor_screen.take([], told=True)

    def copy_text(self, text: str, what: str) -> None:
        """Onto the clipboard of the terminal that the person sits at."""
        self.write_sequence(clipboard_sequence(text))
        self.run_worker(lambda: tmux_clipboard(text), thread=True, group="clipboard")
        self.say(f"Copied {what} ({fmt.size(len(text.encode('utf-8', 'replace')))}) by OSC 52.")

    def copy_to_clipboard(self, text: str) -> None:
        """What is cut or copied in a field. With nothing selected the clipboard stays as it is."""
        if text:
            super().copy_to_clipboard(text)

    def write_sequence(self, sequence: str) -> None:
        """An escape sequence of our own making."""
        if self._driver is not None and not self.is_headless:
            self._driver.write(sequence)

    # The app's own keys

    def save_screenshot(
        self, filename: str | None = None, path: str | None = None, time_format: str | None = None
    ) -> str:
        """Into the session's directory, not where the monitor was started. Returns the file. Raises OSError."""
        return super().save_screenshot(filename, path or str(self.model.source.paths.directory), time_format)

    def next_theme(self) -> None:
        place = THEMES.index(self.theme) if self.theme in THEMES else -1
        self.theme = self.settings.theme = THEMES[(place + 1) % len(THEMES)]
        self.monitor_screen.call_after_refresh(self.monitor_screen.show_all)
        self.say(f"Theme {self.theme}")
        with suppress(OSError):
            save_settings(self.settings)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        from tui.actions import ACTIONS, REPLAY_ACTIONS

        for action in (*(REPLAY_ACTIONS if self.model.link.kind == "replay" else ()), *ACTIONS):
            if action.palette and not (action.group == "steer" and self.model.source.read_only):
                name = action.name

                async def run(name: str = name) -> None:
                    await self.monitor_screen.run_action(name)

                yield SystemCommand(f"{action.label}  ({action.shown_key})", action.help, run)

    def _watch_signals(self) -> None:
        """SIGTERM and SIGHUP end the monitor in order: the terminal is restored where there still is one."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # An event loop of Windows has no signal handlers, and none but a process's first thread may set them.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.exit, 128 + number)

    def _orphaned(self) -> None:
        """Called from the watch's thread: the terminal is gone."""
        self.call_later(self.exit, 128 + signal.SIGHUP)


def run_monitor(paths: SessionPaths, *, read_only: bool = False, start: EngineStart | None = None) -> int:
    """Show a session until the person leaves; the search goes on. The exit code of the process.

    ``start``: the engine that was started for it just now. If nothing came of it, that is the last word, and its exit
    code the monitor's.
    """

    def start_engine() -> EngineStart:
        from engine.launch import spawn_engine

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
            print("\n".join(clean_lines(f"error: {app.start_failure}")), file=sys.stderr)
            code = app.start_failure.exit_code
    return code
