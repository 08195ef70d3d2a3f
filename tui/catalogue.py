"""The playbook's moves for a problem of a session: what a person may seed by name."""

from __future__ import annotations

from engine.proposers.protocol import CatalogueEntry, Task
from engine.state import ProblemState, SessionState


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
