"""The scoreboard: one line per problem with its best kernel against PyTorch, and its best speedup round by round."""

from __future__ import annotations

from textual.strip import Strip

from engine.state import ProblemState, SessionState
from tui import format as fmt
from tui.certainty import factor_words, interval_words, over_compile_words
from tui.model import Model
from tui.palette import Palette
from tui.widgets.lines import LinesView, line

NAME_MIN = 8
FIGURES = (("x eager", 8), ("ms", 8), ("eager ms", 9), ("x compile", 10), ("floor", 6))
INTERVAL = ("95 %", 15)
"""Behind the factor, where there is room for it and for some rounds."""
ROUNDS_MIN = 4


class Scoreboard(LinesView):
    HELP = (
        "Per problem: best speedup over eager, with its 95 % interval where there is room (~: wider than a fifth), "
        "its time, eager's, the factor over torch.compile, share of the floor. They are of the best kernel's own "
        "verdict, in one minute; only torch.compile's time is of another."
    )

    def show(self, model: Model) -> None:
        self.set_lines(scoreboard(model, self.palette, self.size.width, ascii_only=self.ascii_only))


def scoreboard(model: Model, palette: Palette, width: int, *, ascii_only: bool) -> list[Strip]:
    state = model.state
    if not state.problems:
        return [line(("no problem yet", palette.dim))]
    figures = FIGURES if width >= 56 else FIGURES[:3]
    longest = max(len(name) for name in (*state.problems, *state.refused))
    name_width = max(NAME_MIN, min(longest + 1, width - sum(size for _, size in figures) - 6))
    between = width - name_width - sum(size for _, size in figures) - INTERVAL[1] > ROUNDS_MIN
    if between:
        figures = (figures[0], INTERVAL, *figures[1:])
    spark_width = max(0, width - name_width - sum(size for _, size in figures) - 1)
    head = "".join(name.rjust(size) for name, size in figures)
    rounds = next((f" {word}" for word in ("by round", "rounds") if len(word) <= spark_width), "")
    lines = [line((f"{' ' * name_width}{head}{rounds}", palette.dim))]
    for problem in state.problems.values():
        best = model.best(problem)
        verdict = model.verdict_of_best(problem)
        factor = verdict.speedup if verdict is not None else None
        ahead = over_compile_words(problem, best) if best is not None else None
        share = verdict.floor_share if verdict is not None else None
        cells = [
            (factor_words(verdict), palette.best if factor and factor > 1 else palette.bold),
            *([(interval_words(verdict), palette.dim)] if between else []),
            (fmt.milliseconds(best.kernel_ms if best is not None else None), palette.text),
            (fmt.milliseconds(problem.eager_ms(best)), palette.dim),
            (ahead if ahead is not None else _compile_word(model, problem), palette.dim),
            (f"{share * 100:.0f}%" if share is not None else "-", palette.dim),
        ]
        reached = best_so_far(state, problem)
        bottom = 0.7 * min((value for value in reached if value > 0), default=0.0)
        spark = fmt.sparkline(reached, spark_width, bottom=bottom, ascii_only=ascii_only)
        lines.append(
            line(
                (fmt.pad(problem.id, name_width), palette.bold if problem.finished is None else palette.dim),
                *((text.rjust(size), style) for (text, style), (_, size) in zip(cells, figures, strict=False)),
                (f" degenerate: {problem.degenerate}", palette.warn)
                if problem.degenerate
                else (f" {spark}", palette.chart),
            )
        )
    for refused in state.refused.values():
        lines.append(
            line((fmt.pad(refused.problem, name_width), palette.dim), (f" refused: {refused.reason}", palette.warn))
        )
    return lines


def best_so_far(state: SessionState, problem: ProblemState) -> list[float]:
    """The best factor over eager reached by the end of each round, 0 before the first correct kernel."""
    reached = 0.0
    series = []
    for round_ in problem.rounds:
        reached = max(reached, state.best_of_round(problem.id, round_.number) or 0.0)
        series.append(reached)
    return series


def _compile_word(model: Model, problem: ProblemState) -> str:
    """One word: there is no room for why it failed, nor to say that it was not measured."""
    compiled = problem.baselines.get("compile")
    if compiled is None:
        word = model.without_compile(problem)
        return word if word in ("off", "pending") else "-"
    return "failed" if compiled.timing is None else "-"
