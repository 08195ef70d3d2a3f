"""The report's summary: the problems, the machines, the search time, the cost, and each problem's result."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import Struct

from engine.config.tolerance import tolerance_caption
from engine.session.records.speedup_text import (
    MARK,
    footnotes,
    interval,
    marked,
    sol_percent,
    speedup,
)
from engine.session.state.session_state import ProblemState, SessionState
from tui.text.format import duration, geometric_mean, milliseconds, size
from tui.text.narration import end_words
from tui.view.results import ResultRow, Results
from tui.view.spend import count, money

_SOL = "%_SOL"
HEAD = ("eager_ms", "torch.compile_ms", "best_ms", "speedup_over torch.compile", "speedup_over eager", "95%", _SOL,
        "correct")  # fmt: skip
"""Columns of the results table, after the problem column. ``_`` stands for a non-breaking space."""


class ResultLine(Struct, frozen=True):
    """A problem's row in the results table. ``cells`` are the values under ``HEAD``. A ``remark`` replaces them."""

    problem: str
    cells: tuple[str, ...] = ()
    remark: str = ""


class Overview(Struct, frozen=True):
    """The summary as text. ``facts`` are labels and values. ``models`` are rows of calls, tokens and dollars.

    ``captions`` explain the table. ``notes`` are problems with remarks on their best kernels.
    """

    name: str
    headline: str
    facts: tuple[tuple[str, str], ...]
    results: tuple[ResultLine, ...]
    captions: tuple[str, ...]
    notes: tuple[tuple[str, str], ...]
    models: tuple[tuple[str, ...], ...]
    refused: tuple[tuple[str, str], ...]


def overview_of(state: SessionState, results: Results, ended: str) -> Overview:
    """Return the summary. ``ended`` says how the search ended, or that it is running."""
    lines = tuple(_line(row) for row in results.problems if row.status != "refused")
    captions = [f"{tolerance_caption(results.tolerance).capitalize()}."]
    names = {name for line in lines for name, cell in zip(HEAD, line.cells, strict=False) if cell.startswith(MARK)}
    captions += [f"{note}." for note in footnotes(uncertain=bool(names - {_SOL}), above_sol=_SOL in names)]
    searched = [row for row in results.problems if row.problem in state.problems and row.status != "refused"]
    notes = [(row.problem, words) for row in searched if (words := _notes(row, state, state.problems[row.problem]))]
    return Overview(
        name=results.session,
        headline=_headline(results),
        facts=tuple(_facts(state, results, ended)),
        results=lines,
        captions=tuple(captions),
        notes=tuple(notes),
        models=tuple(_models(state)),
        refused=tuple((one.problem, one.reason) for one in state.refused.values()),
    )


def moment(seconds: float) -> str:
    """Format Unix seconds as ``2026-05-28 20:26 UTC``, or ``unknown`` if the date is out of range."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return "unknown"


def _headline(results: Results) -> str:
    """Summarize the result of the search in one or two sentences."""
    searched = [row for row in results.problems if row.status != "refused"]
    solved = [row for row in searched if row.speedup is not None]
    if not solved:
        return f"Searched {_number(len(searched), 'problem')} without finding a correct kernel."
    compared = [row for row in solved if row.over_compile is not None]
    ahead = sum((row.over_compile or 0.0) > 1.0 for row in compared)
    over = [f"{_mean([row.speedup for row in solved], uncertain=_any_uncertain(solved))} over eager PyTorch"]
    if compared:
        uncertain = any(row.over_compile_uncertain for row in compared)
        over.append(f"{_mean([row.over_compile for row in compared], uncertain=uncertain)} over torch.compile")
    reached = " and ".join(over)
    if len(searched) == 1:
        return f"The best kernel's speedup is {reached}."
    if len(compared) == len(searched):
        first = f"For {ahead} of {_number(len(searched), 'problem')}, the best kernel beats torch.compile."
    else:
        first = f"{len(solved)} of {_number(len(searched), 'problem')} have a correct kernel"
        first += (
            f"; {ahead} of {len(compared)} best kernels with a torch.compile time beat torch.compile."
            if compared
            else "."
        )
    return f"{first} {'Its speedup' if len(solved) == 1 else 'Geometric mean of the speedups'}: {reached}."


def _mean(speedups: Iterable[float | None], *, uncertain: bool) -> str:
    return marked(speedup(geometric_mean(one or 0.0 for one in speedups)), uncertain)


def _any_uncertain(rows: Iterable[ResultRow]) -> bool:
    return any(row.uncertain for row in rows)


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _facts(state: SessionState, results: Results, ended: str) -> list[tuple[str, str]]:
    devices = dict.fromkeys(device.name for device in state.devices.values())
    began, last = state.created_at, state.time
    when = moment(began) if last - began < 60 else f"{moment(began)} to {moment(last)}"
    correct = sum(variant.correct for variant in state.variants.values())
    total = state.spending.total
    facts = [
        ("device", ", ".join(devices) or "none"),
        ("tolerance", tolerance_caption(results.tolerance).removeprefix("tolerance ")),
        ("when", when),
        ("search time", duration(int(results.seconds))),
        ("verdicts", f"{results.verdicts:,}, {correct:,} of them correct, from {_number(len(state.ideas), 'idea')}"),
    ]
    if total.calls:
        facts.append(("model calls", f"{_number(total.calls, 'call')}, {_cost(state)}"))
    return [*facts, ("state", ended)]


def _cost(state: SessionState) -> str:
    total = state.spending.total
    dollars = "price unknown" if total.unpriced else money(total.dollars)
    return f"{count(total.tokens)} tokens, {dollars}" if total.tokens else "no tokens reported"


def _models(state: SessionState) -> list[tuple[str, ...]]:
    """Return each model's calls, tokens, dollars and unconfirmed cost, as ``show`` prints them."""
    spends = state.spending.model
    return [
        (
            name,
            str(spend.calls),
            count(spend.tokens),
            "unknown" if spend.unpriced else money(spend.dollars),
            f"up to {count(spend.unknown.tokens)} tokens, {money(spend.unknown.dollars)}" if spend.uncertain else "-",
        )
        for name, spend in [*spends.items(), *([("all", state.spending.total)] if len(spends) > 1 else [])]
    ]


def _line(row: ResultRow) -> ResultLine:
    if row.eager_ms is None:
        return ResultLine(row.problem, (), row.remark or row.status)
    cells = (
        milliseconds(row.eager_ms),
        marked(milliseconds(row.compile_ms), row.compile_uncertain),
        milliseconds(row.best_ms),
        marked(speedup(row.over_compile), row.over_compile_uncertain),
        marked(speedup(row.speedup), row.uncertain),
        interval(row.speedup_low, row.speedup_high),
        sol_percent(row.sol_share),
        f"{row.correct}/{row.verdicts}",
    )
    return ResultLine(row.problem, cells)


def _notes(row: ResultRow, state: SessionState, problem: ProblemState) -> str:
    """Return the remarks that ``show`` prints below its table, without the reason why the search of a problem ended."""
    if row.eager_ms is None:
        return ""
    notes = []
    if row.sizes:
        notes.append(f"{row.best} at other sizes: {row.sizes}")
    if row.best is not None and row.kernelbench.startswith("wrong"):
        notes.append(f"under KernelBench's rules {row.best} is {row.kernelbench}")
    ended = end_words(state, problem.id, problem.finished) if problem.finished is not None else ""
    if remark := row.remark.removesuffix(ended).removesuffix("; "):
        notes.append(remark)
    if row.compile_ms is None and row.compile_note:
        why = "off (torch_compile = false)" if row.compile_note == "off" else row.compile_note
        notes.append(f"no torch.compile time: {why}")
    return "; ".join(notes)


def environment(state: SessionState, config_name: str) -> list[tuple[str, str]]:
    """Return versions, machine, devices and sandbox as labels and values."""
    engine = state.engine
    facts = [("session created by", f"kernel-tui {state.version}"), ("config file", config_name)]
    if engine is not None:
        facts.append(("engine", f"kernel-tui {engine.version} on {engine.host}, {_number(state.starts, 'start')}"))
        facts.append(("sandbox", engine.sandbox))
    for device in state.devices.values():
        measured = (("GB/s", device.bandwidth_gbs), ("GFLOP/s in fp32", device.peak_gflops))
        peaks = "".join(f", {value:,.0f} {unit} measured" for unit, value in measured if value is not None)
        units = "multiprocessors" if device.kind == "cuda" else "cores"
        words = f"{device.arch}, {device.cores} {units}, {size(device.memory_bytes)} memory{peaks}"
        facts.append((device.name, words))
    return [(label, value) for label, value in facts if value]
