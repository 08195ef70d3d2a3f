"""A language model as a proposer: asks for ideas, kernels and repairs, and reads what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

from engine.events import Carried
from engine.models.protocol import CallSite, Prompt, Purpose, Reply, call_name
from engine.proposers.language.prompting import Prompts
from engine.proposers.language.replies import Unusable, clean, read_ideas, read_kernel
from engine.proposers.partial import Partials
from engine.proposers.protocol import (
    CALL,
    NUMBER,
    UNUSABLE,
    Board,
    CatalogueEntry,
    IdeaDraft,
    Kernel,
    NoAnswer,
    Role,
    Task,
    VariantDraft,
)

BOTTLENECK = "bottleneck"
_KEPT_CHARS = 20_000


class Asking(Protocol):
    """Whoever gets a prompt answered: a server, a person, or the recorded calls of another session."""

    @property
    def awaited(self) -> int:
        """Calls that wait for a person's reply."""
        ...

    async def call(self, site: CallSite, prompt: Prompt, on_text: Callable[[str], None] | None = None) -> Reply:
        """The reply, which is recorded; the recorded one where the session has it. Raises when there is none now."""
        ...

    async def close(self) -> None:
        """Release what it holds. Idempotent."""
        ...


class Language:
    """One of the config's ``[[models]]``.

    ``name``: as ideas and kernels are signed. ``place``: its place among the models, which tells apart the ideas that
    several are asked for the same parent. ``edits``: the directory in which a person may leave the exact prompt for a
    call, as ``CALL.md``. ``partials``: where a reply is shown while it streams.
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

    def parents(self, problem: str, round_number: int) -> tuple[Carried, ...] | None:
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
        for idea in ideas:
            category = "first" if parent is None else idea.category
            data: dict[str, Any] = {CALL: call_name(site)}
            if idea.bottleneck:
                data[BOTTLENECK] = idea.bottleneck
            drafts.append(IdeaDraft(category, idea.text, data))
        return drafts

    async def variants(
        self, task: Task, idea: IdeaDraft, parent: Kernel | None, board: Board, numbers: Sequence[int], seed: int
    ) -> AsyncIterator[VariantDraft]:
        """All at once; each is handed on as it comes. A call that fails is raised after the others have come."""

        async def write(number: int) -> VariantDraft:
            site = CallSite(task.problem.id, board.round, "kernel", idea.idea, number)
            reply = await self._ask(site, self._prompts.kernel(task, idea, parent, board, number))
            return _draft(reply, task, site, f"variant {number + 1}", {NUMBER: number})

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
        reply = await self._ask(site, self._prompts.fix(task, idea, failed, unusable, turn))
        return _draft(reply, task, site, f"repair {turn}", {})

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
        """The prompt, in the words of a person who edited this very one."""
        text = edited_prompt(self._edits, site)
        return prompt if text is None else Prompt(prompt.purpose, prompt.system, text, prompt.schema)


def edited_prompt(edits: Path | None, site: CallSite) -> str | None:
    """What a person wrote in place of the prompt for ``site``, or None."""
    file = edits / f"{call_name(site)}.md" if edits is not None else None
    if file is None or not file.is_file():
        return None
    text = file.read_text(encoding="utf-8", errors="replace")
    return text if text.strip() else None


def _draft(reply: Reply, task: Task, site: CallSite, note: str, data: dict[str, Any]) -> VariantDraft:
    """The kernel in a reply, or what it said instead and why that is none."""
    data = {**data, CALL: call_name(site)}
    try:
        return VariantDraft(read_kernel(reply, task.form), task.form, note, data)
    except Unusable as error:
        said = clean(reply.text[: 2 * _KEPT_CHARS])[:_KEPT_CHARS]
        return VariantDraft(said, task.form, note, {**data, UNUSABLE: str(error)}, str(error))


def purpose_role(purpose: Purpose) -> Role:
    """The role that a call of ``purpose`` needs."""
    roles: dict[Purpose, Role] = {"ideas": "ideas", "kernel": "code", "fix": "fixes"}
    return roles[purpose]
