"""Command: search the kernels of all sessions."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec import structs

from engine.exit_codes import ExitCode
from engine.near import did_you_mean
from tui.commands.common import Failure, count, json_option, print_json, sessions_option
from tui.echo import echo


@click.command()
@click.argument("text", nargs=-1)
@click.option("--problem", help="Only problems with this in their name.")
@click.option("--device", help="Only kernels judged on a device with this in its name.")
@click.option("--form", type=click.Choice(["cpp", "cu", "py"]), help="Only kernels of this form.")
@click.option("--bank", multiple=True, metavar="GLOB", help="Sessions elsewhere too, as directories or globs.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Most kernels to list.")
@sessions_option
@json_option
def kernels(
    text: tuple[str, ...],
    problem: str | None,
    device: str | None,
    form: str | None,
    bank: tuple[str, ...],
    limit: int,
    root: Path,
    as_json: bool,
) -> None:
    """Search the correct kernels of all sessions.

    Every word of TEXT must occur in idea, move, note, names or source. Fastest first for each problem. Look into one
    with: kernel-tui show SESSION KERNEL
    """
    from engine.globbing import TooWide
    from engine.library import matching, read_library, session_directories

    for one in bank:
        try:
            there = session_directories([one])
        except TooWide as error:
            raise Failure(f"--bank {one}: {error}", ExitCode.USAGE) from None
        if not there:
            raise Failure(f"--bank {one}: no session there, nor in a directory below it", ExitCode.USAGE)
    library = read_library([root, *bank])
    found = list(matching(library.kernels, text, problem=problem, device=device, form=form))
    for reason in library.unread:
        echo(f"not read: {reason}", err=True)
    if as_json:
        print_json([structs.asdict(one) | {"directory": str(one.directory)} for one in found[:limit]])
        return
    if not found:
        among = f"{count(len(library.kernels), 'correct kernel')} in {count(library.sessions, 'session')}"
        problems = {one.problem for one in library.kernels}
        near = did_you_mean(problem, problems) if problem is not None and problem not in problems else ""
        echo(f"no such kernel among {among}{f': no problem {problem}{near}' if near else ''}")
        return
    from tui.tables import print_kernels

    print_kernels(found[:limit])
    if len(found) > limit:
        echo(f"{len(found) - limit} more; --limit shows them, words narrow the search")
