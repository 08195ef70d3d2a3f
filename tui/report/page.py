"""Build the report: one self-contained HTML file without scripts.

Names, ideas, sources, prompts and replies come from models and kernels, so the page treats them as hostile. Jinja
escapes every value, and control characters become visible stand-ins. The page's Content-Security-Policy allows only its
one style sheet.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from msgspec import Struct

from engine import __version__
from engine.session.records.speedup_text import marked, speedup
from engine.session.records.verdict_text import speedup_words
from engine.session.state.session_state import ProblemState, SessionState, VariantState
from engine.session.store import SessionReader
from tui.compare.change import LEGEND
from tui.console.echo import clean
from tui.report.best_kernel import BestKernel, best_kernel
from tui.report.calls import call_texts
from tui.report.charts import GROUPS, Group, RoundCounts, has_spending, problem_chart, spend_chart
from tui.report.code_markup import text_markup
from tui.report.overview import HEAD, environment, overview_of
from tui.report.tree import tree_of
from tui.text.format import clock
from tui.text.sanitize import one_line
from tui.view.over_time.history import History, NewBest, Trajectory
from tui.view.results import Results


class Section(Struct, frozen=True):
    """A problem's section of the page.

    ``anchor`` is the section's id in the page. ``falls`` is true if the best speedup fell at least once.
    """

    problem: str
    anchor: str
    chart: Markup
    bests: tuple[tuple[str, ...], ...]
    rounds: tuple[RoundCounts, ...]
    falls: bool
    best: BestKernel | None
    without_best: str

    def shows(self, group: Group) -> bool:
        """Return whether a chart of this section has the group's color."""
        return any(one.of(group) for one in self.rounds)


def report_page(
    reader: SessionReader, state: SessionState, history: History, results: Results, ended: str, argument: str
) -> str:
    """Return the report as HTML.

    Args:
        reader: The reader of the session's texts.
        state: The session's state.
        history: How the session reached that state.
        results: The figures for the table.
        ended: A text that says how the search ended.
        argument: The session's name on the command line.

    Raises:
        SessionError: A text is unreadable.
        ImportError: Matplotlib is not installed.
    """
    style = _file("report.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    sections = [
        _section(state, history, results, problem, number, reader.text)
        for number, problem in enumerate(state.problems.values(), 1)
        if problem.id not in state.refused
    ]
    spending = has_spending(history)
    page = _environment().get_template("report.html.j2")
    return page.render(
        style=Markup(style),  # This is our own file, which must reach the page unescaped for its digest to match.
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        overview=overview_of(state, results, ended),
        head=HEAD,
        sections=sections,
        groups=GROUPS,
        spend=spend_chart(history.spent, results.seconds) if spending else None,
        tree=tree_of(state),
        change_legend=LEGEND,
        calls=call_texts(state, reader.text),
        environment=environment(state, reader.config_name()),
        config=text_markup(reader.text(state.config)) if state.config else "",
        argument=argument,
        version=__version__,
    )


def _section(
    state: SessionState,
    history: History,
    results: Results,
    problem: ProblemState,
    number: int,
    text: Callable[[str], str],
) -> Section:
    trajectory = history.problems.get(problem.id, Trajectory())
    rounds = tuple(_rounds(state, problem))
    best = state.variants.get(problem.best or "")
    row = next(row for row in results.problems if row.problem == problem.id)
    over_eager = row.speedup / row.over_compile if row.speedup and row.over_compile else None
    label = f"{problem.id}: {len(trajectory.timed)} correct kernels, {len(trajectory.bests)} changes of the best"
    return Section(
        problem=problem.id,
        anchor=f"problem-{number}",
        chart=problem_chart(f"p{number}", one_line(label), trajectory, rounds, results.seconds, over_eager),
        bests=tuple(_new_best(state, one) for one in trajectory.bests),
        rounds=rounds,
        falls=any(later.speedup < one.speedup for one, later in pairwise(trajectory.bests)),
        best=best_kernel(state, best, results.tolerance, text) if best is not None else None,
        without_best=row.remark or f"None of the {len(problem.variants)} kernels is correct.",
    )


def _rounds(state: SessionState, problem: ProblemState) -> Iterator[RoundCounts]:
    for round_ in problem.rounds:
        verdicts = (state.variants[name].verdict for name in round_.variants)
        yield RoundCounts(round_.number, Counter(verdict.status for verdict in verdicts if verdict is not None))


def _new_best(state: SessionState, one: NewBest) -> tuple[str, ...]:
    """Return the search time, the count of verdicts, the kernel, its speedup then, why it became the best, and its
    idea.
    """
    variant = state.variants[one.variant]
    idea = state.ideas.get(variant.idea)
    why = {"verdict": "its verdict", "runoff": f"runoff ahead of {one.before}" if one.before else "runoff"}
    reached = marked(speedup(one.speedup), one.uncertain)
    how = f"{why.get(one.how, one.how)}{_later_verdict(variant, reached)}"
    return (clock(one.seconds), str(one.verdicts), one.variant, reached, how,
            one_line(idea.text, 160) if idea is not None else "")  # fmt: skip


def _later_verdict(variant: VariantState, reached: str) -> str:
    """Return a later verdict in words, or "" if the speedup that the kernel ``reached`` as a new best still holds."""
    if variant.verdict is None or (now := speedup_words(variant.verdict)) == reached:
        return ""
    return f"; judged again: {now if variant.correct else variant.verdict.status.replace('_', ' ')}"


def _clean(value: Any) -> Any:
    """Replace control characters in a text. Jinja escapes the result."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_file),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )


def _file(name: str) -> str:
    return resources.files("tui.report").joinpath("templates", name).read_text(encoding="utf-8")
