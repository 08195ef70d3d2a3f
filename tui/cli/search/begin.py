"""Check the configuration, then create, resume or attach to a session for ``run`` and ``resume``."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from engine.session.records.requests import ChangeBudget, ChangeShare
from engine.session.store import (
    SessionError,
    SessionPaths,
    SessionReader,
    create_session,
    engine_liveness,
    send_request,
    sessions_in,
    was_told_to_stop,
)
from engine.session.store.paths import must_have_config
from tui.cli.search.watch import Beginning
from tui.cli.shared.common import Failure, count, find, list_command
from tui.console.echo import echo
from tui.text.program import program
from tui.view.next_steps import (
    Spent,
    minutes_are_spent,
    minutes_left,
    minutes_spent,
    option_to_resume,
    other_end,
    spent_in_words,
    too_low_limit,
)
from tui.view.source import argument_of, limits_now, limits_of

if TYPE_CHECKING:
    from engine.config.schema import Config, ConfigError, Fault
    from engine.session.state.session_state import SessionState

_END_S = 60.0
"""Time limit for a stopping engine to finish its running work, in seconds."""


def begin_run(
    config_path: Path, choice: str | None, *, minutes: float | None, rounds: int | None, may_ask: bool
) -> Beginning:
    """Create a session for a configuration, or return the configuration's running or unfinished session.

    ``choice`` is "new", "resume" or None. ``minutes`` and ``rounds`` replace the config's limits. If ``may_ask`` is
    true, the function asks the user whether to resume an unfinished session, and fails if there is no terminal. Raises
    ConfigError, ProposerUnavailable, SessionError and Failure.
    """
    from engine.config.schema import ConfigError, load_config

    try:
        config = load_config(config_path)
    except ConfigError as error:
        raise _with_problem_faults(error) from None
    limits = ChangeBudget(minutes=minutes, rounds=rounds) if minutes is not None or rounds is not None else None
    say_renamed_keys(config.path)
    _check(config)
    sessions = _sessions_of(config)
    earlier = sessions[0] if sessions else None
    if earlier is not None:
        _wait_if_ending(earlier)
    if earlier is not None and choice != "new" and engine_liveness(earlier).running:
        if choice == "resume" and limits is not None:
            return _again(earlier, limits)
        if _attaches(earlier, config, asks=may_ask and _can_ask()):
            return Beginning(earlier.directory, starts=False)
        choice = "new"
    if (
        earlier is not None
        and choice == "resume"
        and limits is None
        and (reason := _nothing_left(earlier, _state_of(earlier))) is not None
    ):
        raise Failure(reason, ExitCode.USAGE)
    left_behind = ""
    if earlier is not None:
        found = _resumed(earlier, sessions[1:], config, choice, limits, asks=may_ask)
        if isinstance(found, Beginning):
            return found
        left_behind = found
    if choice == "resume":
        raise Failure(
            f"no unfinished session for {config.path} in {config.sessions}; start a new session with --new",
            ExitCode.NO_SESSION,
        )
    frozen = _with_limits(config, minutes, rounds).frozen_toml()
    paths = create_session(config.sessions, config.name, frozen, str(config.path), config.seed)
    if left_behind:
        echo(f"{left_behind}\nStarting a new session: {paths.name}", err=True)
    return Beginning(paths.directory, starts=True)


def say_renamed_keys(path: Path) -> None:
    """Warn about each config key that has a new name, one line per key."""
    from engine.config.renamed_keys import deprecations

    for line in deprecations(path):
        echo(line, err=True)


def _attaches(paths: SessionPaths, config: Config, *, asks: bool) -> bool:
    """Report what has changed in the configuration since the running session started.

    If ``asks`` is true, ask the user whether to attach anyway. Return whether to attach.
    """
    if not (changed := _changes(config, paths)):
        return True
    echo(
        f"{_has_changed(config, paths, changed)}\n"
        f"To search with the new settings: {program()} run {_shell_path(config)} --new",
        err=True,
    )
    if not asks:
        return True
    return _prefers_earlier(f"Attach to {paths.name}?", "attaches")


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _must_choose(found: str, options: str) -> None:
    """Raise Failure if there is no terminal on which to ask whether to use the earlier session.

    ``found`` is a clause about the earlier session. ``options`` are those that resume it.
    """
    if not _can_ask():
        raise Failure(
            f"{found}. Add {options} to resume it, or --new to start a new session (there is no terminal to ask on)",
            ExitCode.USAGE,
        )


def _prefers_earlier(question: str, enter: str) -> bool:
    """Ask whether to use the earlier session. Enter means yes, because the user may have overlooked that session.

    ``enter`` is the verb phrase that says what the Enter key does.
    """
    return click.confirm(f"{question} Enter {enter}; n starts a new session.", default=True, err=True)


def _shell_path(config: Config) -> str:
    here = Path.cwd()
    return shlex.quote(str(config.path.relative_to(here) if config.path.is_relative_to(here) else config.path))


def begin_resume(root: Path, session: str, request: ChangeBudget | ChangeShare | None) -> Beginning:
    """Resume a session, with new limits if there are any. Raises SessionError, Failure."""
    from engine.session.store import is_bundled, own_copy

    found = find(root, session)
    if is_bundled(found):
        _refuse_if_done(found, _state_of(found), request)
        _refuse_missing_gpu(found)
    paths = own_copy(found, root)
    if paths != found:
        echo(f"Copied the bundled session {found.name} to {paths.directory}.", err=True)
    return _again(paths, request)


def _again(paths: SessionPaths, request: ChangeBudget | ChangeShare | None) -> Beginning:
    """Resume a session, or attach to it if its engine is running."""
    _wait_if_ending(paths)
    state = _state_of(paths)
    running = engine_liveness(paths).running
    if not running:
        must_have_config(paths)
        _refuse_if_done(paths, state, request)
        _refuse_missing_gpu(paths)
    if request is not None:
        send_request(paths, request, "resume")
    return Beginning(paths.directory, starts=not running, seq=state.seq, stays_paused=not running and state.paused)


def _refuse_if_done(paths: SessionPaths, state: SessionState, request: ChangeBudget | ChangeShare | None) -> None:
    """Raise Failure if an engine would end immediately, unless ``request`` sets limits that allow more work."""
    if request is None and (reason := _nothing_left(paths, state)) is not None:
        raise Failure(reason, ExitCode.USAGE)
    if isinstance(request, ChangeBudget) and (reason := too_low_limit(paths, state, request)) is not None:
        raise Failure(f"{paths.name}: {reason}", ExitCode.USAGE)


def _refuse_missing_gpu(paths: SessionPaths) -> None:
    """Raise Failure if the session's config names a GPU that this machine lacks."""
    if not _names_gpu(paths):
        return
    from engine.config.schema import ConfigError, load_config
    from engine.session.store import is_bundled

    try:
        config = load_config(paths.config)
    except ConfigError:  # The engine lists the errors.
        return
    if (missing := _missing_gpu(config)) is None:
        return
    gpu, there = missing
    said, file = f"{paths.name}: the search needs {gpu}, but {there}.", shlex.quote(str(paths.config))
    if not is_bundled(paths):
        remedy = f'To continue the search here, set evaluation.device to "auto" or "cpu" in {file}'
        raise Failure(f"{said} {remedy}", ExitCode.NO_TOOLS)
    said += f" To watch the recorded search: {program()} replay {paths.name}"
    if all(entry.startswith("builtin:") for entry in config.problems):
        said += (
            f'\nTo search the same problems here, copy {file}, set evaluation.device to "auto" and sessions to '
            '"sessions" in the copy, and run the copy'
        )
    raise Failure(said, ExitCode.NO_TOOLS)


def _missing_gpu(config: Config) -> tuple[str, str] | None:
    """Return the configured GPU that this machine lacks, such as ``cuda:1``, and a clause about this machine's GPUs.

    Returns None if no configured GPU is missing.
    """
    from engine.devices.hardware import discover

    cuda = [name for name in config.evaluation.devices if name.startswith("cuda")]
    if config.cluster is not None or not cuda:  # NVML takes a long time to start.
        return None
    gpus = sum(device.kind == "cuda" for device in discover())
    there = f"this machine has only {count(gpus, 'NVIDIA GPU')}" if gpus else "this machine has no NVIDIA GPU"
    missing = [name for name in cuda if int(name.partition(":")[2] or 0) >= gpus]
    return (missing[0], there) if missing else None


def _names_gpu(paths: SessionPaths) -> bool:
    """Return whether the session's config may name a GPU. Loading the config takes longer, and delays the engine."""
    from engine.config.toml_table import toml_table

    try:
        config = toml_table(paths.config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
    return "cuda" in str(config.get("evaluation"))


def _wait_if_ending(paths: SessionPaths) -> None:
    """Wait for an engine that is stopping, instead of attaching to it. Raises Failure, SessionError."""
    if not (engine_liveness(paths).running and was_told_to_stop(paths)):
        return
    echo(f"{paths.name}: the engine is stopping; waiting for it to end", err=True)
    deadline = time.monotonic() + _END_S
    while (living := engine_liveness(paths)).running:
        if time.monotonic() > deadline:
            why = living.stall or f"see: kernel-tui show {argument_of(paths)}"
            raise Failure(f"{paths.name}: the engine has not stopped after {_END_S:g} s; {why}")
        time.sleep(0.05)


def _check(config: Config) -> None:
    """Check the API keys, problem files and devices that a valid config names.

    Raises ConfigError, ProposerUnavailable, and Failure if the only fault is a GPU that this machine lacks.
    """
    from engine.config.schema import ConfigError
    from engine.proposers.registry import check_providers

    check_providers(config)
    devices = _device_faults(config)
    if problems := problem_faults(config.path):
        raise ConfigError(config.path, (*problems, *devices))
    if devices:
        raise Failure(str(ConfigError(config.path, devices)), ExitCode.NO_TOOLS)


def _with_problem_faults(error: ConfigError) -> ConfigError:
    """Add the faults of the config's problem files to the error, so that one message lists all faults."""
    from engine.config.schema import ConfigError

    if any(fault.key.startswith("problems") for fault in error.faults) or not (more := problem_faults(error.path)):
        return error
    return ConfigError(error.path, (*error.faults, *more))


def _device_faults(config: Config) -> tuple[Fault, ...]:
    """Return a fault for each setting that needs an NVIDIA GPU that this machine lacks."""
    from engine.config.schema import Fault
    from engine.config.source_locations import key_lines, line_of
    from engine.devices.hardware import discover
    from engine.search.problem_loader import cannot_run
    from engine.system.text_file import read_text

    if (missing := _missing_gpu(config)) is not None:
        keys = ("evaluation", "device")
        line = line_of(key_lines(read_text(config.path)), keys)
        return (Fault(line, ".".join(keys), f'{": ".join(missing)}; use "auto" or "cpu"'),)
    languages = [name for name in config.search.languages if name in ("cuda", "triton")]
    named = any(name.startswith("cuda") for name in config.evaluation.devices)  # This machine has the named GPU.
    if config.cluster is not None or named or not languages:  # NVML takes a long time to start.
        return ()
    devices = discover()
    if any(device.kind == "cuda" for device in devices):
        return ()
    cpu = next(device for device in devices if device.kind == "cpu")
    line = line_of(key_lines(read_text(config.path)), ("search", "languages"))
    return (Fault(line, "", cannot_run(languages, cpu) or ""),)


def problem_faults(path: Path) -> tuple[Fault, ...]:
    """Return a fault for each entry under ``problems`` that does not match a problem file."""
    from engine.config.schema import Fault
    from engine.config.source_locations import key_lines, line_of
    from engine.config.toml_table import toml_table
    from engine.problem.catalog import CatalogError, resolve
    from engine.system.text_file import UnreadableFile, read_text

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


def _sessions_of(config: Config) -> list[SessionPaths]:
    """Return the readable sessions that were started from this config file, the newest first."""
    found: list[tuple[float, SessionPaths]] = []
    for directory in sessions_in(config.sessions):
        paths = SessionPaths.at(directory)
        try:
            with SessionReader(paths) as reader:
                if reader.config_name() == str(config.path):
                    first = next(reader.read(), None)
                    found.append((first.time if first is not None else 0.0, paths))
        except SessionError:
            continue
    found.sort(key=lambda one: one[0], reverse=True)
    return [paths for _, paths in found]


def _others_interrupted(older: Sequence[SessionPaths], config: Config) -> str:
    """Return how many of the ``older`` sessions' engines died and how to list these sessions, or "" if none died."""
    living = [engine_liveness(paths) for paths in older]
    died = sum(one.pid is not None and one.exit_code is None and not one.running for one in living)
    if not died:
        return ""
    was, them = ("session was", "it") if died == 1 else ("sessions were", "them")
    return f"{died} older {was} interrupted. To list {them}: {list_command(config.sessions)}"


def _resumed(
    paths: SessionPaths,
    older: Sequence[SessionPaths],
    config: Config,
    choice: str | None,
    limits: ChangeBudget | None,
    *,
    asks: bool,
) -> Beginning | str:
    """Resume an earlier session if ``choice`` or the user's answer says so, with new ``limits`` if there are any.

    ``older`` are the config's sessions that started before the earlier session. If the session is not resumed, return a
    message about it. The message is "" if the session is finished or the user wants a new session.
    """
    state = _state_of(paths)
    running = engine_liveness(paths).running
    if state.finished and not running and not (choice == "resume" and limits is not None):
        return ""
    name, verdicts = paths.name, count(state.verdicts, "verdict")
    if choice == "new":
        if running:
            return f"{name} is still searching. Watch it with: {program()} attach {argument_of(paths)}"
        return f"{name} is unfinished ({verdicts}). {_resume_words(paths)}"
    changed = _changes(config, paths)
    if choice == "resume" and limits is not None:
        if changed:
            echo(_has_changed(config, paths, changed), err=True)
        return _again(paths, limits)
    if (reason := _nothing_left(paths, state)) is not None:
        spent = minutes_spent(paths, state)
        if asks and spent is not None and not changed and limits is None:
            return _with_more_minutes(paths, spent) or ""
        return reason
    if choice == "resume":
        if changed:
            echo(_has_changed(config, paths, changed), err=True)
        return _again(paths, None)
    if state.engine is not None and state.engine.stopped == "budget" and (left := minutes_left(paths, state)):
        verdicts += f", {left[1] / 60:.1f} of its {left[0]:g} minutes left"
    unfinished = f"{name} is unfinished ({verdicts})"
    if not running and state.engine is not None and state.engine.stopped is None:
        unfinished = f"{name} is unfinished: its engine died ({verdicts})"
    if changed:
        unfinished += f", and {config.path.name} has changed since: {changed}"
    others = _others_interrupted(older, config)
    if not asks:
        return f"{unfinished}. {_resume_words(paths)}" + (f"\n{others}" if others else "")
    if others:
        echo(others, err=True)
    _must_choose(unfinished, "--resume")
    how = "Resume it with its own settings?" if changed else "Resume it?"
    wanted = _prefers_earlier(f"{unfinished}. {how}", "resumes")  # The monitor would hide a printed line, so ask.
    return _again(paths, limits) if wanted else ""


def _with_limits(config: Config, minutes: float | None, rounds: int | None) -> Config:
    """Return ``config`` with the given limits."""
    budget, search = config.budget, config.search
    if minutes is not None:
        budget = budget.model_copy(update={"minutes": minutes})
    if rounds is not None:
        search = search.model_copy(update={"rounds": rounds})
    return config.model_copy(update={"budget": budget, "search": search})


def _has_changed(config: Config, paths: SessionPaths, changed: str) -> str:
    since = f"{config.path.name} has changed since {paths.name} was started: {changed}."
    return f"{since} {paths.name} keeps its own settings."


def _resume_words(paths: SessionPaths) -> str:
    return f"Resume it with: {program()} resume {argument_of(paths)}"


def _changes(config: Config, paths: SessionPaths) -> str:
    """Describe the differences between the session's configuration and ``config``, or return "" if there are none."""
    from engine.config.differences import differences
    from engine.config.schema import ConfigError, load_config

    try:
        return ", ".join(differences(load_config(paths.config), config))
    except ConfigError:  # Another version wrote the config.
        return "details unknown (another version of kernel-tui wrote the session)"


def _with_more_minutes(paths: SessionPaths, spent: Spent) -> Beginning | None:
    """Ask whether to resume a session that has used up its minutes, with the suggested new limit."""
    said = f"{paths.name}: {minutes_are_spent(spent)}"
    _must_choose(said, f"--resume --minutes {spent.suggested:g}")
    echo(f"{said}.", err=True)
    wanted = _prefers_earlier(f"Continue with a limit of {spent.suggested:g} min?", "continues")
    return _again(paths, ChangeBudget(minutes=spent.suggested)) if wanted else None


def _state_of(paths: SessionPaths) -> SessionState:
    from engine.session.state.session_state import fold

    with SessionReader(paths) as reader:
        state = fold(reader.read())
        state.heard_at = reader.last_moment(state)
    return state


def _nothing_left(paths: SessionPaths, state: SessionState) -> str | None:
    """Return why a resumed search would end immediately and how to continue, or None if work is left."""
    if state.finished:
        other = other_end(state, limits_now(state, limits_of(paths)).rounds)
        ended = f" ({other}). More rounds might not help; to try" if other else ". Add rounds with"
        command = f"{program()} resume {argument_of(paths)} {option_to_resume(paths, state)}"
        return f"{paths.name}: the search is finished{ended}: {command}"
    if (spent := minutes_spent(paths, state)) is None:
        return None
    return f"{paths.name}: {spent_in_words(spent, argument_of(paths))}"
