"""The keys that steer: each makes a plan, asks where it destroys, and sends a command into the session file."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from engine.commands import ChangeBudget, ChangeShare, SeedIdea, SeedKernel
from engine.problem.spec import Form
from engine.session import SessionError
from engine.spend import MANUAL
from engine.state import IdeaState, ProblemState, SessionState
from tui import steering
from tui.conversation import directory_of
from tui.editor import EditorError, edit_text
from tui.going_on import more_minutes
from tui.sanitize import one_line
from tui.source import ALIVE
from tui.spend import is_spending
from tui.steering import Plan, Refused

if TYPE_CHECKING:
    from tui.app import MonitorApp
    from tui.screens.monitor import MonitorScreen
    from tui.screens.seed_idea import IdeaWish
    from tui.screens.seed_kernel import KernelWish


class SteeringKeys:
    """The steering half of ``MonitorScreen``."""

    def action_prune(self) -> None:
        self._for_node(steering.plan_prune)

    def action_pin(self) -> None:
        self._for_node(steering.plan_pin)

    def action_retry(self) -> None:
        self._for_node(steering.plan_retry)

    def action_pause_search(self) -> None:
        self._ask(lambda: steering.plan_pause(self._state))

    def action_stop(self) -> None:
        self._ask(lambda: steering.plan_stop(self._state, after_round=False))

    def action_stop_after_round(self) -> None:
        self._ask(lambda: steering.plan_stop(self._state, after_round=True))

    def action_undo(self) -> None:
        self._ask(lambda: self._monitor.history.undo())

    def action_redo(self) -> None:
        self._ask(lambda: self._monitor.history.redo())

    def action_budget(self) -> None:
        from tui.screens.budget import BudgetScreen

        model = self._here.model
        # A search whose budget is spent has no engine: the wish waits in the session file for the one that is started.
        stopped = model.link.kind == "ended" and not model.source.read_only

        def chosen(wish: ChangeBudget | ChangeShare | None) -> None:
            if wish is None:
                return
            if stopped:
                self._confirm(steering.plan_budget(model, wish), then=self._monitor.start_engine)
            else:
                self._ask(lambda: steering.plan_budget(model, wish))

        if stopped or self._may_steer():
            self._monitor.push_screen(BudgetScreen(model), chosen)

    def action_spend(self) -> None:
        """What models have cost. From there ``M`` changes the limits."""
        from tui.screens.spend import SpendScreen

        model = self._here.model
        if not is_spending(model):
            self._monitor.say("No model was asked in this session, so nothing was spent on one.")
            return
        self._monitor.push_screen(SpendScreen(model), lambda wish: self.action_budget() if wish == "budget" else None)

    def action_reply(self) -> None:
        """Answer prompts by hand. It needs no engine: one that is resumed reads the replies."""
        from tui.screens.reply import ReplyScreen

        directory = directory_of(self._here.model)
        if directory is None:
            self._monitor.say("A replay is read-only.", severity="warning")
        elif not any(call.provider == MANUAL for call in self._state.spending.calls.values()):
            yet = " yet" if self._here.model.link.kind in ALIVE else ""
            self._monitor.say(f'No prompt waits{yet}: only models that are provider = "manual" leave some.')
        else:
            self._monitor.push_screen(ReplyScreen(self._here.model, directory))

    async def action_seed_idea(self) -> None:
        from tui.catalogue import Catalogue, answers_at_once, catalogue_of, readers_of
        from tui.screens.seed_idea import SeedIdeaScreen

        problem = self._problem_to_seed()
        if problem is None:
            return
        subject = self._here.detail.subject
        parent = subject.id if subject is not None and subject.problem == problem.id else None
        if parent is not None and not self._may_add_to(parent):
            return

        async def look() -> Catalogue:
            try:
                return await catalogue_of(self._here.model, problem, parent)
            except SessionError as error:
                self._monitor.say(error.brief, severity="error")
                return Catalogue()

        def chosen(wish: IdeaWish | None) -> None:
            if wish is None:
                return
            command = SeedIdea(
                problem=problem.id, text=wish.text, category=wish.category, catalogue=wish.move, parent=parent
            )
            self._ask(lambda: Plan(command, "seeding an idea", parent or problem.id))

        catalogue = await look() if answers_at_once(self._here.model) else look
        screen = SeedIdeaScreen(problem, parent or problem.best, catalogue, readers_of(self._here.model))
        self._monitor.push_screen(screen, chosen)

    def action_seed_kernel(self) -> None:
        from tui.screens.seed_kernel import SeedKernelScreen

        problem = self._problem_to_seed()
        if problem is None:
            return

        def chosen(wish: KernelWish | None) -> None:
            if wish is None:
                return
            source = wish.source
            if source is None:
                source = self._edited(problem, first_lines(problem), f"seed.{problem.form}")
            if source is not None:
                self._submit(problem, wish.form or problem.form, source, wish.text, None)

        self._monitor.push_screen(SeedKernelScreen(problem), chosen)

    def action_edit(self) -> None:
        """Edit a copy of the selected kernel; what is saved becomes its child."""
        self._here.tree_view.show_cursor()
        row = self._here.tree_view.row
        idea = self._state.ideas.get(row.id) if row is not None else None
        if idea is not None and not idea.variants:
            if self._may_steer() and self._may_add_to(idea.id):
                self.write_for(idea)
            return
        subject = self._here.detail.subject
        if subject is None:
            self._monitor.say("There is no kernel here to edit.", severity="warning")
            return
        if not self._may_steer() or not self._may_add_to(subject.id):
            return
        problem = self._state.problems[subject.problem]
        try:
            source = self._here.model.source.text(subject.source)
        except SessionError as error:
            self._monitor.say(error.brief, severity="error")
            return
        edited = self._edited(problem, source, f"{subject.id}.{subject.form}")
        if edited is not None:
            self._submit(problem, subject.form, edited, f"edit of {subject.id}", subject.id)

    def write_for(self, idea: IdeaState) -> None:
        """A kernel by a person's own hand for an idea that waits for an author; it waits on if none is saved."""
        problem = self._state.problems[idea.problem]
        source = self._edited(problem, first_lines(problem, idea), f"{idea.id}.{problem.form}")
        if source is None:
            self._monitor.say(f"{idea.id} goes on waiting for its author: e on it opens the editor.")
            return
        command = SeedKernel(
            problem=problem.id, form=problem.form, source=source, text=idea.text, parent=idea.parent, idea=idea.id
        )
        self._ask(lambda: Plan(command, "submitting", idea.id))

    def action_start_engine(self) -> None:
        """Where its minutes are spent an engine would end at once: it is asked for more first."""
        from tui.app import FINISHED

        model = self._here.model
        if model.engine == "finished":
            self._monitor.say(FINISHED)
            return
        if more_minutes(model) is not None and model.link.kind == "ended" and not model.source.read_only:
            self.action_budget()
        else:
            self._monitor.start_engine()

    # The monitor itself

    def action_copy(self) -> None:
        subject = self._here.detail.subject
        if subject is None:
            self._monitor.say("There is no kernel here to copy.", severity="warning")
            return
        try:
            self._monitor.copy_text(self._here.model.source.text(subject.source), f"the source of {subject.id}")
        except SessionError as error:
            self._monitor.say(error.brief, severity="error")

    def action_copy_id(self) -> None:
        if (row := self._here.tree_view.row) is not None:
            self._monitor.copy_text(row.id, row.id)

    def action_help(self) -> None:
        from tui.screens.help import HelpScreen
        from tui.widgets.keys import used_most

        here = self._here
        steers = not here.model.source.read_only
        self._monitor.push_screen(HelpScreen(here.focused, used_most(here), steers=steers))

    def action_command_palette(self) -> None:
        self._monitor.action_command_palette()

    def action_alerts(self) -> None:
        self._monitor.choose_alerts()

    def action_theme(self) -> None:
        self._monitor.next_theme()

    def action_screenshot(self) -> None:
        try:
            where = self._monitor.save_screenshot()
        except OSError as error:
            self._monitor.say(f"No screenshot: {error}", severity="error")
        else:
            self._monitor.say(f"Saved {where}")

    def action_suspend(self) -> None:
        self._monitor.action_suspend_process()

    def action_detach(self) -> None:
        self._monitor.exit(0)

    def action_interrupt(self) -> None:
        """Ctrl-C ends nothing by mistake, and says what does."""
        goes_on = ", and the search goes on; Q stops that" if self._here.model.link.kind in ALIVE else ""
        self._monitor.say(f"q detaches{goes_on}. y copies the kernel.")

    # Parts

    @property
    def _here(self) -> MonitorScreen:
        return cast("MonitorScreen", self)

    @property
    def _monitor(self) -> MonitorApp:
        return self._here.monitor

    @property
    def _state(self) -> SessionState:
        return self._here.model.state

    def _may_steer(self) -> bool:
        """Whether a command would reach an engine; says why not."""
        why = self._monitor.why_not_steer()
        if why is not None:
            self._monitor.say(why, severity="warning")
        return why is None

    def _may_add_to(self, node: str) -> bool:
        """Whether the engine would take what descends from ``node``, before a person writes it; says why not."""
        if self._state.is_pruned(node):
            self._monitor.say(f"{node} is pruned: restore it first, with d or z.", severity="warning")
            return False
        return True

    def _for_node(self, plan: Callable[[SessionState, str], Plan]) -> None:
        row = self._here.tree_view.row
        if row is None:
            self._monitor.say("Nothing is selected.", severity="warning")
            return
        self._here.tree_view.show_cursor()
        self._ask(lambda: plan(self._state, row.id))

    def _ask(self, make: Callable[[], Plan]) -> None:
        """Make a plan, ask its question if it has one, send it."""
        if not self._may_steer():
            return
        try:
            plan = make()
        except Refused as refusal:
            self._monitor.say(str(refusal), severity="warning")
            return
        self._confirm(plan)

    def _confirm(self, plan: Plan, then: Callable[[], None] | None = None) -> None:
        """Ask the plan's question if it has one, send it. ``then``: once it is sent."""
        if not plan.question:
            self._monitor.steer(plan, then)
            return
        from tui.screens.confirm import ConfirmScreen

        self._monitor.push_screen(
            ConfirmScreen(plan.question), lambda agreed: self._monitor.steer(plan, then) if agreed else None
        )

    def _problem_to_seed(self) -> ProblemState | None:
        if not self._may_steer():
            return None
        self._here.tree_view.show_cursor()
        name = self._here.problem_here()
        if name is None:
            self._monitor.say("There is no problem to seed yet.", severity="warning")
            return None
        return self._state.problems[name] if self._may_add_to(name) else None

    def _edited(self, problem: ProblemState, text: str, file_name: str) -> str | None:
        """The text as saved in the person's editor, None if it was left unchanged."""
        try:
            edited = edit_text(self._monitor, text, file_name)
        except EditorError as error:
            self._monitor.say(f"{error} Nothing is submitted.", severity="error")
            return None
        if edited is None:
            self._monitor.say("Left as it was: nothing is submitted.")
        return edited

    def _submit(self, problem: ProblemState, form: Form, source: str, text: str, parent: str | None) -> None:
        command = SeedKernel(problem=problem.id, form=form, source=source, text=text, parent=parent)
        self._ask(lambda: Plan(command, "submitting", parent or problem.id))


def first_lines(problem: ProblemState, idea: IdeaState | None = None) -> str:
    """What an empty kernel file begins with: the idea it is for and the derived header as comments, an empty launch."""
    mark = "#" if problem.form == "py" else "//"
    about = [f"{idea.id} for {problem.id}:", *textwrap.wrap(one_line(idea.text, 2000), 100)] if idea is not None else []
    said = "".join(f"{mark} {text}\n" for text in about)
    if problem.form == "py":
        return f"{said}import torch\nimport torch.nn as nn\n\n\nclass ModelNew(nn.Module):\n    ...\n"
    header = "".join(f"// {text}\n" for text in problem.header.splitlines())
    declared = next((text for text in problem.header.splitlines() if text.startswith('extern "C" int launch(')), None)
    launch = f"{declared.rstrip('; ')} {{\n    return 0;\n}}\n" if declared is not None else ""
    included = "// The header below is included by itself. Define launch(); return 0 for success.\n"
    return f"{said}{included}{header}\n{launch}"
