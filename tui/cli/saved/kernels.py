"""Command: search the kernels of all sessions."""

from __future__ import annotations

import click
from msgspec import structs

from engine.exit_codes import ExitCode
from engine.problem.spec import Language
from engine.suggestions import did_you_mean
from tui.cli.shared.common import Failure, Integer, count, json_option, print_json, sessions_root
from tui.cli.shared.language_option import language_option
from tui.console.echo import echo


@click.command()
@click.argument("text", nargs=-1)
@click.option(
    "--problem", help="List only kernels of problems whose name contains this text, with an exact match first."
)
@click.option("--device", help="List only kernels judged on a device whose name contains this text.")
@language_option("List only kernels in this language.")
@click.option(
    "--sessions",
    "named",
    multiple=True,
    metavar="GLOB",
    help="Session directory or glob. Repeatable.  [default: sessions]",
)
@click.option("--bank", multiple=True, hidden=True)
@click.option("--limit", type=Integer(1), default=20, show_default=True, help="Maximum number of kernels to list.")
@json_option
def kernels(
    text: tuple[str, ...],
    problem: str | None,
    device: str | None,
    language: Language | None,
    named: tuple[str, ...],
    bank: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """Search the correct kernels in all sessions.

    A kernel matches if its idea, transformation, note, names and source together contain every word of TEXT. Within
    each problem, the list shows the best kernels first. Each problem gets an equal share of the list if more kernels
    match than --limit allows. Without TEXT and --problem, the newest session comes first. To show a kernel: kernel-tui
    show SESSION KERNEL
    """
    from engine.session.library import fair_choice, matching, newest_first, read_library, session_directories
    from engine.system.globbing import TooWide

    for one in (*named, *bank):
        try:
            there = session_directories([one])
        except TooWide as error:
            raise Failure(f"--sessions {one}: {error}", ExitCode.USAGE) from None
        if not there:
            raise Failure(f"--sessions {one}: no session in or below this directory", ExitCode.USAGE)
    library = read_library([*(named or (str(sessions_root(None)),)), *bank])
    found = list(matching(library.kernels, text, problem=problem, device=device, language=language))
    if problem is not None:
        wanted = problem.casefold()
        found.sort(key=lambda one: one.problem.casefold() != wanted)
    overview = not text and problem is None
    if overview:
        found = newest_first(found)
    shown = fair_choice(found, limit, lambda one: (one.problem, one.directory if overview else None))
    for reason in library.unread:
        echo(f"skipped: {reason}", err=True)
    if as_json:
        print_json([structs.asdict(one) | {"directory": str(one.directory)} for one in shown])
        return
    if not found:
        among = f"{count(len(library.kernels), 'correct kernel')} in {count(library.sessions, 'session')}"
        problems = {one.problem for one in library.kernels}
        near = did_you_mean(problem, problems) if problem is not None and problem not in problems else ""
        echo(f"no match among {among}{f': no problem {problem}{near}' if near else ''}")
        return
    from tui.console.tables import print_kernels

    print_kernels(shown)
    if len(found) > limit:
        narrow = "add words or --problem NAME" if len({one.problem for one in found}) > 1 else "add words"
        echo(f"{len(found) - limit} more; to list all, add --limit {len(found)}; to narrow the search, {narrow}")
