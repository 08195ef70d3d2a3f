"""Look up problems, ideas and kernels by the name that a person typed.

The functions raise an error with suggestions for an unknown name. The engine uses this module for requests. Without a
running engine, the command line uses this module directly.
"""

from __future__ import annotations

from collections.abc import Collection

from engine.exit_codes import ExitCode
from engine.session.records import requests as requests
from engine.session.state.nodes import IdeaState, ProblemState, VariantState
from engine.session.state.session_state import SessionState
from engine.suggestions import did_you_mean


class UnknownName(Exception):
    """The session contains no such name. The exception's text is the message to show."""

    exit_code = ExitCode.USAGE


def check_names(state: SessionState, command: requests.Command) -> None:
    """Check all names in a request. Raises :class:`UnknownName`."""
    match command:
        case (
            requests.Prune(node=node)
            | requests.Restore(node=node)
            | requests.Pin(node=node)
            | requests.Unpin(node=node)
        ):
            check_node(state, node)
        case requests.Retry(variant=name):
            named_variant(state, name)
        case requests.SeedIdea(problem=problem, parent=parent):
            if problem not in state.refused:
                _check_parent(state, named_problem(state, problem), parent)
        case requests.SeedKernel(problem=problem, parent=parent, idea=idea):
            if problem not in state.refused:
                found = named_problem(state, problem)
                _check_parent(state, found, parent)
                if idea is not None:
                    named_idea(state, found, idea)


def check_node(state: SessionState, name: str) -> None:
    """Raise :class:`UnknownName` unless ``name`` is a problem, idea or kernel."""
    if not any(name in pool for pool in (state.problems, state.ideas, state.variants)):
        every = [*state.problems, *state.ideas, *state.variants]
        raise UnknownName(f"this session has no problem, idea or kernel {name}{did_you_mean(name, every)}")


def named_problem(state: SessionState, name: str) -> ProblemState:
    """Look up a problem. Raises :class:`UnknownName`."""
    if (problem := state.problems.get(name)) is None:
        there = ", ".join(state.problems) or "none yet"
        near = did_you_mean(name, state.problems)
        raise UnknownName(f"this session has no problem {name}{f'{near} It' if near else '; it'} has {there}")
    return problem


def named_variant(state: SessionState, name: str) -> VariantState:
    """Look up a kernel. Raises :class:`UnknownName`."""
    if (variant := state.variants.get(name)) is None:
        raise UnknownName(f"this session has no kernel {name}{did_you_mean(name, state.variants)}")
    return variant


def named_idea(state: SessionState, problem: ProblemState, name: str) -> IdeaState:
    """Look up an idea of ``problem``. Raises :class:`UnknownName`."""
    idea = state.ideas.get(name)
    if idea is None or idea.problem != problem.id:
        if idea is not None:
            raise UnknownName(f"idea {name} belongs to {idea.problem}, not to {problem.id}")
        own = [one.id for one in state.ideas.values() if one.problem == problem.id]
        raise UnknownName(f"{problem.id} has no idea {name}{did_you_mean(name, own)}")
    return idea


def check_model(known: Collection[str], name: str) -> None:
    """Raise :class:`UnknownName` unless ``name`` is a model that can have a budget."""
    if name not in known:
        names = ", ".join(known) or "none"
        near = did_you_mean(name, known)
        raise UnknownName(f"no model is called {name}{f'{near} Models' if near else '; models'} with a budget: {names}")


def _check_parent(state: SessionState, problem: ProblemState, name: str | None) -> None:
    if name is not None and ((variant := state.variants.get(name)) is None or variant.problem != problem.id):
        if variant is not None:
            raise UnknownName(f"kernel {name} belongs to {variant.problem}, not to {problem.id}")
        own = [one.id for one in state.variants_of(problem.id)]
        raise UnknownName(f"{problem.id} has no kernel {name}{did_you_mean(name, own)}")
