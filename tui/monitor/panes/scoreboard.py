"""The scoreboard: each problem's best kernel compared with PyTorch, and its best speedup by round."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.strip import Strip

from engine.session.records.speedup_text import sol_percent
from engine.session.records.verdict_text import speedup_words
from engine.session.state.comparable import comparable_speedup
from engine.session.state.session_state import ProblemState, SessionState
from tui.compare.change import SIDE_BY_SIDE
from tui.monitor.panes.detail.text import folded
from tui.monitor.panes.lines import LinesView, line
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.text.certainty import interval_words, over_compile_words
from tui.view.activity import OPENING
from tui.view.model import Model

NAME_MIN = 8
SOL = "% SOL"
LEGEND = f"{SOL}: lower bound / best time; {SIDE_BY_SIDE}: change in a runoff"
"""Last line, if there is room for it. It also explains marks in the tree."""
FIGURES = (("speedup", 8), ("ms", 7), ("eager ms", 9), ("vs compile", 11), (SOL, 6))
INTERVAL = ("95%", 15)
"""Column after the speedup, if the pane has room for the interval and a few rounds."""
ROUNDS_MIN = 4
CHART = 6
"""Width in cells of the chart by round, including the gap beside it. A long problem name takes the chart's place."""
SHORTEST_CHART = 3
RUNNING = "> "
"""Mark of the problem whose turn it is."""
WAITING = (" waiting", " waits")
"""Words in place of the chart for a problem that has not had its turn. The pane shows the first word that fits."""
ROOM = 13
"""Height of the pane at 120 columns, in lines."""


class Scoreboard(LinesView):
    HELP = (
        "The best kernel of each problem. The speedup is over eager, with a 95% interval (~: uncertain). 'eager ms' is "
        "eager's time when the judge timed the kernel, so eager ms / ms is the speedup; the log's 'eager alone' is a "
        "separate measurement. The column 'vs compile' is the speedup over torch.compile. The column '% SOL' is the "
        "lower bound on time / the kernel's time (~: above 100; the Evidence tab lists the possible causes). The chart "
        "'by round' shows the best kernel's speedup at the end of each round, which later runoffs, verdicts and prunes "
        "can change. Up and down select another problem here and in the tree. Press 'i' to seed an idea for that "
        "problem, or 'a' to seed a kernel."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose(-1)", "up", show=False),
        Binding("down,j", "choose(1)", "down", show=False),
    ]

    def __init__(
        self, chosen: Callable[[], str | None], choose: Callable[[str], None], *, id: str | None = None
    ) -> None:
        """``chosen`` returns the problem of the tree's selected row. The focused pane highlights this problem.

        ``choose`` selects a problem in the tree. It is a callback, since a message would take effect only after the
        next key press.
        """
        super().__init__(id=id)
        self._chosen, self._choose = chosen, choose
        self._names: list[str] = []

    def show(self, model: Model) -> None:
        most = self.styles.max_height
        room = int(most.value) if most is not None and most.is_cells else max(self.size.height, 1)
        self._names = _names(model.state)
        chosen = self._chosen() if self.has_focus else None
        self.set_lines(
            scoreboard(model, self.palette, self.size.width, ascii_only=self.ascii_only, room=room, chosen=chosen)
        )

    def action_choose(self, step: int) -> None:
        """Go to the next or previous problem, or scroll beyond the last or first problem."""
        chosen = self._chosen()
        place = self._names.index(chosen) + step if chosen in self._names else 0
        if not 0 <= place < len(self._names):
            self.scroll_relative(y=step, animate=False)
            return
        y, (top, height) = place + 1, (self.scroll_offset.y, self.scrollable_content_region.height)  # below the head
        if not top < y < top + height:
            self.scroll_to(y=y - 1 if step < 0 else y - height + 1, animate=False)
        self._choose(self._names[place])


def _names(state: SessionState) -> list[str]:
    """Return the problems in the order of their lines."""
    return [name for name in state.phases() or state.problems if name in state.problems]


def scoreboard(
    model: Model, palette: Palette, width: int, *, ascii_only: bool, room: int = ROOM, chosen: str | None = None
) -> list[Strip]:
    """Return the pane's lines, with the problem ``chosen`` highlighted.

    If ``room`` (lines) suffices, a name too long for its column gets its own line.
    """
    state = model.state
    if not state.problems and state.refused:
        return _refused(state, palette, width)
    if not state.problems:
        return [line((OPENING if model.is_opening else "No problem is open yet.", palette.dim))]
    figures = FIGURES if width >= 56 else FIGURES[:3]
    phases = state.phases()
    longest = max(len(name) for name in (*state.problems, *state.refused)) + len(RUNNING) * state.takes_turns
    left = width - sum(size for _, size in figures)  # Each figure is narrower than its column, which leaves a gap.
    name_width = max(NAME_MIN, longest if left - CHART < longest <= left else min(longest + 1, left - CHART))
    between = width - name_width - sum(size for _, size in figures) - INTERVAL[1] > ROUNDS_MIN
    if between:
        figures = (figures[0], INTERVAL, *figures[1:])
    spark_width = max(0, width - name_width - sum(size for _, size in figures) - 1)
    spark_width *= spark_width >= SHORTEST_CHART
    wanted = 1 + len(state.refused) + sum(1 + (cell_len(name) > name_width) for name in state.problems)
    own_line = wanted <= room
    head = "".join(name.rjust(size) for name, size in figures)
    rounds = next((f" {word}" for word in ("by round", "rounds") if len(word) <= spark_width), "")
    done = sum(phase == "done" for phase in phases.values())
    corner = fmt.pad(f"{done}/{len(phases)} done" if phases else "", name_width)
    lines = [line((f"{corner}{head}{rounds}", palette.dim))]
    for problem in (state.problems[name] for name in _names(state)):
        best = model.best(problem)
        verdict = model.verdict_of_best(problem)
        speedup = verdict.speedup if verdict is not None else None
        ahead = over_compile_words(problem, best) if best is not None else None
        share = verdict.sol_share if verdict is not None else None
        cells = [
            (speedup_words(verdict), palette.best if speedup and speedup > 1 else palette.bold),
            *([(interval_words(verdict), palette.dim)] if between else []),
            (fmt.milliseconds(best.kernel_ms if best is not None else None), palette.text),
            (fmt.milliseconds(problem.eager_ms(best)), palette.dim),
            (ahead if ahead is not None else _compile_word(model, problem), palette.dim),
            (sol_percent(share), palette.dim),
        ]
        reached = best_by_round(state, problem)
        bottom = 0.7 * min((value for value in reached if value > 0), default=0.0)
        spark = fmt.sparkline(reached, spark_width, bottom=bottom, ascii_only=ascii_only)
        phase = phases.get(problem.id)
        name = f"{RUNNING}{problem.id}" if phase == "running" else problem.id
        over = problem.finished is not None if phase is None else phase != "running"
        name_style = palette.dim if over else palette.bold
        first = len(lines)
        if own_line and cell_len(name) > name_width:
            lines.append(line((fmt.fit(name, width), name_style)))
            name = ""
        lines.append(
            line(
                (fmt.pad(name, name_width), name_style),
                *((text.rjust(size), style) for (text, style), (_, size) in zip(cells, figures, strict=False)),
                (f" degenerate: {problem.degenerate}", palette.warn)
                if problem.degenerate
                else (next((word for word in WAITING if len(word) <= spark_width), ""), palette.dim)
                if phase == "waiting"
                else (f" {spark}" if spark else "", palette.chart),
            )
        )
        if problem.id == chosen:
            lines[first:] = [one.extend_cell_length(width).apply_style(palette.cursor) for one in lines[first:]]
    if wanted < room and figures[-1][0] == SOL:
        lines.append(line((fmt.fit(LEGEND, width), palette.dim)))
    return [*lines, *_refused(state, palette, width)]


def _refused(state: SessionState, palette: Palette, width: int) -> list[Strip]:
    """Return the problems that the engine does not search, each with the full reason."""
    said = [
        line((f"{one.problem}  ", palette.bold), (f"not searched: {one.reason}", palette.warn))
        for one in state.refused.values()
    ]
    return folded(said, width - 1)


def best_by_round(state: SessionState, problem: ProblemState) -> list[float]:
    """Return the speedup of the problem's best kernel at the end of each round, or 0 before the first correct kernel.

    The speedups are comparable (``engine.session.state.comparable``).
    """
    bests = (state.best_after_round(problem.id, round_.number) for round_ in problem.rounds)
    return [comparable_speedup(state, best) if best is not None else 0.0 for best in bests]


def _compile_word(model: Model, problem: ProblemState) -> str:
    """Return one word that says why there is no speedup over torch.compile."""
    compiled = problem.baselines.get("compile")
    if compiled is None:
        word = model.without_compile(problem)
        return word if word in ("off", "pending") else "-"
    return "failed" if compiled.timing is None else "-"
