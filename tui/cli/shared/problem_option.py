"""The option ``--problem`` of commands that judge a kernel file; the error for a missing option lists choices."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tui.cli.shared.common import sessions_root
from tui.cli.shared.kernel_file import exported_header, problem_in_header, read_kernel

if TYPE_CHECKING:
    from engine.session.store import SessionPaths

MOST_NAMED = 8
"""Maximum number of problems or sessions that an error names."""


class ProblemName(click.ParamType[str]):
    """The name of a problem: a file or a built-in problem."""

    name = "problem"

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Say what to type: the file that the kernel's header names, a session's problem, or a built-in problem. The
        session is the kernel's session or else the newest session in the sessions directory.
        """
        for kernel in _files(ctx):
            if (named := exported_header(kernel).problem) is not None:
                missing = f"{kernel} is for problem {named}, but the current directory has no such file"
                return f"{missing}. Give its path: --problem FILE"
        session, known = _problems_at_hand(ctx)
        if known:
            return f"{choices(known, f'The problems of {session}')}. All built-in problems: kernel-tui problems"
        return (
            "Specify a .py file, or a built-in problem that `kernel-tui problems` lists, for example: "
            "--problem builtin:quickstart/gelu"
        )


class ProblemOption(click.Option):
    """The option ``--problem``, whose default depends on the kernel file.

    For a kernel in a session's ``best/``, the default is the session's problem with the file's name. For an exported
    solution, the default is the problem that its header names. If the kernel file is missing, the option raises
    UnreadableFile, because the user must correct this error first.
    """

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Omit "[required]", because the option is not required for files that name their problem."""
        required, self.required = self.required, False
        try:
            return super().get_help_record(ctx)
        finally:
            self.required = required

    def get_default(self, ctx: click.Context, call: bool = True) -> Any:
        for kernel in _files(ctx):
            if (session := session_of_best(kernel)) is not None:
                from engine.session.store.paths import must_have_config

                if not ctx.resilient_parsing:
                    must_have_config(session)
                if (problem := _problems_of(session.config).get(kernel.stem)) is not None:
                    return problem
            if not ctx.resilient_parsing and not kernel.exists():
                read_kernel(kernel)
            if (named := problem_in_header(kernel)) is not None:
                return named
        return super().get_default(ctx, call=call)


PROBLEM = click.option(
    "--problem",
    cls=ProblemOption,
    required=True,
    type=ProblemName(),
    metavar="TEXT",
    help="A .py file or a built-in problem, such as builtin:quickstart/softmax. Not needed for a file in a session's "
    "best/, or for an exported solution whose problem is built in or in the current directory.",
)


def choices(names: list[str], what: str) -> str:
    """List options to type, such as ``The problems of session quickstart: --problem softmax, --problem gelu``."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{what}: {', '.join(f'--problem {shlex.quote(name)}' for name in names[:MOST_NAMED])}{more}"


def session_of_best(kernel: Path) -> SessionPaths | None:
    """Return the session whose ``best/`` contains the file, or None for any other file."""
    directory = kernel.absolute().parent
    if directory.name != "best":
        return None
    from engine.session.store.paths import SessionPaths

    paths = SessionPaths.at(directory.parent)
    return paths if paths.database.is_file() else None


def _files(ctx: click.Context | None) -> list[Path]:
    """Return the files among the command's arguments, but not the files that options name, such as ``--output``."""
    if ctx is None:
        return []
    arguments = [one.name for one in ctx.command.params if isinstance(one, click.Argument)]
    return [given for name in arguments if isinstance(given := ctx.params.get(name or ""), Path)]


def _problems_at_hand(ctx: click.Context | None) -> tuple[str, list[str]]:
    """Return a description of the kernel's session, and the session's problems.

    The kernel's session is the session that contains the file, or that the file's header names. If there is no such
    session, use the newest session. If no session is readable, return ("", []).
    """
    root, files = sessions_root(ctx), _files(ctx)
    around = [above for file in files for above in file.absolute().parents if (above / "session.db").is_file()]
    named = [root / session for file in files if (session := exported_header(file).session) is not None]
    for directory in (*around, *named):
        if problems := _problems_of(directory / "config.toml"):
            return f"session {directory.name}", list(problems.values())
    for config in sorted(root.glob("*/config.toml"), key=_modified, reverse=True):
        if problems := _problems_of(config):
            return f"the newest session, {config.parent.name}", list(problems.values())
    return "", []


def _problems_of(config: Path) -> dict[str, str]:
    """Return the problems of a session's config by id, in the form that ``--problem`` accepts.

    Return {} if the config is unreadable.
    """
    from engine.config.schema import ConfigError, load_config
    from engine.problem.catalog import CatalogError, reference_of, resolve

    try:
        files = resolve(load_config(config).problems, config.parent)
    except (ConfigError, CatalogError):
        return {}
    return {file.id: reference_of(file.path) for file in files}


def _modified(file: Path) -> float:
    """Return the time of the file's last change, or 0 if the session has been deleted."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
