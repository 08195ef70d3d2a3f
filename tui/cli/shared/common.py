"""Options and helpers that all commands share: one-line errors with exit codes, session lookup and JSON output."""

from __future__ import annotations

import contextlib
import gc
import io
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine.exit_codes import ExitCode
from tui.console.echo import clean, echo
from tui.text.program import program

if TYPE_CHECKING:
    from engine.session.store import SessionPaths

SESSIONS = "sessions"
"""Default directory of the sessions."""
SESSIONS_VARIABLE = "KERNEL_TUI_SESSIONS"
MOST_SESSIONS = 5
"""Maximum number of sessions that an error names."""
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Failure(Exception):
    """A user-facing error: a one-line message and an exit code."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILURE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextlib.contextmanager
def shown_errors() -> Iterator[None]:
    """Print user-facing errors as one line on stderr and exit with their code; other errors keep their traceback."""
    try:
        yield
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        _say(clean(said.getvalue().rstrip() + _sessions_to_name(error)))
        sys.exit(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):
            # This error is a bug or a damaged installation, but click treats it as a closed prompt.
            raise error.__cause__ from None
        _say("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The process that read our output has exited.
        _discard_output()
        sys.exit(ExitCode.FAILURE)
    except OSError as error:
        if error.filename is not None or _can_print():
            raise
        _discard_output()
        _say(f"Error: cannot write standard output: {error.strerror}")
        sys.exit(ExitCode.STORAGE)
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        _say(clean(f"Error: {error}"))
        sys.exit(code)


def _say(text: str) -> None:
    """Print to standard error if possible."""
    with contextlib.suppress(OSError):
        echo(text, err=True)


def _can_print() -> bool:
    """Return whether standard output accepts a line break."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _discard_output() -> None:
    """Redirect standard output to the null device, so that the flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sessions_to_name(error: click.ClickException) -> str:
    """Return a sentence that lists the newest sessions if the user omitted SESSION, otherwise ""."""
    if not isinstance(error, click.MissingParameter) or error.param is None or error.param.name != "session":
        return ""
    from engine.session.store import list_sessions

    names = [one.name for one in list_sessions(sessions_root(error.ctx))]
    more = f", and {len(names) - MOST_SESSIONS} more; list them with: kernel-tui sessions" * (
        len(names) > MOST_SESSIONS
    )
    return f" Sessions, newest first: {', '.join(names[:MOST_SESSIONS])}{more}" if names else ""


def _exit_code(error: Exception) -> ExitCode | None:
    """Return the exit code of a user-facing error, or None for a bug."""
    if (code := getattr(error, "exit_code", None)) is not None:
        return ExitCode(code)
    # Compare names: comparing types would import modules that this command may not need.
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"ConfigError", "CatalogError", "HeaderError"}:
        return ExitCode.USAGE
    if "CertificateError" in names:
        return ExitCode.USAGE
    if "NoCompiler" in names:
        return ExitCode.NO_TOOLS
    return ExitCode.FAILURE if "EvaluationError" in names else None


def sessions_option(command: F) -> F:
    """Add ``--sessions DIRECTORY``, the directory that contains the sessions."""
    return click.option(
        "--sessions",
        "root",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(SESSIONS),
        envvar=SESSIONS_VARIABLE,
        show_default=True,
        help="Directory that contains the sessions.",
    )(command)


def sessions_root(ctx: click.Context | None) -> Path:
    """Return the sessions directory from ``--sessions``, the environment variable, or the default."""
    given = ctx.params.get("root") if ctx is not None else None
    return Path(given or os.environ.get(SESSIONS_VARIABLE) or SESSIONS)


def list_command(root: Path) -> str:
    """Return the command that lists the sessions in ``root``."""
    here = root.absolute() == Path(SESSIONS).absolute()
    return f"{program()} sessions" + ("" if here else f" --sessions {shlex.quote(str(root))}")


def session_argument(command: F) -> F:
    """Add ``SESSION``: a session's name, or the path of its directory."""
    return click.argument("session", shell_complete=complete_session)(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def complete_session(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return sorted({found.parent.name for found in sessions_root(ctx).glob(f"{incomplete}*/session.db*")})


def find(root: Path, session: str) -> SessionPaths:
    """Return the session's files. Raises SessionMissing."""
    from engine.session.store import find_session

    return find_session(root, session)


def on_terminal() -> bool:
    """Return whether the monitor can draw on this terminal. Textual draws on standard error."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)) and os.environ.get("TERM") != "dumb"


def start_quickly() -> None:
    """Disable garbage collection until the monitor is on the screen.

    Collecting the imported objects would take an eighth of the startup time.
    """
    gc.disable()


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to completion. Import asyncio only here, because ``--help`` does not need this slow import."""
    import asyncio

    return asyncio.run(work)


def print_json(value: object) -> None:
    """Print ``value`` as one line of JSON, with the manual's names for fields and languages."""
    import msgspec

    from tui.cli.shared.json_output import readable

    echo(msgspec.json.encode(readable(value)).decode(), is_message=False)


@contextlib.contextmanager
def scratch_path(command: str) -> Iterator[Path]:
    """Yield a unique temporary path and delete it afterward.

    The caller creates the directory on first use, so that a command killed early leaves nothing behind.
    """
    import secrets
    import shutil
    import tempfile

    path = Path(tempfile.gettempdir()) / f"kernel-tui-{command}-{secrets.token_hex(8)}"
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def force_option(command: F) -> F:
    """Add ``--force``, which lets a command replace existing files."""
    return click.option("--force", is_flag=True, help="Replace an existing file.")(command)


def refuse_existing(path: Path | str, *, force: bool) -> None:
    """Raise Failure if the user's output file exists, unless ``--force`` is given. "-" is standard output.

    The function accepts devices and pipes, because writing to them does not replace a file.
    """
    if not force and str(path) != "-" and Path(path).is_file():
        raise Failure(f"{path} already exists; name another file, or add --force to replace it", ExitCode.USAGE)


def cannot_write(path: Path | str, error: OSError) -> Failure:
    """Return a Failure that says why a user's output file cannot be written."""
    hint = (
        f"; create its directory first: mkdir -p {shlex.quote(str(Path(path).parent))}"
        if isinstance(error, FileNotFoundError)
        else ""
    )
    return Failure(f"cannot write {path}: {error.strerror}{hint}", ExitCode.STORAGE)


def checked_arch(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Validate ``--arch``, so that a malformed architecture is a usage error, not a failed build."""
    if value is not None and re.fullmatch(r"sm_\d{2,3}[af]?", value) is None:
        raise click.BadParameter(f"{value!r} is not a GPU architecture; examples: sm_80, sm_90a, sm_120")
    return value


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class Integer(click.IntRange):
    """An option type for integers from ``min`` to ``max``. Help calls it INTEGER."""

    name = "integer"


class FiniteAbove0(click.FloatRange):
    """An option type for finite numbers above 0. click's own range also accepts "nan" and "inf"."""

    name = "number"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number
