"""Command: replay a recorded search."""

from __future__ import annotations

from pathlib import Path

import click

from engine.exit_codes import ExitCode
from tui.cli.shared.common import Failure, FiniteAbove0, find, on_terminal, session_argument, sessions_option


@click.command()
@session_argument
@sessions_option
@click.option(
    "--speed", type=FiniteAbove0(), default=20.0, show_default=True, help="Playback speed, as a multiple of real time."
)
def replay(session: str, root: Path, speed: float) -> int:
    """Replay a recorded search in the monitor.

    Space pauses the replay, comma and period seek, < and > change the speed, 0 restarts, and q quits.
    """
    paths = find(root, session)
    if not on_terminal():
        from tui.view.source import argument_of

        show = f"kernel-tui show {argument_of(paths)}"
        raise Failure(f"replay needs a terminal; to print the session instead: {show}", ExitCode.USAGE)
    from tui.monitor.replay import run_replay

    return run_replay(paths, speed=speed)
