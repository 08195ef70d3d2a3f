"""What a person may seed: the playbook's moves for a problem by name; prose, where a proposer reads it."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import sys
import tomllib
from typing import TYPE_CHECKING

from msgspec import Struct

from engine.proposers.protocol import CatalogueEntry
from engine.session import SessionError
from engine.state import ProblemState
from engine.toml_text import toml_table
from tui.model import Model

if TYPE_CHECKING:
    from engine.search.untried import Untried

READERS = ("openai", "gemini", "manual")
"""Providers whose proposers read an idea in prose."""
_HEAVY = ("engine.config", "engine.proposers.playbook", "engine.search.untried")
"""Takes a good part of a second to import, so it is done when it is needed, and beside the screen."""


def readers_of(model: Model) -> list[str]:
    """Names of the session's models that read prose."""
    return [name for provider, name in _models_of(model) if provider in READERS]


def _models_of(model: Model) -> list[tuple[str, str]]:
    """Provider and name of each of the session's models, by its frozen configuration."""
    try:
        models = toml_table(model.source.text(model.state.config)).get("models", [])
        return [(str(one["provider"]), str(one.get("model") or one["provider"])) for one in models]
    except (SessionError, tomllib.TOMLDecodeError, AttributeError, KeyError, TypeError):
        return []


def _has_playbook(model: Model) -> bool:
    return any(provider == "playbook" for provider, _ in _models_of(model))


class Catalogue(Struct, frozen=True):
    """The moves that come to a new kernel for the one that was asked about, and the names of those that do not.

    ``early``: whether that one is not judged yet, so that nothing is known of it.
    """

    moves: tuple[CatalogueEntry, ...] = ()
    spent: tuple[str, ...] = ()
    early: bool = False


class _Read:
    """The sources that a monitor reads, as the engine would know them."""

    def __init__(self, model: Model, problem: str) -> None:
        self._source = model.source
        self._known = {one.source for one in model.state.variants_of(problem)}

    def text(self, digest: str) -> str:
        return self._source.text(digest)

    def has(self, problem: str, text: str) -> bool:
        return hashlib.sha256(text.encode()).hexdigest() in self._known


def answers_at_once(model: Model) -> bool:
    """Whether ``catalogue_of`` has nothing to import."""
    return not _has_playbook(model) or all(name in sys.modules for name in _HEAVY)


async def catalogue_of(model: Model, problem: ProblemState, parent: str | None) -> Catalogue:
    """What the playbook would write for ``parent``, or for the best kernel, as the engine will judge the wish. Empty
    where the session has no playbook, or that no family for the problem, and before the first round. Raises
    SessionError."""
    if not _has_playbook(model):
        return Catalogue()
    for name in _HEAVY:
        await asyncio.to_thread(importlib.import_module, name)
    from engine.config import ConfigError, parse_config
    from engine.proposers.playbook import Playbook
    from engine.search.context import demands_of
    from engine.search.ids import Ids
    from engine.search.telling import task_of
    from engine.search.untried import Untried

    state, parent = model.state, parent or problem.best
    kind = "cuda" if problem.form == "cu" else "cpu"
    device = next((one for one in state.devices.values() if one.kind == kind), None) or next(
        iter(state.devices.values()), None
    )
    if device is None or not problem.rounds:
        return Catalogue()
    try:
        config = parse_config(model.source.text(state.config), model.source.paths.config)
    except ConfigError:  # of another version
        return Catalogue()
    if parent is not None and state.variants[parent].verdict is None:
        return Catalogue(early=True)
    playbook = Playbook()
    task = task_of(state, problem, device, demands_of(config, problem.spec))
    if playbook.refusal(task) is not None:
        return Catalogue()
    untried = Untried(
        state,
        _Read(model, problem.id),
        playbook,
        task,
        parent,
        variants=config.search.variants,
        next_idea=Ids(state).next_idea,
    )
    known = playbook.catalogue(task)
    new = []
    for move in known:  # each is written to see whether it is new, and the screen goes on between them
        await asyncio.sleep(0)
        new.append(await _is_new(untried, move.name, parent))
    moves = tuple(move for move, is_new in zip(known, new, strict=True) if is_new)
    return Catalogue(moves, tuple(move.name for move in known if move not in moves))


async def _is_new(untried: Untried, move: str, parent: str | None) -> bool:
    try:
        return await untried.has_new(move, parent)
    except SessionError:
        raise
    except Exception:  # a kernel's recipe is of another version: the engine is asked, and answers
        return True
