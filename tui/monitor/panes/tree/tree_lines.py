"""Draw a row of the tree: glyph, id, description, speedup, change from the parent, time and age."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from engine.session.records.verdict_text import speedup_words
from engine.session.state.comparable import comparable_speedup
from engine.session.state.session_data import round_of
from engine.session.state.session_state import IdeaState, RoundState, VariantState
from engine.session.state.spend import MANUAL
from tui.compare.change import Change, change_against_parent, change_of_round, change_words
from tui.monitor.panes.lines import Part, line
from tui.monitor.panes.tree.summary import unshared
from tui.monitor.theme.palette import Palette
from tui.text import format as fmt
from tui.text.certainty import comparable_ms, comparable_words, correction_words
from tui.text.glyphs import GLYPHS, glyph, stage_words, standing_of, why_at_rest
from tui.text.runoff_text import why_no_star
from tui.text.same_code import twin_of
from tui.text.sanitize import one_line
from tui.view.model import Model
from tui.view.results import is_for_searched_sizes_only
from tui.view.row import Row

COLUMNS = (("speedup", 8), ("change", 7), ("ms", 8), ("age", 5))
NUMBER_WIDTH = 3
"""Width in cells of the pane's number before the title."""
NARROW = 64
"""Minimum tree width, in cells, for the age column. In a narrower tree, the description gets this room."""
IDEA = 200
"""Number of characters of an idea or note that the tree compares and shows."""
TRANSFORMATION_CHARS = 40
"""Maximum length of a transformation's label, in characters."""
WhyShown = Callable[[Row, str], list[str]]
"""Function that returns what the filter matches in a row, but not in the row's text (the second argument)."""
SLOW_S = {"building": 60.0, "checking": 60.0, "timing": 120.0, "waiting": 600.0}
"""Seconds in a stage after which the tree highlights the elapsed time."""


class RowLines:
    """Draw a model's rows in the colors of a palette."""

    def __init__(self, model: Model, palette: Palette, *, ascii_only: bool) -> None:
        self.model = model
        self.palette = palette
        self.ascii_only = ascii_only

    def header(self, titles: Iterable[tuple[str, bool]], tolerance: str, caption: str, width: int) -> list[Part]:
        """Return the tree's title, its tolerance, a caption if it fits, and the column names, for rows of ``width``
        cells.

        ``titles`` gives the titles to choose from, longest first, and whether the column names appear beside each.
        """
        names = "".join(name.rjust(size) for name, size in columns_for(width))
        title, columns, room = "", "", 0
        for title, named in titles:  # The first title that leaves room for the tolerance, or the last one.
            columns = names if named else ""
            room = max(0, width - NUMBER_WIDTH - len(columns)) - cell_len(title)
            if len(tolerance) < room:
                break
        shown = f"  {tolerance}" if len(tolerance) + 2 <= room else f" {tolerance}"
        if len(shown) + len(caption) + 4 <= room:
            shown += f"  {caption}"
        return [(title, self.palette.title), (fmt.pad(shown, max(0, room)) + columns, self.palette.dim)]

    def draw(self, row: Row, width: int, *, marked: bool = False, why: WhyShown | None = None) -> Strip:
        """Draw a row. If the filter matches text that the row would not show, the row begins with this text."""
        strip, shown = self._drawn(row, width, marked, []), list[str]()
        # An excerpt can push another match out of the row, so look again until no new one is missing.
        while why is not None and (found := [one for one in why(row, strip.text) if one not in shown]):
            shown += found
            strip = self._drawn(row, width, marked, [("  ".join([*shown, ""]), self.palette.accent)])
        return strip

    def _drawn(self, row: Row, width: int, marked: bool, why: list[Part]) -> Strip:
        if row.kind == "variant" and (variant := self.model.state.variants.get(row.id)) is not None:
            return self._variant(row, variant, width, marked, why)
        if row.kind == "idea" and (idea := self.model.state.ideas.get(row.id)) is not None:
            return self._idea(row, idea, width, why)
        if row.kind == "round":
            return self._round(row, width)
        return self._problem(row, width)

    def _variant(self, row: Row, variant: VariantState, width: int, marked: bool, why: list[Part]) -> Strip:
        state, palette = self.model.state, self.palette
        standing = standing_of(state, variant)
        style = palette.named(GLYPHS[standing].style)
        faint = standing in ("pruned", "queued", "cancelled")
        pin = [(f" {self._glyph('pinned')}", palette.accent)] if variant.id in state.pinned else []
        fold = self._fold(row)
        left: list[Part] = [
            (fold[:-1], palette.dim),
            (self._glyph("marked") if marked else fold[-1], palette.accent),  # Marks do not move the columns.
            (self._glyph(standing), style),
            (f" {variant.id}", palette.marked if marked else (palette.dim if faint else palette.bold)),
            *pin,
            "  ",
            *why,
            *self._about(variant, standing),
        ]
        timed = twin_of(state, variant) or variant
        change = change_against_parent(state, variant)
        overruled = bool(why_no_star(state, variant))
        speedup_style = palette.best if standing == "best" else (palette.dim if faint or overruled else palette.text)
        ms_style = palette.dim if faint or overruled else palette.text
        right = [
            (comparable_words(state, timed) if timed.speedup is not None else "", speedup_style),
            self._change(change),
            (comparable_ms(state, timed) if timed.speedup is not None else "", ms_style),
            (fmt.age(self.model.now() - (variant.judged_at or variant.written_at)), palette.dim),
        ]
        return self._join(row.depth, left, right, width)

    def _about(self, variant: VariantState, standing: str) -> list[Part]:
        palette, verdict = self.palette, variant.verdict
        if (pending := self.model.pending_at(variant.id)) is not None:
            return [(f"{pending} …", palette.warn)]
        if standing != "pruned" and self.model.state.is_left_over(variant):
            return [("not judged", palette.dim), (f"  {self._note(variant, 60)}", palette.dim)]
        if variant.stage is not None and standing != "pruned":
            if standing == "queued":  # A narrow pane cuts the reason, not the note.
                state = self.model.state
                reason = f"  (until a resume: {why_at_rest(state)})" if state.awaits_resume(variant) else ""
                words = f"{stage_words(state, variant)}  {self._note(variant, 60)}".rstrip()
                return [(words + reason, palette.dim)]
            elapsed = self.model.clock() - variant.stage_since
            slow = self.model.link.kind == "live" and elapsed > SLOW_S.get(str(variant.stage), 60.0)
            return [
                (f"{variant.stage} {fmt.clock(elapsed)}", palette.alarm if slow else palette.running),
                (f"  {self._note(variant, 60)}", palette.dim),
            ]
        if verdict is not None and not verdict.correct and (standing != "pruned" or variant.was_judged):
            reason = one_line(verdict.pattern or verdict.reason, 120)
            shown = verdict.status.replace("_", " ")
            return [(shown, palette.named(GLYPHS[standing].style)), (f"  {reason}", palette.dim)]
        twin = twin_of(self.model.state, variant)
        same = [(f"= {twin.id}  ", palette.text)] if twin is not None else []
        why = why_no_star(self.model.state, variant)
        sizes = [("these sizes only  ", palette.warn)] if is_for_searched_sizes_only(variant) else []
        note = self._note(variant, 120)
        return [*same, *sizes, (f"{why}  " if note and why else why, palette.text), (note, palette.dim)]

    def _note(self, variant: VariantState, most: int) -> str:
        """Return the kernel's note without the beginning that it shares with a parent's or sibling's note."""
        state = self.model.state
        idea = state.ideas.get(variant.idea)
        beside = [*(idea.variants if idea is not None else ()), variant.parent or ""]
        others = (one_line(state.variants[name].note, IDEA) for name in beside if name in state.variants)
        return one_line(unshared(one_line(variant.note, IDEA), others), most)

    def _idea(self, row: Row, idea: IdeaState, width: int, why: list[Part]) -> Strip:
        state, palette = self.model.state, self.palette
        name = "pruned" if state.is_pruned(idea.id) else ("waiting" if idea.needs_kernel else "idea")
        says_so = idea.text.startswith("seeded")
        seeded = [("seeded  ", palette.accent)] if idea.by_hand and not says_so else []
        pending = self.model.pending_at(idea.id)
        pin = [(f" {self._glyph('pinned')}", palette.accent)] if idea.id in state.pinned else []
        left: list[Part] = [
            (self._fold(row), palette.dim),
            (self._glyph(name), palette.named(GLYPHS[name].style)),
            (f" {idea.id}", palette.dim),
            *pin,
            "  ",
            *([(f"{pending} …  ", palette.warn)] if pending else seeded),
            (self._best_of(idea), palette.dim),
            *why,
        ]
        begins = line(" " * indent(row.depth, width), *left)
        text = self._idea_text(idea)
        style = palette.dim if name == "pruned" else palette.text
        return fitted(Strip.join([begins, line((text, style))]), width)

    def _idea_text(self, idea: IdeaState) -> str:
        """Return the idea's transformation, parent and text.

        The text omits the beginning that it shares with other ideas of the round or with the parent's idea.
        """
        ideas = self.model.state.ideas
        round_ = round_of(self.model.state, idea.problem, idea.round)
        beside = [ideas[name] for name in round_.ideas if name != idea.id] if round_ is not None else []
        same = idea.parent is not None and any(one.text == idea.text and one.parent != idea.parent for one in beside)
        label = fmt.transformation_label(idea.transformation) if idea.parent is not None else ""
        named = f"{one_line(label, TRANSFORMATION_CHARS)} " if label else ""
        on = f"{named}on {idea.parent}: " if same or named else ""
        apart = beside if not on else [one for one in beside if one.parent == idea.parent]
        parent = self.model.state.variants.get(idea.parent or "")
        above = [ideas[parent.idea]] if parent is not None and parent.idea in ideas else []
        others = (one_line(one.text, IDEA) for one in (*apart, *above))
        return on + unshared(one_line(idea.text, IDEA), others)

    def _best_of(self, idea: IdeaState) -> str:
        """Return the speedup of the idea's fastest kernel, or of the problem's best kernel if it has this idea."""
        state = self.model.state
        problem = state.problems.get(idea.problem)
        star = problem.best if problem is not None else None
        variants = [state.variants[name] for name in ([star] if star in idea.variants else idea.variants)]
        timed = [found for one in variants if (found := twin_of(state, one) or one).speedup is not None]
        best = max(timed, key=partial(comparable_speedup, state), default=None)
        lacks = "needs a kernel  " if idea.needs_kernel else "nothing left to try  "
        reached = f"{comparable_words(state, best)}  " if best is not None else (lacks if idea.waiting else "")
        asked = sum(call.idea == idea.id and call.provider != MANUAL for call in state.spending.flying.values())
        return f"{reached}{asked} pending  " if asked and self.model.link.kind in ("live", "stalled") else reached

    def _round(self, row: Row, width: int) -> Strip:
        state, palette = self.model.state, self.palette
        problem, _, number = row.id.rpartition("/r")
        round_ = next((one for one in state.problems[problem].rounds if one.number == int(number)), None)
        if round_ is None:
            return line("")
        leader = state.leader_of_round(problem, round_.number)
        overruled = why_no_star(state, leader) if leader is not None else ""
        was = correction_words(state, round_)
        best = self.model.best(state.problems[problem])
        hides_best = bool(row.folded) and best is not None and best.round == round_.number
        star = [(f" {self._glyph('best')}", palette.named(GLYPHS["best"].style))] if hides_best else []
        left: list[Part] = [(self._fold(row), palette.dim), (f"round {round_.number}", palette.bold), *star]
        since = self.model.now() - (round_.finished_at or round_.started_at)
        right = [
            (comparable_words(state, leader) if leader is not None else "", palette.dim if overruled else palette.text),
            self._change(change_of_round(state, state.problems[problem], round_.number)),
            ("", palette.text),
            (fmt.age(since), palette.dim),
        ]
        tally = " · ".join(part for part in (self._tally(problem, round_), overruled, was) if part)
        return self._join(row.depth, left, right, width, tally)

    def _change(self, change: Change | None) -> tuple[str, Style]:
        if change is None:
            return "", self.palette.dim
        return change_words(change), self.palette.good if change.value > 0 else self.palette.dim

    def _tally(self, problem: str, round_: RoundState) -> str:
        state = self.model.state
        variants = [state.variants[name] for name in round_.variants]
        left = sum(
            state.is_left_over(variant) or (state.at_rest and variant.id in state.flight) for variant in variants
        )
        running = sum(variant.stage is not None for variant in variants) - left
        judged = [variant for variant in variants if variant.stage is None and variant.was_judged]
        parts = [f"{sum(variant.correct for variant in judged)}/{len(judged)} correct"] if judged else []
        parts += [f"{left} not judged"] if left else []
        if round_.finished_at is not None:
            return " · ".join([*parts, f"{len(round_.selected)} selected"])
        asked = any(
            call.idea is None and (call.site.problem, call.site.round) == (problem, round_.number)
            for call in state.spending.flying.values()
        )
        if running:
            parts.append(f"{running} to go")
        if asked and self.model.link.kind in ("live", "stalled"):
            parts.append("requesting ideas")
        return " · ".join(parts)

    def _problem(self, row: Row, width: int) -> Strip:
        palette = self.palette
        problem = self.model.state.problems.get(row.id)
        if problem is None:
            return line("")
        best = self.model.best(problem)
        at_work = any(variant.problem == problem.id for variant in self.model.state.at_work())
        over = problem.finished is not None and not at_work
        status = "finished" if over else "opening"
        if problem.rounds and not over:
            status = f"round {problem.rounds[-1].number}"
        if (phase := self.model.state.phase(problem.id)) in ("waiting", "done") and problem.cannot_write is None:
            status = f"{status} · {phase}" if phase == "done" and problem.finished is None else phase
        pending = self.model.pending_at(row.id)
        left: list[Part] = [
            (self._fold(row), palette.dim),
            (problem.id, palette.title),
            (f"  {pending} …" if pending else "", palette.warn),
            ("  pruned" if problem.id in self.model.state.pruned else "", palette.warn),
            ("  degenerate" if problem.degenerate else "", palette.warn),
            ("  no proposer" if problem.cannot_write is not None else "", palette.warn),
        ]
        right = [
            (speedup_words(best.verdict) if best is not None else "", palette.best),
            ("", palette.dim),
            (fmt.milliseconds(best.kernel_ms) if best is not None else "", palette.text),
            (fmt.age(self.model.now() - best.judged_at) if best is not None and best.judged_at else "", palette.dim),
        ]
        not_judged = self.model.state.not_judged(problem.id)
        left_over = f"{not_judged} not judged" if not_judged else ""
        kernels = f"{len(problem.variants)} kernel{'s' * (len(problem.variants) != 1)}"
        return self._join(row.depth, left, right, width, " · ".join(filter(None, [status, left_over, kernels])))

    def _join(
        self, depth: int, left: list[Part], right: list[tuple[str, Style]], width: int, counts: str = ""
    ) -> Strip:
        """Join ``left``, as many of ``counts`` as fit, and the columns into a line."""
        columns = columns_for(width)
        right = right[: len(columns)]
        while len(columns) > 1 and not right[0][0]:  # The description may use the space of empty columns.
            right, columns = right[1:], columns[1:]
        room = max(0, width - sum(size for _, size in columns))
        described = line(" " * indent(depth, room), *left)
        while counts and described.cell_length + len(counts) + 2 > room:
            counts = counts.rpartition(" · ")[0]
        described = Strip.join([described, line((f"  {counts}", self.palette.dim))]) if counts else described
        described = fitted(described, room).extend_cell_length(room, Style())
        figures = line(*((text.rjust(size), style) for (text, style), (_, size) in zip(right, columns, strict=True)))
        return Strip.join([described, figures]).crop(0, width)

    def _glyph(self, name: str) -> str:
        return glyph(name, ascii_only=self.ascii_only)

    def _fold(self, row: Row) -> str:
        """Return the fold's glyph and a space or, for a row without a fold, two spaces, so that siblings align."""
        if row.folded is None:
            return "  "
        return self._glyph("folded" if row.folded else "open") + " "


def columns_for(width: int) -> tuple[tuple[str, int], ...]:
    """Return the columns of a tree of ``width`` cells, with the width of each."""
    return COLUMNS if width >= NARROW else COLUMNS[:-1]


def indent(depth: int, width: int) -> int:
    """Return the indentation: two cells per level up to a third of ``width``, then one, up to half of ``width``."""
    levels = width // 6
    return 2 * depth if depth <= levels else min(levels + depth, width // 2)


def fitted(strip: Strip, width: int) -> Strip:
    """Return ``strip`` cut to ``width`` cells. A cut strip ends in ``…``."""
    if strip.cell_length <= width:
        return strip
    segments = list(strip.crop(0, max(0, width - 1)))
    if not segments:
        return Strip([])
    text, style, _ = segments[-1]
    return Strip([*segments[:-1], Segment(text.rstrip(), style), Segment("…", style)])
