"""The monitor's main screen: its panes, their layout, and the keys for viewing."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Horizontal
from textual.screen import Screen

from engine.config.tolerance import short_caption, tolerance_caption
from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.state.session_state import SessionState, VariantState
from engine.session.store import SessionError
from tui.compare.change import SIDE_BY_SIDE
from tui.monitor.host import Host
from tui.monitor.key_bindings import bindings
from tui.monitor.messages import FilterEdited, NodeHighlighted, NodeOpened, TitleClicked
from tui.monitor.panes.charts.view import ChartsView
from tui.monitor.panes.detail.pane import TABS, DetailPane
from tui.monitor.panes.devices import DevicePane
from tui.monitor.panes.key_bar import KeyBar, Where
from tui.monitor.panes.leaders import Leaderboard, leaders_caption
from tui.monitor.panes.lines import LinesView, LineWidget
from tui.monitor.panes.log import LogPane
from tui.monitor.panes.pane import Pane
from tui.monitor.panes.scoreboard import Scoreboard
from tui.monitor.panes.search_line import SearchBar
from tui.monitor.panes.status.status_line import StatusLine
from tui.monitor.panes.tree.filter_line import FilterBar
from tui.monitor.panes.tree.rows import SORT_KEYS, TreeRows
from tui.monitor.panes.tree.tree import SearchTree
from tui.monitor.panes.tree.tree_lines import RowLines
from tui.text import format as fmt
from tui.view.model import Model
from tui.view.row import Kind, Row
from tui.view.spend import is_spending

if TYPE_CHECKING:
    from tui.monitor.steering.steer import Steering

SCORES = (
    *(ev.VerdictGiven, ev.BaselineMeasured, ev.RoundStarted, ev.RoundFinished, ev.RunoffFinished, ev.ProblemAdded),
    *(ev.SizesChecked, ev.TurnStarted, ev.TurnEnded),
)
ROOM = 3
"""Minimum height, in lines, at which a pane can take the focus without being zoomed."""
QUIET = (ev.LogLine, ev.IdeaProposed, ev.BaselineMeasured, ev.DeviceMeasured, ev.StartupStep)
"""Events that do not change existing rows of the tree."""
PRUNING = (ev.NodePruned, ev.NodeRestored)


class MonitorScreen(Screen[None]):
    """The screen for one ``Model``. The app calls ``take`` for every batch of events and ``tick`` once a second."""

    BINDINGS: ClassVar[list[BindingType]] = list(bindings())
    AUTO_FOCUS = "#tree"

    def __init__(self, model: Model, host: Host) -> None:
        super().__init__()
        self.model = model
        self.host = host
        self.tree_rows = TreeRows(model.state)
        self.following = False
        self.held = False
        self._before_filter: str | None = None
        """The node that was selected when the user started to filter."""
        self._switched: tuple[str | None, str | None] = (None, None)
        """The rows selected before and after the last switch between rounds and lineage."""
        self._bests: tuple[str | None, ...] = ()
        self._link_shown = ""
        self._keys_of: tuple[Kind | None, bool] = (None, False)
        """The selected row's kind when Textual last drew the key bar, and whether the session had called a model."""

    @cached_property
    def steering(self) -> Steering:
        from tui.monitor.steering.steer import Steering  # The first paint does not need this import.

        return Steering(self, self.host)

    def compose(self) -> ComposeResult:
        self.status = StatusLine(id="status")
        self.tree_view = SearchTree(self.model, self.tree_rows, id="tree")
        self.scoreboard = Scoreboard(self.problem_here, self._choose_problem, id="scoreboard")
        self.devices = DevicePane(id="devices")
        self.leaders = Leaderboard(id="leaders")
        self.log_view = LogPane(id="log")
        self.detail = DetailPane(self.model, self._filter_hides_all, id="detail-pane")
        self.charts = ChartsView(self.model, self.problem_here, id="charts")
        self.best = self.detail.twin = DetailPane(
            self.model, self._filter_hides_all, id="best-pane", number=7, best=True
        )
        self.tree_pane = Pane(1, "Tree", self.tree_view, id="tree-pane")
        tolerance = self.model.limits.tolerance
        self.panes: list[Pane] = [
            self.tree_pane,
            Pane(2, "Problems", self.scoreboard, id="scoreboard-pane", about=tolerance_caption(tolerance)),
            Pane(3, "Devices", self.devices, id="devices-pane"),
            self.detail,
            Pane(5, "Log", self.log_view, id="log-pane"),
            Pane(6, "Leaders", self.leaders, id="leaders-pane", about=leaders_caption(tolerance)),
            self.best,
            Pane(8, "Charts", self.charts, id="charts-pane"),
        ]
        yield self.status
        with Horizontal(id="body"):
            yield self.tree_pane
            with Container(id="right"):
                with Container(id="side"):
                    yield self.panes[1]
                    yield self.panes[2]
                    yield self.panes[7]
                yield self.best
                yield self.detail
                yield self.panes[5]
        yield self.panes[4]
        self.key_bar = KeyBar(self.where, id="keys")
        yield self.key_bar

    def on_mount(self) -> None:
        self.show_all()
        self.call_after_refresh(self.host.begin)

    def on_resize(self) -> None:
        self.call_after_refresh(self.show_all)

    def on_screen_suspend(self) -> None:
        self.key_bar.cover(True)

    def on_screen_resume(self) -> None:
        self.key_bar.cover(False)

    # The app calls these methods.

    def replace_state(self) -> None:
        """Show the model's new state after the session has opened or a replay has jumped."""
        view = self.tree_rows.view
        self.tree_rows = TreeRows(self.model.state, view)
        self.tree_rows.set_filter(view.filter)
        self.tree_view.replace(self.model, self.tree_rows)
        self.show_all(but_details=True)
        self.call_after_refresh(self._show_details)  # Draw the tree first, since the highlighter's import is slow.

    def take(self, events: list[Recorded], *, readings: bool = False, told: bool = False) -> None:
        """Show ``events`` that the state has applied.

        The flags report new device ``readings`` and new log lines (``told``).
        """
        self._bests, before = _bests(self.model.state), self._bests
        if self.held:  # Keep the rows too, so that keys act on the node that the user sees.
            self.status.show(self.model, self.held, self.following)
            if self._link_shown != self.model.engine:
                self.key_bar.show()
            return
        for recorded in events:
            self.tree_rows.note(recorded.event)
        changed = changed_nodes(self.model.state, events)
        kinds = {type(recorded.event) for recorded in events}
        if self.following and self._bests != before:
            self._follow()
        self.status.show(self.model, self.held, self.following)
        if changed is not None and (self._bests != before or not changed.isdisjoint(self._bests)):
            changed = None  # A row with better figures than the best kernel's says why its kernel is not the best.
        self.tree_view.refresh_rows(changed)
        self._retitle_tree()
        if kinds & {*SCORES, *PRUNING}:
            self.scoreboard.show(self.model)
            if self.leaders.display and self.leaders.size.height:
                self.leaders.show(self.model)
        moved = self._link_shown != (link := self.model.engine)
        self._show_keys(force=moved)
        if moved:
            self._link_shown = link
            self.scoreboard.show(self.model)
        if readings or moved or ev.VariantStage in kinds or ev.VerdictGiven in kinds or ev.EngineStarted in kinds:
            self.devices.show(self.model)
        if told or moved:
            self.log_view.show(self.model)
        if events or moved:
            self.detail.show()
            self._show_best()

    def tick(self) -> None:
        """Update ages and stages. The app calls this method once a second."""
        self.status.show(self.model, self.held, self.following)
        if not self.held:
            self.tree_view.refresh_rows()
            self.devices.show(self.model)
            self.charts.show()
            if self.detail.tab == "Charts":
                self.detail.show()
            if self.detail.subject is None:  # The pane shows the engine's activity, which no event reports.
                self.detail.show()
            if not self.model.state.variants:
                self.scoreboard.show(self.model)

    def show_all(self, *, but_details: bool = False) -> None:
        """Draw everything, after a resize or a change of theme or state."""
        if not self.is_mounted:
            return
        self.tree_view.restyle()
        self.tree_view.refresh_rows()
        self.status.show(self.model, self.held, self.following)
        self._retitle_tree()
        self.scoreboard.show(self.model)
        self.devices.show(self.model)
        self.leaders.show(self.model)
        self.log_view.show(self.model)
        for pane in self.panes:
            if not isinstance(pane, DetailPane) and pane is not self.tree_pane:
                pane.set_title()
        self.key_bar.show()
        if not but_details:
            self._show_details()
        for view in self.query(LineWidget):
            view.refresh()  # A pane that was hidden still has the lines that it drew before.

    def _show_details(self) -> None:
        self.detail.select(self.tree_view.row, at_once=True)
        self.detail.show(force=True)
        self._show_best()
        self.charts.show()

    def on_node_highlighted(self, message: NodeHighlighted) -> None:
        if message.by_hand and self.following and not self._is_best(message.row.id if message.row else ""):
            self.following = False
            self.status.show(self.model, self.held, self.following)
        self.detail.select(message.row)
        self._show_keys()
        self._show_best()
        self.charts.show()
        if self.scoreboard.has_focus:
            self.scoreboard.show(self.model)

    def on_rows_reshaped(self) -> None:
        self._retitle_tree()

    def on_node_opened(self, message: NodeOpened) -> None:
        self.action_open_detail()

    def on_title_clicked(self, message: TitleClicked) -> None:
        pane = self.panes[message.number - 1]
        self.set_focus(pane.body)
        if pane is self.detail and (tab := self.detail.tab_at(message.x)) is not None:
            self.detail.turn(tab)

    def on_descendant_focus(self) -> None:
        self.key_bar.show()
        self.scoreboard.show(self.model)

    def on_descendant_blur(self) -> None:
        self.key_bar.show()
        self.scoreboard.show(self.model)

    # Keys for viewing

    def action_open_detail(self) -> None:
        """Open a kernel's source, a failed kernel's evidence, or an idea's text in the detail pane."""
        row = self.tree_view.row
        if self.focused is not self.tree_view or row is None:
            return
        variant = self.model.state.variants.get(row.id)
        failed = variant is not None and variant.was_judged and not variant.correct
        self.detail.tab = "Why" if row.kind == "idea" else "Evidence" if failed else "Kernel"
        self.detail.select(row, at_once=True)
        self.action_pane(4)

    def action_pane(self, number: int) -> None:
        """Focus a pane. If this layout has no room for the pane, zoom the pane."""
        pane = self.panes[number - 1]
        zoomed = self.has_class("-zoom")
        if zoomed and not pane.has_class("-zoomed"):
            self._unzoom()
        if not self._has_room(pane):
            self._zoom(pane)
        self.set_focus(pane.body)

    def action_zoom(self) -> None:
        if self.has_class("-zoom"):
            focused = self.focused
            self._unzoom()
            if focused is not None and not self._has_room(self._pane_of_focus() or self.tree_pane):
                self.set_focus(self.tree_view)
        elif (pane := self._pane_of_focus()) is not None:
            self._zoom(pane)

    def action_back(self) -> None:
        if (view := self._searchable()) is not None and view.searched:
            view.search("")
            self.key_bar.show()
        elif self.has_class("-zoom"):
            self._unzoom()
            self.set_focus(self.tree_view)
        elif self.focused is not self.tree_view:
            self.set_focus(self.tree_view)
        elif self.tree_rows.view.filter:
            self.set_filter("")
        elif self.tree_view.marked:
            self._set_marks(())

    async def action_filter(self) -> None:
        if (view := self._searchable()) is not None:
            await self.mount(SearchBar(view, id="search"), before="#keys")
            return
        found = self.query(FilterBar)
        if found:
            self.set_focus(found.first())
        else:
            await self.mount(FilterBar(self.tree_rows.view.filter, id="filter"), before="#keys")

    def on_filter_edited(self, message: FilterEdited) -> None:
        self.set_filter(message.text)

    def set_filter(self, text: str) -> None:
        row = self.tree_view.row
        if row is not None and not self.tree_rows.view.filter:
            self._before_filter = row.id
        self.tree_rows.set_filter(text)
        if not text:  # Keep the cursor where the filter led. If nothing matched, return to the old row.
            node = row.id if row is not None else self._before_filter
            if node is not None:
                self.tree_view.select(node, by_hand=False)
        self.tree_view.refresh_rows()
        self.tree_view.restyle()
        self._retitle_tree()
        self.key_bar.show()

    def action_next_match(self, step: int) -> None:
        if (view := self._searchable()) is not None and view.searched:
            view.next_match(step)
            self._say_place(view)
        else:
            self.tree_view.next_match(step)

    def action_sort(self) -> None:
        view = self.tree_rows.view
        following = SORT_KEYS[(SORT_KEYS.index(view.sort) + 1) % len(SORT_KEYS)]
        self.tree_rows.set_sort(following, view.reverse)
        self._rearranged()

    def action_reverse_sort(self) -> None:
        self.tree_rows.set_sort(self.tree_rows.view.sort, not self.tree_rows.view.reverse)
        self._rearranged()

    def action_lineage(self) -> None:
        """Switch between the tree by rounds and the lineage. A second switch returns to the same row."""
        before = self.tree_view.row
        self.tree_rows.set_mode("lineage" if self.tree_rows.view.mode == "round" else "round")
        self._rearranged()
        came_from, went_to = self._switched
        if before is not None and before.id == went_to and came_from is not None:
            self.tree_view.select(came_from, by_hand=False)
        after = self.tree_view.row
        self._switched = (before.id if before is not None else None, after.id if after is not None else None)

    def action_follow(self) -> None:
        self.following = not self.following
        if self.following:
            self._follow()
        self.status.show(self.model, self.held, self.following)

    def action_hold(self) -> None:
        self.held = not self.held
        if not self.held:
            self.tree_rows.forget_all()
            self.show_all()
        self.status.show(self.model, self.held, self.following)

    def action_tab(self, step: int) -> None:
        self.detail.turn(TABS[(TABS.index(self.detail.tab) + step) % len(TABS)])

    def action_diff(self) -> None:
        self.detail.turn_diff()
        if not self._has_room(self.detail):
            self.action_pane(4)

    def action_calls(self) -> None:
        """Show the model calls behind the selected node.

        If the pane already shows the calls, switch between shortened and full prompts.
        """
        if self.detail.tab == "Calls":
            self.detail.talk.whole = not self.detail.talk.whole
        self.detail.turn("Calls")
        if not self._has_room(self.detail):
            self.action_pane(4)

    def action_mark(self) -> None:
        """Mark the kernel for a comparison, or unmark it."""
        from tui.compare.comparison import MOST

        subject = self.detail.subject
        if subject is None:
            return
        marks = [name for name in self.tree_view.marked if name in self.model.state.variants]
        if subject.id in marks:
            marks.remove(subject.id)
        elif len(marks) == MOST:
            self.host.say(f"You can mark at most {MOST} kernels. Press m on a marked kernel to unmark it.")
            return
        else:
            marks.append(subject.id)
            if len(marks) == 1:
                self.host.say("Press c to compare the marked kernels, or esc in the tree to clear the marks.")
        self._set_marks(marks)

    def _set_marks(self, marks: Sequence[str]) -> None:
        self.tree_view.marked = tuple(marks)
        self.detail.marked = marks[-1] if marks else None
        self.tree_view.restyle()
        self._retitle_tree()
        self.detail.show()

    def action_compare(self) -> None:
        from tui.compare.kernels import chosen
        from tui.monitor.screens.compare import KernelsScreen

        names = chosen(self.model.state, self.tree_view.marked, self.detail.subject)
        if len(names) < 2:
            self.host.say("Mark at least two kernels with m, then press c to compare them.", severity="warning")
        else:
            self.host.open_dialog(KernelsScreen(self.model, names))

    def action_jump_best(self) -> None:
        problem = self.problem_here()
        best = self.model.state.problems[problem].best if problem is not None else None
        if best is None:
            self.host.say("There is no correct kernel yet.", severity="warning")
        elif not self.tree_view.select(best):
            self.host.say(f"The filter hides {best}. Press esc to clear the filter.", severity="warning")

    def action_spend(self) -> None:
        """Show the cost of model calls. In the dialog, ``M`` changes the limits."""
        from tui.monitor.screens.spend import SpendScreen

        if not is_spending(self.model):
            self.host.say("This session has made no model calls.")
            return
        self.host.open_dialog(
            SpendScreen(self.model), lambda chosen: self.steering.budget() if chosen == "budget" else None
        )

    def action_copy(self) -> None:
        if (kernel := self.kernel) is None:
            self.host.say("Select a kernel to copy.", severity="warning")
            return
        try:
            self.host.copy_text(self.model.source.text(kernel.source), f"the source of {kernel.id}")
        except SessionError as error:
            self.host.say(error.brief, severity="error")

    def action_copy_id(self) -> None:
        if (row := self.selected) is not None:
            self.host.copy_text(row.id, row.id)

    def problem_here(self) -> str | None:
        """Return the selected row's problem, or the first problem if nothing is selected."""
        row = self.tree_view.row
        state = self.model.state
        if row is None:
            return next(iter(state.problems), None)
        if row.kind == "problem":
            return row.id
        if row.kind == "round":
            return row.id.rpartition("/r")[0]
        owner = state.variants.get(row.id) or state.ideas.get(row.id)
        return owner.problem if owner is not None else None

    # Called by steering

    @property
    def selected(self) -> Row | None:
        return self.tree_view.row

    @property
    def kernel(self) -> VariantState | None:
        return self.detail.subject

    def show_cursor(self) -> None:
        self.tree_view.show_cursor()

    async def action_steer(self, name: str) -> None:
        """Run the method of ``Steering`` that has the action's name."""
        done = getattr(self.steering, name)()
        if inspect.isawaitable(done):
            await done

    def where(self) -> Where:
        """Return the state that decides which keys get a hint."""
        focused, model, view = self.focused, self.model, self._searchable()
        ended = model.link.kind == "ended"
        return Where(
            focus=self._kind_of_focus(),
            searched=isinstance(focused, SearchBar) or bool(view is not None and view.searched),
            zoomed=self.has_class("-zoom"),
            filtered=bool(self.tree_rows.view.filter),
            ended=ended,
            resumable=ended and not model.source.read_only,
            finished=model.engine == "finished",
            replay=model.link.kind == "replay",
            steers=self.host.why_not_steer() is None,
            undoes=self.host.history.undoes,
            row=self._kind_of_row,
            spending=is_spending(model),
        )

    # Parts

    def _filter_hides_all(self) -> bool:
        rows = self.tree_rows
        return bool(rows.view.filter and self.model.state.problems) and not rows.rows

    def _searchable(self) -> LinesView | None:
        """Return the focused pane, if ``/`` searches its text."""
        panes: tuple[LinesView, ...] = (self.detail.view, self.best.view, self.log_view)
        return next((view for view in panes if view is self.focused), None)

    @property
    def _kind_of_row(self) -> Kind | None:
        row = self.tree_view.row
        return row.kind if row is not None else None

    def _show_keys(self, *, force: bool = False) -> None:
        """Draw the key bar again if the selected row or the spending changes the hints."""
        keys_of = (self._kind_of_row, is_spending(self.model))
        if force or keys_of != self._keys_of:
            self._keys_of = keys_of
            self.key_bar.show()

    def _say_place(self, view: LinesView) -> None:
        place, count = view.place
        matches = f"{count} line{'' if count == 1 else 's'}"
        self.host.say(f"/{view.searched}: {place} of {matches}" if count else f"/{view.searched}: no match")

    def _kind_of_focus(self) -> Literal["tree", "filter", "detail", "text", "problems", "pane"]:
        focused = self.focused
        if isinstance(focused, FilterBar | SearchBar):
            return "filter"
        if focused is self.detail.view:
            return "detail"
        if self._searchable() is not None:
            return "text"
        if focused is self.scoreboard:
            return "problems"
        return "tree" if focused is None or focused is self.tree_view else "pane"

    def _rearranged(self) -> None:
        self.tree_view.refresh_rows()
        self.tree_view.restyle()
        self._retitle_tree()

    def _retitle_tree(self) -> None:
        tolerance = short_caption(self.model.limits.tolerance)
        artist = RowLines(self.model, self.tree_view.palette, ascii_only=self.tree_view.ascii_only)
        width = self.tree_view.scrollable_content_region.width or self.tree_pane.bar.size.width
        self.tree_pane.set_title(*artist.header(self._tree_titles(), tolerance, f"{SIDE_BY_SIDE}: runoff", width))

    def _tree_titles(self) -> Iterator[tuple[str, bool]]:
        """Yield the tree's title, then shorter ones, each with a flag: whether the column names appear beside it."""
        view = self.tree_rows.view
        tree = "Tree" if view.mode == "round" else "Lineage"
        is_sorted = view.sort != "written" or view.reverse
        order = f" by {view.sort}{' reversed' if view.reverse else ''}" if is_sorted else ""
        count = f" ({sum(row.match for row in self.tree_rows.rows)})" if view.filter else ""
        title = f"{tree}{order} /{view.filter}{count}" if view.filter else f"{tree}{order}"
        if marked := len(self.tree_view.marked):
            yield f"{title} {marked} marked", True
        yield title, True
        yield title, False
        for size in range(cell_len(view.filter), 0, -1):
            yield f"{tree} /{fmt.fit(view.filter, size)}{count}", False
        yield tree, False

    def _choose_problem(self, problem: str) -> None:
        if not self.tree_view.select(problem):
            self.host.say(f"The filter hides {problem}. Press esc twice to clear the filter.", severity="warning")

    def _show_best(self) -> None:
        if not self.best.display or not self.best.size.height:
            return
        problem = self.problem_here()
        rows = self.tree_rows.rows
        head = next((row for row in rows if row.kind == "problem" and row.id == problem), None)
        self.best.select(head, at_once=True)

    def _follow(self) -> None:
        best = [v for p in self.model.state.problems.values() if (v := self.model.best(p)) is not None]
        newest = max(best, key=lambda variant: variant.judged_at or 0.0, default=None)
        if newest is not None:
            self.tree_view.select(newest.id, by_hand=False)

    def _is_best(self, node: str) -> bool:
        return any(problem.best == node for problem in self.model.state.problems.values())

    def _pane_of_focus(self) -> Pane | None:
        return next((pane for pane in self.panes if pane.body is self.focused), None)

    def _has_room(self, pane: Pane) -> bool:
        return (
            bool(pane.display)
            and pane.size.height >= ROOM
            and all(getattr(above, "display", True) for above in pane.ancestors if above is not self)
        )

    def _zoom(self, pane: Pane) -> None:
        self.add_class("-zoom")
        for node in (pane, *pane.ancestors):
            if node.id in ("right", "side") or node is pane:
                node.add_class("-zoomed")
        self.query_one("#body").set_class(pane is self.panes[4], "-hidden")
        self.call_after_refresh(self.show_all)

    def _unzoom(self) -> None:
        self.remove_class("-zoom")
        for node in self.query(".-zoomed"):
            node.remove_class("-zoomed")
        self.query_one("#body").remove_class("-hidden")
        self.call_after_refresh(self.show_all)


def changed_nodes(state: SessionState, events: list[Recorded]) -> set[str] | None:
    """Return the tree's nodes that ``events`` may have changed, or None for all nodes."""
    changed: set[str] = set()
    for recorded in events:
        event = recorded.event
        if isinstance(event, QUIET):
            continue
        if not isinstance(event, ev.VariantStage | ev.VerdictGiven | ev.VariantWritten):
            return None
        if (variant := state.variants.get(event.variant)) is not None:
            changed |= {variant.id, variant.idea, f"{variant.problem}/r{variant.round}", variant.problem}
    return changed if events else None


def _bests(state: SessionState) -> tuple[str | None, ...]:
    return tuple(problem.best for problem in state.problems.values())
