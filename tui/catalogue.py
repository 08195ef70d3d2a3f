"""What a person may seed: the playbook's moves for a problem by name; prose, where a proposer reads it."""

from __future__ import annotations

import tomllib

from engine.proposers.protocol import CatalogueEntry, Task
from engine.session import SessionError
from engine.state import ProblemState, SessionState
from tui.model import Model

READERS = ("openai", "gemini")
"""Providers whose proposers read an idea in prose."""


def readers_of(model: Model) -> list[str]:
    """Names of the session's models that read prose, by its frozen configuration."""
    try:
        models = tomllib.loads(model.source.text(model.state.config)).get("models", [])
        return [str(one.get("model") or one["provider"]) for one in models if one.get("provider") in READERS]
    except (SessionError, tomllib.TOMLDecodeError, AttributeError, TypeError):
        return []


def catalogue_of(state: SessionState, problem: ProblemState) -> tuple[CatalogueEntry, ...]:
    """Empty where the playbook has no family for the problem, or the session's device is not known yet."""
    from engine.proposers.playbook import Playbook

    kind = "cuda" if problem.form == "cu" else "cpu"
    device = next((one for one in state.devices.values() if one.kind == kind), None) or next(
        iter(state.devices.values()), None
    )
    if device is None:
        return ()
    eager = problem.baselines.get("eager")
    task = Task(
        problem=problem.spec,
        header=problem.header,
        form=problem.form,
        device=device,
        floor_ms=problem.floor_ms,
        eager_ms=eager.timing.median_ms if eager is not None and eager.timing is not None else None,
    )
    playbook = Playbook()
    return playbook.catalogue(task) if playbook.refusal(task) is None else ()
