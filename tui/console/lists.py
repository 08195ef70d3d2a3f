"""Print the lists of the commands ``problems`` and ``sessions``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from engine.config.tolerance import shared_caption, short_caption
from engine.problem.catalog import ProblemRow
from engine.problem.spec import LANGUAGE_NAMES, Language
from engine.session.store import SessionSummary
from tui.console.clean_console import PIPE_WIDTH, print_prose
from tui.console.tables import columns, console, print_marked
from tui.text.format import age
from tui.text.sanitize import one_line

if TYPE_CHECKING:
    from engine.proposers.coverage import Writer

_MOST_WEIGHTS = 4
"""Weights that the list of problems names, at most. Of a larger model, the list shows the number of weights."""


def print_problems(rows: Sequence[ProblemRow], proposers: Sequence[Sequence[Writer]]) -> None:
    """Print each problem's name (as in a config), kernel languages, proposers and tensors.

    ``proposers`` lists, for each row, the proposers that were checked.
    """
    table = columns("problem", "kernels", "written by", "inputs and weights -> outputs")
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    lacking = False
    from engine.proposers.coverage import add_a_table

    for row, asked in zip(rows, proposers, strict=True):
        tensors = f"{', '.join((*row.inputs, *_weights(row)))} -> {', '.join(row.outputs)}" if row.outputs else ""
        refusals = [one_line(one.refusal) for one in asked if one.refusal]
        words = "\n".join(part for part in (tensors, one_line(row.remark), *refusals) if part)
        able = [f"{one.proposer} ({_names(one.languages)})" for one in asked if one.languages]
        lacking |= bool(row.languages) and not able
        table.add_row(Text(row.reference), Text(_names(row.languages) or "none"), Text(", ".join(able) or "none"),
                      Text(words))  # fmt: skip
    out = console()
    out.print(table)
    if lacking:
        print_prose(out, "written by none: the search waits until you seed a kernel (key a, or kernel-tui seed-kernel)")
        for line in add_a_table().splitlines():  # Its TOML is to be pasted.
            out.print(Text(line), soft_wrap=True)


def _weights(row: ProblemRow) -> tuple[str, ...]:
    """Return the weights or, of a large model, only their number. ``problems --json`` lists all of them."""
    return row.weights if len(row.weights) <= _MOST_WEIGHTS else (f"{len(row.weights)} weights",)


def _names(languages: Sequence[Language]) -> str:
    return " ".join(LANGUAGE_NAMES[one] for one in languages)


def print_sessions(sessions: Sequence[SessionSummary]) -> None:
    """Print one line per session, or several lines on a narrow terminal. Session names are never cut."""
    out = console()
    table = _sessions_table(sessions, in_lines=True)
    if out.measure(table, options=out.options.update_width(10 * PIPE_WIDTH)).maximum > out.width:
        table = _sessions_table(sessions, in_lines=False)
        name = table.columns[0]
        name.no_wrap, name.overflow, name.max_width = False, "fold", max(16, out.width // 3)
    print_marked(out, table, _caption_of(sessions))


def _caption_of(sessions: Sequence[SessionSummary]) -> str | None:
    return shared_caption(one.tolerance for one in sessions if one.best)


def _sessions_table(sessions: Sequence[SessionSummary], *, in_lines: bool) -> Table:
    beside = ("config", "") if in_lines else ()
    table = columns("session", "state", "age", "verdicts", "best", *beside, right=("age", "verdicts"))
    each = _caption_of(sessions) is None
    for one in sessions:
        best = Text(", ".join(one.bests) + (f" ({short_caption(one.tolerance)})" if each and one.best else ""))
        since = age(time.time() - one.created) if one.created else "-"
        config = one_line(Path(one.config_name).name)
        note = one_line(one.note)
        below = Text(": ".join(filter(None, [config, note])), style="dim")
        cells = (
            [best, Text(config), Text(note, style="dim")]
            if in_lines
            else [Text("\n").join(filter(None, [best, below]))]
        )
        table.add_row(Text(one.name), one.state_words, since, str(one.verdicts), *cells)
    return table
