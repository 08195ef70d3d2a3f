"""Compare kernels of one session by speedup, correctness, build and origin."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec import structs

from engine.config.tolerance import SessionTolerance, tolerance_name
from engine.problem.spec import LANGUAGE_NAMES
from engine.session.records.other_sizes import sizes_in_words
from engine.session.records.speedup_text import marked, sol_percent
from engine.session.records.verdict import Standing, Verdict
from engine.session.records.verdict_text import counted_pairs, kernelbench_outcome, speedup_words
from engine.session.state.over_compile import over_compile
from engine.session.state.session_state import SessionState, VariantState
from tui.compare.comparison import MOST, NOTABLE, Cell, Comparison, Head, Row, Section, known_rows, words
from tui.text import format as fmt
from tui.text.certainty import over_compile_words, remarks_of
from tui.text.glyphs import stage_words, standing_of
from tui.text.runoff_text import place_in_runoff
from tui.text.sanitize import one_line

ERROR_MARGIN = 2.0
"""Factor within which errors count as equal, since errors depend on the random inputs."""
CODE_DIGITS = 8

Saying = Callable[[SessionState, VariantState], Cell]


def chosen(state: SessionState, marks: Sequence[str], selected: VariantState | None) -> list[str]:
    """Return the kernels to compare: the marked kernels, oldest mark first.

    If fewer than two kernels are marked, add the selected kernel, then its problem's best kernel. If the selected
    kernel is the best, add its parent instead.
    """
    names = [name for name in marks if name in state.variants][:MOST]
    if len(names) < 2 and selected is not None:
        problem = state.problems.get(selected.problem)
        best = problem.best if problem is not None else None
        for name in (selected.id, best, selected.parent):
            if name is not None and name in state.variants and name not in names and len(names) < 2:
                names.append(name)
    return names


def compare_kernels(state: SessionState, names: Sequence[str], tolerance: SessionTolerance) -> Comparison:
    """Compare the named variants, which were judged with ``tolerance``."""
    variants = [state.variants[name] for name in names]
    heads = tuple(Head(one.id, standing_of(state, one)) for one in variants)
    sections: tuple[Section, ...] = (
        Section("", (*_rows(state, variants, _VERDICT), *_speed(state, variants, tolerance))),
        Section("build", _build(variants)),
        Section("origin", _rows(state, variants, _ORIGIN)),
    )
    if not solve_one_problem(state, names):  # Their figures are not comparable, so no row has a leader.
        sections = tuple(
            Section(one.title, tuple(structs.replace(row, better=None) for row in one.rows)) for one in sections
        )
    return Comparison(heads, _words(state, variants), tuple(one for one in sections if one.rows))


def solve_one_problem(state: SessionState, names: Sequence[str]) -> bool:
    """Return whether the named variants all solve the same problem."""
    return len({state.variants[name].problem for name in names}) == 1


# Conclusions


def _words(state: SessionState, variants: Sequence[VariantState]) -> tuple[str, ...]:
    said = [_which_is_faster(state, variants), *_of_different_moments(variants)]
    for code, group in _by_code(variants).items():
        if code and len(group) > 1:
            said.append(f"{' and '.join(group)} have the same machine code.")
    return tuple(said)


def _which_is_faster(state: SessionState, variants: Sequence[VariantState]) -> str:
    problems = list(dict.fromkeys(one.problem for one in variants))
    if len(problems) > 1:
        return f"These kernels solve different problems ({', '.join(problems)}), so their times are not comparable."
    timed = sorted((one for one in variants if one.speedup is not None), key=lambda one: -(one.speedup or 0.0))
    if len(timed) < 2:
        return f"Only {timed[0].id} is correct." if timed else "None of these kernels is correct."
    if (runoff := _runoff_of(state, timed) or _runoff_of(state, timed[:2])) is not None:
        number, standings = runoff
        first, second = standings[0], standings[1]
        where = f"the runoff of round {number} timed them side by side"
        if _tied(first, second):
            return f"{first.variant} and {second.variant} are tied: {where}."
        longer = marked(f"{second.ratio / first.ratio:.3g}", first.uncertain or second.uncertain)
        return f"{first.variant} is the fastest: {second.variant} takes {longer} times as long; {where}."
    first_, second_ = timed[0], timed[1]
    speedups = f"speedup {speedup_words(first_.verdict)} against {speedup_words(second_.verdict)}"
    if _speedup_row([first_, second_]).leaders:
        ahead = f"{first_.id} is ahead of {second_.id} in separate verdicts, {speedups}"
        return f"{ahead}; no runoff has timed them side by side."
    return f"{first_.id} and {second_.id} are tied in separate verdicts: {speedups}."


def _of_different_moments(variants: Sequence[VariantState]) -> list[str]:
    """Return a sentence if the machine's speed changed between the verdicts.

    The function infers a change if eager took notably longer in one kernel's verdict than in another's.
    """
    if len({one.problem for one in variants}) > 1:
        return []
    known = [(ms, one) for one in variants if one.speedup is not None and (ms := _eager_ms(one)) is not None]
    if len(known) < 2:
        return []
    (least, quick), (most, slow) = min(known, key=_first), max(known, key=_first)
    if most < least * NOTABLE:
        return []
    apart = fmt.duration(abs((slow.judged_at or 0.0) - (quick.judged_at or 0.0)))
    took = f"{fmt.milliseconds(most)} ms with {slow.id}, but {fmt.milliseconds(least)} ms with {quick.id}"
    return [f"The machine's speed changed in the {apart} between their verdicts: eager took {took}."]


def _first(pair: tuple[float, VariantState]) -> float:
    return pair[0]


def _eager_ms(variant: VariantState) -> float | None:
    reference = variant.verdict.reference if variant.verdict is not None else None
    return reference.median_ms if reference is not None else None


def _runoff_of(state: SessionState, timed: Sequence[VariantState]) -> tuple[int, list[Standing]] | None:
    """Return the round and the standings, fastest first, of the newest runoff that timed all ``timed`` kernels."""
    names = {one.id for one in timed}
    problem = state.problems.get(timed[0].problem)
    for round_ in reversed(problem.rounds if problem is not None else []):
        found = [one for one in round_.standings if one.variant in names]
        if len(found) == len(names):
            return round_.number, sorted(found, key=lambda one: one.ratio)
    return None


def _tied(first: Standing, second: Standing) -> bool:
    if first.ratio <= 1.0:  # The first kernel is the winner: all ratios are relative to its time.
        return second.tied
    return second.ratio_low <= first.ratio_high


# Rows


def _rows(
    state: SessionState, variants: Sequence[VariantState], sayings: Sequence[tuple[str, int, Saying]]
) -> tuple[Row, ...]:
    return known_rows(Row(label, tuple(say(state, one) for one in variants), fold=fold) for label, fold, say in sayings)


def _verdict(state: SessionState, variant: VariantState) -> Cell:
    verdict = variant.verdict
    if verdict is None:
        return words(stage_words(state, variant))
    reason = one_line(verdict.pattern or verdict.reason, 200)
    return words(verdict.status.replace("_", " ") + (f": {reason}" if reason and not verdict.correct else ""))


def _idea(state: SessionState, variant: VariantState) -> Cell:
    idea = state.ideas.get(variant.idea)
    return words(f"{idea.id} {idea.category}: {one_line(idea.text, 300)}" if idea is not None else variant.idea)


def _fate(state: SessionState, variant: VariantState) -> Cell:
    if state.is_pruned(variant.id):
        return words("pruned")
    said = (
        [f"selected: {variant.selected_because}"]
        if variant.selected_because
        else [f"dropped: {variant.dropped}"]
        if variant.dropped
        else []
    )
    return words("; ".join([*(["pinned"] if state.is_pinned(variant.id) else []), *map(one_line, said)]))


_VERDICT: tuple[tuple[str, int, Saying], ...] = (
    ("problem", 1, lambda state, one: words(one.problem)),
    ("verdict", 2, _verdict),
)
_ORIGIN: tuple[tuple[str, int, Saying], ...] = (
    ("written by", 2, lambda state, one: words(f"{one_line(one.proposer, 60)}, round {one.round}")),
    ("idea", 3, _idea),
    ("note", 2, lambda state, one: words(one_line(one.note, 120))),
    ("language", 1, lambda state, one: words(LANGUAGE_NAMES[one.language])),
    ("lineage", 2, lambda state, one: words(" < ".join(state.ancestors(one.id)))),
    ("fate", 2, _fate),
)


def _speed(state: SessionState, variants: Sequence[VariantState], tolerance: SessionTolerance) -> tuple[Row, ...]:
    verdicts = [one.verdict for one in variants]
    return known_rows(
        (
            Row("ms", tuple(_time(one) for one in variants), "less"),
            Row("p10-p90 ms", tuple(words(_spread_ms(one)) for one in verdicts)),
            _speedup_row(variants),
            Row("95%", tuple(words(interval(one)) for one in verdicts)),
            Row("tolerance", tuple(words(tolerance_name(tolerance)) for _ in variants)),
            Row("vs compile", tuple(_over_compile(state, one) for one in variants), "more"),
            Row("eager ms", tuple(words(fmt.milliseconds(_eager_ms(one))) for one in variants)),
            Row("judged at", _moments(variants)),
            Row("runoff place", tuple(words(_place(state, one)) for one in variants)),
            Row("pairs", tuple(words(counted_pairs(one) if one is not None else None) for one in verdicts)),
            Row("% SOL", tuple(_sol(one) for one in variants), "more"),
            Row("max error", tuple(_error(one, "max_abs_error") for one in verdicts), "less", margin=ERROR_MARGIN),
            Row("rel. error", tuple(_error(one, "max_rel_error") for one in verdicts), "less", margin=ERROR_MARGIN),
            Row("KernelBench", tuple(words(_by_kernelbench(one)) for one in verdicts), fold=2),
            Row("other sizes", tuple(words(_at_sizes(one)) for one in variants), fold=3),
            Row(
                "remarks",
                tuple(words("; ".join(remarks_of(one)) if one is not None else None) for one in verdicts),
                fold=4,
            ),
        )
    )


def _speedup_row(variants: Sequence[VariantState]) -> Row:
    cells = []
    for one in variants:
        verdict = one.verdict
        low, high = (verdict.speedup_low, verdict.speedup_high) if verdict is not None else (None, None)
        cells.append(Cell(speedup_words(verdict if one.correct else None), one.speedup, low, high))
    return Row("speedup", tuple(cells), "more")


def interval(verdict: Verdict | None) -> str | None:
    if verdict is None or verdict.speedup_low is None or verdict.speedup_high is None:
        return None
    return f"{verdict.speedup_low:.3f}-{verdict.speedup_high:.3f}"


def _scaled(variant: VariantState, value: float | None, text: str, *, falls: bool = False) -> Cell:
    """Return a cell for a figure, with the relative interval of the speedup. ``falls`` is true for a figure that falls
    when the speedup rises, in which case the function inverts the interval.
    """
    verdict = variant.verdict
    if value is None or verdict is None or not (verdict.speedup and verdict.speedup_low and verdict.speedup_high):
        return Cell(text, value)
    low, high = verdict.speedup_low / verdict.speedup, verdict.speedup_high / verdict.speedup
    return Cell(text, value, value / high, value / low) if falls else Cell(text, value, value * low, value * high)


def _time(variant: VariantState) -> Cell:
    value = variant.kernel_ms if variant.correct else None
    return _scaled(variant, value, fmt.milliseconds(variant.kernel_ms), falls=True)


def _over_compile(state: SessionState, variant: VariantState) -> Cell:
    problem = state.problems.get(variant.problem)
    value = over_compile(problem, variant.verdict) if problem is not None else None
    words = over_compile_words(problem, variant) if problem is not None else None
    return _scaled(variant, value, words or "-")


def _sol(variant: VariantState) -> Cell:
    share = variant.verdict.sol_share if variant.verdict is not None else None
    return _scaled(variant, share, f"{sol_percent(share)}%" if share is not None else "-")


def _spread_ms(verdict: Verdict | None) -> str | None:
    timing = verdict.kernel if verdict is not None else None
    return f"{fmt.milliseconds(timing.p10_ms)}-{fmt.milliseconds(timing.p90_ms)}" if timing is not None else None


def _moments(variants: Sequence[VariantState]) -> tuple[Cell, ...]:
    """Return when each kernel was last judged, including the day if the days differ."""
    moments = [time.localtime(one.judged_at) if one.judged_at is not None else None for one in variants]
    days = {moment[:3] for moment in moments if moment is not None}
    shape = "%H:%M:%S" if len(days) < 2 else "%d %b %H:%M"
    return tuple(words(time.strftime(shape, moment) if moment is not None else None) for moment in moments)


def _place(state: SessionState, variant: VariantState) -> str | None:
    """Return the kernel's place in its problem's last runoff, or None if that runoff did not time the kernel."""
    problem = state.problems.get(variant.problem)
    for standing in problem.standings if problem is not None else ():
        if standing.variant == variant.id:
            place = place_in_runoff(standing)
            return {"first": "first", "tied": "tied with first"}.get(place, f"{place} time")
    return None


def _error(verdict: Verdict | None, name: str) -> Cell:
    value: float | None = getattr(verdict, name) if verdict is not None else None
    return Cell(f"{value:.1e}" if value is not None else "-", value)


def _by_kernelbench(verdict: Verdict | None) -> str | None:
    return kernelbench_outcome(verdict.kernelbench) if verdict is not None and verdict.kernelbench is not None else None


def _at_sizes(variant: VariantState) -> str | None:
    checked = variant.at_sizes
    return None if checked is None else one_line(checked.note or sizes_in_words(checked.results), 200)


def _build(variants: Sequence[VariantState]) -> tuple[Row, ...]:
    builds = [one.verdict.build if one.verdict is not None else None for one in variants]

    def number(name: str, unit: str = "") -> tuple[Cell, ...]:
        values = [getattr(one, name) if one is not None else None for one in builds]
        return tuple(Cell(f"{value}{unit}" if value is not None else "-", value) for value in values)

    seconds = tuple(
        words("cached" if one is not None and one.cached else f"{one.seconds:.2f} s" if one is not None else None)
        for one in builds
    )
    return known_rows(
        (
            Row("registers", number("registers")),
            Row("spills", number("spill_bytes", " B"), "less"),
            Row("shared", number("shared_bytes", " B")),
            Row("build time", seconds),
            Row("machine code", _codes(variants), fold=2),
        )
    )


def _codes(variants: Sequence[VariantState]) -> tuple[Cell, ...]:
    """Return each kernel's machine-code digest and the kernels with the same machine code."""
    groups = _by_code(variants)
    cells = []
    for variant in variants:
        code = _code(variant)
        others = [name for name in groups[code] if name != variant.id] if code else []
        same = variant.verdict.same_code_as if variant.verdict is not None else None
        said = [code[:CODE_DIGITS]] if code else []
        if others or same:
            said.append(f"same as {', '.join(others or [same or ''])}")
        cells.append(words(" ".join(said)))
    return tuple(cells)


def _by_code(variants: Sequence[VariantState]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for variant in variants:
        groups.setdefault(_code(variant), []).append(variant.id)
    return groups


def _code(variant: VariantState) -> str:
    build = variant.verdict.build if variant.verdict is not None else None
    return build.code if build is not None else ""
