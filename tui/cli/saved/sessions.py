"""Command: list or compare sessions."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec.structs import replace

from engine.exit_codes import ExitCode
from tui.cli.shared.common import Failure, complete_session, find, json_option, print_json, sessions_option
from tui.console.echo import echo


@click.command()
@click.argument("names", nargs=-1, metavar="[SESSION]...", shell_complete=complete_session)
@click.option("--compare", "side_by_side", is_flag=True, help="Show the named sessions side by side.")
@sessions_option
@json_option
def sessions(names: tuple[str, ...], side_by_side: bool, root: Path, as_json: bool) -> None:
    """List saved sessions, newest first, or compare them.

    Without names, list every session in the sessions directory. The examples that ship with kernel-tui come last.
    """
    from engine.session.store import list_sessions, summarize
    from tui.view.next_steps import note_of

    if side_by_side:
        _compare_sessions(names, root, as_json=as_json)
        return
    listed = [summarize(find(root, name)) for name in names] if names else list_sessions(root)
    found = [replace(one, note=note_of(one)) for one in listed]
    if as_json:
        print_json([{name: getattr(one, name) for name in one.__struct_fields__} | {"directory": str(one.directory)}
                    for one in found])  # fmt: skip
    elif not found:
        echo(f"no sessions in {root}; start one with: kernel-tui config.toml. For an example: kernel-tui show by-hand")
    else:
        from tui.console.lists import print_sessions

        print_sessions(found)


def _compare_sessions(names: tuple[str, ...], root: Path, *, as_json: bool) -> None:
    if len(names) < 2:
        raise Failure("specify at least two sessions: kernel-tui sessions --compare A B", ExitCode.USAGE)
    from tui.compare.sessions import compare_sessions, differing
    from tui.view.session_figures import read_figures

    figures = [read_figures(find(root, name)) for name in names]
    if as_json:
        print_json({"sessions": figures, "differing": differing(figures)})
        return
    from tui.console.compare_table import print_side_by_side

    print_side_by_side(compare_sessions(figures))
