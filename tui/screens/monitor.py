"""The monitor's one main screen: panes, their layout, and the keys that look."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container, Horizontal
from textual.screen import Screen

from engine import events as ev
from engine.events import Recorded
from engine.state import SessionState
from tui.actions import bindings
from tui.compare import MOST
from tui.model import Model
from tui.rows import SORT_KEYS, TreeRows
from tui.screens.steer import SteeringKeys
from tui.spend import is_spending
from tui.widgets.detail.pane import AGAINST, TABS, DetailPane
from tui.widgets.devices import DevicePane
from tui.widgets.keys import KeyBar
from tui.widgets.leaders import FIGURES, Leaderboard
from tui.widgets.log import LogPane
from tui.widgets.pane import Pane, TitleBar
from tui.widgets.scoreboard import Scoreboard
from tui.widgets.status import StatusLine
from tui.widgets.tree import SearchTree
from tui.widgets.tree_lines import RowLines

if TYPE_CHECKING:
    from tui.app import MonitorApp

SCORES = (
    *(ev.VerdictGiven, ev.BaselineMeasured, ev.RoundStarted, ev.RoundFinished, ev.HeatFinished, ev.ProblemAdded),
    ev.SizesChecked,
)
ROOM = 3
"""Lines that a pane needs to be worth the focus."""
QUIET = (ev.LogLine, ev.IdeaProposed, ev.BaselineMeasured, ev.DeviceMeasured)
"""Events that change no row that is there already."""
PRUNING = (ev.NodePruned, ev.NodeRestored)


class MonitorScreen(SteeringKeys, Screen[None]):
    """Shows one ``Model``. ``take`` is called for every batch of events, ``tick`` once a second."""

    BINDINGS: ClassVar[list[BindingType]] = list(bindings())
    AUTO_FOCUS = "#tree"

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.tree_rows = TreeRows(model.state)
        self.following = False
        self.held = False
        self._bests: tuple[str | None, ...] = ()
        self._link_shown = ""
        self._keys_of: tuple[bool, bool] = (False, False)
        """Whether there was a row, and a model to talk of, when the keys were shown last."""

    @property
    def monitor(self) -> MonitorApp:
        return cast("MonitorApp", self.app)

    def compose(self) -> ComposeResult:
        self.status = StatusLine(id="status")
        self.tree_view = SearchTree(self.model, self.tree_rows, id="tree")
        self.scoreboard = Scoreboard(id="scoreboard")
        self.devices = DevicePane(id="devices")
        self.leaders = Leaderboard(id="leaders")
        self.log_view = LogPane(id="log")
        self.detail = DetailPane(self.model, id="detail-pane")
        self.best = self.detail.twin = DetailPane(self.model, id="best-pane", number=7, best=True)
        self.tree_pane = Pane(1, "Tree", self.tree_view, id="tree-pane")
        self.panes: list[Pane] = [
            self.tree_pane,
            Pane(2, "Problems", self.scoreboard, id="scoreboard-pane"),
            Pane(3, "Devices", self.devices, id="devices-pane"),
            self.detail,
            Pane(5, "Log", self.log_view, id="log-pane"),
            Pane(6, "Leaders", self.leaders, id="leaders-pane", about=FIGURES),
            self.best,
        ]
        yield self.status
        with Horizontal(id="body"):
            yield self.tree_pane
            with Container(id="right"):
                with Container(id="side"):
                    yield self.panes[1]
                    yield self.panes[2]
                    yield self.panes[5]
                yield self.best
                yield self.detail
        yield self.panes[4]
        self.key_bar = KeyBar(id="keys")
        yield self.key_bar

    def on_mount(self) -> None:
        self.show_all()
        self.call_after_refresh(self.monitor.begin)

    def on_resize(self) -> None:
        self.call_after_refresh(self.show_all)

    def on_screen_suspend(self) -> None:
        self.key_bar.cover(True)

    def on_screen_resume(self) -> None:
        self.key_bar.cover(False)

    # What the app calls

    def replace_state(self) -> None:
        """The model has a new state: opened, or sought to in a replay."""
        view = self.tree_rows.view
        self.tree_rows = TreeRows(self.model.state, view)
        self.tree_rows.set_filter(view.filter)
        self.tree_view.replace(self.model, self.tree_rows)
        self.show_all(but_details=True)
        self.call_after_refresh(self._show_details)  # the tree first: a source waits for the import of what colours it

    def take(self, events: list[Recorded], *, readings: bool = False, told: bool = False) -> None:
        """Show what ``events``, already folded, and new ``readings`` changed; ``told``: the log has new lines."""
        self._bests, before = _bests(self.model.state), self._bests
        if self.held:  # the rows stay too: keys act on what is shown
            self.status.show(self.model, self.held, self.following)
            return
        for recorded in events:
            self.tree_rows.note(recorded.event)
        changed = changed_nodes(self.model.state, events)
        kinds = {type(recorded.event) for recorded in events}
        if self.following and self._bests != before:
            self._follow()
        self.status.show(self.model, self.held, self.following)
        if changed is not None and (self._bests != before or not changed.isdisjoint(self._bests)):
            changed = None  # rows that have more of a figure than the best one say why they are not
        self.tree_view.refresh_rows(changed)
        self._retitle_tree()
        if kinds & {*SCORES, *PRUNING}:
            self.scoreboard.show(self.model)
            if self.leaders.display and self.leaders.size.height:
                self.leaders.show(self.model)
        moved = self._link_shown != (link := self.model.engine)
        keys_of = (self.tree_view.row is not None, is_spending(self.model))
        if moved or keys_of != self._keys_of:
            self._keys_of = keys_of
            self.key_bar.show()
        if moved:
            self._link_shown = link
            self.scoreboard.show(self.model)
        if readings or moved or ev.VariantStage in kinds or ev.VerdictGiven in kinds or ev.EngineStarted in kinds:
            self.devices.show(self.model)
        if told:
            self.log_view.show(self.model)
        if events or moved:
            self.detail.show()
            self._show_best()

    def tick(self) -> None:
        """A second has gone by: ages and stages."""
        self.status.show(self.model, self.held, self.following)
        if not self.held:
            self.tree_view.refresh_rows()
            self.devices.show(self.model)
            if self.detail.subject is None:  # then it says what the engine does, which no event tells
                self.detail.show()
            if not self.model.state.variants:
                self.scoreboard.show(self.model)

    def show_all(self, *, but_details: bool = False) -> None:
        """Draw everything, after a resize, a change of theme or of state."""
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

    def _show_details(self) -> None:
        self.detail.select(self.tree_view.row, at_once=True)
        self.detail.show(force=True)
        self._show_best()

    def on_search_tree_highlighted(self, message: SearchTree.Highlighted) -> None:
        if message.by_hand and self.following and not self._is_best(message.row.id if message.row else ""):
            self.following = False
            self.status.show(self.model, self.held, self.following)
        self.detail.select(message.row)
        self._show_best()

    def on_search_tree_opened(self, message: SearchTree.Opened) -> None:
        self.action_open_detail()

    def on_title_bar_clicked(self, message: TitleBar.Clicked) -> None:
        message.pane.body.focus()
        if message.pane is self.detail and (tab := self.detail.tab_at(message.x)) is not None:
            self.detail.turn(tab)

    def on_descendant_focus(self) -> None:
        self.key_bar.show()

    def on_descendant_blur(self) -> None:
        self.key_bar.show()

    # Keys that look

    def action_open_detail(self) -> None:
        """A kernel opens as its source, one that failed as the evidence of that, an idea as its words."""
        row = self.tree_view.row
        if self.focused is not self.tree_view or row is None:
            return
        variant = self.model.state.variants.get(row.id)
        failed = variant is not None and variant.was_judged and not variant.correct
        self.detail.tab = "Why" if row.kind == "idea" else "Evidence" if failed else "Kernel"
        self.detail.select(row, at_once=True)
        self.action_pane(4)

    def action_pane(self, number: int) -> None:
        """Focus a pane; one that this layout has no room for is zoomed."""
        pane = self.panes[number - 1]
        zoomed = self.has_class("-zoom")
        if zoomed and not pane.has_class("-zoomed"):
            self._unzoom()
        if not self._has_room(pane):
            self._zoom(pane)
        pane.body.focus()

    def action_zoom(self) -> None:
        if self.has_class("-zoom"):
            focused = self.focused
            self._unzoom()
            if focused is not None and not self._has_room(self._pane_of_focus() or self.tree_pane):
                self.tree_view.focus()
        elif (pane := self._pane_of_focus()) is not None:
            self._zoom(pane)

    def action_back(self) -> None:
        if self.has_class("-zoom"):
            self._unzoom()
            self.tree_view.focus()
        elif self.focused is not self.tree_view:
            self.tree_view.focus()
        elif self.tree_rows.view.filter:
            self.set_filter("")

    def action_filter(self) -> None:
        from tui.widgets.filter import FilterBar

        found = self.query(FilterBar)
        if found:
            found.first().focus()
        else:
            self.mount(FilterBar(self.tree_rows.view.filter, id="filter"), before="#keys")

    def set_filter(self, text: str) -> None:
        row = self.tree_view.row
        self.tree_rows.set_filter(text)
        if not text and row is not None:  # stay where the filter led to
            self.tree_view.select(row.id, by_hand=False)
        self.tree_view.refresh_rows()
        self.tree_view.restyle()
        self._retitle_tree()
        self.key_bar.show()

    def action_next_match(self, step: int) -> None:
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
        self.tree_rows.set_mode("lineage" if self.tree_rows.view.mode == "round" else "round")
        self._rearranged()

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
        if self.detail.tab == "Diff":
            usable = [name for name in AGAINST if name != "marked" or self.detail.marked is not None]
            place = usable.index(self.detail.against) if self.detail.against in usable else -1
            self.detail.against = usable[(place + 1) % len(usable)]
        self.detail.turn("Diff")
        if not self._has_room(self.detail):
            self.action_pane(4)

    def action_calls(self) -> None:
        """The calls that wrote what is selected; where they are shown, whole or in short."""
        if self.detail.tab == "Calls":
            self.detail.talk.whole = not self.detail.talk.whole
        self.detail.turn("Calls")
        if not self._has_room(self.detail):
            self.action_pane(4)

    def action_mark(self) -> None:
        """Mark the kernel for a comparison, or take its mark away."""
        subject = self.detail.subject
        if subject is None:
            return
        marks = [name for name in self.tree_view.marked if name in self.model.state.variants]
        if subject.id in marks:
            marks.remove(subject.id)
        elif len(marks) == MOST:
            self.monitor.say(f"{MOST} kernels are marked, as many as fit side by side; m on one unmarks it.")
            return
        else:
            marks.append(subject.id)
        self.tree_view.marked = tuple(marks)
        self.detail.marked = marks[-1] if marks else None
        self.tree_view.restyle()
        self._retitle_tree()
        self.detail.show()

    def action_compare(self) -> None:
        from tui.compare_kernels import chosen
        from tui.screens.compare import KernelsScreen

        names = chosen(self.model.state, self.tree_view.marked, self.detail.subject)
        if len(names) < 2:
            self.monitor.say("Mark two kernels or more with m; then c shows them side by side.", severity="warning")
        else:
            self.monitor.push_screen(KernelsScreen(self.model, names))

    def action_jump_best(self) -> None:
        problem = self.problem_here()
        best = self.model.state.problems[problem].best if problem is not None else None
        if best is None:
            self.monitor.say("There is no correct kernel yet.", severity="warning")
        elif not self.tree_view.select(best):
            self.monitor.say(f"The filter hides {best}; esc clears it.", severity="warning")

    def problem_here(self) -> str | None:
        """The problem of the selected row; the only one, if there is just one."""
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

    # Parts

    def _rearranged(self) -> None:
        self.tree_view.refresh_rows()
        self.tree_view.restyle()
        self._retitle_tree()

    def _retitle_tree(self) -> None:
        view, width = self.tree_rows.view, self.tree_pane.bar.size.width
        title = "Tree" if view.mode == "round" else "Lineage"
        if view.sort != "written" or view.reverse:
            title += f" by {view.sort}{' reversed' if view.reverse else ''}"
        if view.filter:
            matches = sum(row.match for row in self.tree_rows.rows)
            title += f" /{view.filter} ({matches})"
        if self.tree_view.marked:
            title += f" {len(self.tree_view.marked)} marked"
        artist = RowLines(self.model, self.tree_view.palette, ascii_only=self.monitor.ascii_only)
        shown = self.tree_view.scrollable_content_region.width or width
        self.tree_pane.set_title(*artist.header(title, max(0, shown - 3)))

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
    """The rows of the tree that ``events`` may have changed; None for any row."""
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
