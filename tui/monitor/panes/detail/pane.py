"""The detail pane, with the tabs Kernel, Diff, Evidence, Why, Leaders, Calls, Charts and ASM for the selected node.

The pane imports a tab's module when it first shows the tab, so that imports do not delay the monitor's first paint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.strip import Strip
from textual.timer import Timer

from engine.config.tolerance import short_caption
from engine.session.state.comparable import comparable_speedup, figures_of
from engine.session.state.over_compile import over_compile
from engine.session.state.session_state import ProblemState, VariantState
from engine.session.store import SessionError
from tui.monitor.delay import after
from tui.monitor.panes.charts.view import Charts
from tui.monitor.panes.detail.text import folded, wrapped
from tui.monitor.panes.leaders import FIGURES, leader_lines
from tui.monitor.panes.lines import LinesView, Part, line
from tui.monitor.panes.pane import Pane
from tui.text.certainty import comparable_words, interval_words
from tui.text.glyphs import glyph, standing_of
from tui.text.runoff_text import BY_RUNOFF, why_no_star
from tui.text.same_code import twin_of
from tui.text.sanitize import one_line
from tui.view.activity import OPENING, activity_of
from tui.view.model import Model
from tui.view.row import Row

if TYPE_CHECKING:
    from tui.monitor.panes.detail.assembly import Assembly
    from tui.monitor.panes.detail.conversation import Conversation

Tab = Literal["Kernel", "Diff", "Evidence", "Why", "Leaders", "Calls", "Charts", "ASM"]
TABS: tuple[Tab, ...] = ("Kernel", "Diff", "Evidence", "Why", "Leaders", "Calls", "Charts", "ASM")
PROSE: tuple[Tab, ...] = ("Evidence", "Why")
"""Tabs whose long lines wrap. Source and diffs do not wrap."""
Against = Literal["parent", "best", "marked"]
AGAINST: tuple[Against, ...] = ("parent", "best", "marked")
_NAMES: dict[Against, str] = {"parent": "its parent", "best": "the best kernel", "marked": "the marked kernel"}
FIRST_STEPS = (
    "The engine first inspects the problems and times their references. Then the engine builds, checks and times the "
    "first kernels, and selects the best kernels as parents for the next round."
)
REFUSED_REMEDY = (
    "To search these problems, correct the causes above, and start a new session. To check a problem file first, run: "
    "kernel-tui problems FILE --check"
)
GROW_S = 0.25
"""Seconds between two updates of a streaming reply."""
LEADERS_ROOM = 100
"""Maximum number of lines in the Leaders tab, which scrolls."""
TITLE_AT = 3
"""Column of the title at which the tab names begin."""
KERNEL_WIDTH = 8
"""Width of the kernel's glyph and id in the title, in cells."""
SETTLE_S = 0.08
"""Seconds that the cursor must rest before the detail pane follows, so that moving stays fast."""
COMPILE_AFTER_S = 0.4
"""Seconds that the cursor must rest on a kernel before the ASM tab compiles it."""


class DetailView(LinesView):
    HELP = (
        "Tabs for the selected kernel: source, diff, evidence for the verdict, why it was selected or dropped, model "
        "calls, and machine code (ASM). Two more tabs show the problem's leaders and charts. Press / to search."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "screen.tab(-1)", "previous tab", show=False),
        Binding("right,l", "screen.tab(1)", "next tab", show=False),
        Binding("less_than_sign", "scroll_sideways(-8)", "left", show=False),
        Binding("greater_than_sign", "scroll_sideways(8)", "right", show=False),
    ]


class DetailPane(Pane):
    """Show one node of ``model``. With ``best``, always show the best kernel's source."""

    def __init__(
        self, model: Model, all_hidden: Callable[[], bool], *, id: str, number: int = 4, best: bool = False
    ) -> None:
        """``all_hidden`` returns whether the tree's filter hides every row."""
        self.view = DetailView()
        super().__init__(number, "Best" if best else "Detail", self.view, id=id)
        self.model = model
        self.is_best = best
        self._all_hidden = all_hidden
        self.twin: DetailPane | None = None
        """The best kernel's pane, or None in that pane itself."""
        self._tab: Tab | None = None
        self.against: Against = "parent"
        self.marked: str | None = None
        self.charts = Charts(model, lambda: self.show() if self.is_attached else None)
        self._row: Row | None = None
        self._shown: tuple[object, ...] = ()
        self._growing: Timer | None = None

    def on_mount(self) -> None:
        self._growing = self.set_interval(GROW_S, self._grow, pause=True)

    def on_unmount(self) -> None:
        self._stop_compiling()

    @cached_property
    def talk(self) -> Conversation:
        from tui.monitor.panes.detail.conversation import Conversation

        return Conversation(self.model)

    @cached_property
    def assembly(self) -> Assembly:
        from tui.monitor.panes.detail.assembly import Assembly

        return Assembly(self.model, lambda: self.show() if self.is_attached else None)

    @property
    def tab(self) -> Tab:
        """The tab that the user chose.

        The default is the source, or the evidence if the best kernel's pane already shows that source.
        """
        return self._tab or ("Evidence" if self._beside_its_source() else "Kernel")

    @tab.setter
    def tab(self, tab: Tab) -> None:
        self._tab = tab

    def _beside_its_source(self) -> bool:
        twin, subject = self.twin, self.subject
        if twin is None or subject is None or not (twin.display and twin.size.height):
            return False
        return self.model.state.problems[subject.problem].best == subject.id

    @property
    def subject(self) -> VariantState | None:
        """The kernel that the selected row stands for, as ``subject_of`` chooses it."""
        return subject_of(self.model, self._row)

    def select(self, row: Row | None, *, at_once: bool = False) -> None:
        if row == self._row and not at_once:
            return
        self._row = row
        if at_once or not self.is_running:
            self.show()
        else:
            after(self, SETTLE_S, lambda: self.show() if self._row == row else None)

    def turn(self, tab: Tab) -> None:
        self.tab = tab
        self.show()

    def turn_diff(self) -> None:
        """Show the Diff tab. If the pane already shows that tab, switch to the next kernel to compare with."""
        others = self._others(self.subject) if self.subject is not None else {}
        if others and (self.tab == "Diff" or self.against not in others):
            self.against = self._next_step(others)
        self.turn("Diff")

    def show(self, *, force: bool = False) -> None:
        """Update the lines if their content has changed."""
        subject = self.subject
        key = self._key(subject)
        if self._growing is not None:
            watched = self.tab == "Calls" and self.talk.live
            self._growing.resume() if watched else self._growing.pause()
        if key == self._shown and not force:
            return
        if self.tab == "ASM":
            after(self, COMPILE_AFTER_S, self._compile)
        else:
            self._stop_compiling()
        moved = key[:3] != self._shown[:3]
        self._shown = key
        self._retitle(subject)
        self.view.set_lines(self._lines(subject))
        if moved:
            self.view.scroll_to(0, 0, animate=False, immediate=True)

    def tab_at(self, x: int) -> Tab | None:
        """Return the tab whose name is at column ``x`` of the title."""
        place = TITLE_AT
        for tab in TABS:
            if place <= x < place + len(tab) + self._gap:
                return tab
            place += len(tab) + self._gap
        return None

    def _compile(self) -> None:
        """Compile the kernel for the ASM tab, if the pane still shows it."""
        if self.tab == "ASM" and (subject := self.subject) is not None:
            self.assembly.ask(subject)

    def _stop_compiling(self) -> None:
        if "assembly" in self.__dict__:
            self.assembly.stop()

    def _grow(self) -> None:
        """Update a streaming reply."""
        if not getattr(self.screen, "held", False):
            self.show()

    def _key(self, subject: VariantState | None) -> tuple[object, ...]:
        """Return the cache key of the pane's lines."""
        state, row = self.model.state, self._row
        name = subject.id if subject is not None else (row.id if row is not None else None)
        idea = state.ideas.get(row.id) if row is not None else None
        problem = state.problems.get(subject.problem) if subject is not None else None
        return (
            self.tab,
            name,
            self.against,
            self.marked,
            (subject.judged, subject.stage, subject.selected_because, subject.dropped, subject.at_sizes is None)
            if subject is not None
            else None,
            (len(idea.variants), idea.waiting) if idea is not None else None,
            (problem.best, len(problem.baselines), self.model.without_compile(problem))
            if problem is not None
            else None,
            over_compile(problem, subject.verdict) if problem is not None and subject is not None else None,
            subject is not None and (state.is_pruned(subject.id), state.is_pinned(subject.id)),
            state.seq if self.tab == "Leaders" else None,
            self.view.size.width if self.tab in (*PROSE, "Leaders", "Calls", "ASM") or subject is None else None,
            activity_of(self.model) if subject is None else None,
            row is None and self._all_hidden(),
            self.talk.look(row, subject) if self.tab == "Calls" else None,
            self.assembly.known(subject) if self.tab == "ASM" and subject is not None else None,
            (self.charts.version(self._problem(subject)), self.view.size) if self.tab == "Charts" else None,
            self.app.theme,
        )

    def _retitle(self, subject: VariantState | None) -> None:
        palette = self.bar.palette
        parts: list[Part] = []
        name = ""
        if subject is not None:
            mark = glyph(standing_of(self.model.state, subject), ascii_only=self.view.ascii_only)
            name = f"{mark} {subject.id}"
        if self.is_best:
            nothing = "" if self.model.is_opening else "none yet"
            of = one_line(subject.problem, 40) if subject is not None else nothing
            parts += [("Best  ", palette.title), (f"{of} ", palette.text)]
        else:
            room = self.size.width - TITLE_AT - cell_len(name)  # The last tabs give way to the kernel's glyph and name.
            for tab in TABS:
                shown = f"{tab}{' ' * self._gap}"[: max(0, room)]
                parts.append((shown, palette.title if tab == self.tab else palette.dim))
                room -= len(shown)
        if subject is not None:
            parts.append((name, palette.bold))
            if subject.speedup is not None:
                figures = figures_of(self.model.state, subject)
                by_runoff = figures is not None and bool(figures.scaled)
                between = f" {BY_RUNOFF if by_runoff else interval_words(subject.verdict)}"
                fits = TITLE_AT + line(*parts).cell_length + len(between) + 9 <= self.size.width
                style = palette.dim if why_no_star(self.model.state, subject) else palette.best
                own = f" {comparable_words(self.model.state, subject)}"
                # A figure that is cut off would mislead.
                if TITLE_AT + line(*parts).cell_length + len(own) <= self.size.width:
                    parts += [(own, style), (between if fits else "", palette.dim)]
        self.set_title(*parts)

    def _lines(self, subject: VariantState | None) -> list[Strip]:
        palette = self.view.palette
        if self.tab == "Charts":
            return self.charts.lines(self.view, self._problem(subject))
        if self.tab == "Calls" and (subject is not None or self._row is not None):
            return self._conversation(subject)
        if subject is None:
            return self._without_kernel()
        tabs: dict[Tab, Callable[[], list[Strip]]] = {
            "Kernel": lambda: self._kernel(subject),
            "Diff": lambda: self._diff(subject),
            "Evidence": lambda: self._evidence(subject),
            "Why": lambda: self._why(subject),
            "Leaders": lambda: self._leaders(subject.problem),
            "ASM": lambda: self.assembly.lines(subject, palette, self.view.size.width),
        }
        try:
            lines = tabs[self.tab]()
            return folded(lines, self.view.size.width - 1) if self.tab in PROSE else lines
        except SessionError as error:
            return wrapped(str(error), palette.warn, self.view.size.width)

    def _problem(self, subject: VariantState | None) -> str | None:
        """Return the problem of the selected row, or the first problem."""
        if subject is not None:
            return subject.problem
        row, state = self._row, self.model.state
        if row is not None and (idea := state.ideas.get(row.id)) is not None:
            return idea.problem
        found = problem_of(self.model, row)
        return found.id if found is not None else next(iter(state.problems), None)

    @property
    def _gap(self) -> int:
        """Cells between the names of two tabs: 2, or 1 in a title too narrow for the kernel's name."""
        wide = TITLE_AT + sum(len(tab) + 2 for tab in TABS) + KERNEL_WIDTH
        return 2 if wide <= self.size.width else 1

    def _conversation(self, subject: VariantState | None) -> list[Strip]:
        palette, width = self.view.palette, self.view.size.width
        try:
            return self.talk.lines(self._row, subject, palette, width)
        except SessionError as error:
            return wrapped(str(error), palette.warn, width)

    def _without_kernel(self) -> list[Strip]:
        palette, row, width = self.view.palette, self._row, self.view.size.width
        idea = self.model.state.ideas.get(row.id) if row is not None else None
        if idea is not None:
            from tui.monitor.panes.detail.story import idea_lines

            return folded(idea_lines(self.model, idea, palette, width), width - 1)
        problem = problem_of(self.model, row)
        if problem is not None and problem.cannot_write is not None:
            from tui.monitor.panes.detail.unwritten import unwritten_lines

            return unwritten_lines(problem, palette, width)
        now = activity_of(self.model)
        if row is not None and self.model.state.variants:
            what = "no correct kernel yet" if row.kind == "problem" else "no kernel yet"
            return wrapped(f"{row.id}: {what}" + (f"; {now}" if now else ""), palette.dim, width)
        if not self.model.state.problems and self.model.state.refused:
            return self._not_searched()
        if self._all_hidden():
            return wrapped("Nothing is selected, because nothing matches the filter.", palette.dim, width)
        # A tree with kernels selects a row as soon as the monitor has drawn the tree.
        if self.model.is_opening or self.model.state.variants:
            return wrapped(OPENING, palette.dim, width)
        lines = wrapped("There is no kernel yet.", palette.bold, width)
        if now is not None:
            lines += wrapped(f"Now: {now}.", palette.text, width)
            lines += [line(""), *wrapped(FIRST_STEPS, palette.dim, width)]
        return lines

    def _not_searched(self) -> list[Strip]:
        """Return the full reasons why the engine is not searching any problem, and what the user can do."""
        palette, width = self.view.palette, self.view.size.width
        lines: list[Strip] = []
        for one in self.model.state.refused.values():
            lines += wrapped(f"{one.problem} is not searched.", palette.bold, width)
            lines += [*wrapped(one.reason, palette.warn, width), line("")]
        return [*lines, *wrapped(REFUSED_REMEDY, palette.text, width)]

    def _kernel(self, subject: VariantState) -> list[Strip]:
        from tui.monitor.panes.detail.kernel import kernel_lines

        whole = self.model.shown_whole_by(subject.id)
        return kernel_lines(self._source(subject), subject.language, self.view.palette, whole)

    def _evidence(self, subject: VariantState) -> list[Strip]:
        from tui.monitor.panes.detail.evidence import evidence_lines

        return evidence_lines(self.model, subject, self.view.palette, self.view.size.width)

    def _why(self, subject: VariantState) -> list[Strip]:
        from tui.monitor.panes.detail.story import why_lines

        return why_lines(self.model, subject, self.view.palette, self.view.size.width)

    def _diff(self, subject: VariantState) -> list[Strip]:
        from tui.monitor.panes.detail.diff import diff_lines

        palette, others = self.view.palette, self._others(subject)
        if (other := others.get(self.against)) is not None:
            return diff_lines(
                self._source(other), self._source(subject), f"{self.against} {other.id}", subject.id, palette
            )
        problem = self.model.state.problems.get(subject.problem)
        is_best = problem is not None and problem.best == subject.id
        why = {
            "parent": f"{subject.id} is a first kernel, so it has no parent to compare with.",
            "best": f"{subject.id} is the best kernel." if is_best else "There is no best kernel.",
            "marked": f"{subject.id} is the marked kernel."
            if self.marked == subject.id
            else "No kernel is marked. Press m on a kernel.",
        }[self.against]
        hint = f" Press D to compare it with {_NAMES[self._next_step(others)]}." if others else ""
        return wrapped(f"{why}{hint}", palette.dim, self.view.size.width)

    def _others(self, subject: VariantState) -> dict[Against, VariantState]:
        """Return the kernels, other than ``subject`` itself, that the Diff tab can compare with ``subject``."""
        state = self.model.state
        problem = state.problems.get(subject.problem)
        best = problem.best if problem is not None else None
        names: dict[Against, str | None] = {"parent": subject.parent, "best": best, "marked": self.marked}
        return {
            step: state.variants[name]
            for step, name in names.items()
            if name is not None and name in state.variants and name != subject.id
        }

    def _next_step(self, others: Collection[Against]) -> Against:
        """Return the step in ``others`` that comes next after the current step, in the cyclic order of ``AGAINST``."""
        after_this = AGAINST.index(self.against) + 1
        return next(step for step in (*AGAINST[after_this:], *AGAINST) if step in others)

    def _leaders(self, problem: str) -> list[Strip]:
        palette, found = self.view.palette, self.model.state.problems[problem]
        lines = leader_lines(
            self.model, found, palette, ascii_only=self.view.ascii_only, width=self.view.size.width, room=LEADERS_ROOM
        )
        caption = f"{FIGURES}. {short_caption(self.model.limits.tolerance)}"
        return [*lines, line(""), *wrapped(caption, palette.dim, self.view.size.width)]

    def _source(self, variant: VariantState) -> str:
        return self.model.source.text(variant.source)


def problem_of(model: Model, row: Row | None) -> ProblemState | None:
    """Return the problem of a problem row or a round row."""
    if row is None:
        return None
    name = row.id if row.kind == "problem" else row.id.rpartition("/r")[0]
    return model.state.problems.get(name)


def subject_of(model: Model, row: Row | None) -> VariantState | None:
    """Return the kernel that a row stands for: a kernel row's own kernel, a problem's best kernel, a round's leader,
    or an idea's fastest kernel.
    """
    state = model.state
    if row is None:
        return None
    if row.kind == "variant":
        return state.variants.get(row.id)
    if row.kind == "problem":
        return model.best(state.problems[row.id]) if row.id in state.problems else None
    if row.kind == "idea":
        names = state.ideas[row.id].variants if row.id in state.ideas else []
    else:
        problem, _, number = row.id.rpartition("/r")
        if (leader := state.leader_of_round(problem, int(number))) is not None:
            return leader
        rounds = state.problems[problem].rounds if problem in state.problems else []
        names = next((one.variants for one in rounds if one.number == int(number)), [])
    variants = [state.variants[name] for name in names]
    return max(variants, key=lambda one: comparable_speedup(state, twin_of(state, one) or one), default=None)
