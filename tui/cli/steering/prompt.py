"""Command: show or edit the next prompt."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from tui.cli.shared.common import Failure, find, json_option, print_json, session_argument, sessions_option
from tui.cli.shared.completion import complete_node
from tui.console.echo import echo

if TYPE_CHECKING:
    from engine.session.records.model_calls import Purpose
    from engine.session.store import SessionPaths

PURPOSES: dict[str, Purpose] = {"idea": "ideas", "kernel": "kernel", "fix": "fix"}


@click.command()
@session_argument
@click.argument("node", required=False, shell_complete=complete_node)
@sessions_option
@click.option("--problem", help="Name of a problem in the session.  [default: the first]")
@click.option(
    "--purpose", type=click.Choice(list(PURPOSES)), help="Kind of prompt.  [default: what NODE needs, else idea]"
)
@click.option("--edit", is_flag=True, help="Edit the prompt in $EDITOR; the model then receives your version.")
@json_option
def prompt(
    session: str, node: str | None, root: Path, problem: str | None, purpose: str | None, edit: bool, as_json: bool
) -> None:
    """Show the exact text of the next prompt for a language model.

    NODE is the kernel or idea that the prompt is about. Without NODE, show a prompt that is waiting for a reply. If no
    prompt is waiting, show the prompt about the best kernel.
    """
    from engine.config.schema import load_config
    from engine.proposers.llm.prompting import Prompts, TemplateProblem
    from engine.proposers.llm.proposer import edited_prompt
    from engine.proposers.registry import own_prompts
    from engine.search.proposing.preview import NothingToAsk, next_prompt
    from engine.session.records.model_calls import call_name
    from engine.session.state.node_names import UnknownName
    from engine.session.state.session_state import fold
    from engine.session.store import SessionReader
    from engine.session.store.paths import must_have_config

    paths = find(root, session)
    must_have_config(paths)
    wanted = PURPOSES[purpose] if purpose is not None else None
    with SessionReader(paths) as reader:
        state = fold(reader.read())
        try:
            prompts = Prompts((own_prompts(paths),))
            found = next_prompt(state, load_config(paths.config), prompts, reader, problem, wanted, node, not edit)
        except (UnknownName, TemplateProblem) as error:
            raise Failure(f"{paths.name}: {error}", ExitCode.USAGE) from None
        except NothingToAsk as error:
            raise Failure(f"{paths.name}: {error}") from None
    name = call_name(found.site)
    user = edited_prompt(own_prompts(paths), found.site) or found.prompt.user
    if edit:
        _edit(paths, name, user, asked=found.asked)
    elif as_json:
        print_json({"call": name, "asked": found.asked, "system": found.prompt.system, "user": user})
    else:
        echo(f"call {name}, {'waiting for its reply' if found.asked else 'not sent yet'}", err=True)
        echo(f"{found.prompt.system.strip()}\n\n{user.strip()}", is_message=False)


def _edit(paths: SessionPaths, name: str, text: str, *, asked: bool) -> None:
    """Let the user edit the prompt for one call."""
    from engine.proposers.registry import own_prompts
    from engine.session.store import must_not_be_bundled
    from engine.session.store.errors import of_os
    from engine.session.store.paths import replace_file
    from tui.view.source import argument_of

    must_not_be_bundled(paths)
    if asked:
        reply = f"kernel-tui reply {argument_of(paths)} {name} FILE"
        raise Failure(f"{paths.name}: {name} was already sent; answer it with: {reply}")
    if not sys.stdin.isatty() and not {"VISUAL", "EDITOR"} & os.environ.keys():
        raise Failure("--edit needs a terminal, or an $EDITOR that works without one", ExitCode.USAGE)
    edited = click.edit(text, extension=".md")
    if edited is None or not edited.strip():
        echo("no changes")
        return
    target = own_prompts(paths) / f"{name}.md"
    try:
        target.parent.mkdir(exist_ok=True)
        replace_file(target, edited.encode())
    except OSError as error:
        raise of_os(error, target) from error
    echo(f"call {name} will use the edited prompt in {target}")
