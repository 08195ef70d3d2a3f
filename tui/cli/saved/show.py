"""Command: show a session, or one of its problems, ideas or kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from engine.suggestions import did_you_mean
from tui.cli.shared.common import Failure, find, json_option, print_json, session_argument, sessions_option
from tui.cli.shared.completion import complete_node

if TYPE_CHECKING:
    from engine.config.tolerance import SessionTolerance
    from engine.session.state.session_state import SessionState
    from engine.session.store import SessionReader


@click.command()
@session_argument
@click.argument("node", required=False, shell_complete=complete_node)
@sessions_option
@click.option("--full", is_flag=True, help="Show everything: ideas, reasons, evidence and source.")
@json_option
def show(session: str, node: str | None, root: Path, full: bool, as_json: bool) -> None:
    """Show a session, or one of its problems, ideas or kernels.

    NODE is a problem, an idea (i12) or a kernel (v34). Without NODE, show the results and rounds.
    """
    from engine.session.state.session_state import fold
    from engine.session.store import SessionReader
    from tui.cli.saved.session_results import liveness_of
    from tui.view.source import argument_of

    paths = find(root, session)
    with SessionReader(paths) as reader:
        state = fold(reader.read())
        liveness_of(reader, state)
        if node is None:
            _show_session(reader, state, argument_of(paths), full=full, as_json=as_json)
        elif node in state.variants:
            _show_variant(reader, state, node, full=full, as_json=as_json)
        elif node in state.ideas:
            _show_idea(reader, state, node, as_json)
        elif node in state.problems:
            _show_problem(reader, state, node, full=full, as_json=as_json)
        else:
            near = did_you_mean(node, [*state.problems, *state.ideas, *state.variants])
            near = near or f"; list them with: kernel-tui show {argument_of(paths)} --full"
            raise Failure(f"{paths.name}: no problem, idea or kernel {node}{near}", ExitCode.USAGE)


def _show_session(reader: SessionReader, state: SessionState, argument: str, *, full: bool, as_json: bool) -> None:
    from tui.cli.saved.session_results import session_results

    results, words, created = session_results(reader, state)
    if as_json:
        from tui.view.session_json import session_json

        print_json(session_json(state, results, created, reader.config_name()))
        return
    from tui.console.show import show_session
    from tui.text.format import clock
    from tui.text.glyphs import not_judged_words
    from tui.view.next_steps import words_to_time_compile

    judged = ", ".join(filter(None, [f"{state.verdicts} verdicts", not_judged_words(state)]))
    head = f"{reader.paths.name}: {clock(results.seconds)} search time, {judged}; {words}"
    more = words_to_time_compile(state, reader.paths, results)
    show_session(state, results, head, argument, full=full, to_time_compile=more)


def _show_problem(reader: SessionReader, state: SessionState, name: str, *, full: bool, as_json: bool) -> None:
    problem = state.problems[name]
    if as_json:
        rounds = [
            {"round": one.number, "parents": one.parents, "selected": one.selected, "dropped": one.dropped}
            for one in problem.rounds
        ]
        print_json({"problem": problem.spec, "baselines": problem.baselines, "best": problem.best, "rounds": rounds})
        return
    from tui.console.show import show_problem

    show_problem(state, name, _tolerance(reader), full=full)


def _show_idea(reader: SessionReader, state: SessionState, name: str, as_json: bool) -> None:
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
                "repeats": idea.repeats,
            }
        )
        return
    from tui.console.show import show_idea

    show_idea(state, name, _tolerance(reader))


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
                "language": variant.language,
                "note": variant.note,
                "stage": variant.stage,
                "pruned": state.is_pruned(name),
                "pinned": state.is_pinned(name),
                "selected": variant.selected_because,
                "dropped": variant.dropped,
                "lineage": state.ancestors(name),
                "verdict": variant.verdict,
                "tolerance": _tolerance(reader),
                "at_sizes": variant.at_sizes,
                "source": reader.text(variant.source),
            }
        )
        return
    from tui.console.show import show_variant

    show_variant(reader, state, variant, _tolerance(reader), full=full)


def _tolerance(reader: SessionReader) -> SessionTolerance:
    from tui.view.source import limits_of

    return limits_of(reader.paths).tolerance
