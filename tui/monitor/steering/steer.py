"""Steer the search: each key makes a plan, asks for confirmation if necessary, and sends a request to the engine."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from msgspec import structs

from engine.problem.spec import MODULES, Language, suffix_of
from engine.proposers.protocol import LANGUAGE
from engine.session.records.requests import ChangeBudget, ChangeShare, SeedIdea, SeedKernel
from engine.session.state.session_state import IdeaState, ProblemState, SessionState, VariantState
from engine.session.state.spend import MANUAL
from engine.session.store import SessionError
from tui.monitor.host import Host
from tui.monitor.steering import plans
from tui.monitor.steering.plans import Plan, Refused, finished_words
from tui.monitor.terminal.editor import EditorError
from tui.text.sanitize import one_line
from tui.view.model import Model
from tui.view.next_steps import more_minutes, other_end, resume_command
from tui.view.row import Row
from tui.view.source import ALIVE

if TYPE_CHECKING:
    from tui.monitor.screens.seed_idea import IdeaRequest
    from tui.monitor.screens.seed_kernel import KernelRequest


JUDGE = "judge a new kernel"
"""What the user asks the engine to do by submitting a kernel, for use in notices."""


class Selection(Protocol):
    """What steering needs from the main screen: the session, and the user's selection."""

    model: Model

    @property
    def selected(self) -> Row | None:
        """The row under the cursor."""

    @property
    def kernel(self) -> VariantState | None:
        """The kernel that the selected row represents."""

    def problem_here(self) -> str | None:
        """Return the selected row's problem."""

    def show_cursor(self) -> None:
        """Scroll the selected row into view."""


class Steering:
    """The steering keys' methods, each named after its action."""

    def __init__(self, selection: Selection, host: Host) -> None:
        self._here = selection
        self._host = host

    def prune(self) -> None:
        self._for_node(plans.plan_prune, "prune or restore")

    def pin(self) -> None:
        self._for_node(plans.plan_pin, "pin")

    def retry(self) -> None:
        self._for_node(plans.plan_retry, "judge a kernel again")

    def pause_search(self) -> None:
        self._ask(lambda: plans.plan_pause(self._state), "pause")

    def stop(self) -> None:
        self._ask(lambda: plans.plan_stop(self._state), "stop", asks_again=True)

    def stop_after_round(self) -> None:
        self._ask(lambda: plans.plan_stop_after_round(self._here.model), "stop", asks_again=True)

    def undo(self) -> None:
        self._ask(lambda: self._host.history.undo(), "undo a request")

    def redo(self) -> None:
        self._ask(lambda: self._host.history.redo(), "repeat a request")

    def budget(self) -> None:
        from tui.monitor.screens.budget import BudgetScreen

        model = self._here.model
        # Without an engine, the request stays in the session file for the next engine.
        stopped = model.link.kind == "ended" and not model.source.read_only

        def chosen(request: ChangeBudget | ChangeShare | None) -> None:
            if request is None:
                return
            plan = plans.plan_budget(model, request, starts=stopped)
            if stopped:
                self._host.steer(plan, self._host.start_engine)
            elif self._may_steer("change a limit"):
                self._host.steer(plan)

        if stopped or self._may_steer("change a limit"):
            self._host.open_dialog(BudgetScreen(model, starts=stopped), chosen)

    def reply(self) -> None:
        """Answer prompts by hand.

        The dialog works without a running engine. When the user resumes the session, the engine reads the replies.
        """
        from tui.monitor.screens.reply import ReplyScreen

        directory = self._here.model.directory
        if directory is None:
            self._host.say("A replay is read-only.", severity="warning")
        elif not any(call.provider == MANUAL for call in self._state.spending.calls.values()):
            yet = " yet" if self._here.model.link.kind in ALIVE else ""
            self._host.say(f'No prompt is waiting{yet}. Only models with provider = "manual" need replies by hand.')
        else:
            self._host.open_dialog(ReplyScreen(self._here.model, directory, self._host))

    async def seed_idea(self) -> None:
        from tui.monitor.screens.seed_idea import SeedIdeaScreen
        from tui.monitor.steering.seedable import Catalogue, answers_at_once, catalogue_of, may_read_prose

        problem = self._problem_to_seed("take an idea")
        if problem is None:
            return
        subject = self._here.kernel
        parent = subject.id if subject is not None and subject.problem == problem.id else None
        if parent is not None and not self._may_add_to(parent):
            return

        async def look() -> Catalogue:
            try:
                return await catalogue_of(self._here.model, problem, parent)
            except SessionError as error:
                self._host.say(error.brief, severity="error")
                return Catalogue()

        def chosen(request: IdeaRequest | None) -> None:
            if request is None:
                return
            command = SeedIdea(
                problem=problem.id,
                text=request.text,
                category=request.category,
                catalogue=request.transformation,
                parent=parent,
            )
            self._seed(Plan(command, "seeding an idea", parent or problem.id), "take an idea")

        catalogue = await look() if answers_at_once() else look
        may_be_read = may_read_prose(self._here.model)
        dialog = SeedIdeaScreen(problem, parent or problem.best, catalogue, may_be_read=may_be_read)
        self._host.open_dialog(dialog, chosen)

    def seed_kernel(self) -> None:
        from engine.search.kernel_sources import same_source
        from tui.monitor.screens.seed_kernel import SeedKernelScreen

        problem = self._problem_to_seed(JUDGE)
        if problem is None:
            return
        row, waiting = self._here.selected, waiting_ideas(self._state, problem)
        idea = next((one for one in waiting if row is not None and one.id == row.id), None)
        if idea is not None and not self._may_add_to(idea.id):
            return

        def chosen(request: KernelRequest | None) -> None:
            if request is None:
                return
            if request.source is None and idea is not None:
                self.write_for(idea)
                return
            source = request.source
            if source is None:
                source = self._edited(problem, first_lines(problem), f"seed{suffix_of(problem.language)}")
            if source is not None:
                language = request.language or language_for(problem, idea)
                self._submit(problem, language, source, request.text, None, idea, request.file)

        dialog = SeedKernelScreen(
            problem,
            idea,
            waiting,
            same_source=lambda source: same_source(self._state, problem.id, source),
            only_pasted=self._host.is_web,
        )
        self._host.open_dialog(dialog, chosen)

    def edit(self) -> None:
        """Edit a copy of the selected kernel. The saved text becomes the kernel's child."""
        self._here.show_cursor()
        row = self._here.selected
        idea = self._state.ideas.get(row.id) if row is not None else None
        if idea is not None and not idea.variants:
            if self._may_write(JUDGE) and self._may_add_to(idea.id):
                self.write_for(idea)
            return
        subject = self._here.kernel
        if subject is None:
            self._host.say("Select a kernel to edit.", severity="warning")
            return
        if not self._may_write(JUDGE) or not self._may_add_to(subject.id):
            return
        problem = self._state.problems[subject.problem]
        try:
            source = self._here.model.source.text(subject.source)
        except SessionError as error:
            self._host.say(error.brief, severity="error")
            return
        edited = self._edited(problem, source, f"{subject.id}{suffix_of(subject.language)}")
        if edited is not None:
            self._submit(problem, subject.language, edited, f"edit of {subject.id}", subject.id)

    def write_for(self, idea: IdeaState) -> None:
        """Let the user write a kernel for an idea. The text to edit is the kernel that the idea starts from, if any. If
        the user saves nothing, the idea still needs a kernel.
        """
        problem = self._state.problems[idea.problem]
        language = language_for(problem, idea)
        start = self._state.variants.get(idea.parent or "")
        try:
            in_language = start is not None and start.language == language
            source = self._here.model.source.text(start.source) if start is not None and in_language else None
        except SessionError as error:
            self._host.say(error.brief, severity="error")
            return
        name, text = f"{idea.id}{suffix_of(language)}", first_lines(problem, idea, language, source)
        unchanged = (
            f"Nothing changed, so {idea.id} still needs a kernel. To open the editor, select the idea and press e."
        )
        edited = self._edited(problem, text, name, unchanged)
        if edited is None:
            return
        command = SeedKernel(
            problem=problem.id,
            language=language,
            source=edited,
            text=idea.text,
            parent=idea.parent,
            idea=idea.id,
        )
        self._seed(Plan(command, "submitting a kernel", idea.id), JUDGE)

    def start_engine(self) -> None:
        """Start the engine. If the time budget is used up, first ask for more minutes."""
        model = self._here.model
        if model.engine == "finished" and not model.source.read_only:
            self._host.say(finished_words(model))
            return
        if more_minutes(model) is not None and model.link.kind == "ended" and not model.source.read_only:
            self.budget()
        else:
            self._host.start_engine()

    # Parts

    @property
    def _state(self) -> SessionState:
        return self._here.model.state

    def _may_steer(self, doing: str) -> bool:
        """Return whether a request would reach an engine. If not, show a notice that says why.

        ``doing`` says what the request asks the engine to do, for the notice.
        """
        why = self._host.why_not_steer(doing)
        if why is not None:
            self._host.say(why, severity="warning")
        return why is None

    def _may_write(self, doing: str) -> bool:
        """Return whether a request would reach an engine. If not, open a dialog that says why.

        Users often keep typing after a key that should open a text field. The dialog discards this text, which the main
        screen would otherwise treat as keys.
        """
        why = self._host.why_not_steer(doing)
        if why is not None:
            from tui.monitor.screens.confirm import NoticeScreen

            model = self._here.model
            ended = model.link.kind == "ended" and not model.link.gone
            ended = ended and not (model.state.finished and other_end(model.state, model.limits.rounds))
            command = (f"In a shell: {resume_command(model)}",) if ended else ()
            self._host.open_dialog(NoticeScreen(why, *command))
        return why is None

    def _may_add_to(self, node: str) -> bool:
        """Return whether the engine accepts children of ``node``. If not, show a notice that says why."""
        if self._state.is_pruned(node):
            self._host.say(f"{node} is pruned. Restore it first with d or z.", severity="warning")
            return False
        return True

    def _for_node(self, plan: Callable[[SessionState, str], Plan], doing: str) -> None:
        row = self._here.selected
        if row is None:
            self._host.say("Nothing is selected.", severity="warning")
            return
        self._here.show_cursor()
        self._ask(lambda: plan(self._state, row.id), doing, asks_again=True)

    def _ask(self, make: Callable[[], Plan], doing: str, *, asks_again: bool = False) -> None:
        """Make a plan, ask for confirmation if necessary, and send the plan's request.

        If ``asks_again`` is true, the dialog makes a new plan every second, so that the counts stay current while the
        search continues.
        """
        if not self._may_steer(doing):
            return
        try:
            plan = make()
        except Refused as refusal:
            self._host.say(str(refusal), severity="warning")
            return

        def question() -> tuple[str, ...]:
            try:
                return make().question or plan.question
            except Refused:  # The answer to the request will say why.
                return plan.question

        self._confirm(plan, question=question if asks_again else None)

    def _seed(self, plan: Plan, doing: str) -> None:
        """Send a request with text that the user has written.

        If the engine has ended in the meantime, the next engine handles the request, so that the text is not lost.
        """
        link = self._here.model.link
        if (link.kind == "ended" and not link.gone) or self._may_steer(doing):
            self._host.steer(plan)

    def _confirm(self, plan: Plan, question: Callable[[], tuple[str, ...]] | None = None) -> None:
        """Ask for confirmation if necessary, and send the plan's request."""
        if not plan.question:
            self._host.steer(plan)
            return
        from tui.monitor.screens.confirm import ConfirmScreen

        self._host.open_dialog(
            ConfirmScreen(question or (lambda: plan.question)),
            lambda agreed: self._host.steer(plan) if agreed else None,
        )

    def _problem_to_seed(self, doing: str) -> ProblemState | None:
        if not self._may_write(doing):
            return None
        self._here.show_cursor()
        name = self._here.problem_here()
        if name is None:
            self._host.say("No problem is open yet.", severity="warning")
            return None
        return self._state.problems[name] if self._may_add_to(name) else None

    def _edited(
        self,
        problem: ProblemState,
        text: str,
        file_name: str,
        unchanged: str = "Nothing changed, so nothing was submitted.",
    ) -> str | None:
        """Let the user edit ``text``. Return the saved text, or None if nothing changed.

        ``unchanged`` is the message for the user if nothing changed.
        """
        try:
            edited = self._host.edit(text, file_name)
        except EditorError as error:
            self._host.say(f"{error} Nothing was submitted.", severity="error")
            return None
        if edited is None:
            self._host.say(unchanged)
        return edited

    def _submit(
        self,
        problem: ProblemState,
        language: Language,
        source: str,
        text: str,
        parent: str | None,
        idea: IdeaState | None = None,
        file: str = "",
    ) -> None:
        node = parent or problem.id
        command = SeedKernel(problem=problem.id, language=language, source=source, text=text, parent=parent, file=file)
        if idea is not None:
            node = idea.id
            command = structs.replace(command, text=idea.text, parent=idea.parent, idea=idea.id)
        self._seed(Plan(command, "submitting a kernel", node), JUDGE)


def waiting_ideas(state: SessionState, problem: ProblemState) -> list[IdeaState]:
    """Return the problem's ideas that wait for a kernel from a person, newest first."""
    ideas = [state.ideas[name] for round_ in problem.rounds for name in round_.ideas]
    waiting = (one for one in reversed(ideas) if one.needs_kernel)
    return [one for one in waiting if not one.variants and not state.is_pruned(one.id)]


def language_for(problem: ProblemState, idea: IdeaState | None) -> Language:
    """Return the language for a kernel of ``idea``: the language that the idea names, or the problem's own."""
    named = idea.data.get(LANGUAGE) if idea is not None else None
    return next((language for language in problem.languages if language == named), problem.language)


def first_lines(
    problem: ProblemState, idea: IdeaState | None = None, language: Language | None = None, source: str | None = None
) -> str:
    """Return the text that the user edits into a kernel. The idea comes first, as a comment. Then comes ``source`` or,
    without it, the header as comments and an empty ``launch``.
    """
    language = language or problem.language
    mark = "#" if language in MODULES else "//"
    about = [f"{idea.id} for {problem.id}:", *textwrap.wrap(one_line(idea.text, 2000), 100)] if idea is not None else []
    said = "".join(f"{mark} {text}\n" for text in about)
    if source is not None:
        return f"{said}{source}"
    if language in MODULES:
        return f"{said}import torch\nimport torch.nn as nn\n\n\nclass ModelNew(nn.Module):\n    ...\n"
    facts = [text for text in problem.header.splitlines() if not text.startswith(("// Derived from", "#pragma once"))]
    header = "".join(f"// {text.removeprefix('// ')}".rstrip() + "\n" for text in facts)
    declared = next((text for text in problem.header.splitlines() if text.startswith('extern "C" int launch(')), None)
    launch = f"{declared.rstrip('; ')} {{\n    return 0;\n}}\n" if declared is not None else ""
    included = "// Define launch(). The build includes this header:\n"
    return f"{said}{included}{header}\n{launch}"
