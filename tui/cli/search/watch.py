"""Start an engine if none is running, and show the search, for ``run``, ``resume`` and ``bench``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from tui.cli.shared.common import F, on_terminal, start_quickly
from tui.console.echo import echo
from tui.text.program import program

if TYPE_CHECKING:
    from engine.session.store import SessionPaths


class Beginning(NamedTuple):
    """A session that is ready to show.

    ``starts`` is true if the command must start an engine. ``seq`` is the number of the last recorded event.
    ``stays_paused`` is true if the search was paused before its engine was interrupted. A new engine then keeps the
    search paused.
    """

    directory: Path
    starts: bool
    seq: int = 0
    stays_paused: bool = False


def watch_options(command: F) -> F:
    """Add the options of commands that show a search: ``--headless`` and ``--json``."""
    command = click.option(
        "--headless", is_flag=True, help="Print progress and a final table instead of opening the monitor."
    )(command)
    return click.option("--json", "as_json", is_flag=True, help="Run headless and print each event as a JSON line.")(
        command
    )


def until_idle_option(command: F) -> F:
    return click.option(
        "--until-idle",
        is_flag=True,
        help="Exit with code 10 when the search waits only for replies by hand; see docs/how-to/answer-by-hand.md.",
    )(command)


def start_and_watch(
    begin: Callable[[], Beginning], *, headless: bool, as_json: bool, detach: bool, until_idle: bool
) -> int:
    """Call ``begin``, start an engine if none is running, and show the search. Returns the exit code."""
    if not (headless or as_json or detach) and on_terminal():
        return _start_in_monitor(begin, until_idle)
    from engine.daemon.launch import start_engine
    from engine.session.store import SessionPaths
    from tui.view.source import argument_of

    directory, starts, seq, stays_paused = begin()
    paths = SessionPaths.at(directory)
    if starts:
        if not (as_json or detach):
            with contextlib.suppress(OSError):  # ``follow`` reports output that fails, after the engine has started.
                echo(f"{time.strftime('%H:%M:%S')} starting the engine")
        start_engine(paths, unattended=not detach)
    _stop_when_idle(paths, until_idle)
    if detach:
        doing = "searching in the background"
        if stays_paused:
            doing = f"still paused, as before the interruption. Unpause: {program()} unpause {argument_of(paths)}"
        echo(f"{paths.name}: {doing}. Watch: {program()} attach {argument_of(paths)}")
        return 0
    _say_where(paths, starts, new=not seq)
    from tui.headless.follow import follow

    return int(follow(paths, as_json=as_json, stops_on_interrupt=starts, skip_seq=seq))


def _start_in_monitor(begin: Callable[[], Beginning], until_idle: bool) -> int:
    """Call ``begin`` and show the search in the monitor, which opens before the engine is ready."""
    from tui.cli.search.background_child import Aside

    start_quickly()
    from engine.daemon.launch import spawn_engine
    from engine.session.store import SessionPaths

    aside = Aside(begin)
    from tui.monitor.app import run_monitor

    directory, starts, seq, _ = aside.result()
    paths = SessionPaths.at(directory)
    start = spawn_engine(paths) if starts else None
    _stop_when_idle(paths, until_idle)
    _say_where(paths, starts, new=not seq)
    return run_monitor(paths, start=start)


def _say_where(paths: SessionPaths, starts: bool, *, new: bool) -> None:
    if not starts:
        echo(f"{paths.name} is already running; attaching (Ctrl-C detaches)", err=True)
    elif new:
        echo(f"session {paths.directory}", err=True)


def _stop_when_idle(paths: SessionPaths, wanted: bool) -> None:
    """Ask the engine to stop once the search waits only for replies by hand, if ``wanted``."""
    from engine.session.records.requests import Stop
    from engine.session.store import send_request

    if wanted:
        send_request(paths, Stop(when_idle=True), "--until-idle")
