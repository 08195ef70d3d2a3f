"""The leaderboard: the fastest correct kernels of a problem, in the order of the last heat where they were in it."""

from __future__ import annotations

from textual.strip import Strip

from engine.state import ProblemState, VariantState
from engine.verdict import Standing
from tui import format as fmt
from tui.certainty import factor_words
from tui.model import Model
from tui.palette import Palette
from tui.sanitize import one_line
from tui.widgets.lines import LinesView, line

PLACES = 10


class Leaderboard(LinesView):
    ellipsis = True
    HELP = (
        "The fastest correct kernels of each problem. Those of the last heat, where they were timed side by side, "
        "stand in its order: +3% is three percent slower than its fastest, 'tied' no difference that can be told. "
        "The star goes by heat; 'x eager' is each kernel's own verdict, so that another may have more of it."
    )

    def show(self, model: Model) -> None:
        places = max(3, ((self.size.height or 30) - 1) // max(1, len(model.state.problems)) - 1)
        lines: list[Strip] = []
        for problem in model.state.problems.values():
            lines += leader_lines(model, problem, self.palette, places, ascii_only=self.ascii_only, headed=not lines)
        self.set_lines(lines)


def leader_lines(
    model: Model,
    problem: ProblemState,
    palette: Palette,
    places: int = PLACES,
    *,
    ascii_only: bool,
    headed: bool = True,
) -> list[Strip]:
    """``headed``: the first line says what the columns are."""
    leaders = model.state.standing_order(problem.id, places)
    heat = {standing.variant: _in_heat(standing) for standing in problem.standings}
    lines = [line((problem.id, palette.title))]
    if headed and leaders:
        columns = f"{'x eager':>7}{'ms':>8}  {'heat' if heat else '':<7}  {'round':<5}"
        lines = [line((fmt.pad(problem.id, 12), palette.title), (f" {columns}", palette.dim))]
    for place, variant in enumerate(leaders, 1):
        is_best = problem.best == variant.id
        star = ("*" if ascii_only else "★") if is_best else " "
        lines.append(
            line(
                (f"{place:>3} {star} ", palette.best if is_best else palette.dim),
                (f"{variant.id:<7}", palette.bold if is_best else palette.text),
                (f"{factor_words(variant.verdict):>7}", palette.best if is_best else palette.text),
                (f"{fmt.milliseconds(variant.kernel_ms):>8}", palette.text),
                (f"  {heat.get(variant.id, ''):<7}", palette.text),
                (f"  r{variant.round:<3}", palette.dim),
                (" by heat" if is_best and variant.id in heat else "", palette.best),
                (" wrong by KernelBench's rules" if _is_wrong_for_kernelbench(variant) else "", palette.warn),
                (f" {one_line(variant.note, 60)}", palette.dim),
            )
        )
    return lines if leaders else [*lines, line(("  nothing correct yet", palette.dim))]


def _is_wrong_for_kernelbench(variant: VariantState) -> bool:
    theirs = variant.verdict.kernelbench if variant.verdict is not None else None
    return theirs is not None and theirs.status == "wrong"


def _in_heat(standing: Standing) -> str:
    """How much longer than the fastest of the heat it took."""
    if standing.ratio <= 1.0:
        return "first"
    return "tied" if standing.tied else fmt.change(standing.ratio - 1)
