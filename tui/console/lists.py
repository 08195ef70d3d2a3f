"""Print the output of the commands ``problems`` and ``sessions``: a table, or paragraphs on a narrow terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.config.tolerance import shared_caption, short_caption
from engine.problem.catalog import ProblemRow
from engine.problem.spec import LANGUAGE_NAMES, Language
from engine.session.records.speedup_text import MARK
from engine.session.store import SessionSummary
from tui.console.clean_console import PIPE_WIDTH, print_prose
from tui.console.tables import columns, console, print_footnotes, print_marked
from tui.text.format import age
from tui.text.program import as_typed
from tui.text.sanitize import one_line

if TYPE_CHECKING:
    from engine.proposers.coverage import Writer

_MOST_WEIGHTS = 4
"""Maximum number of weights listed per problem. For a larger model, the list shows only the number of weights."""
_MOST_BESTS = 4
"""Maximum number of best speedups listed per session. ``sessions --json`` lists all of them."""
_LEAST_TENSORS = 60
"""Minimum width of the column of tensors, in cells. With less space, each problem becomes a paragraph."""


def print_problems(rows: Sequence[ProblemRow], proposers: Sequence[Sequence[Writer]]) -> None:
    """Print each problem's name (as in a config), kernel languages, proposers and tensors.

    ``proposers`` lists, for each row, the proposers that were checked.
    """
    from engine.proposers.coverage import add_a_table

    table = columns("problem", "kernels", "written by", "inputs and weights -> outputs")
    for column in table.columns[:3]:
        column.no_wrap = True
    paragraphs: list[tuple[str, list[str]]] = []
    lacking = False
    for row, asked in zip(rows, proposers, strict=True):
        tensors = f"{', '.join((*row.inputs, *_weights(row)))} -> {', '.join(row.outputs)}" if row.outputs else ""
        refusals = [one_line(as_typed(one.refusal)) for one in asked if one.refusal]
        below = [part for part in (tensors, one_line(as_typed(row.remark)), *refusals) if part]
        able = ", ".join(f"{one.proposer} ({_names(one.languages)})" for one in asked if one.languages) or "none"
        kernels = _names(row.languages) or "none"
        lacking |= bool(row.languages) and able == "none"
        table.add_row(Text(row.reference), Text(kernels), Text(able), Text("\n".join(below)))
        paragraphs.append((row.reference, [f"kernels: {kernels}; written by: {able}", *below]))
    out = console()
    whole = sum(max(cell_len(str(cell)) for cell in (one.header, *one.cells)) + 3 for one in table.columns[:3])
    if out.width < whole + _LEAST_TENSORS:
        _print_paragraphs(out, paragraphs)
    else:
        out.print(table)
    if lacking:
        print_prose(
            out,
            "written by none: no proposer can write a kernel, so the search waits until you seed one (press a in the "
            "monitor, or run kernel-tui seed-kernel)",
        )
        for line in add_a_table().splitlines():  # Users paste this TOML, so it must not wrap.
            out.print(Text(line), soft_wrap=True)


def _weights(row: ProblemRow) -> tuple[str, ...]:
    """Return the weights or, for a large model, only their number. ``problems --json`` lists all of them."""
    return row.weights if len(row.weights) <= _MOST_WEIGHTS else (f"{len(row.weights)} weights",)


def _names(languages: Sequence[Language]) -> str:
    return " ".join(LANGUAGE_NAMES[one] for one in languages)


def print_sessions(sessions: Sequence[SessionSummary]) -> None:
    """Print one line per session, or a paragraph per session if the lines would be too long. Names are never cut. The
    examples that ship with kernel-tui come last.
    """
    sessions = sorted(sessions, key=lambda one: one.is_example)
    out = console()
    caption = shared_caption(one.tolerance for one in sessions if one.best)
    table = columns("session", "state", "started", "verdicts", "best", "config", "", right=("started", "verdicts"))
    paragraphs: list[tuple[str, list[str]]] = []
    for one in sessions:
        best, started = _bests(one, with_tolerance=caption is None), _started(one)
        config = one_line(Path(one.config_name).name)
        state, note = one.state_words, "" if one.is_example else one_line(as_typed(one.note))
        table.add_row(Text(one.name), state, started, str(one.verdicts), Text(best), Text(config),
                      Text(note, style="dim"))  # fmt: skip
        facts = [state, f"started {started}", f"{one.verdicts} verdicts", config]
        paragraphs.append((one.name, [part for part in (", ".join(filter(None, facts)), best, note) if part]))
    if _width(out, table) <= out.width:
        print_marked(out, table, caption)
        return
    _print_paragraphs(out, paragraphs)
    if caption:
        print_prose(out, caption, "dim")
    print_footnotes(out, uncertain=any(MARK in _bests(one, with_tolerance=False) for one in sessions), above_sol=False)


def _bests(session: SessionSummary, *, with_tolerance: bool) -> str:
    """Return the best speedups of at most ``_MOST_BESTS`` problems, and the number of remaining problems."""
    named, others = session.bests[:_MOST_BESTS], len(session.bests) - _MOST_BESTS
    words = ", ".join(named) + (f" and {others} more" if others > 0 else "")
    return f"{words} ({short_caption(session.tolerance)})" if with_tolerance and named else words


def _started(session: SessionSummary) -> str:
    return f"{age(time.time() - session.created)} ago" if session.created else "-"


def _width(out: Console, table: Table) -> int:
    """Return the width in cells that the table needs to print each row on one line."""
    return out.measure(table, options=out.options.update_width(10 * PIPE_WIDTH)).maximum


def _print_paragraphs(out: Console, paragraphs: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Print each name in bold, with its lines indented below."""
    for name, lines in paragraphs:
        out.print(Text(name, style="bold"), soft_wrap=True)
        for line in lines:
            print_prose(out, f"  {line}", indent=4)
