"""The leaderboard: the fastest correct kernels of a problem."""

from __future__ import annotations

from textual.strip import Strip

from engine.state import ProblemState
from tui import format as fmt
from tui.model import Model
from tui.palette import Palette
from tui.sanitize import one_line
from tui.widgets.lines import LinesView, line

PLACES = 10


class Leaderboard(LinesView):
    HELP = "The fastest correct kernels of each problem."

    def show(self, model: Model) -> None:
        places = max(3, (self.size.height or 30) // max(1, len(model.state.problems)) - 2)
        lines: list[Strip] = []
        for problem in model.state.problems.values():
            lines += leader_lines(model, problem, self.palette, places, ascii_only=self.ascii_only)
        self.set_lines(lines)


def leader_lines(
    model: Model, problem: ProblemState, palette: Palette, places: int = PLACES, *, ascii_only: bool
) -> list[Strip]:
    lines = [line((problem.id, palette.title))]
    leaders = model.state.leaders(problem.id, places)
    tied = {standing.variant for standing in problem.standings if standing.tied}
    for place, variant in enumerate(leaders, 1):
        is_best = problem.best == variant.id
        star = ("*" if ascii_only else "★") if is_best else " "
        lines.append(
            line(
                (f"{place:>3} {star} ", palette.best if is_best else palette.dim),
                (f"{variant.id:<7}", palette.bold if is_best else palette.text),
                (f"{fmt.speedup(variant.speedup):>7}", palette.best if is_best else palette.text),
                (f"{fmt.milliseconds(variant.kernel_ms):>8}", palette.text),
                (f"  r{variant.round}{' tied' if variant.id in tied else ''}", palette.dim),
                (f"  {one_line(variant.note, 60)}", palette.dim),
            )
        )
    return lines if leaders else [*lines, line(("  nothing correct yet", palette.dim))]
