"""Print the results of a search that has ended, and the next commands, when the monitor closes."""

from __future__ import annotations

from engine.session.store import SessionPaths
from tui.text import format as fmt
from tui.text.program import program
from tui.text.sanitize import clean_lines
from tui.view.model import Model
from tui.view.next_steps import resume_command, words_to_time_compile
from tui.view.source import ALIVE


def print_parting(model: Model, paths: SessionPaths) -> None:
    """Print the results of a search that has ended, and the next commands."""
    if model.opened and model.link.kind == "ended" and any(p.best is not None for p in model.state.problems.values()):
        from tui.console.tables import print_results
        from tui.view.results import results_of

        results = results_of(
            model.state,
            paths.directory,
            model.search_seconds(),
            tolerance=model.limits.tolerance,
            torch_compile=model.limits.torch_compile,
            pending=model.link.kind in ALIVE,
        )
        print_results(results, words_to_time_compile(model.state, paths, results))
    print("\n".join(clean_lines(parting_words(model))))


def parting_words(model: Model) -> str:
    """Say whether the search continues, how much time is left, and how to watch, stop or resume the search."""
    name, argument = model.source.name, model.source.argument
    if model.link.gone:
        return f"The session {argument} was moved or deleted. Open it at its new location: {program()} attach DIRECTORY"
    if model.link.kind not in ALIVE:
        end = "is finished" if model.state.finished else "is not running"
        again = "" if model.state.finished else f"\n  resume: {resume_command(model)}"
        return f"The search {name} {end}.{again}"
    limit = model.minutes
    spend = "it has no time limit"
    if limit is not None:
        left = max(0.0, limit * 60 - model.search_seconds())
        spend = f"{fmt.clock(left)} of its time budget is left"
    pid = f" (pid {model.link.pid})" if model.link.pid else ""
    goes_on = "stops after the running rounds" if model.state.stop_planned else "continues"
    how = "is paused; its engine is still running" if model.state.paused else goes_on
    words = (
        f"The search {name} {how}{pid}; {spend}.\n"
        f"  watch: {program()} attach {argument}\n"
        f"  stop:  {program()} stop {argument}"
    )
    return f"{words}\n  go on: {program()} stop {argument} --cancel" if model.state.stop_planned else words
