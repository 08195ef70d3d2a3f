"""Command: add an idea to a running search."""

from __future__ import annotations

from pathlib import Path

import click

from tui.cli.shared.common import find
from tui.cli.steering.send import PROBLEM_HELP, problem_id, request_options, send


@click.command("seed-idea")
@request_options
@click.option("--problem", help=PROBLEM_HELP)
@click.option("--parent", help="Kernel that the idea changes.  [default: the best kernel]")
@click.option("--transform", metavar="NAME", help="Playbook transformation to apply, instead of TEXT.")
@click.option("--move", metavar="NAME", hidden=True)
@click.option("--category", default="other", show_default=True, help="Category, such as memory, latency or compute.")
@click.argument("text", default="")
def seed_idea(
    session: str,
    problem: str | None,
    parent: str | None,
    transform: str | None,
    move: str | None,
    category: str,
    text: str,
    root: Path,
    as_json: bool,
) -> None:
    """Add an idea: TEXT, or a playbook transformation.

    The playbook is the built-in proposer. It writes kernels from templates, without a language model.
    """
    from engine.session.records.requests import SeedIdea

    transform = transform if transform is not None else move
    if not text and transform is None:
        raise click.UsageError("give the idea as TEXT, or --transform NAME")
    of_problem = problem_id(find(root, session), problem)
    command = SeedIdea(problem=of_problem, text=text, category=category, catalogue=transform, parent=parent)
    send(root, session, command, as_json)
