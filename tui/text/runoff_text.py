"""Describe a kernel's place in the runoffs."""

from __future__ import annotations

from typing import NamedTuple

from engine.session.records.speedup_text import marked, speedup
from engine.session.records.verdict import Standing
from engine.session.records.verdict_text import counts_by_low_end, speedup_words
from engine.session.state.comparable import figures_of
from engine.session.state.session_state import ProblemState, SessionState, VariantState
from tui.text import format as fmt
from tui.text.certainty import comparable_ms, comparable_words, interval_words

NO_RUNOFF = "no runoff with"
"""Prefix of the remark on kernels that no runoff has timed side by side."""
TIED_BUT_WIDE = "tied, wide interval"
"""Remark on a runoff's first kernel if a tied kernel is the best, because the first kernel's interval is wide."""
UNCERTAIN_RUNOFF = "uncertain runoff with"
"""Prefix of the remark on kernels whose result in the newest runoff is uncertain."""

NO_CHANGE = fmt.change(0.0).lstrip("+-")
"""Text for a change that rounds to zero."""
BY_RUNOFF = "runoff"
"""Placeholder for the 95% interval of figures that a runoff scaled."""
SCALED = f"{BY_RUNOFF}: the best kernel's verdict, scaled by the times in a runoff"
"""Footnote for ``BY_RUNOFF``."""


class SideBySide(NamedTuple):
    """How much faster one kernel was than another in a runoff: 0.04 is four percent faster. ``uncertain``: whether the
    runoff's result is uncertain.
    """

    faster: float
    uncertain: bool


def place_in_runoff(standing: Standing) -> str:
    """Format a kernel's place in a runoff: ``first``, ``tied``, ``+3.1%`` (slower than the winner by 3.1%), or
    ``~+85%`` if it is uncertain.
    """
    if standing.ratio <= 1.0:
        return "first"
    return "tied" if standing.tied else marked(fmt.change(standing.ratio - 1), standing.uncertain)


def side_by_side(problem: ProblemState, before: str, variant: str) -> SideBySide | None:
    """Compare ``variant`` with ``before`` in the newest runoff that timed both, or return None without one."""
    for round_ in reversed(problem.rounds):
        timed = {one.variant: one for one in round_.standings}
        own, other = timed.get(variant), timed.get(before)
        if own is not None and other is not None and own.ratio and other.ratio:
            return SideBySide(other.ratio / own.ratio - 1, own.uncertain or other.uncertain)
    return None


def tie_words(best: str, before: str) -> str:
    """Say that the best kernel replaced ``before`` without a measurable lead."""
    return f"{best} is now the best, tied with {before}"


def why_new_best(state: SessionState, problem: ProblemState, before: str | None) -> str:
    """Say why the best kernel replaced ``before`` in a runoff, such as ``4.2% faster than v7 side by side``."""
    best, former = state.variants.get(problem.best or ""), state.variants.get(before or "")
    if best is None or former is None:
        return "won the runoff"
    compared = side_by_side(problem, former.id, best.id)
    if compared is None:
        return f"won a runoff that did not time {former.id}"
    faster, amount = compared.faster, fmt.change(compared.faster).lstrip("+-")
    by = f"{marked(amount, compared.uncertain)} {'faster' if faster >= 0 else 'slower'} than"
    how = by if amount != NO_CHANGE else "as fast as"
    words = f"{how} {former.id} side by side"
    if faster < 0:  # A tied kernel wins if the interval of the fastest kernel is wide.
        words += ", but with a narrower interval"
    return words


def former_verdict_words(former: VariantState | None, best: VariantState) -> str:
    """Say that the former best kernel's verdict has a higher speedup.

    Example: ``v7's verdict: 2.10x; the runoff decides``. Return "" if that speedup is not higher.
    """
    if former is None or (former.speedup or 0.0) <= (best.speedup or 0.0):
        return ""
    return f"{former.id}'s verdict: {speedup_words(former.verdict)}; the runoff decides"


def above_low_end(former: VariantState | None, best: VariantState) -> str:
    """Say why ``best`` replaced a kernel with a higher speedup without a runoff: that speedup is uncertain.

    The search ranks an uncertain speedup by the low end of its interval. Return "" if there is nothing to explain.
    """
    if former is None or former.verdict is None or (former.speedup or 0.0) <= (best.speedup or 0.0):
        return ""
    low = former.verdict.speedup_low
    if low is None or not counts_by_low_end(former.verdict):
        return ""
    uncertain = f"{speedup_words(former.verdict)} {interval_words(former.verdict)} is uncertain"
    return f"{former.id}'s speedup {uncertain}, so it ranks as {speedup(low)}"


def why_lower(state: SessionState, problem: ProblemState, before: str | None) -> str:
    """Say why the best kernel replaced ``before``, whose verdict has a higher speedup.

    Example: ``4.2% faster than v7 side by side (v7's verdict: 2.10x; the runoff decides)``. Return "" if the best
    kernel's speedup is not lower.
    """
    best, former = state.variants.get(problem.best or ""), state.variants.get(before or "")
    if best is None or former is None or not (against := former_verdict_words(former, best)):
        return ""
    if side_by_side(problem, former.id, best.id) is not None:
        return f"{why_new_best(state, problem, before)} ({against})"
    return above_low_end(former, best)


def last_runoff(problem: ProblemState, variant: VariantState) -> str:
    """Describe the place of ``variant`` in the problem's newest runoff, or return "" if there was none."""
    number = next((one.number for one in reversed(problem.rounds) if one.standings), None)
    if number is None:
        return ""
    runoff = f"the runoff of round {number}"
    standing = next((one for one in problem.standings if one.variant == variant.id), None)
    first = problem.standings[0].variant
    if standing is None:
        return f"not in {runoff}, which {first} won"
    place = place_in_runoff(standing)
    if place == "first":
        tied = [one.variant for one in problem.standings if one.tied and one.ratio > 1.0]
        return f"first in {runoff}" + (f", tied with {', '.join(tied)}" if tied else "")
    return f"tied with {first} in {runoff}" if place == "tied" else f"time {place} against {first} in {runoff}"


def lost_runoff(problem: ProblemState, variant: VariantState) -> str:
    """Describe the newest runoff that ``variant`` lost clearly, or return "" if there was none."""
    for round_ in reversed(problem.rounds):
        for standing in round_.standings:
            place = place_in_runoff(standing)
            if standing.variant == variant.id and place not in ("first", "tied"):
                return f"time {place} against {round_.standings[0].variant} in the runoff of round {round_.number}"
    return ""


def scaled_words(state: SessionState, variant: VariantState) -> str:
    """Format a kernel's figures in tables, and name the verdict that they come from, if a runoff scaled them.

    Example: ``6.84x, 1.55 ms: v28's verdict, scaled by the time in a runoff``. Otherwise, return "".
    """
    figures = figures_of(state, variant)
    if figures is None or not figures.scaled:
        return ""
    shown = f"{comparable_words(state, variant)}, {comparable_ms(state, variant)} ms"
    return f"{shown}: {figures.scaled}'s verdict, scaled by the time in a runoff"


def why_no_star(state: SessionState, variant: VariantState) -> str:
    """Say why ``variant`` is not the best kernel although its figures are better.

    Verdicts measured at different times are not comparable. Returns two or three words, or "" if there is nothing to
    explain.
    """
    problem = state.problems.get(variant.problem)
    best = state.variants.get(problem.best or "") if problem is not None else None
    if problem is None or best is None or best is variant or state.is_pruned(variant.id):
        return ""
    figures, of_best = figures_of(state, variant), figures_of(state, best)
    if figures is None or of_best is None or (figures.speedup <= of_best.speedup and figures.ms >= of_best.ms):
        return ""
    timed = {standing.variant: standing for standing in problem.standings}
    own, first = timed.get(variant.id), timed.get(best.id)
    if own is not None and first is not None and not own.decides:
        return f"{UNCERTAIN_RUNOFF} {best.id}"
    overtaken = own is not None and first is not None and first.tied and first.ratio > own.ratio
    if overtaken and variant.verdict is not None and counts_by_low_end(variant.verdict):
        return TIED_BUT_WIDE
    return f"{NO_RUNOFF} {best.id}"


def why_first_is_not_best(state: SessionState, variant: VariantState) -> str:
    """Say why the first kernel of the newest runoff is not the best. ``variant`` is this kernel or the best kernel.

    Returns "" for any other kernel, or if there is nothing to explain.
    """
    problem = state.problems.get(variant.problem)
    if problem is None or problem.best is None or not problem.standings:
        return ""
    first, best = problem.standings[0].variant, problem.best
    if variant.id not in (first, best) or why_no_star(state, state.variants[first]) != TIED_BUT_WIDE:
        return ""
    return f"{first} was first in the runoff, but is tied with {best}, and {first}'s speedup is uncertain"


def decided_after(problem: ProblemState, variant: VariantState) -> int | None:
    """Return the number of the newest round that ended by selecting or dropping ``variant``."""
    for round_ in reversed(problem.rounds):
        if any(one.variant == variant.id for one in (*round_.selected, *round_.dropped)):
            return round_.number
    return None
