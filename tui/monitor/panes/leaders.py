"""The leaders: a problem's fastest correct kernels, in the order of the last runoff."""

from __future__ import annotations

from typing import NamedTuple

from textual.strip import Strip

from engine.config.tolerance import SessionTolerance, short_caption
from engine.session.state.comparable import figures_of
from engine.session.state.session_state import ProblemState, VariantState
from tui.monitor.panes.detail.text import folded
from tui.monitor.panes.lines import LinesView, line
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.text.certainty import comparable_ms, comparable_words
from tui.text.runoff_text import place_in_runoff, why_no_star
from tui.text.sanitize import one_line
from tui.view.model import Model
from tui.view.results import is_for_searched_sizes_only

PLACES = 10
FEW = 5
"""Minimum number of kernels listed per problem before notes get lines of their own."""
WORDS_AT = 6
"""Indent, in cells, of a kernel's note under its figures."""


class Limit(NamedTuple):
    """A limit on the use of a correct kernel, in words and, for narrow lines, as a mark."""

    words: str
    mark: str


KERNELBENCH = Limit("wrong by KernelBench's rules", "!KB")
SIZES = Limit("these sizes only", "!sizes")
OWN, EARLIER = "own", "earlier"
"""Labels for kernels outside the last runoff, whose figures come from their own verdicts or from an earlier runoff."""
FIGURES = (
    f"speedup, ms: the best kernel's verdict, scaled by the runoff; {EARLIER}: by an earlier runoff; "
    f"{OWN}: the kernel's own verdict, not scaled"
)


def leaders_caption(tolerance: SessionTolerance) -> str:
    """Return what the leaders' figures mean, for the pane's title."""
    return f"speedup over eager, {short_caption(tolerance)}"


class Leaderboard(LinesView):
    ellipsis = True
    HELP = (
        "The fastest correct kernels of each problem. A runoff times the leaders side by side and decides their order. "
        "Here, '+3%' means 3% slower than the winner, and 'tied' means no measurable difference. The star marks the "
        "best kernel: the first one or, if its speedup is uncertain, the fastest tied one whose speedup is not. For a "
        "kernel in the last runoff, speedup and time are the best kernel's, scaled by the ratio of their times in the "
        f"runoff. Other kernels show figures that an earlier runoff scaled ('{EARLIER}'), or those of their own "
        f"verdicts ('{OWN}'). The latter are dim if they look better than the best kernel's. Where space is short, "
        f"'{KERNELBENCH.mark}' means '{KERNELBENCH.words}', and '{SIZES.mark}' means '{SIZES.words}'."
    )

    _model: Model | None = None

    def on_resize(self) -> None:
        if self._model is not None:
            self.show(self._model)

    def show(self, model: Model) -> None:
        self._model = model
        room = min(2 * PLACES, ((self.size.height or 30) - 1) // max(1, len(model.state.problems)) - 1)
        width, ascii_only = self.size.width or 58, self.ascii_only
        lines: list[Strip] = []
        for problem in model.state.problems.values():
            headed = not lines
            lines += leader_lines(
                model, problem, self.palette, ascii_only=ascii_only, headed=headed, width=width, room=room
            )
        self.set_lines(lines)


def leader_lines(
    model: Model,
    problem: ProblemState,
    palette: Palette,
    *,
    ascii_only: bool,
    headed: bool = True,
    width: int = 80,
    room: int = 2 * PLACES,
) -> list[Strip]:
    """Return a problem's leaders with their notes.

    ``room`` is the number of lines. If ``room`` is large, kernels get half of the lines, and their notes the other
    half. ``headed`` adds a line with column names.
    """
    leaders = _placed(model, problem, max(3, min(FEW, room), room // 2))
    runoff = {standing.variant: place_in_runoff(standing) for standing in problem.standings}
    has_runoff = bool(runoff) or any(_is_scaled(model, variant) for _, variant in leaders)
    lines = [line((problem.id, palette.title))]
    if headed and leaders:
        columns = f"{'speedup':>7}{'ms':>8}  {'runoff' if has_runoff else '':<7}  {'round':<5}"
        lines = [line((fmt.pad(problem.id, 12), palette.title), (f" {columns}", palette.dim))]
    if not leaders:
        return [*lines, line(("  no correct kernel yet", palette.dim))]
    spare = max(0, room - len(leaders))
    for place, variant in leaders:
        outside = (EARLIER if _is_scaled(model, variant) else OWN) if has_runoff else ""
        is_best = problem.best == variant.id
        plain = palette.dim if why_no_star(model.state, variant) else palette.text
        star = ("*" if ascii_only else "★") if is_best else " "
        figures = line(
            (f"{place:>3} {star} ", palette.best if is_best else palette.dim),
            (f"{variant.id:<7}", palette.bold if is_best else palette.text),
            (f"{comparable_words(model.state, variant):>7}", palette.best if is_best else plain),
            (f"{comparable_ms(model.state, variant):>8}", plain),
            (f"  {runoff.get(variant.id, outside):<7}", palette.best if is_best else palette.text),
            (f"  r{variant.round:<3} ", palette.dim),
        )
        limits = _limits_of(variant)
        wrong = "".join(f"{one.words}  " for one in limits)
        note = one_line(variant.note, 400)
        below = _below(wrong, note, palette, width)
        fits = figures.cell_length + len(wrong + note) <= width
        if not fits and len(below) <= spare:
            lines += [figures, *below]
            spare -= len(below)
        else:
            shown = wrong if fits else "".join(f"{one.mark} " for one in limits)
            lines.append(Strip.join([figures, line((shown, palette.warn), (note, palette.dim))]))
            spare = spare if fits else 0  # The first kernels get their notes first.
    return lines


def _placed(model: Model, problem: ProblemState, count: int) -> list[tuple[int, VariantState]]:
    """Return the first ``count`` leaders with their places. The best kernel replaces the last one if it stands lower,
    because several kernels with uncertain speedups can stand ahead of it.
    """
    most = max(count, len(problem.standings) + 1)  # Only kernels in the best kernel's runoff stand ahead of it.
    order = list(enumerate(model.state.standing_order(problem.id, most), 1))
    best = [one for one in order[count:] if one[1].id == problem.best]
    return [*order[: count - len(best)], *best]


def _is_scaled(model: Model, variant: VariantState) -> bool:
    """Return whether a runoff scaled the figures of the kernel."""
    figures = figures_of(model.state, variant)
    return figures is not None and bool(figures.scaled)


def _below(wrong: str, note: str, palette: Palette, width: int) -> list[Strip]:
    """Return a kernel's note, to show under its figures."""
    indent = " " * WORDS_AT
    return folded([line(indent, (wrong, palette.warn), (note, palette.dim))], width - 1)


def _limits_of(variant: VariantState) -> list[Limit]:
    theirs = variant.verdict.kernelbench if variant.verdict is not None else None
    wrong = theirs is not None and theirs.status == "wrong"
    return [KERNELBENCH] * wrong + [SIZES] * is_for_searched_sizes_only(variant)
