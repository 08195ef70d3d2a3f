"""A language model as a proposer: request ideas, kernels and repairs, and parse the replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

from engine.config.roles import Role
from engine.proposers.idea_methods import BOTTLENECK, METHOD
from engine.proposers.llm.approaches import VARIANTS
from engine.proposers.llm.model_protocol import Prompt, Reply
from engine.proposers.llm.prompting import Prompts, language_of
from engine.proposers.llm.replies import Unusable, clean, read_ideas, read_kernel
from engine.proposers.partial_replies import Partials
from engine.proposers.protocol import (
    CALL,
    LANGUAGE,
    NUMBER,
    UNUSABLE,
    Board,
    CatalogueEntry,
    IdeaDraft,
    Kernel,
    NoAnswer,
    Task,
    VariantDraft,
)
from engine.session.records.events import Selected
from engine.session.records.model_calls import CallSite, Purpose, call_name

_KEPT_CHARS = 20_000


class Asking(Protocol):
    """A source of answers to prompts: a server or a person."""

    @property
    def awaited(self) -> int:
        """Number of calls that are waiting for a person's reply."""
        ...

    async def call(self, site: CallSite, prompt: Prompt, on_text: Callable[[str], None] | None = None) -> Reply:
        """Return the recorded reply if the session has one, otherwise a new reply.

        Raises ``NoAnswer``, ``Spent`` or ``SessionError``.
        """
        ...

    async def close(self) -> None:
        """Release all resources. Idempotent."""
        ...


class Language:
    """A proposer that calls one model from the config's ``[[models]]``.

    Args:
        name: Name under which the search records the model's ideas and kernels.
        place: Index among the models, which distinguishes several models' requests for the same parent.
        edits: Directory in which a person may replace a call's prompt with a file ``CALL.md``.
        partials: Writer that shows replies while they are streaming.
    """

    reads_prose = True

    def __init__(
        self,
        name: str,
        place: int,
        asking: Asking,
        prompts: Prompts,
        roles: frozenset[Role],
        edits: Path | None = None,
        partials: Partials | None = None,
    ) -> None:
        self.name = name
        self.roles = roles
        self._place = place
        self._asking = asking
        self._prompts = prompts
        self._edits = edits
        self._partials = partials
        self._open = 0

    @property
    def awaited(self) -> int:
        return self._asking.awaited

    @property
    def busy(self) -> bool:
        return self._open > self._asking.awaited

    def refusal(self, task: Task) -> str | None:
        return None

    def catalogue(self, task: Task) -> tuple[CatalogueEntry, ...]:
        return ()

    def parents(self, problem: str, round_number: int) -> tuple[Selected, ...] | None:
        return None

    async def ideas(self, task: Task, parent: Kernel | None, board: Board, count: int, seed: int) -> list[IdeaDraft]:
        subject = parent.variant if parent is not None else ""
        site = CallSite(task.problem.id, board.round, "ideas", subject, self._place)
        reply = await self._ask(site, self._prompts.ideas(task, parent, board, count))
        try:
            ideas = read_ideas(reply, count)
        except Unusable as error:
            raise NoAnswer(str(error), call_name(site)) from None
        drafts = []
        for place, idea in enumerate(ideas):
            category = "first" if parent is None else idea.category
            data: dict[str, Any] = {CALL: call_name(site)}
            if idea.bottleneck:
                data[BOTTLENECK] = idea.bottleneck
            if idea.method:
                data[METHOD] = idea.method
            if idea.variants:
                data[VARIANTS] = list(idea.variants)
            if len(task.allowed) > 1:
                other = parent.language if parent is not None else task.allowed[place % len(task.allowed)]
                data[LANGUAGE] = idea.language if idea.language in task.allowed else task.in_language(other).language
            drafts.append(IdeaDraft(category, idea.text, data))
        return drafts

    async def variants(
        self, task: Task, idea: IdeaDraft, parent: Kernel | None, board: Board, numbers: Sequence[int], seed: int
    ) -> AsyncIterator[VariantDraft]:
        """Request all kernels at the same time, and yield each kernel as it arrives. At the end, raise the first error,
        if any.
        """

        written = task.in_language(language_of(idea, parent))

        async def write(number: int) -> VariantDraft:
            site = CallSite(task.problem.id, board.round, "kernel", idea.idea, number)
            reply = await self._ask(site, self._prompts.kernel(task, idea, parent, board, number))
            return _draft(reply, written, site, f"variant {number + 1}", {NUMBER: number})

        jobs = [asyncio.ensure_future(write(number)) for number in numbers]
        failure: Exception | None = None
        try:
            for job in asyncio.as_completed(jobs):
                try:
                    yield await job
                except Exception as error:
                    failure = failure or error
        finally:
            for one in jobs:
                one.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
        if failure is not None:
            raise failure

    async def fix(
        self, task: Task, idea: IdeaDraft, failed: Kernel, board: Board, turn: int, seed: int
    ) -> VariantDraft | None:
        site = CallSite(task.problem.id, board.round, "fix", failed.variant)
        unusable = str(failed.data.get(UNUSABLE, ""))
        reply = await self._ask(site, self._prompts.fix(task, idea, failed, board, unusable, turn))
        return _draft(reply, task.in_language(failed.language), site, f"repair {turn}", {})

    async def close(self) -> None:
        await self._asking.close()

    async def _ask(self, site: CallSite, prompt: Prompt) -> Reply:
        self._open += 1
        try:
            with self._partials.of(site) if self._partials is not None else nullcontext(None) as on_text:
                return await self._asking.call(site, self._edited(site, prompt), on_text)
        finally:
            self._open -= 1

    def _edited(self, site: CallSite, prompt: Prompt) -> Prompt:
        """Replace the prompt's text if a person edited this call's prompt."""
        text = edited_prompt(self._edits, site)
        return prompt if text is None else Prompt(prompt.purpose, prompt.system, text, prompt.schema)


def edited_prompt(edits: Path | None, site: CallSite) -> str | None:
    """Return a person's replacement for the prompt for ``site``; None if there is no replacement."""
    file = edits / f"{call_name(site)}.md" if edits is not None else None
    if file is None or not file.is_file():
        return None
    text = file.read_text(encoding="utf-8", errors="replace")
    return text if text.strip() else None


def _draft(reply: Reply, task: Task, site: CallSite, note: str, data: dict[str, Any]) -> VariantDraft:
    """Extract the kernel from a reply. If the reply contains no kernel, keep the reason and the start of the reply."""
    data = {**data, CALL: call_name(site)}
    try:
        return VariantDraft(read_kernel(reply, task.language), task.language, note, data)
    except Unusable as error:
        said = clean(reply.text[: 2 * _KEPT_CHARS])[:_KEPT_CHARS]
        return VariantDraft(said, task.language, note, {**data, UNUSABLE: str(error)}, str(error))


def purpose_role(purpose: Purpose) -> Role:
    """Return the proposer role that makes calls with ``purpose``."""
    roles: dict[Purpose, Role] = {"ideas": "ideas", "kernel": "code", "fix": "fixes"}
    return roles[purpose]
