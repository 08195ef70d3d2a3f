"""Commands that start a search or go on with one: run, resume."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.exit_codes import ExitCode
from tui.commands.common import F, Failure, count, find, limit_options, session_argument, sessions_option

if TYPE_CHECKING:
    from engine.config import Config, ConfigError, Fault
    from engine.session import SessionPaths
    from engine.state import SessionState


def _watching(command: F) -> F:
    """Options of every command that shows a search: the monitor on a terminal, lines and a table elsewhere."""
    command = click.option("--headless", is_flag=True, help="No monitor: progress and a table at the end.")(command)
    return click.option("--json", "as_json", is_flag=True, help="Headless, every event as a line of JSON.")(command)


def _until_idle(command: F) -> F:
    return click.option(
        "--until-idle", is_flag=True, help="End (code 10) once only replies by hand are missing: see docs/models.md."
    )(command)


@click.command()
@click.argument("config_path", metavar="CONFIG", type=click.Path(path_type=Path))
@_watching
@click.option("--new", "choice", flag_value="new", help="Start a new session even if one is unfinished.")
@click.option("--resume", "choice", flag_value="resume", help="Go on with the newest unfinished session.")
@click.option("--detach", is_flag=True, help="Start the engine and return at once.")
@_until_idle
def run(config_path: Path, headless: bool, as_json: bool, choice: str | None, detach: bool, until_idle: bool) -> int:
    """Search as CONFIG says. The default command: kernel-tui config.toml

    If a search of this configuration is running, attach to it; if one was left unfinished, offer to resume it.
    Ctrl-C asks a headless search to stop; a second Ctrl-C leaves it running.
    """
    from engine.config import ConfigError, load_config
    from engine.service import start_engine
    from engine.session import create_session, engine_liveness

    try:
        config = load_config(config_path)
    except ConfigError as error:
        raise _with_problem_faults(error) from None
    _check(config)
    earlier = _newest_session(config)
    if earlier is not None and choice != "new" and engine_liveness(earlier).running:
        click.echo(f"{earlier.name}: its search is running; attaching (Ctrl-C leaves it running)", err=True)
        return watch(earlier, headless=headless, as_json=as_json, stops_on_interrupt=False)
    if earlier is not None and _wants_resume(earlier, config, choice):
        return _start_again(earlier, {}, headless=headless, as_json=as_json, detach=detach, until_idle=until_idle)
    if choice == "resume":
        raise Failure(f"{config.sessions}: no unfinished session of {config.path}", ExitCode.NO_SESSION)
    paths = create_session(config.sessions, config.name, config.frozen_toml(), str(config.path), config.seed)
    start_engine(paths)
    _stop_when_idle(paths, until_idle)
    if detach:
        return _say_detached(paths)
    click.echo(f"session {paths.directory}", err=True)
    return watch(paths, headless=headless, as_json=as_json, stops_on_interrupt=True)


@click.command()
@session_argument
@sessions_option
@_watching
@limit_options
@click.option("--detach", is_flag=True, help="Start the engine and return at once.")
@_until_idle
def resume(
    session: str,
    root: Path,
    headless: bool,
    as_json: bool,
    limits: dict[str, Any],
    detach: bool,
    until_idle: bool,
) -> int:
    """Go on with a search that was stopped or has died.

    With a new limit also one that is finished, or has spent the old one.
    """
    paths = find(root, session)
    return _start_again(paths, limits, headless=headless, as_json=as_json, detach=detach, until_idle=until_idle)


def watch(paths: SessionPaths, *, headless: bool, as_json: bool, stops_on_interrupt: bool, skip_seq: int = 0) -> int:
    """Show a running search: in the monitor on a terminal, else headless. Returns the exit code."""
    if not headless and not as_json and sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        from tui.app import run_monitor

        return run_monitor(paths)
    from tui.headless import follow

    return int(follow(paths, as_json=as_json, stops_on_interrupt=stops_on_interrupt, skip_seq=skip_seq))


def _start_again(
    paths: SessionPaths,
    limits: dict[str, Any],
    *,
    headless: bool,
    as_json: bool,
    detach: bool,
    until_idle: bool,
) -> int:
    """Resume a session, or attach to it if its engine lives."""
    from engine.events import ChangeBudget
    from engine.service import start_engine
    from engine.session import engine_liveness, send_command

    state = _state_of(paths)
    running = engine_liveness(paths).running
    if not running and not limits and (reason := _nothing_left(paths, state)) is not None:
        raise Failure(reason, ExitCode.USAGE)
    if limits:
        send_command(paths, ChangeBudget(**limits), "resume")
    if running:
        click.echo(f"{paths.name}: its engine lives; attaching (Ctrl-C leaves it running)", err=True)
    else:
        start_engine(paths)
    _stop_when_idle(paths, until_idle)
    if detach:
        return _say_detached(paths)
    return watch(paths, headless=headless, as_json=as_json, stops_on_interrupt=not running, skip_seq=state.seq)


def _stop_when_idle(paths: SessionPaths, wanted: bool) -> None:
    """Ask the engine to end once only replies by hand are missing."""
    from engine.events import Stop
    from engine.session import send_command

    if wanted:
        send_command(paths, Stop(when_idle=True), "--until-idle")


def _say_detached(paths: SessionPaths) -> int:
    click.echo(f"{paths.name}: searching in the background. Watch it: kernel-tui attach {paths.directory}")
    return 0


def _check(config: Config) -> None:
    """What can be wrong with a valid config. Raises ConfigError, ProposerUnavailable."""
    from engine.config import ConfigError
    from engine.proposers.registry import check_providers

    check_providers(config)
    faults = _problem_faults(config.problems, config.path)
    if faults:
        raise ConfigError(config.path, faults)


def _with_problem_faults(error: ConfigError) -> ConfigError:
    """The error with what is wrong with the problems that the file names, so that both are said in one go."""
    import tomllib

    from engine.config import ConfigError

    try:
        entries = tomllib.loads(error.path.read_text(encoding="utf-8-sig")).get("problems")
    except (OSError, ValueError):
        return error
    known = {fault.key for fault in error.faults}
    if "problems" in known or not isinstance(entries, list) or not all(isinstance(one, str) for one in entries):
        return error
    more = _problem_faults(entries, error.path.absolute())
    return ConfigError(error.path, (*error.faults, *more)) if more else error


def _problem_faults(entries: Sequence[str], path: Path) -> tuple[Fault, ...]:
    """Entries of ``problems`` that name no problem file."""
    from engine.config import Fault
    from engine.problem.catalog import CatalogError, resolve

    try:
        resolve(entries, path.parent)
    except CatalogError as error:
        return tuple(Fault(None, "problems", f"{entry}: {message}") for entry, message in error.entries)
    return ()


def _newest_session(config: Config) -> SessionPaths | None:
    """The newest session that was started from this config file; unreadable ones are passed over."""
    from engine.session import SessionError, SessionPaths, SessionReader

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


def _wants_resume(paths: SessionPaths, config: Config, choice: str | None) -> bool:
    """Whether to go on with an earlier session: as told, as answered on a terminal, else not."""
    state = _state_of(paths)
    if choice == "new" or _nothing_left(paths, state) is not None:
        return False
    if choice == "resume":
        return True
    name, verdicts = paths.name, count(state.verdicts, "verdict")
    if config.frozen_toml() != paths.config.read_text(encoding="utf-8"):
        click.echo(f"{name} is unfinished ({verdicts}), but the configuration has changed since: new session", err=True)
        return False
    if sys.stdin.isatty() and sys.stderr.isatty():
        return click.confirm(f"{name} is unfinished ({verdicts}). Resume it?", default=True, err=True)
    click.echo(f"{name} is unfinished ({verdicts}); starting a new session (--resume goes on with it)", err=True)
    return False


def _state_of(paths: SessionPaths) -> SessionState:
    from engine.session import SessionReader
    from engine.state import fold

    with SessionReader(paths) as reader:
        return fold(reader.read())


def _nothing_left(paths: SessionPaths, state: SessionState) -> str | None:
    """Why resuming would end at once, in a sentence with the remedy, or None."""
    from engine.budget import budget_of, elapsed_s
    from engine.config import load_config

    config = load_config(paths.config)
    budget = budget_of(state, config.budget.minutes, config.search.rounds)
    if state.finished:
        return f"{paths.name}: its search is finished; go on with: kernel-tui resume {paths.name} --rounds N"
    if budget.minutes is not None and budget.left_s(elapsed_s(state, state.time)) <= 0:
        spent = f"its {budget.minutes:g} minutes are spent"
        return f"{paths.name}: {spent}; go on with: kernel-tui resume {paths.name} --minutes N"
    return None
