"""Print the results of a search that has ended, and the next commands, when the monitor closes."""

from __future__ import annotations

from contextlib import suppress

from engine.session.records.requests import Stop
from engine.session.store import SessionError, SessionPaths, was_told_to_stop
from tui.text import format as fmt
from tui.text.narration import end_words
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
    """Say whether the search continues or stops, how much time is left, and how to watch, stop or resume the search."""
    name, argument = model.source.name, model.source.argument
    if model.link.gone:
        return f"The session {argument} was moved or deleted. Open it at its new location: {program()} attach DIRECTORY"
    if model.link.kind not in ALIVE:
        end = "is finished" if model.state.finished else "is not running"
        again = f"\n  resume: {resume_command(model)}"
        if model.state.finished:
            unsolved = [one for one in model.state.problems.values() if one.finished is not None and one.best is None]
            ends = ((one.id, end_words(model.state, one.id, one.finished or "")) for one in unsolved)
            again = "".join(f"\n  {name}: {words}" for name, words in ends)
        return f"The search {name} {end}.{again}"
    pid = f" (pid {model.link.pid})" if model.link.pid else ""
    if _is_stopping(model):
        return f"The search {name} is stopping{pid}.\n  watch: {program()} attach {argument}"
    limit = model.minutes
    spend = "it has no time limit"
    if limit is not None:
        left = max(0.0, limit * 60 - model.search_seconds())
        spend = f"{fmt.clock(left)} of its time budget is left"
    goes_on = "stops after the running rounds" if model.state.stop_planned else "continues"
    how = "is paused; its engine is still running" if model.state.paused else goes_on
    commands = {"watch": f"attach {argument}", "stop": f"stop {argument}"}
    if model.state.stop_planned:
        commands["cancel the stop"] = f"stop {argument} --cancel"
    width = 1 + max(map(len, commands))
    lines = (f"  {f'{label}:':<{width}} {program()} {command}" for label, command in commands.items())
    return "\n".join((f"The search {name} {how}{pid}; {spend}.", *lines))


def _is_stopping(model: Model) -> bool:
    """Return whether any user, here or in another terminal, has asked the running engine to stop immediately."""
    if any(one.command == Stop() for one in model.pending.values()):
        return True
    with suppress(SessionError):  # The session may have been moved or deleted since the last update.
        return was_told_to_stop(model.source.paths)
    return False
