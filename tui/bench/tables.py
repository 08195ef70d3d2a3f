"""Arrange a report's figures as text tables, for both Markdown and HTML."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import Struct

from engine.session.records.speedup_text import ABOVE_SOL, MARK, marked, sol_percent, speedup
from tui.bench.report import MARKS, BenchRow, Over, Report
from tui.text.format import milliseconds

NAMES = {"eager": "eager", "compile": "torch.compile"}
"""Names of baselines in tables. Any other baseline keeps its name from the session."""

RULES = (
    "fast_p is the share of all problems whose best kernel is correct, with a speedup interval entirely above p; "
    "fast_0 is the share with a correct kernel. A refused problem counts as a failure. For a speedup over eager, the "
    "interval is the 95% interval of alternating pairs of calls. For other speedups, the interval runs from (baseline "
    "p10 / kernel p90) to (baseline p90 / kernel p10). On a CPU, the speedup over torch.compile is the speedup over "
    "eager x (torch.compile's time / eager's time right after it). The interval scales with torch.compile's p10 and "
    f"p90. KernelBench's own rules do not define an interval. {MARK} marks an uncertain speedup."
)
SOL_RULE = f"{ABOVE_SOL}."


class Grid(Struct, frozen=True):
    """A table of text. ``right`` names the columns with figures, which are right-aligned."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str] = frozenset()


def name_of(baseline: str) -> str:
    return NAMES.get(baseline, baseline)


def facts(report: Report) -> list[str]:
    """Return lines that describe the benchmark: device, version, tolerance, time and cost."""
    minutes = report.minutes_per_problem
    unit = "minute" if minutes == 1 else "minutes"
    share = f", {minutes:g} {unit} for each problem" if minutes else ""
    day = time.strftime("%Y-%m-%d", time.gmtime(report.created))
    dollars = "unknown cost" if report.dollars is None else f"${report.dollars:.2f}"
    return [
        f"Session {report.session} of {day} ({report.state}), kernel-tui {report.version}, "
        f"on {' and '.join(report.devices) or 'an unknown device'}",
        f"Tolerance {report.tolerance}{share}; {report.minutes:.1f} minutes in total, {dollars}",
        f"{report.correct} of {report.count} problems have a correct kernel. Under KernelBench's own rules, "
        f"{report.kernelbench.fast['0']} of {report.kernelbench_judged} judged best kernels are correct.",
    ]


def totals(report: Report) -> Grid:
    """Return a row per baseline, with fast_p, geometric means and the median."""
    marks = tuple(f"fast_{mark:g}" for mark in MARKS)
    figures = (*marks, "geomean", "median", "problems", "geomean, failures = 1")
    named = {name_of(name): total for name, total in report.totals.items()}
    named["eager, KernelBench's own rules"] = report.kernelbench
    timed = {"eager", *(name for row in report.problems for name, over in row.over.items() if over.ms is not None)}
    untimed = {name_of(name) for name in report.totals if name not in timed}
    rows = [
        (name, *("-" for _ in figures))
        if name in untimed
        else (
            name,
            *(_share(total.fast[f"{mark:g}"], report.count) for mark in MARKS),
            marked(speedup(total.geomean), total.uncertain),
            marked(speedup(total.median), total.uncertain),
            str(total.compared),
            marked(speedup(total.geomean_all), total.uncertain),
        )
        for name, total in named.items()
    ]
    return Grid(("against", *figures), tuple(rows), frozenset(figures))


def _share(count: int, whole: int) -> str:
    return f"{count / whole:.2f} ({count})" if whole else "-"


def problems(report: Report) -> Grid:
    """Return a row per problem."""
    others = [name for name in report.totals if name != "eager"]
    figures = ("eager ms", "best ms", "speedup", *(f"vs {name_of(one)}" for one in others), "% SOL", "minutes", "$")
    head = ("problem", "status", *figures, "KernelBench", "remark")
    return Grid(head, tuple(_cells(row, others) for row in report.problems), frozenset(figures))


def _cells(row: BenchRow, others: Sequence[str]) -> tuple[str, ...]:
    eager = row.over.get("eager", Over())
    failures = [f"no {name_of(one)} time: {row.over[one].failure}" for one in others
                if one in row.over and row.over[one].failure and row.correct]  # fmt: skip
    theirs = row.kernelbench
    if theirs == "correct" and row.kernelbench_speedup is not None:
        theirs = f"correct, {speedup(row.kernelbench_speedup)}"
    return (
        row.problem,
        "correct" if row.correct else row.status,
        milliseconds(eager.ms),
        milliseconds(row.ms),
        with_interval(eager),
        *(with_interval(row.over.get(name, Over())) for name in others),
        sol_percent(row.sol_share),
        f"{row.minutes:.1f}" if row.minutes is not None else "-",
        "?" if row.dollars is None else f"{row.dollars:.2f}",
        theirs or "-",
        "; ".join(filter(None, [row.note, *failures])),
    )


def with_interval(over: Over) -> str:
    """Format a speedup and its interval: ``1.57x [1.52, 1.60]``."""
    words = marked(speedup(over.speedup), over.uncertain)
    if over.low is None or over.high is None:
        return words
    low, high = (speedup(end).removesuffix("x") for end in (over.low, over.high))
    return f"{words} [{low}, {high}]"


def curve(report: Report) -> Grid:
    """Return a table of the benchmark's progress over time, in minutes per problem.

    Between the first and the last row, the table omits rows that repeat the figures of the row above.
    """
    head = ("minutes per problem", "geomean over eager, failures = 1", "fast_1")
    rows = [(f"{at.minutes:.2f}", speedup(at.geomean), _share(at.fast_1, report.count)) for at in report.curve]
    shown = [row for at, row in enumerate(rows) if at in (0, len(rows) - 1) or row[1:] != rows[at - 1][1:]]
    return Grid(head, tuple(shown), frozenset(head))
