"""Saved sessions side by side: what each found per problem, with what means, and where their configurations differ.
Pure, from ``tui.session_figures``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import sqrt

from engine.factor import hardly_known, interval_factor, marked, speedup
from tui import format as fmt
from tui.compare import Cell, Comparison, Head, Row, Section, known_rows, words
from tui.sanitize import one_line
from tui.session_figures import ProblemFigures, SessionFigures
from tui.spend import money

OWN = ("name",)
"""Configuration that every session has for itself."""

Saying = Callable[[ProblemFigures | None], Cell]


def compare_sessions(sessions: Sequence[SessionFigures]) -> Comparison:
    """A column for each session."""
    problems = list(dict.fromkeys(one.result.problem for session in sessions for one in session.problems))
    shared = [
        name
        for name in problems
        if _same_problem(sessions, name) and all(_best(session, name) is not None for session in sessions)
    ]
    sections = [
        Section("", _overall(sessions, shared)),
        *(Section(one_line(name, 80), _problem(sessions, name)) for name in problems),
        Section("the search", _search(sessions)),
        Section("configuration that differs", _configuration(sessions)),
    ]
    return Comparison(
        tuple(Head(one_line(session.name, 80)) for session in sessions),
        tuple(_words(sessions, problems, shared)),
        tuple(section for section in sections if section.rows),
    )


def differing(sessions: Sequence[SessionFigures]) -> dict[str, list[str | None]]:
    """The configuration's keys whose values differ, with each session's; None where one does not have the key."""
    keys = dict.fromkeys(key for session in sessions for key in session.config)
    values = {key: [session.config.get(key) for session in sessions] for key in keys if key not in OWN}
    return {key: found for key, found in values.items() if len(set(found)) > 1}


# What it comes to


def _words(sessions: Sequence[SessionFigures], problems: Sequence[str], shared: Sequence[str]) -> list[str]:
    said = []
    if not shared:
        said.append("They have no problem in common that all of them solved.")
    else:
        said.append(_leads(sessions, shared))
    devices = list(dict.fromkeys(", ".join(session.devices) for session in sessions if session.devices))
    if len(devices) > 1:
        said.append(f"They ran on different devices: times do not compare ({one_line('; '.join(devices), 200)}).")
    foreign = [name for name in problems if not _same_problem(sessions, name)]
    if foreign:
        said.append(f"Not the same reference or shapes, in spite of the name: {one_line(', '.join(foreign), 200)}.")
    return said


def _leads(sessions: Sequence[SessionFigures], shared: Sequence[str]) -> str:
    leads = [0] * len(sessions)
    open_ = 0
    for name in shared:
        leaders = _factor_row([_figures(session, name) for session in sessions]).leaders
        if len(leaders) == 1:
            leads[next(iter(leaders))] += 1
        else:
            open_ += 1
    count = f"{len(shared)} problem{'' if len(shared) == 1 else 's'}"
    parts = [f"{one_line(session.name, 40)} on {won}" for session, won in zip(sessions, leads, strict=True) if won]
    ahead = f"ahead: {', '.join(parts)}" if parts else "none is ahead"
    told = f"; no difference can be told on {open_}" if open_ else ""
    return f"Of {count} that all of them solved, {ahead}{told}."


def _same_problem(sessions: Sequence[SessionFigures], name: str) -> bool:
    return len({one.identity for session in sessions if (one := _figures(session, name)) is not None}) <= 1


def _same_devices(sessions: Sequence[SessionFigures]) -> bool:
    return len({session.devices for session in sessions}) == 1


# Rows


def _overall(sessions: Sequence[SessionFigures], shared: Sequence[str]) -> tuple[Row, ...]:
    rows = (
        Row("mean x eager", tuple(_mean(session, shared) for session in sessions), "more"),
        Row("state", tuple(words(session.state) for session in sessions)),
        Row("search time", tuple(Cell(fmt.clock(session.seconds), session.seconds) for session in sessions)),
        Row("verdicts", tuple(words(str(session.verdicts)) for session in sessions)),
        Row("built", tuple(_share(one.built, one.judged) for one in sessions), "more"),
        Row("correct", tuple(_share(one.correct, one.judged) for one in sessions), "more"),
        Row("dollars", tuple(_dollars(session) for session in sessions)),
    )
    return known_rows(rows)


def _search(sessions: Sequence[SessionFigures]) -> tuple[Row, ...]:
    rows = (
        Row("began", tuple(words(_when(session.created)) for session in sessions)),
        Row("rounds", tuple(words(str(_rounds(session))) for session in sessions)),
        Row("failures", tuple(words(_failures(session)) for session in sessions), fold=3),
        Row("written by", tuple(words(_proposers(session)) for session in sessions), fold=3),
        Row("calls", tuple(words(str(session.calls) if session.calls else None) for session in sessions)),
        Row("tokens", tuple(words(f"{one.tokens:,}" if one.calls else None) for one in sessions)),
        Row("device", tuple(words(one_line(", ".join(session.devices), 120)) for session in sessions), fold=2),
        Row("kernel-tui", tuple(words(one_line(session.version, 40)) for session in sessions)),
    )
    return known_rows(rows)


def _problem(sessions: Sequence[SessionFigures], name: str) -> tuple[Row, ...]:
    found = [_figures(session, name) for session in sessions]
    timed = _same_devices(sessions) and _same_problem(sessions, name)

    def each(say: Saying) -> tuple[Cell, ...]:
        return tuple(say(one) for one in found)

    rows = (
        _factor_row(found, alike=_same_problem(sessions, name)),
        Row("95 %", each(lambda one: words(_interval(one)))),
        Row("ms", each(_time), "less" if timed else None),
        Row("eager ms", each(_eager)),
        Row("x compile", each(_over_compile), "more" if timed else None),
        Row("of the floor", each(_floor), "more" if timed else None),
        Row("best kernel", each(lambda one: words(_author(one))), fold=2),
        Row("rounds", each(lambda one: words(str(one.result.rounds) if one is not None else None))),
        Row("verdicts", each(lambda one: words(str(one.result.verdicts) if one is not None else None))),
        Row("built", each(lambda one: _share(one.built, one.judged) if one else words(None)), "more"),
        Row("correct", each(lambda one: _share(one.result.correct, one.judged) if one else words(None)), "more"),
    )
    return known_rows(rows)


def _configuration(sessions: Sequence[SessionFigures]) -> tuple[Row, ...]:
    return tuple(
        Row(
            one_line(key, 60),
            tuple(words(one_line(value, 300) if value is not None else None) for value in values),
            fold=3,
        )
        for key, values in differing(sessions).items()
    )


def _figures(session: SessionFigures, name: str) -> ProblemFigures | None:
    return next((one for one in session.problems if one.result.problem == name), None)


def _best(session: SessionFigures, name: str) -> float | None:
    found = _figures(session, name)
    return found.result.factor if found is not None else None


def _factor_row(found: Sequence[ProblemFigures | None], *, alike: bool = True) -> Row:
    cells = []
    for one in found:
        row = one.result if one is not None else None
        if row is None:
            cells.append(words(None))
        else:
            cells.append(
                Cell(
                    interval_factor(row.factor, row.factor_low, row.factor_high),
                    row.factor,
                    row.factor_low,
                    row.factor_high,
                )
            )
    return Row("best x eager", tuple(cells), "more" if alike else None)


def _interval(one: ProblemFigures | None) -> str | None:
    if one is None or one.result.factor_low is None or one.result.factor_high is None:
        return None
    return f"{one.result.factor_low:.2f}-{one.result.factor_high:.2f}"


def _time(one: ProblemFigures | None) -> Cell:
    """The best kernel's time."""
    value = one.result.best_ms if one is not None else None
    return _as_sure(one, value, fmt.milliseconds(value), falls=True)


def _as_sure(one: ProblemFigures | None, value: float | None, text: str, *, falls: bool = False) -> Cell:
    """A figure of the best kernel, as sure as its factor is; ``falls``: the smaller, the larger the factor."""
    row = one.result if one is not None else None
    if row is None or value is None or not (row.factor and row.factor_low and row.factor_high):
        return Cell(text, value)
    low, high = row.factor_low / row.factor, row.factor_high / row.factor
    return Cell(text, value, value / high, value / low) if falls else Cell(text, value, value * low, value * high)


def _eager(one: ProblemFigures | None) -> Cell:
    value = one.result.eager_ms if one is not None else None
    return Cell(fmt.milliseconds(value), value)


def _over_compile(one: ProblemFigures | None) -> Cell:
    value = one.result.over_compile if one is not None else None
    unsure = one is not None and one.result.compile_unsure
    return _as_sure(one, value, marked(speedup(value), unsure))


def _floor(one: ProblemFigures | None) -> Cell:
    value = one.result.floor_share if one is not None else None
    return _as_sure(one, value, f"{value * 100:.0f} %" if value is not None else "-")


def _author(one: ProblemFigures | None) -> str | None:
    if one is None or one.result.best is None:
        return None
    return f"{one.result.best} .{one.form} by {one_line(one.author, 60)}"


def _rounds(session: SessionFigures) -> int:
    return max((one.result.rounds for one in session.problems), default=0)


def _share(some: int, all_: int) -> Cell:
    """A share of what was judged, with its 95 % interval (Wilson's): of few kernels it says little."""
    if not all_:
        return words(None)
    share, z = some / all_, 1.96
    middle, scale = share + z * z / (2 * all_), 1 + z * z / all_
    reach = z * sqrt(share * (1 - share) / all_ + (z / (2 * all_)) ** 2)
    return Cell(f"{some}/{all_} {share * 100:.0f} %", share, (middle - reach) / scale, (middle + reach) / scale)


def _mean(session: SessionFigures, shared: Sequence[str]) -> Cell:
    """The geometric mean of its best factors over ``shared``, and of the ends of their intervals."""
    rows = [one.result for name in shared if (one := _figures(session, name)) is not None]
    mean, low, high = (
        fmt.geometric_mean(filter(None, values))
        for values in (
            [row.factor for row in rows],
            [row.factor_low or row.factor for row in rows],
            [row.factor_high or row.factor for row in rows],
        )
    )
    unsure = any(hardly_known(row.factor, row.factor_low, row.factor_high) for row in rows)
    return Cell(marked(speedup(mean), unsure), mean, low, high)


def _when(created: float) -> str | None:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(created)) if created else None


def _failures(session: SessionFigures) -> str:
    return ", ".join(
        f"{status.replace('_', ' ')} {count}" for status, count in session.statuses.items() if status != "correct"
    )


def _proposers(session: SessionFigures) -> str:
    return ", ".join(f"{one_line(name, 60)} {count}" for name, count in session.proposers.items())


def _dollars(session: SessionFigures) -> Cell:
    """What models cost; an unknown price is never 0."""
    if not session.calls:
        return words(None)
    more = [f"{session.unpriced} of unknown price"] if session.unpriced else []
    more += [f"{session.uncertain} unanswered"] if session.uncertain else []
    return Cell(f"{money(session.dollars)}{' + ' + ', '.join(more) if more else ''}", session.dollars)
