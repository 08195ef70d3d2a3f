"""What the monitor leaves in the terminal: the results of a search that has ended, and what a person may do next."""

from __future__ import annotations

from engine.session import SessionPaths
from tui import format as fmt
from tui.going_on import resume_command
from tui.model import Model
from tui.program import program
from tui.sanitize import clean_lines
from tui.source import ALIVE


def print_parting(model: Model, paths: SessionPaths) -> None:
    """What stays in the terminal: of a search that has ended its results, and always what a person may do next."""
    if model.opened and model.link.kind == "ended" and any(p.best is not None for p in model.state.problems.values()):
        from engine.budget import elapsed_s
        from tui.results import results_of
        from tui.tables import print_results

        print_results(
            results_of(
                model.state,
                paths.directory,
                elapsed_s(model.state, model.state.time),
                torch_compile=model.limits.torch_compile,
                pending=model.link.kind in ALIVE,
            )
        )
    print("\n".join(clean_lines(parting_words(model))))


def parting_words(model: Model) -> str:
    """What a person who leaves should know: whether the search goes on, what it may still spend, how to stop it."""
    name, argument = model.source.name, model.source.argument
    if model.link.gone:
        return f"The session {argument} was moved or deleted. Open it where it is now: {program()} attach DIRECTORY"
    if model.link.kind not in ALIVE:
        end = "is finished" if model.state.finished else "is not running"
        again = "" if model.state.finished else f"\n  go on with it: {resume_command(model)}"
        return f"The search {name} {end}.{again}"
    limit = model.minutes
    spend = "it has no time limit"
    if limit is not None:
        left = max(0.0, limit * 60 - model.search_seconds())
        spend = f"it may still spend {fmt.clock(left)} of its time"
    pid = f" (pid {model.link.pid})" if model.link.pid else ""
    how = "is paused and its engine goes on" if model.state.paused else "goes on"
    return (
        f"The search {name} {how}{pid}; {spend}.\n"
        f"  watch it again: {program()} attach {argument}\n"
        f"  stop it:        {program()} stop {argument}"
    )
