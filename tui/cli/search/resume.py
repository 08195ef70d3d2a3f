"""Command: resume a saved search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tui.cli.search.watch import Beginning, start_and_watch, until_idle_option, watch_options
from tui.cli.shared.common import Failure, complete_session, sessions_option
from tui.cli.shared.limits import limit_options
from tui.cli.shared.problem_option import MOST_NAMED

if TYPE_CHECKING:
    from engine.session.records.requests import ChangeBudget, ChangeShare


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

    Without SESSION, resume the only session that can continue.

    A new limit also resumes a search that is finished or has used up its budget.
    """

    def begin() -> Beginning:
        from tui.cli.search.begin import begin_resume

        return begin_resume(root, session or _only_one(root), request)

    return start_and_watch(begin, headless=headless, as_json=as_json, detach=detach, until_idle=until_idle)


def _only_one(root: Path) -> str:
    """Return the name of the only session that stopped or died. Raises Failure if there are none or several."""
    from engine.exit_codes import ExitCode
    from engine.session.store import SessionPaths, is_bundled, list_sessions

    sessions = list_sessions(root)
    stopped = [one for one in sessions if one.state in ("stopped", "died")]
    names = [one.name for one in stopped if not is_bundled(SessionPaths.at(one.directory))]
    if len(names) == 1:
        return names[0]
    running = [one.name for one in sessions if one.state == "running"]
    if not names and running:
        raise Failure(f"{running[0]} is still searching; to watch it: kernel-tui attach {running[0]}", ExitCode.USAGE)
    if not names:
        only = " except recorded examples, which kernel-tui resume NAME continues" if stopped else ""
        raise Failure(f"no search in {root} has stopped{only}; to list all: kernel-tui sessions", ExitCode.NO_SESSION)
    listed = "".join(f"\n  kernel-tui resume {name}" for name in names[:MOST_NAMED])
    raise Failure(f"{len(names)} searches in {root} have stopped; the newest first:{listed}", ExitCode.USAGE)
