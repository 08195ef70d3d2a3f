"""Command: open the monitor on a session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from tui.cli.shared.common import Failure, find, list_command, on_terminal, sessions_option, start_quickly
from tui.console.echo import echo

if TYPE_CHECKING:
    from engine.session.store import SessionPaths


@click.command()
@click.argument("session", required=False)
@sessions_option
@click.option("--read-only", is_flag=True, help="Watch only; disable requests.")
@click.option("--once", is_flag=True, help="Print the monitor's screen as text and exit.")
@click.option("--size", default="120x40", show_default=True, help="Screen size for --once, in columns x lines.")
@click.option("--headless", is_flag=True, help="Print progress and a final table instead of opening the monitor.")
@click.option("--json", "as_json", is_flag=True, help="Run headless and print each event as a JSON line.")
def attach(
    session: str | None, root: Path, read_only: bool, once: bool, size: str, headless: bool, as_json: bool
) -> int:
    """Open the monitor on a session, running or not.

    Without SESSION, open the running session if there is exactly one; otherwise, show a list of sessions.

    Detaching (q) does not stop a search. Several monitors can watch the same session.
    """
    paths = find(root, session) if session is not None else _picked(root)
    if paths is None:
        return 0
    if once:
        from tui.monitor.snapshot import render_once

        echo(render_once(paths, *_columns_and_lines(size)), is_message=False)
        return 0
    if on_terminal() and not headless and not as_json:
        start_quickly()
        from tui.monitor.app import run_monitor

        return run_monitor(paths, read_only=read_only)
    from engine.session.store import engine_liveness, summarize
    from tui.view.source import argument_of

    if not engine_liveness(paths).running:
        argument = argument_of(paths)
        again = "" if summarize(paths).state == "finished" else f", or resume the search: kernel-tui resume {argument}"
        raise Failure(f"{paths.name}: no engine is running; show the results: kernel-tui show {argument}{again}")
    from tui.headless.follow import follow

    return int(follow(paths, as_json=as_json, stops_on_interrupt=False))


def _picked(root: Path) -> SessionPaths | None:
    """Return the running session if there is exactly one; otherwise, on a terminal, the user's choice."""
    from engine.session.store import list_sessions

    running = [one for one in list_sessions(root) if one.state == "running"]
    if len(running) == 1:
        return find(root, str(running[0].directory))
    if not on_terminal():
        raise Failure(f"specify a session; to list them: {list_command(root)}", ExitCode.USAGE)
    from tui.monitor.screens.picker import pick_session

    return pick_session(root)


def _columns_and_lines(size: str) -> tuple[int, int]:
    columns, _, lines = size.lower().partition("x")
    if not (columns.isdecimal() and lines.isdecimal() and 20 <= int(columns) <= 1000 and 5 <= int(lines) <= 1000):
        raise Failure(f"--size {size}: give columns x lines, such as 120x40", ExitCode.USAGE)
    return int(columns), int(lines)
