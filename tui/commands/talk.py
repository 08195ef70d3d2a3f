"""Commands between a person and the prompts: show or edit the next one, answer one that waits."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from tui.commands.common import Failure, count, find, json_option, print_json, session_argument, sessions_option
from tui.echo import echo

if TYPE_CHECKING:
    from engine.models.protocol import Purpose
    from engine.proposers.mailbox import Mailbox
    from engine.session import SessionPaths

_PURPOSES: dict[str, Purpose] = {"idea": "ideas", "kernel": "kernel", "fix": "fix"}


@click.command()
@session_argument
@click.argument("node", required=False)
@sessions_option
@click.option("--problem", help="Problem of the session.  [default: the first]")
@click.option("--purpose", type=click.Choice(list(_PURPOSES)), help="[default: what NODE asks for, else idea]")
@click.option("--edit", is_flag=True, help="Change it in $EDITOR; the call it is for uses your words.")
@json_option
def prompt(
    session: str, node: str | None, root: Path, problem: str | None, purpose: str | None, edit: bool, as_json: bool
) -> None:
    """Show the exact prompt that a language model gets next.

    NODE is a kernel or an idea that it is about; without it, the prompt that waits for its reply, or else the best
    kernel's.
    """
    from engine.config import load_config
    from engine.models.protocol import call_name
    from engine.naming import UnknownName
    from engine.proposers.language.prompting import Prompts, TemplateProblem
    from engine.proposers.language.proposer import edited_prompt
    from engine.proposers.registry import own_prompts
    from engine.search.preview import NothingToAsk, next_prompt
    from engine.session import SessionReader
    from engine.state import fold

    paths = find(root, session)
    wanted = _PURPOSES[purpose] if purpose is not None else None
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
        echo(f"call {name}, {'waiting for its reply' if found.asked else 'not asked yet'}", err=True)
        echo(f"{found.prompt.system.strip()}\n\n{user.strip()}")


@click.command()
@session_argument
@click.argument("call", required=False)
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@sessions_option
@click.option("--anyway", is_flag=True, help="Hand it over even if it holds no kernel or idea.")
@json_option
def reply(session: str, call: str | None, file: Path | None, root: Path, anyway: bool, as_json: bool) -> None:
    """Answer a prompt of the outbox, or list those that wait.

    CALL is answered with the reply in FILE ('-': standard input). Without CALL they are listed.
    """
    from engine.proposers.mailbox import MAX_READ_BYTES, Mailbox
    from engine.text_file import read_stream, read_text

    paths = find(root, session)
    mailbox = Mailbox(paths.directory)
    waiting = mailbox.waiting()
    if call is None:
        _list(paths, mailbox, waiting, as_json)
        return
    if call not in waiting:
        there = f"waiting: {', '.join(waiting)}" if waiting else "none waits"
        raise Failure(f"{paths.name}: no prompt {call} in {mailbox.outbox}; {there}", ExitCode.USAGE)
    if file is None:
        raise click.UsageError("give the FILE that holds the reply, or '-' for standard input")
    if str(file) == "-":
        text = read_stream(sys.stdin.buffer, "standard input", most_bytes=MAX_READ_BYTES, errors="replace")
    else:
        text = read_text(file, most_bytes=MAX_READ_BYTES, errors="replace")
    if not text.strip():
        raise Failure(f"{file}: the reply is empty", ExitCode.USAGE)
    if not anyway and (why := _why_unusable(paths, call, text)) is not None:
        raise Failure(f"{file}: {why}. {call} still waits; to hand this over nevertheless: --anyway", ExitCode.USAGE)
    target = mailbox.deliver(call, text)
    if as_json:
        print_json({"call": call, "file": str(target)})
    else:
        echo(f"{call}: reply in {target}")
        _say_who_reads(paths)


def _why_unusable(paths: SessionPaths, call: str, text: str) -> str | None:
    """Why the reply would be of no use to ``call``, as far as that can be told without a compiler."""
    from engine.proposers.language.replies import why_unusable
    from engine.session import SessionReader
    from engine.state import fold

    with SessionReader(paths) as reader:
        problems = fold(reader.read()).problems
    for purpose in _PURPOSES.values():
        for problem in problems.values():
            if call.startswith(f"{problem.id}.r") and f".{purpose}." in call.removeprefix(problem.id):
                return why_unusable(text, purpose, problem.form)
    return None


def _list(paths: SessionPaths, mailbox: Mailbox, waiting: list[str], as_json: bool) -> None:
    if as_json:
        print_json([{"call": one, "prompt": str(mailbox.outbox / f"{one}.md")} for one in waiting])
        return
    left = mailbox.unanswered()
    if not left:
        echo(f"{paths.name}: no prompt waits for a reply")
    else:
        verb = "waits" if len(left) == 1 else "wait"
        echo(f"{paths.name}: {count(len(left), 'prompt')} {verb} for a reply in {mailbox.outbox}")
    for one in left:
        echo(f"  {one}")
    if answered := [one for one in waiting if one not in left]:
        echo(f"answered, not read yet: {len(answered)}")
        for one in answered:
            echo(f"  {one}")
        _say_who_reads(paths)


def _say_who_reads(paths: SessionPaths) -> None:
    """Where no engine runs, what reads the replies."""
    from engine.session import engine_liveness
    from tui.source import argument_of

    if not engine_liveness(paths).running:
        echo(f"no engine runs that would read it; go on with: kernel-tui resume {argument_of(paths)}")


def _edit(paths: SessionPaths, name: str, text: str, *, asked: bool) -> None:
    """Let the person change the prompt for one call."""
    from engine.proposers.registry import own_prompts
    from engine.session.errors import of_os
    from engine.session.paths import replace_file

    if asked:
        raise Failure(f"{paths.name}: {name} was asked already; answer it, or edit the next one")
    if not sys.stdin.isatty() and not {"VISUAL", "EDITOR"} & os.environ.keys():
        raise Failure("--edit opens an editor, which needs a terminal; or name a program in $EDITOR", ExitCode.USAGE)
    edited = click.edit(text, extension=".md")
    if edited is None or not edited.strip():
        echo("nothing changed")
        return
    target = own_prompts(paths) / f"{name}.md"
    try:
        target.parent.mkdir(exist_ok=True)
        replace_file(target, edited.encode())
    except OSError as error:
        raise of_os(error, target) from error
    echo(f"{name} will be asked in the words of {target}")
