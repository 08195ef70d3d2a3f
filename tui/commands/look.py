"""Commands that look at saved searches: sessions, show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from engine.exit_codes import ExitCode
from engine.near import did_you_mean
from tui.commands.common import (
    Failure,
    complete_session,
    find,
    json_option,
    print_json,
    session_argument,
    sessions_option,
)
from tui.echo import echo

if TYPE_CHECKING:
    from engine.session import SessionReader, SessionSummary
    from engine.state import SessionState


@click.command()
@click.argument("names", nargs=-1, metavar="[SESSION]...", shell_complete=complete_session)
@click.option("--compare", "side_by_side", is_flag=True, help="Show the named sessions side by side.")
@sessions_option
@json_option
def sessions(names: tuple[str, ...], side_by_side: bool, root: Path, as_json: bool) -> None:
    """List saved searches, the newest first, or compare some.

    Without names all below the directory of sessions; with names these.
    """
    from engine.session import list_sessions, summarize

    if side_by_side:
        _compare_sessions(names, root, as_json=as_json)
        return
    listed = [summarize(find(root, name)) for name in names] if names else list_sessions(root)
    found = [replace(one, note=_note(one)) for one in listed]
    if as_json:
        print_json([{name: getattr(one, name) for name in one.__struct_fields__} | {"directory": str(one.directory)}
                    for one in found])  # fmt: skip
    elif not found:
        echo(f"no sessions in {root}; start one with: kernel-tui config.toml")
    else:
        from tui.tables import print_sessions

        print_sessions(found)


def _note(one: SessionSummary) -> str:
    """Why no engine works on a session, and what goes on where that takes more than to resume it."""
    from engine.session import SessionPaths
    from tui.going_on import how_it_ended

    if one.state not in ("stopped", "died"):
        return one.note
    paths = SessionPaths.at(one.directory)
    return how_it_ended(paths, one.note, one.minutes, one.search_s, by_budget=one.by_budget)


def _compare_sessions(names: tuple[str, ...], root: Path, *, as_json: bool) -> None:
    if len(names) < 2:
        raise Failure("name two sessions or more to compare: kernel-tui sessions --compare A B", ExitCode.USAGE)
    from tui.compare_sessions import compare_sessions, differing
    from tui.session_figures import read_figures

    figures = [read_figures(find(root, name)) for name in names]
    if as_json:
        print_json({"sessions": figures, "differing": differing(figures)})
        return
    from tui.compare_table import print_side_by_side

    print_side_by_side(compare_sessions(figures))


@click.command()
@session_argument
@click.argument("node", required=False)
@sessions_option
@click.option("--full", is_flag=True, help="All that is known: ideas and reasons, evidence, source.")
@json_option
def show(session: str, node: str | None, root: Path, full: bool, as_json: bool) -> None:
    """Look into a saved search, or at one NODE of it.

    Without NODE its results and rounds. NODE is a problem, an idea (i12) or a kernel (v34).
    """
    from engine.session import SessionReader
    from engine.state import fold

    paths = find(root, session)
    with SessionReader(paths) as reader:
        state = fold(reader.read())
        if node is None:
            _show_session(reader, state, session, full=full, as_json=as_json)
        elif node in state.variants:
            _show_variant(reader, state, node, full=full, as_json=as_json)
        elif node in state.ideas:
            _show_idea(state, node, as_json)
        elif node in state.problems:
            _show_problem(state, node, full=full, as_json=as_json)
        else:
            near = did_you_mean(node, [*state.problems, *state.ideas, *state.variants])
            raise Failure(f"{paths.name}: no problem, idea or kernel {node}{near}", ExitCode.USAGE)


def _show_session(reader: SessionReader, state: SessionState, argument: str, *, full: bool, as_json: bool) -> None:
    import time

    from engine.budget import elapsed_s
    from engine.session import engine_liveness
    from tui.results import results_of
    from tui.source import limits_of

    live = engine_liveness(reader.paths, reader)
    results = results_of(
        state,
        reader.paths.directory,
        elapsed_s(state, time.time() if live.running else state.time),
        torch_compile=limits_of(reader.paths).torch_compile,
        pending=live.running,
        died=not live.running and state.engine is not None,
    )
    if as_json:
        print_json(results)
        return
    from tui.format import clock
    from tui.going_on import how_it_ended
    from tui.showing import show_session

    engine = state.engine
    words = f"searching, engine {live.pid}" if live.running else "no engine has run yet"
    if live.stall is not None:
        words = f"STALLED, {live.stall.rstrip('.')}"
    if not live.running and engine is not None:
        words = engine.message if engine.stopped is not None else f"the engine died; resume {reader.paths.name} goes on"
        if engine.stopped != "finished":
            by_budget = engine.stopped == "budget"
            words = how_it_ended(reader.paths, words, state.minutes, results.seconds, by_budget=by_budget)
    head = f"{state.name}: {words}; {clock(results.seconds)} of search, {state.verdicts} verdicts"
    show_session(state, results, head, argument, full=full)


def _show_problem(state: SessionState, name: str, *, full: bool, as_json: bool) -> None:
    problem = state.problems[name]
    if as_json:
        rounds = [
            {"round": one.number, "parents": one.parents, "survivors": one.survivors, "dropped": one.dropped}
            for one in problem.rounds
        ]
        print_json({"problem": problem.spec, "baselines": problem.baselines, "best": problem.best, "rounds": rounds})
        return
    from tui.showing import show_problem

    show_problem(state, name, full=full)


def _show_idea(state: SessionState, name: str, as_json: bool) -> None:
    idea = state.ideas[name]
    if as_json:
        print_json(
            {
                "idea": name,
                "problem": idea.problem,
                "round": idea.round,
                "parent": idea.parent,
                "category": idea.category,
                "text": idea.text,
                "proposer": idea.proposer,
                "waiting": idea.waiting,
                "variants": idea.variants,
            }
        )
        return
    from tui.showing import show_idea

    show_idea(state, name)


def _show_variant(reader: SessionReader, state: SessionState, name: str, *, full: bool, as_json: bool) -> None:
    variant = state.variants[name]
    if as_json:
        print_json(
            {
                "variant": name,
                "idea": variant.idea,
                "problem": variant.problem,
                "round": variant.round,
                "parent": variant.parent,
                "form": variant.form,
                "note": variant.note,
                "stage": variant.stage,
                "pruned": state.is_pruned(name),
                "pinned": state.is_pinned(name),
                "carried": variant.carried,
                "dropped": variant.dropped,
                "lineage": state.ancestors(name),
                "verdict": variant.verdict,
                "at_sizes": variant.at_sizes,
                "source": reader.text(variant.source),
            }
        )
        return
    from tui.showing import show_variant

    show_variant(reader, state, variant, full=full)
