"""What a person names in a session: problems, ideas and kernels, or the sentence that says that there is no such thing.

Asked by the engine, which carries commands out, and by the command line, where no engine runs.
"""

from __future__ import annotations

from collections.abc import Collection

from engine import commands as cmd
from engine.exit_codes import ExitCode
from engine.near import did_you_mean
from engine.nodes import IdeaState, ProblemState, VariantState
from engine.state import SessionState


class UnknownName(Exception):
    """The session has nothing of that name; ``str()`` is the sentence to show."""

    exit_code = ExitCode.USAGE


def check_names(state: SessionState, command: cmd.Command) -> None:
    """Raises :class:`UnknownName` for what ``command`` names and the session does not have."""
    match command:
        case cmd.Prune(node=node) | cmd.Restore(node=node) | cmd.Pin(node=node) | cmd.Unpin(node=node):
            check_node(state, node)
        case cmd.Retry(variant=name):
            named_variant(state, name)
        case cmd.SeedIdea(problem=problem, parent=parent):
            if problem not in state.refused:
                _check_parent(state, named_problem(state, problem), parent)
        case cmd.SeedKernel(problem=problem, parent=parent, idea=idea):
            if problem not in state.refused:
                found = named_problem(state, problem)
                _check_parent(state, found, parent)
                if idea is not None:
                    named_idea(state, found, idea)


def check_node(state: SessionState, name: str) -> None:
    """Raises :class:`UnknownName` where ``name`` is no problem, idea or kernel."""
    if not any(name in pool for pool in (state.problems, state.ideas, state.variants)):
        every = [*state.problems, *state.ideas, *state.variants]
        raise UnknownName(f"no problem, idea or kernel {name}{did_you_mean(name, every)}")


def named_problem(state: SessionState, name: str) -> ProblemState:
    """Raises :class:`UnknownName`."""
    if (problem := state.problems.get(name)) is None:
        there = ", ".join(state.problems) or "none yet"
        near = did_you_mean(name, state.problems)
        raise UnknownName(f"no problem {name}{f'{near} This' if near else '; this'} session has {there}")
    return problem


def named_variant(state: SessionState, name: str) -> VariantState:
    """Raises :class:`UnknownName`."""
    if (variant := state.variants.get(name)) is None:
        raise UnknownName(f"no kernel {name}{did_you_mean(name, state.variants)}")
    return variant


def named_idea(state: SessionState, problem: ProblemState, name: str) -> IdeaState:
    """An idea of ``problem``. Raises :class:`UnknownName`."""
    idea = state.ideas.get(name)
    if idea is None or idea.problem != problem.id:
        own = [one.id for one in state.ideas.values() if one.problem == problem.id]
        raise UnknownName(f"no idea {name} of {problem.id}{did_you_mean(name, own)}")
    return idea


def check_model(known: Collection[str], name: str) -> None:
    """Raises :class:`UnknownName` where ``name`` is none of the models that a budget can be given to."""
    if name not in known:
        names = ", ".join(known) or "none"
        raise UnknownName(f"no model {name}{did_you_mean(name, known)}; those that cost something: {names}")


def _check_parent(state: SessionState, problem: ProblemState, name: str | None) -> None:
    if name is not None and ((variant := state.variants.get(name)) is None or variant.problem != problem.id):
        own = [one.id for one in state.variants_of(problem.id)]
        raise UnknownName(f"no kernel {name} of {problem.id}{did_you_mean(name, own)}")
