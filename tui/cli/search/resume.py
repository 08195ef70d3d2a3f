"""Command: resume a saved search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tui.cli.search.watch import Beginning, start_and_watch, until_idle_option, watch_options
from tui.cli.shared.common import session_argument, sessions_option
from tui.cli.shared.limits import limit_options

if TYPE_CHECKING:
    from engine.session.records.requests import ChangeBudget, ChangeShare


@click.command()
@session_argument
@sessions_option
@watch_options
@limit_options
@click.option("--detach", is_flag=True, help="Start the engine in the background and return immediately.")
@until_idle_option
def resume(
    session: str,
    root: Path,
    headless: bool,
    as_json: bool,
    request: ChangeBudget | ChangeShare | None,
    detach: bool,
    until_idle: bool,
) -> int:
    """Resume a search that stopped or died.

    A new limit also resumes a search that is finished or has used up its budget.
    """

    def begin() -> Beginning:
        from tui.cli.search.begin import begin_resume

        return begin_resume(root, session, request)

    return start_and_watch(begin, headless=headless, as_json=as_json, detach=detach, until_idle=until_idle)
