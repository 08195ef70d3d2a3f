"""The leaderboard: the fastest correct kernels of a problem, in the order of the last heat where they were in it."""

from __future__ import annotations

from textual.strip import Strip

from engine.state import ProblemState, VariantState
from tui import format as fmt
from tui.certainty import factor_words
from tui.heat import place_in_heat
from tui.model import Model
from tui.palette import Palette
from tui.results import is_for_searched_sizes_only
from tui.sanitize import one_line
from tui.widgets.detail.text import folded
from tui.widgets.lines import LinesView, line

PLACES = 10
FEW = 5
"""Kernels of a problem that are shown before room goes to their words."""
WORDS_AT = 6
"""Columns before the words of a kernel that stand under it."""
FIGURES = "x eager, ms: own verdict. heat: side by side"


class Leaderboard(LinesView):
    ellipsis = True
    HELP = (
        "The fastest correct kernels of each problem. Those of the last heat, where they were timed side by side, "
        "stand in its order: +3% is three percent slower than its fastest, 'tied' no difference that can be told. "
        "The star goes by heat; 'x eager' and 'ms' are each kernel's own verdict, of its own minute, so that another "
        "may have more of it."
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
    """``room``: lines for the kernels, of which there are at most half as many or a few; as many as fit have all of
    their words. ``headed``: the first line says what the columns are."""
    leaders = model.state.standing_order(problem.id, max(3, min(FEW, room), room // 2))
    heat = {standing.variant: place_in_heat(standing) for standing in problem.standings}
    lines = [line((problem.id, palette.title))]
    if headed and leaders:
        columns = f"{'x eager':>7}{'ms':>8}  {'heat' if heat else '':<7}  {'round':<5}"
        lines = [line((fmt.pad(problem.id, 12), palette.title), (f" {columns}", palette.dim))]
    if not leaders:
        return [*lines, line(("  nothing correct yet", palette.dim))]
    spare = max(0, room - len(leaders))
    for place, variant in enumerate(leaders, 1):
        is_best = problem.best == variant.id
        star = ("*" if ascii_only else "★") if is_best else " "
        figures = line(
            (f"{place:>3} {star} ", palette.best if is_best else palette.dim),
            (f"{variant.id:<7}", palette.bold if is_best else palette.text),
            (f"{factor_words(variant.verdict):>7}", palette.best if is_best else palette.text),
            (f"{fmt.milliseconds(variant.kernel_ms):>8}", palette.text),
            (f"  {heat.get(variant.id, ''):<7}", palette.best if is_best else palette.text),
            (f"  r{variant.round:<3} ", palette.dim),
        )
        wrong = "wrong by KernelBench's rules  " if _is_wrong_for_kernelbench(variant) else ""
        wrong += "these sizes only  " if is_for_searched_sizes_only(variant) else ""
        note = one_line(variant.note, 400)
        below = _below(wrong, note, palette, width)
        fits = figures.cell_length + len(wrong + note) <= width
        if not fits and len(below) <= spare:
            lines += [figures, *below]
            spare -= len(below)
        else:
            lines.append(Strip.join([figures, line((wrong, palette.warn), (note, palette.dim))]))
            spare = spare if fits else 0  # none below has more words than one above
    return lines


def _below(wrong: str, note: str, palette: Palette, width: int) -> list[Strip]:
    """The words of a kernel under its figures."""
    indent = " " * WORDS_AT
    return folded([line(indent, (wrong, palette.warn), (note, palette.dim))], width - 1)


def _is_wrong_for_kernelbench(variant: VariantState) -> bool:
    theirs = variant.verdict.kernelbench if variant.verdict is not None else None
    return theirs is not None and theirs.status == "wrong"
