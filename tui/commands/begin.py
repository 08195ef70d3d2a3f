"""What ``run`` and ``resume`` have to find out first: is the configuration sound, and which session is meant."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.commands import ChangeBudget, ChangeShare, Stop
from engine.events import CommandHandled, EngineStarted
from engine.exit_codes import ExitCode
from engine.session import SessionError, SessionPaths, SessionReader, create_session, engine_liveness, send_command
from tui.commands.common import Failure, count, find
from tui.commands.run import Beginning
from tui.echo import echo
from tui.going_on import minutes_are_spent, minutes_needed, spent_in_words
from tui.program import program
from tui.source import argument_of, limits_of

if TYPE_CHECKING:
    from engine.config import Config, ConfigError, Fault
    from engine.state import SessionState

_END_S = 60.0
"""How long an engine that was told to stop may take to end what runs."""


def begin_run(config_path: Path, choice: str | None) -> Beginning:
    """A new session of a configuration, or its running or unfinished one; ``choice`` is "new", "resume" or None.

    May ask on a terminal. Raises what the commands show as one line: ConfigError, SessionError, Failure and kin.
    """
    from engine.config import ConfigError, load_config  # pydantic is slow to import, and a resume does without

    try:
        config = load_config(config_path)
    except ConfigError as error:
        raise _with_problem_faults(error) from None
    _check(config)
    earlier = _newest_session(config)
    if earlier is not None:
        _wait_if_ending(earlier)
    if earlier is not None and choice != "new" and engine_liveness(earlier).running:
        echo(f"{earlier.name}: its search is running; attaching (Ctrl-C here detaches)", err=True)
        return Beginning(earlier.directory, starts=False)
    if (
        earlier is not None
        and choice == "resume"
        and (reason := _nothing_left(earlier, _state_of(earlier))) is not None
    ):
        raise Failure(reason, ExitCode.USAGE)
    if earlier is not None and (resumed := _resumed(earlier, config, choice)) is not None:
        return resumed
    if choice == "resume":
        raise Failure(f"{config.sessions}: no unfinished session of {config.path}", ExitCode.NO_SESSION)
    paths = create_session(config.sessions, config.name, config.frozen_toml(), str(config.path), config.seed)
    return Beginning(paths.directory, starts=True)


def begin_resume(root: Path, session: str, wish: ChangeBudget | ChangeShare | None) -> Beginning:
    """A session that goes on, with new limits if there are any. Raises SessionError, Failure."""
    return _again(find(root, session), wish)


def _again(paths: SessionPaths, wish: ChangeBudget | ChangeShare | None) -> Beginning:
    """Resume a session, or attach to it if its engine lives."""
    _wait_if_ending(paths)
    state = _state_of(paths)
    running = engine_liveness(paths).running
    if not running and wish is None and (reason := _nothing_left(paths, state)) is not None:
        raise Failure(reason, ExitCode.USAGE)
    if wish is not None:
        send_command(paths, wish, "resume")
    if running:
        echo(f"{paths.name}: its engine lives; attaching (Ctrl-C here detaches)", err=True)
    return Beginning(paths.directory, starts=not running, seq=state.seq)


def _wait_if_ending(paths: SessionPaths) -> None:
    """An engine that was told to stop is no engine to attach to: wait for its end. Raises Failure, SessionError."""
    if not (engine_liveness(paths).running and _was_told_to_stop(paths)):
        return
    echo(f"{paths.name}: its engine was told to stop; waiting for its end", err=True)
    deadline = time.monotonic() + _END_S
    while (living := engine_liveness(paths)).running:
        if time.monotonic() > deadline:
            why = living.stall or "see kernel-tui show"
            raise Failure(f"{paths.name}: its engine was told to stop and has not ended after {_END_S:g} s; {why}")
        time.sleep(0.05)


def _was_told_to_stop(paths: SessionPaths) -> bool:
    """Whether the newest engine has agreed to stop at once."""
    with SessionReader(paths) as reader:
        stops = {sent.id for sent in reader.commands() if sent.command == Stop()}
        agreed = False
        for recorded in reader.read() if stops else ():
            event = recorded.event
            if isinstance(event, EngineStarted):
                agreed = False
            elif isinstance(event, CommandHandled) and event.command in stops:
                agreed = event.ok
    return agreed


def _check(config: Config) -> None:
    """What can be wrong with a valid config. Raises ConfigError, ProposerUnavailable."""
    from engine.config import ConfigError
    from engine.proposers.registry import check_providers

    check_providers(config)
    if faults := problem_faults(config.path):
        raise ConfigError(config.path, faults)


def _with_problem_faults(error: ConfigError) -> ConfigError:
    """The error with what is wrong with the problems that the file names, so that both are said in one go."""
    from engine.config import ConfigError

    if any(fault.key.startswith("problems") for fault in error.faults) or not (more := problem_faults(error.path)):
        return error
    return ConfigError(error.path, (*error.faults, *more))


def problem_faults(path: Path) -> tuple[Fault, ...]:
    """Entries of ``problems``, as they stand in the file, that name no problem file."""
    from engine.config import Fault
    from engine.problem.catalog import CatalogError, resolve
    from engine.text_file import UnreadableFile, read_text
    from engine.toml_lines import key_lines, line_of
    from engine.toml_text import toml_table

    try:
        text = read_text(path)
        entries = toml_table(text).get("problems")
    except (UnreadableFile, ValueError):
        return ()
    if not isinstance(entries, list) or not all(isinstance(one, str) for one in entries):
        return ()
    try:
        resolve(entries, path.absolute().parent)
    except CatalogError as error:
        lines = key_lines(text)
        return tuple(
            Fault(line_of(lines, ("problems", entries.index(entry))), "problems", f"{entry}: {message}")
            for entry, message in error.entries
        )
    return ()


def _newest_session(config: Config) -> SessionPaths | None:
    """The newest session that was started from this config file; unreadable ones are passed over."""
    found: list[tuple[float, SessionPaths]] = []
    for database in config.sessions.glob("*/session.db"):
        paths = SessionPaths.at(database.parent)
        try:
            with SessionReader(paths) as reader:
                if reader.config_name() == str(config.path):
                    first = next(reader.read(), None)
                    found.append((first.time if first is not None else 0.0, paths))
        except SessionError:
            continue
    return max(found, key=lambda one: one[0])[1] if found else None


def _resumed(paths: SessionPaths, config: Config, choice: str | None) -> Beginning | None:
    """An earlier session that is gone on with: as told, as answered on a terminal; else None."""
    state = _state_of(paths)
    if choice == "new":
        return None
    asks = sys.stdin.isatty() and sys.stderr.isatty()
    if (reason := _nothing_left(paths, state)) is not None:
        spent = _minutes_spent(paths, state)
        if asks and not state.finished and spent is not None and not _has_changed(config, paths):
            return _with_more_minutes(paths, *spent, config.budget.minutes or spent[0])
        if not state.finished:
            echo(f"{reason}; starting a new session", err=True)
        return None
    if choice == "resume":
        return _again(paths, None)
    name, verdicts = paths.name, count(state.verdicts, "verdict")
    if state.engine is not None and state.engine.stopped == "budget" and (left := _minutes_left(paths, state)):
        verdicts += f", {left[1] / 60:.1f} of its {left[0]:g} minutes left"
    if _has_changed(config, paths):
        echo(f"{name} is unfinished ({verdicts}), but the configuration has changed since: new session", err=True)
        return None
    if asks:
        wanted = click.confirm(f"{name} is unfinished ({verdicts}). Resume it?", default=True, err=True)
        return _again(paths, None) if wanted else None
    echo(f"{name} is unfinished ({verdicts}); starting a new session (--resume goes on with it)", err=True)
    return None


def _has_changed(config: Config, paths: SessionPaths) -> bool:
    """Whether the configuration is another one than that of the session."""
    return config.frozen_toml() != paths.config.read_text(encoding="utf-8")


def _with_more_minutes(paths: SessionPaths, minutes: float, needed: float, more: float) -> Beginning | None:
    """Ask whether to go on with a session whose ``minutes`` are spent; with ``more`` than are ``needed`` to do so."""
    question = f"{paths.name}: {minutes_are_spent(minutes)}; go on with {more:g} more?"
    wanted = click.confirm(question, default=False, err=True)
    return _again(paths, ChangeBudget(minutes=needed + more)) if wanted else None


def _state_of(paths: SessionPaths) -> SessionState:
    from engine.state import fold

    with SessionReader(paths) as reader:
        return fold(reader.read())


def _nothing_left(paths: SessionPaths, state: SessionState) -> str | None:
    """Why resuming would end at once, in a sentence with the remedy, or None."""
    if state.finished:
        return f"{paths.name}: its search is finished; go on with: {program()} resume {paths.name} --rounds N"
    if (spent := _minutes_spent(paths, state)) is None:
        return None
    return f"{paths.name}: {spent_in_words(*spent, argument_of(paths))}"


def _minutes_spent(paths: SessionPaths, state: SessionState) -> tuple[float, float] | None:
    """The limit in minutes and more than how many a resume needs, where the limit is reached."""
    found = _minutes_left(paths, state)
    if found is None or _limits_wait(paths, state):
        return None
    from engine.budget import elapsed_s

    by_budget = state.engine is not None and state.engine.stopped == "budget"
    needed = minutes_needed(found[0], elapsed_s(state, state.time), by_budget=by_budget)
    return (found[0], needed) if needed is not None else None


def _minutes_left(paths: SessionPaths, state: SessionState) -> tuple[float, float] | None:
    """The limit in minutes and the seconds left of it, None where there is no limit."""
    from engine.budget import budget_of, elapsed_s

    limits = limits_of(paths)
    budget = budget_of(state, limits.minutes, limits.rounds or 0)
    return None if budget.minutes is None else (budget.minutes, budget.left_s(elapsed_s(state, state.time)))


def _limits_wait(paths: SessionPaths, state: SessionState) -> bool:
    """Whether new limits were sent that no engine has taken yet."""
    with SessionReader(paths) as reader:
        return any(
            isinstance(sent.command, ChangeBudget) and sent.id not in state.handled for sent in reader.commands()
        )
