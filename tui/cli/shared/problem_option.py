"""The option ``--problem`` of commands that judge a kernel file, with a list of choices if it is missing."""

from __future__ import annotations

from pathlib import Path

import click

from tui.cli.shared.common import sessions_root

MOST_NAMED = 8
"""Maximum number of problems or sessions that an error names."""


class ProblemName(click.ParamType[str]):
    """The name of a problem: a file or a built-in problem."""

    name = "problem"

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Say what to type: a problem of the newest session in this directory, or a built-in problem."""
        session, known = _newest_problems(sessions_root(ctx))
        if known:
            return f"{choices(known, f'The problems of session {session}')}. All built-in problems: kernel-tui problems"
        return (
            "Name a .py file, or a built-in problem listed by `kernel-tui problems`: --problem builtin:quickstart/gelu"
        )


PROBLEM = click.option(
    "--problem",
    required=True,
    type=ProblemName(),
    metavar="TEXT",
    help="A .py file or a built-in problem, such as builtin:quickstart/softmax.",
)


def choices(names: list[str], what: str) -> str:
    """List options to type, such as ``The problems of session quickstart: --problem softmax, --problem gelu``."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{what}: {', '.join(f'--problem {name}' for name in names[:MOST_NAMED])}{more}"


def _newest_problems(root: Path) -> tuple[str, list[str]]:
    """Return the newest session's name and the problems of its config; ("", []) without a readable session."""
    from engine.config.schema import ConfigError, load_config
    from engine.problem.catalog import reference_of

    for file in sorted(root.glob("*/config.toml"), key=_modified, reverse=True):
        try:
            problems = load_config(file).problems
        except ConfigError:
            continue
        return file.parent.name, [reference_of(Path(problem)) for problem in problems]
    return "", []


def _modified(file: Path) -> float:
    """Return the time of the file's last change, or 0 if the session has been deleted."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
