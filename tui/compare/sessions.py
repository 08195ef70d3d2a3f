"""Compare saved sessions by results per problem, search effort and configuration."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import sqrt

from engine.config.tolerance import tolerance_name, tolerance_words
from engine.problem.spec import LANGUAGE_NAMES
from engine.session.records.speedup_text import interval, marked, sol_percent, speedup
from tui.compare.comparison import Cell, Comparison, Head, Row, Section, known_rows, words
from tui.text import format as fmt
from tui.text.sanitize import one_line
from tui.view.session_figures import ProblemFigures, SessionFigures
from tui.view.spend import money

OWN = ("name",)
"""Configuration keys that the comparison omits, because they always differ between sessions."""

Saying = Callable[[ProblemFigures | None], Cell]


def compare_sessions(sessions: Sequence[SessionFigures]) -> Comparison:
    """Compare sessions, one column each."""
    problems = list(dict.fromkeys(one.result.problem for session in sessions for one in session.problems))
    shared = [
        name
        for name in problems
        if _same_problem(sessions, name) and all(_best(session, name) is not None for session in sessions)
    ]
    sections = [
        Section("", _overall(sessions, shared)),
        *(Section(one_line(name, 80), _problem(sessions, name)) for name in problems),
        Section("search", _search(sessions)),
        Section("configuration differences", _configuration(sessions)),
    ]
    return Comparison(
        tuple(Head(one_line(session.name, 80)) for session in sessions),
        tuple(_words(sessions, problems, shared)),
        tuple(section for section in sections if section.rows),
    )


def differing(sessions: Sequence[SessionFigures]) -> dict[str, list[str | None]]:
    """Return the config keys whose values differ, with each session's value. A missing key's value is None."""
    keys = dict.fromkeys(key for session in sessions for key in session.config)
    values = {key: [session.config.get(key) for session in sessions] for key in keys if key not in OWN}
    return {key: found for key, found in values.items() if len(set(found)) > 1}


# Conclusions


def _words(sessions: Sequence[SessionFigures], problems: Sequence[str], shared: Sequence[str]) -> list[str]:
    said = []
    if not shared:
        said.append("No comparable problem is solved in all of these sessions.")
    elif _same_tolerance(sessions):
        said.append(_leads(sessions, shared))
    else:
        each = ", ".join(f"{one_line(one.name, 40)} {tolerance_name(one.tolerance)}" for one in sessions)
        said.append(f"The tolerances differ, so speedups are not comparable ({each}).")
    devices = list(dict.fromkeys(", ".join(session.devices) for session in sessions if session.devices))
    if len(devices) > 1:
        said.append(f"The devices differ, so times are not comparable ({one_line('; '.join(devices), 200)}).")
    foreign = [name for name in problems if not _same_problem(sessions, name)]
    if foreign:
        said.append(f"The reference or the shapes differ between sessions for: {one_line(', '.join(foreign), 200)}.")
    return said


def _leads(sessions: Sequence[SessionFigures], shared: Sequence[str]) -> str:
    leads = [0] * len(sessions)
    open_ = 0
    for name in shared:
        leaders = _speedup_row([_figures(session, name) for session in sessions]).leaders
        if len(leaders) == 1:
            leads[next(iter(leaders))] += 1
        else:
            open_ += 1
    count = f"{len(shared)} comparable problem{'' if len(shared) == 1 else 's'}"
    parts = [f"{one_line(session.name, 40)} on {won}" for session, won in zip(sessions, leads, strict=True) if won]
    ahead = f"leader: {', '.join(parts)}" if parts else "no session leads"
    told = f"; tied on {open_}" if open_ else ""
    return f"Geomeans cover {count} that all solved; {ahead}{told}."


def _same_problem(sessions: Sequence[SessionFigures], name: str) -> bool:
    return len({one.identity for session in sessions if (one := _figures(session, name)) is not None}) <= 1


def _same_tolerance(sessions: Sequence[SessionFigures]) -> bool:
    """Return whether all sessions used the same tolerance. A looser tolerance allows less accurate, faster kernels."""
    return len({session.tolerance for session in sessions}) == 1


def _same_devices(sessions: Sequence[SessionFigures]) -> bool:
    return len({session.devices for session in sessions}) == 1


# Rows


def _overall(sessions: Sequence[SessionFigures], shared: Sequence[str]) -> tuple[Row, ...]:
    rows = (
        Row(
            "geomean",
            tuple(_mean(session, shared) for session in sessions),
            "more" if _same_tolerance(sessions) else None,
        ),
        Row("tolerance", tuple(words(tolerance_words(session.tolerance)) for session in sessions), fold=2),
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
        Row("started", tuple(words(_when(session.created)) for session in sessions)),
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
    alike = _same_tolerance(sessions) and _same_problem(sessions, name)
    timed = alike and _same_devices(sessions)

    def each(say: Saying) -> tuple[Cell, ...]:
        return tuple(say(one) for one in found)

    rows = (
        _speedup_row(found, alike=alike),
        Row("95%", each(lambda one: words(_interval(one)))),
        Row("ms", each(_time), "less" if timed else None),
        Row("eager ms", each(_eager)),
        Row("vs compile", each(_over_compile), "more" if timed else None),
        Row("% SOL", each(_sol), "more" if timed else None),
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
    return found.result.speedup if found is not None else None


def _speedup_row(found: Sequence[ProblemFigures | None], *, alike: bool = True) -> Row:
    cells = []
    for one in found:
        row = one.result if one is not None else None
        if row is None:
            cells.append(words(None))
        else:
            cells.append(
                Cell(
                    marked(speedup(row.speedup), row.uncertain),
                    row.speedup,
                    row.speedup_low,
                    row.speedup_high,
                )
            )
    return Row("best speedup", tuple(cells), "more" if alike else None)


def _interval(one: ProblemFigures | None) -> str | None:
    if one is None or one.result.speedup_low is None or one.result.speedup_high is None:
        return None
    return interval(one.result.speedup_low, one.result.speedup_high)


def _time(one: ProblemFigures | None) -> Cell:
    """Return the best kernel's time."""
    value = one.result.best_ms if one is not None else None
    return _as_sure(one, value, fmt.milliseconds(value), falls=True)


def _as_sure(one: ProblemFigures | None, value: float | None, text: str, *, falls: bool = False) -> Cell:
    """Return a cell for a figure, with the relative interval of the speedup. ``falls`` is true for a figure that falls
    when the speedup rises, in which case the function inverts the interval.
    """
    row = one.result if one is not None else None
    if row is None or value is None or not (row.speedup and row.speedup_low and row.speedup_high):
        return Cell(text, value)
    low, high = row.speedup_low / row.speedup, row.speedup_high / row.speedup
    return Cell(text, value, value / high, value / low) if falls else Cell(text, value, value * low, value * high)


def _eager(one: ProblemFigures | None) -> Cell:
    value = one.result.eager_ms if one is not None else None
    return Cell(fmt.milliseconds(value), value)


def _over_compile(one: ProblemFigures | None) -> Cell:
    value = one.result.over_compile if one is not None else None
    uncertain = one is not None and one.result.over_compile_uncertain
    return _as_sure(one, value, marked(speedup(value), uncertain))


def _sol(one: ProblemFigures | None) -> Cell:
    value = one.result.sol_share if one is not None else None
    return _as_sure(one, value, f"{sol_percent(value)}%" if value is not None else "-")


def _author(one: ProblemFigures | None) -> str | None:
    if one is None or one.result.best is None:
        return None
    return f"{one.result.best} ({LANGUAGE_NAMES[one.language]}) by {one_line(one.author, 60)}"


def _rounds(session: SessionFigures) -> int:
    return max((one.result.rounds for one in session.problems), default=0)


def _share(some: int, all_: int) -> Cell:
    """Return a share of the judged kernels with its 95% Wilson interval, which is wide for few kernels."""
    if not all_:
        return words(None)
    share, z = some / all_, 1.96
    middle, scale = share + z * z / (2 * all_), 1 + z * z / all_
    reach = z * sqrt(share * (1 - share) / all_ + (z / (2 * all_)) ** 2)
    return Cell(f"{some}/{all_} {share * 100:.0f}%", share, (middle - reach) / scale, (middle + reach) / scale)


def _mean(session: SessionFigures, shared: Sequence[str]) -> Cell:
    """Return the geometric mean of a session's best speedups over the ``shared`` problems, with an interval."""
    rows = [one.result for name in shared if (one := _figures(session, name)) is not None]
    mean, low, high = (
        fmt.geometric_mean(filter(None, values))
        for values in (
            [row.speedup for row in rows],
            [row.speedup_low or row.speedup for row in rows],
            [row.speedup_high or row.speedup for row in rows],
        )
    )
    uncertain = any(row.uncertain for row in rows)
    return Cell(marked(speedup(mean), uncertain), mean, low, high)


def _when(created: float) -> str | None:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(created)) if created else None


def _failures(session: SessionFigures) -> str:
    return ", ".join(
        f"{status.replace('_', ' ')} {count}" for status, count in session.statuses.items() if status != "correct"
    )


def _proposers(session: SessionFigures) -> str:
    return ", ".join(f"{one_line(name, 60)} {count}" for name, count in session.proposers.items())


def _dollars(session: SessionFigures) -> Cell:
    """Return the cost of model calls. The text lists calls of unknown price, instead of counting them as free."""
    if not session.calls:
        return words(None)
    more = [f"{session.unpriced} of unknown price"] if session.unpriced else []
    more += [f"{session.uncertain} unconfirmed"] if session.uncertain else []
    return Cell(f"{money(session.dollars)}{' + ' + ', '.join(more) if more else ''}", session.dollars)
