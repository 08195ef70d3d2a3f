"""Commands that start a search or go on with one: run, resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from tui.commands.common import F, limit_options, on_terminal, session_argument, sessions_option, start_quickly
from tui.echo import echo
from tui.program import program

if TYPE_CHECKING:
    from engine.commands import ChangeBudget, ChangeShare
    from engine.session import SessionPaths


class Beginning(NamedTuple):
    """The session that a search goes on in. ``starts``: no engine lives on it, one is to be started. ``seq``: the last
    event that was there before."""

    directory: Path
    starts: bool
    seq: int = 0


def _watching(command: F) -> F:
    """Options of every command that shows a search: the monitor on a terminal, lines and a table elsewhere."""
    command = click.option("--headless", is_flag=True, help="No monitor: progress and a table at the end.")(command)
    return click.option("--json", "as_json", is_flag=True, help="Headless, every event as a line of JSON.")(command)


def _until_idle(command: F) -> F:
    return click.option(
        "--until-idle", is_flag=True, help="End (code 10) once only replies by hand are missing: see docs/models.md."
    )(command)


@click.command()
@click.argument("config_path", metavar="CONFIG", type=click.Path(path_type=Path))
@_watching
@click.option("--new", is_flag=True, help="Start a new session even if one is unfinished.")
@click.option("--resume", "go_on", is_flag=True, help="Go on with the newest unfinished session.")
@click.option("--detach", is_flag=True, help="Start the engine and return at once.")
@_until_idle
def run(
    config_path: Path, headless: bool, as_json: bool, new: bool, go_on: bool, detach: bool, until_idle: bool
) -> int:
    """Search as CONFIG says. The default command: kernel-tui config.toml

    If a search of this configuration is running, attach to it; if one was left unfinished, offer to resume it,
    with more minutes where its own are spent.
    Ctrl-C asks a headless search to stop; a second Ctrl-C detaches, and it goes on.
    """

    if new and go_on:
        raise click.UsageError("--new starts a session and --resume goes on with one: give one of them")

    def begin() -> Beginning:
        from tui.commands.begin import begin_run

        return begin_run(config_path, "new" if new else "resume" if go_on else None)

    return _go(begin, headless=headless, as_json=as_json, detach=detach, until_idle=until_idle)


@click.command()
@session_argument
@sessions_option
@_watching
@limit_options
@click.option("--detach", is_flag=True, help="Start the engine and return at once.")
@_until_idle
def resume(
    session: str,
    root: Path,
    headless: bool,
    as_json: bool,
    wish: ChangeBudget | ChangeShare | None,
    detach: bool,
    until_idle: bool,
) -> int:
    """Go on with a search that was stopped or has died.

    With a new limit also one that is finished, or has spent the old one.
    """

    def begin() -> Beginning:
        from tui.commands.begin import begin_resume

        return begin_resume(root, session, wish)

    return _go(begin, headless=headless, as_json=as_json, detach=detach, until_idle=until_idle)


def _go(begin: Callable[[], Beginning], *, headless: bool, as_json: bool, detach: bool, until_idle: bool) -> int:
    """Find out which session it is, start an engine if none runs, and show the search. Returns the exit code."""
    if not (headless or as_json or detach) and on_terminal():
        return _go_to_monitor(begin, until_idle)
    from engine.launch import start_engine
    from engine.session import SessionPaths

    directory, starts, seq = begin()
    paths = SessionPaths.at(directory)
    if starts:
        start_engine(paths)
    _stop_when_idle(paths, until_idle)
    if detach:
        echo(f"{paths.name}: searching in the background. Watch it: {program()} attach {paths.directory}")
        return 0
    _say_where(paths, starts and not seq)
    from tui.headless import follow

    return int(follow(paths, as_json=as_json, stops_on_interrupt=starts, skip_seq=seq))


def _go_to_monitor(begin: Callable[[], Beginning], until_idle: bool) -> int:
    """The same in the monitor, which comes as soon as there is a session and does not wait for the engine."""
    from tui.commands.aside import Aside

    start_quickly()
    from engine.launch import spawn_engine  # both processes need these: they are imported once, before the two part
    from engine.session import SessionPaths

    aside = Aside(begin)
    from tui.app import run_monitor

    directory, starts, seq = aside.result()
    paths = SessionPaths.at(directory)
    start = spawn_engine(paths) if starts else None
    _stop_when_idle(paths, until_idle)
    _say_where(paths, starts and not seq)
    return run_monitor(paths, start=start)


def _say_where(paths: SessionPaths, new: bool) -> None:
    if new:
        echo(f"session {paths.directory}", err=True)


def _stop_when_idle(paths: SessionPaths, wanted: bool) -> None:
    """Ask the engine to end once only replies by hand are missing."""
    from engine.commands import Stop
    from engine.session import send_command

    if wanted:
        send_command(paths, Stop(when_idle=True), "--until-idle")
