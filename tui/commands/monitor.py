"""Commands that open the monitor on a saved or running session: attach, replay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from tui.commands.common import (
    Failure,
    FiniteAbove0,
    find,
    on_terminal,
    session_argument,
    sessions_option,
    start_quickly,
)
from tui.echo import echo

if TYPE_CHECKING:
    from engine.session import SessionPaths


@click.command()
@click.argument("session", required=False)
@sessions_option
@click.option("--read-only", is_flag=True, help="Watch without being able to steer.")
@click.option("--once", is_flag=True, help="Print the monitor's screen as text and exit.")
@click.option("--size", default="120x40", show_default=True, help="Columns x lines for --once.")
@click.option("--headless", is_flag=True, help="No monitor: progress and a table at the end.")
@click.option("--json", "as_json", is_flag=True, help="Headless, every event as a line of JSON.")
def attach(
    session: str | None, root: Path, read_only: bool, once: bool, size: str, headless: bool, as_json: bool
) -> int:
    """Open the monitor on a session, running or not.

    Without SESSION, choose one from a list.

    Detaching (q) does not stop a search. Several monitors may watch one session at a time.
    """
    paths = find(root, session) if session is not None else _picked(root)
    if paths is None:
        return 0
    if once:
        from tui.once import render_once

        echo(render_once(paths, *_columns_and_lines(size)))
        return 0
    if on_terminal() and not headless and not as_json:
        start_quickly()
        from tui.app import run_monitor

        return run_monitor(paths, read_only=read_only)
    from engine.session import engine_liveness

    if not engine_liveness(paths).running:
        raise Failure(
            f"{paths.name}: no engine runs on this session. See what it found: kernel-tui show {paths.name}   "
            f"Go on: kernel-tui resume {paths.name}"
        )
    from tui.headless import follow

    return int(follow(paths, as_json=as_json, stops_on_interrupt=False))


@click.command()
@session_argument
@sessions_option
@click.option("--speed", type=FiniteAbove0(), default=20.0, show_default=True, help="Times as fast.")
def replay(session: str, root: Path, speed: float) -> int:
    """Show a recorded search as it happened.

    Space holds it, comma and full stop seek, < and > change the speed, 0 begins again, q detaches.
    """
    paths = find(root, session)
    if not on_terminal():
        raise Failure("replay needs a terminal", ExitCode.USAGE)
    from tui.replay import run_replay

    return run_replay(paths, speed=speed)


def _picked(root: Path) -> SessionPaths | None:
    if not on_terminal():
        raise Failure("name a session; 'kernel-tui sessions' lists them", ExitCode.USAGE)
    from tui.screens.picker import pick_session

    return pick_session(root)


def _columns_and_lines(size: str) -> tuple[int, int]:
    columns, _, lines = size.lower().partition("x")
    if not (columns.isdecimal() and lines.isdecimal() and 20 <= int(columns) <= 1000 and 5 <= int(lines) <= 1000):
        raise Failure(f"--size {size}: give columns x lines, such as 120x40", ExitCode.USAGE)
    return int(columns), int(lines)
