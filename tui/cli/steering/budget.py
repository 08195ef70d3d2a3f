"""Command: change the limits of a search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tui.cli.shared.limits import limit_options
from tui.cli.steering.send import request_options, send

if TYPE_CHECKING:
    from engine.session.records.requests import ChangeBudget, ChangeShare


@click.command()
@request_options
@limit_options
def budget(session: str, request: ChangeBudget | ChangeShare | None, root: Path, as_json: bool) -> None:
    """Change the limits of the search, a model or each problem."""
    if request is None:
        raise click.UsageError("give at least one of --minutes, --rounds, --dollars, --tokens and --calls")
    send(root, session, request, as_json)
