"""Command: answer a prompt that is waiting for a reply."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from tui.cli.shared.common import Failure, count, find, json_option, print_json, session_argument, sessions_option
from tui.cli.steering.prompt import PURPOSES
from tui.console.echo import echo

if TYPE_CHECKING:
    from engine.proposers.mailbox import Mailbox
    from engine.session.store import SessionPaths


@click.command()
@session_argument
@click.argument("call", required=False)
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@sessions_option
@click.option("--anyway", is_flag=True, help="Deliver the reply even if it contains no kernel or idea.")
@json_option
def reply(session: str, call: str | None, file: Path | None, root: Path, anyway: bool, as_json: bool) -> None:
    """Answer a prompt by hand, or list unanswered prompts.

    Prompts for models with provider = "manual" wait in the session's outbox/. FILE contains the reply to CALL; '-'
    reads standard input. Without CALL, list the unanswered prompts.
    """
    from engine.proposers.mailbox import MAX_READ_BYTES, Mailbox
    from engine.system.text_file import read_stream, read_text

    paths = find(root, session)
    mailbox = Mailbox(paths.directory)
    waiting = mailbox.waiting()
    if call is None:
        _list(paths, mailbox, waiting, as_json)
        return
    if call not in waiting:
        there = f"waiting: {', '.join(waiting)}" if waiting else "no prompt is waiting"
        raise Failure(f"{paths.name}: no prompt {call} in {mailbox.outbox}; {there}", ExitCode.USAGE)
    if file is None:
        raise click.UsageError("missing FILE: give the file that contains the reply, or '-' for standard input")
    if str(file) == "-":
        text = read_stream(sys.stdin.buffer, "standard input", most_bytes=MAX_READ_BYTES, errors="replace")
    else:
        text = read_text(file, most_bytes=MAX_READ_BYTES, errors="replace")
    if not text.strip():
        raise Failure(f"{file}: the reply is empty", ExitCode.USAGE)
    if not anyway and (why := _why_unusable(paths, call, text)) is not None:
        raise Failure(f"{file}: {why}. To deliver it anyway, add --anyway", ExitCode.USAGE)
    target = mailbox.deliver(call, text)
    if as_json:
        print_json({"call": call, "file": str(target)})
    else:
        echo(f"{call}: reply in {target}")
        _say_who_reads(paths)


def _why_unusable(paths: SessionPaths, call: str, text: str) -> str | None:
    """Return why the engine cannot use the reply to ``call``, or None if it can.

    The check does not compile the code.
    """
    from engine.proposers.llm.replies import why_unusable
    from engine.session.state.session_state import fold
    from engine.session.store import SessionReader

    with SessionReader(paths) as reader:
        problems = fold(reader.read()).problems
    for purpose in PURPOSES.values():
        for problem in problems.values():
            if call.startswith(f"{problem.id}.r") and f".{purpose}." in call.removeprefix(problem.id):
                reasons = [why_unusable(text, purpose, language) for language in problem.languages]
                return None if None in reasons else reasons[0]
    return None


def _list(paths: SessionPaths, mailbox: Mailbox, waiting: list[str], as_json: bool) -> None:
    if as_json:
        print_json([{"call": one, "prompt": str(mailbox.outbox / f"{one}.md")} for one in waiting])
        return
    left = mailbox.unanswered()
    if not left:
        echo(f"{paths.name}: no prompt is waiting for a reply")
    else:
        verb = "is" if len(left) == 1 else "are"
        echo(f"{paths.name}: {count(len(left), 'prompt')} {verb} waiting for a reply in {mailbox.outbox}")
    for one in left:
        echo(f"  {one}")
    if answered := [one for one in waiting if one not in left]:
        echo(f"replies that the engine has not read yet: {len(answered)}")
        for one in answered:
            echo(f"  {one}")
        _say_who_reads(paths)


def _say_who_reads(paths: SessionPaths) -> None:
    """Say how to resume if no engine is running to read the replies."""
    from engine.session.store import engine_liveness
    from tui.view.source import argument_of

    if not engine_liveness(paths).running:
        echo(f"no engine is running to read the reply; resume with: kernel-tui resume {argument_of(paths)}")
