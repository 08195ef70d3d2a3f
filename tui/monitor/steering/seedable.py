"""What the user can seed: playbook transformations, and prose if one of the session's models reads it."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import sys
import tomllib
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from engine.config.toml_table import toml_table
from engine.proposers.protocol import CatalogueEntry
from engine.session.state.session_state import ProblemState
from engine.session.store import SessionError
from tui.view.model import Model

if TYPE_CHECKING:
    from engine.search.proposing.untried import Untried

_HEAVY = (
    "engine.config.schema",
    "engine.proposers.registry",
    "engine.proposers.llm",
    "engine.proposers.replay",
    "engine.proposers.playbook",
    "engine.search.proposing.untried",
)
"""Modules that are slow to import. A thread loads these modules when needed."""


def _models_of(model: Model) -> list[tuple[str, str]]:
    """Return the provider and name of each model in the session's configuration."""
    try:
        models = toml_table(model.source.text(model.state.config)).get("models", [])
        return [(str(one["provider"]), str(one.get("model") or one["provider"])) for one in models]
    except (SessionError, tomllib.TOMLDecodeError, AttributeError, KeyError, TypeError):
        return []


def _has_playbook(model: Model) -> bool:
    return any(provider == "playbook" for provider, _ in _models_of(model))


def may_read_prose(model: Model) -> bool:
    """Return whether the session may have a model that reads prose. The check does not import any slow modules."""
    models = _models_of(model)
    return not models or any(provider != "playbook" for provider, _ in models)


class Catalogue(Struct, frozen=True):
    """The transformations that turn a given kernel into a new kernel, and the names of all other transformations.

    ``early`` is true if the given kernel has no verdict yet, so its transformations are unknown. ``readers`` names the
    session's models that read prose.
    """

    transformations: tuple[CatalogueEntry, ...] = ()
    spent: tuple[str, ...] = ()
    early: bool = False
    readers: tuple[str, ...] = ()


class _Read:
    """A reader of a session's kernel sources, with the interface that the engine uses."""

    def __init__(self, model: Model, problem: str) -> None:
        self._source = model.source
        self._known = {one.source for one in model.state.variants_of(problem)}

    def text(self, digest: str) -> str:
        return self._source.text(digest)

    def has(self, problem: str, text: str) -> bool:
        return hashlib.sha256(text.encode()).hexdigest() in self._known


def answers_at_once() -> bool:
    """Return whether ``catalogue_of`` has nothing left to import."""
    return all(name in sys.modules for name in _HEAVY)


async def catalogue_of(model: Model, problem: ProblemState, parent: str | None) -> Catalogue:
    """Return the transformations that the playbook can apply to ``parent`` or, if it is None, to the best kernel.

    The engine applies the same rules to a seeded transformation. There are no transformations before the first round,
    without a playbook, or for a problem without a pattern. Raises SessionError.
    """
    for name in _HEAVY:
        await asyncio.to_thread(importlib.import_module, name)
    from engine.proposers.registry import reads_prose

    found = await _transformations_of(model, problem, parent) if _has_playbook(model) else Catalogue()
    return replace(found, readers=tuple(name for provider, name in _models_of(model) if reads_prose(provider)))


async def _transformations_of(model: Model, problem: ProblemState, parent: str | None) -> Catalogue:
    """Return the playbook's transformations. The caller must have imported the playbook's modules."""
    from engine.config.schema import ConfigError, parse_config
    from engine.proposers.playbook import Playbook
    from engine.search.context import demands_of
    from engine.search.ids import Ids
    from engine.search.proposing.proposer_context import task_of
    from engine.search.proposing.untried import Untried

    state, parent = model.state, parent or problem.best
    kind = "cpu" if problem.language == "cpp" else "cuda"
    device = next((one for one in state.devices.values() if one.kind == kind), None) or next(
        iter(state.devices.values()), None
    )
    if device is None or not problem.rounds:
        return Catalogue()
    try:
        config = parse_config(model.source.text(state.config), model.source.paths.config)
    except ConfigError:  # Another version wrote the config.
        return Catalogue()
    if parent is not None and state.variants[parent].verdict is None:
        return Catalogue(early=True)
    playbook = Playbook()
    task = task_of(state, problem, device, demands_of(config.evaluation, problem.spec))
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
    for entry in known:  # The check generates each kernel, so let the screen update in between.
        await asyncio.sleep(0)
        new.append(await _is_new(untried, entry.name, parent))
    found = tuple(entry for entry, is_new in zip(known, new, strict=True) if is_new)
    return Catalogue(found, tuple(entry.name for entry in known if entry not in found))


async def _is_new(untried: Untried, transformation: str, parent: str | None) -> bool:
    try:
        return await untried.has_new(transformation, parent)
    except SessionError:
        raise
    except Exception:  # Another version wrote the recipe, so let the engine decide.
        return True
