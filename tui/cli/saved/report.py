"""Command: write a report of a search as one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tui.cli.shared.common import (
    Failure,
    cannot_write,
    find,
    force_option,
    refuse_existing,
    session_argument,
    sessions_option,
)
from tui.console.echo import echo
from tui.console.progress_line import working

INSTALL = "pip install 'kernel-tui[report]' (from a checkout: '.[report]')"


@click.command()
@session_argument
@click.option("-o", "--output", metavar="FILE", help="HTML file to write.  [default: SESSION.html]")
@force_option
@sessions_option
def report(session: str, output: str | None, force: bool, root: Path) -> None:
    """Write a report of a search as one HTML file.

    The file shows results, charts, every idea and kernel, and prompts and replies. For each best kernel, it shows the
    lineage, evidence, diff and source. The file works offline and without scripts, so you can email or print it. FILE
    "-" is standard output.

    The charts need the "report" extra: pip install 'kernel-tui[report]' (from a checkout: '.[report]')
    """
    from engine.session.store import SessionReader
    from tui.cli.saved.session_results import session_results
    from tui.text.format import size
    from tui.view.over_time.history import fold_all
    from tui.view.source import argument_of

    paths = find(root, session)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Failure(
            f"the charts of a report need Matplotlib, which is not installed. Install it: {INSTALL}"
        ) from None
    file = output if output is not None else f"{paths.name}.html"
    refuse_existing(file, force=force)
    if file != "-":
        try:
            Path(file).absolute().parent.stat()
        except OSError as error:
            raise cannot_write(file, error) from None
    with working("writing the report"), SessionReader(paths) as reader:
        from tui.report.page import report_page

        state, _, history = fold_all(reader.read())
        found = session_results(reader, state)
        page = report_page(reader, state, history, found.results, found.ended, argument_of(paths)).encode()
    if output == "-":
        sys.stdout.buffer.write(page)
        sys.stdout.buffer.flush()
        return
    try:
        Path(file).write_bytes(page)
    except OSError as error:
        raise cannot_write(file, error) from None
    echo(f"wrote {file} ({size(len(page))})", err=True)
