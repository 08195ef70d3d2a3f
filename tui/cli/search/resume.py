"""Command: resume a saved search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tui.cli.search.watch import Beginning, start_and_watch, until_idle_option, watch_options
from tui.cli.shared.common import Failure, complete_session, list_command, sessions_option
from tui.cli.shared.limits import limit_options
from tui.cli.shared.problem_option import MOST_NAMED

if TYPE_CHECKING:
    from engine.session.records.requests import ChangeBudget, ChangeShare
    from engine.session.store import SessionPaths


@click.command()
@click.argument("session", required=False, shell_complete=complete_session)
@sessions_option
@watch_options
@limit_options
@click.option("--detach", is_flag=True, help="Start the engine in the background and return immediately.")
@until_idle_option
def resume(
    session: str | None,
    root: Path,
    headless: bool,
    as_json: bool,
    request: ChangeBudget | ChangeShare | None,
    detach: bool,
    until_idle: bool,
) -> int:
    """Resume a search that stopped or died.

    Without SESSION, resume the only search that has stopped or died.

    With a new limit, the command can also resume a search that finished or used up its budget.
    """

    def begin() -> Beginning:
        from tui.cli.search.begin import begin_resume

        return begin_resume(root, session or str(_only_one(root).directory), request)

    return start_and_watch(begin, headless=headless, as_json=as_json, detach=detach, until_idle=until_idle)


def _only_one(root: Path) -> SessionPaths:
    """Return the only session that stopped or died. Raises Failure if there are none or several."""
    from engine.exit_codes import ExitCode
    from engine.session.store import SessionPaths, is_bundled, list_sessions
    from tui.view.source import argument_of

    sessions = list_sessions(root)
    stopped = [SessionPaths.at(one.directory) for one in sessions if one.state in ("stopped", "died")]
    found = [paths for paths in stopped if not is_bundled(paths)]
    if len(found) == 1:
        return found[0]
    running = [SessionPaths.at(one.directory) for one in sessions if one.state == "running"]
    if not found and running:
        watch = f"kernel-tui attach {argument_of(running[0])}"
        raise Failure(f"{running[0].name} is still searching; to watch it: {watch}", ExitCode.USAGE)
    if not found:
        only = " except bundled sessions (to resume one: kernel-tui resume NAME)" if stopped else ""
        raise Failure(f"no search in {root} has stopped{only}; to list all: {list_command(root)}", ExitCode.NO_SESSION)
    listed = "".join(f"\n  kernel-tui resume {argument_of(paths)}" for paths in found[:MOST_NAMED])
    raise Failure(f"{len(found)} searches in {root} have stopped; the newest first:{listed}", ExitCode.USAGE)
