"""The proposer ``replay``: repeat a stored session offline, with the same tree of ideas and sources.

All ideas and kernels come from the recorded session, including those of models and people. The judge builds, checks and
times the kernels again. Each round uses its recorded parents, so that different kernel times cannot change the tree.
The proposer copies the recorded replies of models and people into the new session at no cost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from engine.exit_codes import ExitCode
from engine.problem.spec import LANGUAGE_NAMES
from engine.proposers.protocol import (
    ALL_ROLES,
    CALL,
    UNUSABLE,
    Board,
    CatalogueEntry,
    IdeaDraft,
    Kernel,
    Task,
    VariantDraft,
)
from engine.session.journal import Journal
from engine.session.records.events import ModelCallStarted, ModelReplied, Selected
from engine.session.records.model_calls import CallSite, Usage, call_name
from engine.session.state.session_state import SessionState, VariantState, fold
from engine.session.store import SessionPaths, SessionReader

RECORD = "record"
"""Key in the ``data`` of replayed ideas and kernels. The value is the id of the recorded idea or kernel."""
PROVIDER = "replay"


class NoRecord(Exception):
    """The session to replay does not exist. The exception's message says where the proposer looked."""

    exit_code = ExitCode.NO_SESSION


class Replay:
    """Replay the recorded ``session`` in the running session ``state``. Raises ``NoRecord`` or ``SessionError``."""

    name = PROVIDER
    reads_prose = False
    roles = ALL_ROLES
    awaited = 0
    busy = False

    def __init__(self, session: Path, journal: Journal, state: SessionState) -> None:
        paths = SessionPaths.at(session)
        if not paths.exists:
            raise NoRecord(f"{session}: no session to replay; pass the directory that contains session.db")
        self._reader = SessionReader(paths)
        self._record = fold(self._reader.read())
        self._journal = journal
        self._state = state
        self._told: set[str] = set()

    def refusal(self, task: Task) -> str | None:
        recorded = self._record.problems.get(task.problem.id)
        if recorded is None:
            there = ", ".join(self._record.problems) or "none"
            return f"{self._record.name} has no problem {task.problem.id} to replay; it has {there}"
        if recorded.language not in task.allowed:
            return (
                f"{self._record.name} has {LANGUAGE_NAMES[recorded.language]} kernels for this problem, "
                f"but this search writes {LANGUAGE_NAMES[task.language]} kernels"
            )
        return None

    def catalogue(self, task: Task) -> tuple[CatalogueEntry, ...]:
        return ()

    def parents(self, problem: str, round_number: int) -> tuple[Selected, ...] | None:
        """Return a round's recorded parents; None if the recorded session does not have this round."""
        recorded = self._record.problems.get(problem)
        for round_ in recorded.rounds if recorded is not None else ():
            if round_.number == round_number:
                now = {str(one.data.get(RECORD)): one.id for one in self._state.variants_of(problem)}
                return tuple(
                    Selected(now[one.variant], f"as in the recorded session: {one.why}")
                    for one in round_.parents
                    if one.variant in now
                )
        return None

    async def ideas(self, task: Task, parent: Kernel | None, board: Board, count: int, seed: int) -> list[IdeaDraft]:
        before = str(parent.data.get(RECORD)) if parent is not None else None
        found = []
        for idea in self._record.ideas.values():
            if (idea.problem, idea.round, idea.parent) == (task.problem.id, board.round, before):
                await self._tell(idea.data.get(CALL))
                found.append(IdeaDraft(idea.category, idea.text, _marked(idea.data, idea.id)))
        return found

    async def variants(
        self, task: Task, idea: IdeaDraft, parent: Kernel | None, board: Board, numbers: Sequence[int], seed: int
    ) -> AsyncIterator[VariantDraft]:
        recorded = self._record.ideas.get(str(idea.data.get(RECORD)))
        for name in recorded.variants if recorded is not None else ():
            variant = self._record.variants[name]
            if variant.parent not in (recorded.variants if recorded is not None else ()):
                yield await self._draft(variant)

    async def fix(
        self, task: Task, idea: IdeaDraft, failed: Kernel, board: Board, turn: int, seed: int
    ) -> VariantDraft | None:
        before = str(failed.data.get(RECORD))
        for name in self._record.derived.get(before, ()):
            variant = self._record.variants[name]
            if variant.idea == self._record.variants[before].idea:
                return await self._draft(variant)
        return None

    async def close(self) -> None:
        self._reader.close()

    async def _draft(self, variant: VariantState) -> VariantDraft:
        await self._tell(variant.data.get(CALL))
        return VariantDraft(
            self._reader.text(variant.source),
            variant.language,
            variant.note,
            _marked(variant.data, variant.id),
            str(variant.data.get(UNUSABLE, "")),
        )

    async def _tell(self, call: Any) -> None:
        """Copy a recorded call and its reply to this session, unless the session already contains them."""
        if not isinstance(call, str) or call in self._told or self._is_recorded(call):
            return
        self._told.add(call)
        for site, prompt, reply, answered in self._calls(call):
            number = self._state.spending.new_call()
            digest = self._journal.put_blob(self._reader.text(prompt))
            await self._journal.record(
                ModelCallStarted(
                    call=number,
                    attempt=1,
                    provider=PROVIDER,
                    model=PROVIDER,
                    site=site,
                    prompt=digest,
                    tokens=0,
                    dollars=0.0,
                ),
                ModelReplied(
                    call=number,
                    attempt=1,
                    answered=answered,
                    prompt=digest,
                    reply=self._journal.put_blob(self._reader.text(reply)),
                    finish="stop",
                    seconds=0.0,
                    usage=Usage(),
                    dollars=0.0,
                ),
            )

    def _calls(self, name: str) -> Iterator[tuple[CallSite, str, str, str]]:
        for call in self._record.spending.calls.values():
            if call.reply is not None and call_name(call.site) == name:
                yield call.site, call.prompt, call.reply, call.answered
                return

    def _is_recorded(self, name: str) -> bool:
        return any(
            call.reply is not None and call_name(call.site) == name for call in self._state.spending.calls.values()
        )


def _marked(data: dict[str, Any], record: str) -> dict[str, Any]:
    """Return a recorded node's data, with the node's id. Remove the ``seeded`` key, so that the search treats seeded
    ideas as ordinary ideas.
    """
    return {**{key: value for key, value in data.items() if key != "seeded"}, RECORD: record}
