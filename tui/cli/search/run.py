"""Command: run a search."""

from __future__ import annotations

from pathlib import Path

import click

from tui.cli.search.watch import Beginning, start_and_watch, until_idle_option, watch_options
from tui.cli.shared.common import FiniteAbove0
from tui.cli.shared.limits import COUNT


@click.command()
@click.argument("config_path", metavar="[CONFIG]", default=Path("config.toml"), type=click.Path(path_type=Path))
@watch_options
@click.option("--new", is_flag=True, help="Start a new session even if one is unfinished.")
@click.option("--resume", "go_on", is_flag=True, help="Resume the newest unfinished session.")
@click.option(
    "--minutes",
    type=FiniteAbove0(),
    help="Search time limit for the whole session, in minutes; overrides the config.",
)
@click.option("--rounds", type=COUNT, help="Rounds per problem, after round 0; overrides the config.")
@click.option("--detach", is_flag=True, help="Start the engine in the background and return immediately.")
@until_idle_option
def run(
    config_path: Path,
    headless: bool,
    as_json: bool,
    new: bool,
    go_on: bool,
    minutes: float | None,
    rounds: int | None,
    detach: bool,
    until_idle: bool,
) -> int:
    """Run the search that CONFIG describes. Short form: kernel-tui config.toml

    Without CONFIG, the command reads config.toml in the current directory.

    If CONFIG's newest search is running, the command attaches to it. If that search is unfinished, the command offers
    to resume it. If its time budget is used up, the command offers to add minutes.
    Without a terminal, both cases require --resume or --new. With --headless or --json, the command starts a new
    session instead.

    Ctrl-C asks a headless search to stop. A second Ctrl-C detaches without waiting.
    """

    if new and go_on:
        raise click.UsageError("--new and --resume cannot be combined; give only one of them")

    def begin() -> Beginning:
        from tui.cli.search.begin import begin_run

        choice = "new" if new else "resume" if go_on else None
        return begin_run(config_path, choice, minutes=minutes, rounds=rounds, may_ask=not (headless or as_json))

    return start_and_watch(begin, headless=headless, as_json=as_json, detach=detach, until_idle=until_idle)
