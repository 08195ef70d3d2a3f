"""Send a request to a running search and wait for the engine's answer."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from engine.exit_codes import ExitCode
from tui.cli.shared.common import F, Failure, find, json_option, print_json, session_argument, sessions_option
from tui.cli.shared.problem_option import choices
from tui.console.echo import echo

if TYPE_CHECKING:
    from engine.session.records.requests import Command
    from engine.session.state.session_state import SessionState
    from engine.session.store import Liveness, SessionPaths

ANSWER_S = 20.0
"""Time limit for the engine's answer, in seconds. The command then reports that the engine has not answered."""
PROBLEM_HELP = "Problem: its name in the session, or its entry in the config.  [default: the only problem]"


def request_options(command: F) -> F:
    return json_option(sessions_option(session_argument(command)))


def send(root: Path, session: str, command: Command, as_json: bool) -> None:
    """Send a request to the session's engine and print its answer. Raises Failure if no engine is running."""
    import os

    from engine.daemon.logind import user_name
    from engine.session.records.events import CommandHandled
    from engine.session.records.requests import CancelStop, ChangeBudget, Stop
    from engine.session.store import engine_liveness, send_request, wait_handled
    from tui.view.next_steps import option_to_resume, too_low_limit
    from tui.view.source import argument_of

    paths = find(root, session)
    if not engine_liveness(paths).running:
        _check_names(paths, command)
        if isinstance(command, Stop):
            raise Failure(f"{paths.name}: no engine is running, so there is nothing to stop")
        if isinstance(command, CancelStop):
            again = f"kernel-tui resume {argument_of(paths)}"
            raise Failure(f"{paths.name}: no engine is running; to continue the search: {again}")
        state = _state_of(paths)
        if isinstance(command, ChangeBudget) and (reason := too_low_limit(paths, state, command)) is not None:
            raise Failure(f"{paths.name}: no engine is running; {reason}")
        raise Failure(
            f"{paths.name}: no engine is running to handle this request. Resume the session "
            + _resumed_by(argument_of(paths), command, option_to_resume(paths, state))
        )
    number = send_request(paths, command, f"{user_name() or f'uid {os.getuid()}'} (command line)")
    answer = wait_handled(paths, number, ANSWER_S, needs_engine=True)
    if answer is None:
        live = engine_liveness(paths)
        if isinstance(command, Stop) and not live.running and live.exit_code is not None:
            why = f": {live.message}" if live.message else ""
            answer = CommandHandled(command=number, ok=True, message=f"{paths.name} has already ended{why}")
    if answer is None:
        waited = f" after {ANSWER_S:g} s" if live.running else ""
        fate = _what_becomes_of_it(live, command, argument_of(paths))
        raise Failure(f"{paths.name}: no answer to request {number}{waited}; {fate}")
    code = ExitCode.OK if answer.ok else ExitCode.USAGE if answer.unknown else ExitCode.FAILURE
    if as_json:
        print_json({"command": number, "ok": answer.ok, "message": answer.message, "node": answer.node})
        sys.exit(code)
    if not answer.ok:
        raise Failure(answer.message, code)
    echo(answer.message)


def _resumed_by(session: str, command: Command, option: str) -> str:
    """Return the command that resumes the session. ``option`` is the option that a resume needs, or "".

    The command includes the new limits, since a session with a used-up budget cannot resume without them.
    """
    from engine.session.records.requests import ChangeBudget, ChangeShare

    resume = f"kernel-tui resume {session}"
    if not isinstance(command, ChangeBudget | ChangeShare):
        return f"first: {resume} {option}".rstrip()
    names = ("minutes", "rounds", "dollars", "tokens", "calls")
    limits = {name: value for name in names if (value := getattr(command, name, None)) is not None}
    options = [f"--{name} {f'{value:.10g}' if isinstance(value, float) else value}" for name, value in limits.items()]
    if isinstance(command, ChangeShare):
        options.append(f"--model {shlex.quote(command.model)}" if command.model else "--per-problem")
    return f"with the new limits: {resume} {' '.join(options)}"


def _what_becomes_of_it(live: Liveness, command: Command, session: str) -> str:
    """Say what will happen to a request that the engine has not answered."""
    from engine.session.records.requests import CancelStop, Stop

    if live.running:
        why = f"the engine has stalled: {live.stall}" if live.stall is not None else "the engine is busy"
        return f"{why}. The request stays pending until the engine handles it. Check with: kernel-tui show {session}"
    if isinstance(command, Stop | CancelStop):
        return f"the engine has ended{f': {live.message}' if live.message else ''}"
    return f"the engine has ended. The request stays pending; to handle it: kernel-tui resume {session}"


def _check_names(paths: SessionPaths, command: Command) -> None:
    """Check the request's names without an engine, so that the user can correct them before resuming.

    Raises Failure.
    """
    from engine.session.state.node_names import UnknownName, check_names

    try:
        check_names(_state_of(paths), command)
    except UnknownName as error:
        raise Failure(f"{paths.name}: {error}", ExitCode.USAGE) from None


def problem_id(paths: SessionPaths, problem: str | None, node: str | None = None) -> str:
    """Return the session's id for a problem named as in a config: ``builtin:quickstart/softmax`` or a path.

    A path may be relative to the config. The function returns an unknown name unchanged, so that the engine rejects it.
    Without ``problem``, it returns the problem of the idea or kernel ``node``. Without ``problem`` and ``node``, it
    returns the session's only problem. It then raises Failure unless the session has exactly one problem.
    """
    from engine.problem.catalog import CatalogError, resolve

    state = _state_of(paths)
    if problem is None:
        if (known := state.ideas.get(node or "") or state.variants.get(node or "")) is not None:
            return known.problem
        names = [name for name in state.problems if name not in state.refused]
        if len(names) == 1:
            return names[0]
        if not names:
            raise Failure(f"{paths.name} has no open problem yet; name one: --problem NAME", ExitCode.USAGE)
        raise Failure(
            f"{paths.name} has {len(names)} problems; {choices(names, 'add one of these to the command')}",
            ExitCode.USAGE,
        )
    if problem in state.problems:
        return problem
    try:
        named = {str(file.path) for file in resolve([problem], Path.cwd())}
    except CatalogError:  # The name is not a path relative to this directory.
        parts = tuple(part for part in Path(problem).parts if part != "..")
        ending = [
            one.id for one in state.problems.values() if parts and Path(one.spec.path).parts[-len(parts) :] == parts
        ]
        return ending[0] if len(ending) == 1 else problem
    return next((one.id for one in state.problems.values() if {one.spec.path} == named), problem)


def _state_of(paths: SessionPaths) -> SessionState:
    from engine.session.state.session_state import fold
    from engine.session.store import SessionReader

    with SessionReader(paths) as reader:
        state = fold(reader.read(without=("variant_stage", "log_line")))
        state.heard_at = reader.last_moment(state)
    return state
