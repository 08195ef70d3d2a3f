"""What the commands share: errors as one line with an exit code, sessions by name, JSON lines."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from engine.exit_codes import ExitCode
from tui.echo import clean, echo

if TYPE_CHECKING:
    from engine.commands import ChangeBudget, ChangeShare
    from engine.session import SessionPaths

F = TypeVar("F", bound=Callable[..., Any])


class Failure(Exception):
    """An error for the person: one line and an exit code."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILURE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextlib.contextmanager
def shown_errors() -> Iterator[None]:
    """Turn errors meant for people into their line on stderr and their exit code; others keep their traceback."""
    try:
        yield
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        echo(clean(said.getvalue().rstrip()), err=True)
        sys.exit(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        echo("interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has left. Nothing more can be said; keep Python from trying at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.FAILURE)
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        echo(clean(f"error: {error}"), err=True)
        sys.exit(code)


def _exit_code(error: Exception) -> ExitCode | None:
    """The code of an error that is meant for people, None for a fault of ours."""
    if (code := getattr(error, "exit_code", None)) is not None:
        return ExitCode(code)
    # By name, so that no module has to be imported for an error that did not happen.
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"ConfigError", "CatalogError", "HeaderError"}:
        return ExitCode.USAGE
    if "NoCompiler" in names:
        return ExitCode.NO_TOOLS
    return ExitCode.FAILURE if "EvaluationError" in names else None


def sessions_option(command: F) -> F:
    """``--sessions DIRECTORY``: where sessions lie."""
    return click.option(
        "--sessions",
        "root",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("sessions"),
        envvar="KERNEL_TUI_SESSIONS",
        show_default=True,
        help="Directory of sessions.",
    )(command)


def session_argument(command: F) -> F:
    """``SESSION``: a session's name, or the path of its directory."""
    return click.argument("session", shell_complete=complete_session)(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for a script.")(command)


def complete_session(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    root = Path(ctx.params.get("root") or os.environ.get("KERNEL_TUI_SESSIONS") or "sessions")
    return sorted(found.parent.name for found in root.glob(f"{incomplete}*/session.db"))


def find(root: Path, session: str) -> SessionPaths:
    """The session's files. Raises SessionMissing."""
    from engine.session import find_session

    return find_session(root, session)


def on_terminal() -> bool:
    """Whether a person sits at a terminal that the monitor can draw on: Textual does so on the standard error."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)) and os.environ.get("TERM") != "dumb"


def start_quickly() -> None:
    """For a command that opens the monitor: no garbage is collected until it is on the screen. To walk all that its
    modules make, which lasts, would take an eighth of the time until then."""
    gc.disable()


def print_json(value: object) -> None:
    """One line of JSON."""
    import msgspec

    echo(msgspec.json.encode(value).decode())


def cannot_write(path: Path | str, error: OSError) -> Failure:
    """What to raise where a file that the person named cannot be written."""
    hint = f"; make the directory {Path(path).parent} first" if isinstance(error, FileNotFoundError) else ""
    return Failure(f"{path}: cannot be written: {error.strerror}{hint}", ExitCode.STORAGE)


def checked_arch(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """For ``--arch``: what cannot be an architecture is a wrong argument, not a kernel that does not build."""
    if value is not None and re.fullmatch(r"sm_\d{2,3}[af]?", value) is None:
        raise click.BadParameter(f"{value!r} is no architecture; one is named like sm_80, sm_90a, sm_120")
    return value


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class FiniteAbove0(click.FloatRange):
    """A number above 0: click lets "nan" and "inf" through, which no event can hold."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


_COUNT = click.IntRange(min=1, max=10**12)


def _wish(limits: dict[str, Any], model: str | None, per_problem: bool) -> ChangeBudget | ChangeShare | None:
    from engine.commands import ChangeBudget, ChangeShare

    if model is None and not per_problem:
        return ChangeBudget(**limits) if limits else None
    if model is not None and per_problem:
        raise click.UsageError("give --model or --per-problem, each in a command of its own")
    if limits.keys() & {"minutes", "rounds"} or not limits:
        raise click.UsageError("with --model or --per-problem give one or more of --dollars, --tokens, --calls")
    return ChangeShare(model=model or "", **limits)


def limit_options(function: F) -> F:
    """Options for every limit; those that are given are handed on as a ``wish``, None where none is."""
    above_0 = FiniteAbove0()
    options = (
        click.option("--minutes", type=above_0, help="Of engine life, over the whole session."),
        click.option("--rounds", type=_COUNT, help="Rounds per problem, after round 0."),
        click.option("--dollars", type=above_0, help="What models may cost."),
        click.option("--tokens", type=_COUNT, help="Input and output tokens of models."),
        click.option("--calls", type=_COUNT, help="Calls to models; every attempt counts."),
        click.option("--model", metavar="NAME", help="Dollars, tokens and calls are for this model alone."),
        click.option("--per-problem", is_flag=True, help="Dollars, tokens and calls are for each problem alone."),
    )

    @functools.wraps(function)
    def gathered(*arguments: Any, **named: Any) -> Any:
        wishes = {name: named.pop(name) for name in ("minutes", "rounds", "dollars", "tokens", "calls")}
        limits = {key: value for key, value in wishes.items() if value is not None}
        return function(*arguments, wish=_wish(limits, named.pop("model"), named.pop("per_problem")), **named)

    for option in reversed(options):
        gathered = option(gathered)
    return cast(F, gathered)
