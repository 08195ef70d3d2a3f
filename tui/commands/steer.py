"""Commands to a running search: prune, pin, pause, seed and kin. Each waits for the engine's answer."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from tui.commands.common import (
    F,
    Failure,
    find,
    json_option,
    limit_options,
    print_json,
    session_argument,
    sessions_option,
)
from tui.echo import echo

if TYPE_CHECKING:
    from engine.commands import ChangeBudget, ChangeShare, Command
    from engine.session import Liveness, SessionPaths
    from engine.state import SessionState

ANSWER_S = 20.0
"""How long an answer may take before we say that it is still missing."""
_PROBLEM = "Problem of the session: by its name there, or as its config names it."


def _steering(command: F) -> F:
    return json_option(sessions_option(session_argument(command)))


def _send(root: Path, session: str, command: Command, as_json: bool) -> None:
    """Hand a command to the session's engine and print its answer. Raises Failure where there is no engine."""
    import getpass

    from engine.commands import Stop
    from engine.session import engine_liveness, send_command, wait_handled

    paths = find(root, session)
    if not engine_liveness(paths).running:
        _check_names(paths, command)
        if isinstance(command, Stop):
            raise Failure(f"{paths.name}: no engine runs on this session, so there is nothing to stop")
        raise Failure(
            f"{paths.name}: no engine runs on this session, so nobody would carry this out. "
            f"Resume it {_resumed_by(session, command)}"
        )
    number = send_command(paths, command, f"{getpass.getuser()} (command line)")
    answer = wait_handled(paths, number, ANSWER_S)
    if answer is None:
        raise Failure(
            f"{paths.name}: command {number} is written, but not answered after {ANSWER_S:g} s; "
            + _what_becomes_of_it(engine_liveness(paths), command)
        )
    code = ExitCode.OK if answer.ok else ExitCode.USAGE if answer.unknown else ExitCode.FAILURE
    if as_json:
        print_json({"command": number, "ok": answer.ok, "message": answer.message, "node": answer.node})
        sys.exit(code)
    if not answer.ok:
        raise Failure(answer.message, code)
    echo(answer.message)


def _resumed_by(session: str, command: Command) -> str:
    """The command that resumes, with the limits that were to change: without them a spent budget would refuse it."""
    from engine.commands import ChangeBudget, ChangeShare

    resume = f"kernel-tui resume {shlex.quote(session)}"
    if not isinstance(command, ChangeBudget | ChangeShare):
        return f"first: {resume}"
    names = ("minutes", "rounds", "dollars", "tokens", "calls")
    limits = {name: value for name in names if (value := getattr(command, name, None)) is not None}
    options = [f"--{name} {f'{value:g}' if isinstance(value, float) else value}" for name, value in limits.items()]
    if isinstance(command, ChangeShare):
        options.append(f"--model {shlex.quote(command.model)}" if command.model else "--per-problem")
    return f"so: {resume} {' '.join(options)}"


def _what_becomes_of_it(live: Liveness, command: Command) -> str:
    """Of a command that nobody has answered yet."""
    from engine.commands import Stop

    if live.running:
        why = (
            f"the engine stands still: {live.stall}"
            if live.stall is not None
            else "the engine is busy: see kernel-tui show"
        )
        return f"{why}. It stays pending, and is carried out as soon as the engine looks"
    if isinstance(command, Stop):
        return "the engine has ended meanwhile"
    return "the engine has ended meanwhile. It stays pending: one that is resumed carries it out"


def _check_names(paths: SessionPaths, command: Command) -> None:
    """Where no engine answers: a wrong name is to be corrected before the search is resumed. Raises Failure."""
    from engine.naming import UnknownName, check_names

    try:
        check_names(_state_of(paths), command)
    except UnknownName as error:
        raise Failure(f"{paths.name}: {error}", ExitCode.USAGE) from None


def _id_of(paths: SessionPaths, problem: str) -> str:
    """The id in the session of a problem that is named as a config does (``builtin:quickstart/softmax``, a path, also
    one that began at the config); ``problem`` as it is where that names none, for the engine to say so."""
    from engine.problem.catalog import CatalogError, resolve

    state = _state_of(paths)
    if problem in state.problems:
        return problem
    try:
        named = {str(file.path) for file in resolve([problem], Path.cwd())}
    except CatalogError:  # no such file from here
        parts = tuple(part for part in Path(problem).parts if part != "..")
        ending = [
            one.id for one in state.problems.values() if parts and Path(one.spec.path).parts[-len(parts) :] == parts
        ]
        return ending[0] if len(ending) == 1 else problem
    return next((one.id for one in state.problems.values() if {one.spec.path} == named), problem)


def _state_of(paths: SessionPaths) -> SessionState:
    from engine.session import SessionReader
    from engine.state import fold

    with SessionReader(paths) as reader:
        return fold(reader.read(without=("variant_stage", "log_line")))


def _node_command(name: str, kind: str, text: str) -> click.Command:
    @click.command(name, help=text)
    @_steering
    @click.argument("node")
    def command(session: str, node: str, root: Path, as_json: bool) -> None:
        from engine import commands

        _send(root, session, getattr(commands, kind)(node=node), as_json)

    return command


def _plain_command(name: str, kind: str, text: str) -> click.Command:
    @click.command(name, help=text)
    @_steering
    def command(session: str, root: Path, as_json: bool) -> None:
        from engine import commands

        _send(root, session, getattr(commands, kind)(), as_json)

    return command


@click.command()
@_steering
@click.option("--after-round", is_flag=True, help="Let the running rounds finish first.")
def stop(session: str, after_round: bool, root: Path, as_json: bool) -> None:
    """End the search; it can be resumed."""
    from engine.commands import Stop

    _send(root, session, Stop(after_round=after_round), as_json)


@click.command("seed-idea")
@_steering
@click.option("--problem", required=True, help=_PROBLEM)
@click.option("--parent", help="Kernel that the idea works on.  [default: the best]")
@click.option("--move", help="A move of the playbook's catalogue, instead of words.")
@click.option("--category", default="other", show_default=True, help="memory, latency, precision, compute, ...")
@click.argument("text", default="")
def seed_idea(
    session: str,
    problem: str,
    parent: str | None,
    move: str | None,
    category: str,
    text: str,
    root: Path,
    as_json: bool,
) -> None:
    """Add an idea: TEXT in prose, or a --move of the playbook."""
    from engine.commands import SeedIdea

    if not text and move is None:
        raise click.UsageError("give the idea as TEXT, or --move NAME")
    problem = _id_of(find(root, session), problem)
    command = SeedIdea(problem=problem, text=text, category=category, catalogue=move, parent=parent)
    _send(root, session, command, as_json)


@click.command("seed-kernel")
@_steering
@click.argument("kernel", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--problem", required=True, help=_PROBLEM)
@click.option("--parent", help="Kernel that it was edited from.")
@click.option("--idea", help="Idea that it is written for, such as one that waits for an author.")
@click.option("--form", type=click.Choice(["cpp", "cu", "py"]), help="Needed when KERNEL is '-' (stdin).")
@click.option("--text", default="seeded by hand", show_default=True, help="The idea behind it, in words.")
def seed_kernel(
    session: str,
    kernel: Path,
    problem: str,
    parent: str | None,
    idea: str | None,
    form: str | None,
    text: str,
    root: Path,
    as_json: bool,
) -> None:
    """Add a kernel by hand; it is judged next.

    It may be a parent in the same round.
    """
    from engine.commands import SeedKernel
    from engine.problem.spec import FORM_OF_SUFFIX
    from engine.text_file import read_stream
    from tui.commands.kernels import read_kernel

    source = read_stream(sys.stdin.buffer, "standard input") if str(kernel) == "-" else read_kernel(kernel)
    known = form or FORM_OF_SUFFIX.get(kernel.suffix)
    if known is None:
        raise click.UsageError("the form of the kernel is unknown: name it .cpp, .cu or .py, or give --form")
    problem = _id_of(find(root, session), problem)
    command = SeedKernel(
        problem=problem, form=FORM_OF_SUFFIX[f".{known}"], source=source, text=text, parent=parent, idea=idea
    )
    _send(root, session, command, as_json)


@click.command()
@_steering
@click.argument("variant")
def retry(session: str, variant: str, root: Path, as_json: bool) -> None:
    """Judge a kernel again."""
    from engine.commands import Retry

    _send(root, session, Retry(variant=variant), as_json)


@click.command()
@_steering
@limit_options
def budget(session: str, wish: ChangeBudget | ChangeShare | None, root: Path, as_json: bool) -> None:
    """Change what the search, one model or each problem may spend."""
    if wish is None:
        raise click.UsageError("give one or more of --minutes, --rounds, --dollars, --tokens, --calls")
    _send(root, session, wish, as_json)


pause = _plain_command("pause", "Pause", "Start no new evaluations; what runs finishes.")
go_on = _plain_command("continue", "Resume", "Go on after a pause.")
prune = _node_command(
    "prune",
    "Prune",
    "Cut a branch.\n\nNODE is a problem, an idea or a kernel. Nothing of it leads on until it is restored.",
)
restore = _node_command("restore", "Restore", "Take a prune back.")
pin = _node_command(
    "pin",
    "Pin",
    "Always carry the fastest kernel of a branch on.\n\nNODE is an idea or a kernel.",
)
unpin = _node_command("unpin", "Unpin", "Take a pin back.")
