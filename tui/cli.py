"""The ``kernel-tui`` command. Starts fast: it imports click alone; every command imports what it needs when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from engine import __version__
from tui.commands.export import export
from tui.commands.kernels import build, compare, evaluate
from tui.commands.library import kernels
from tui.commands.look import sessions, show
from tui.commands.machine import completion, doctor, init, problems
from tui.commands.machine_code import sass
from tui.commands.monitor import attach, replay
from tui.commands.profile import profile
from tui.commands.run import resume, run
from tui.commands.steer import STEERING
from tui.commands.talk import prompt, reply

_EXIT_CODES = """\b
Exit codes:
  0    done as asked
  1    failed; the message says what happened
  2    bad arguments, a name that names nothing, a configuration or problem that is wrong
  3    no such session
  4    an engine lives on the session already
  5    the session was written by a newer kernel-tui
  6    a file cannot be written: disk full, read-only or unsafe for a session
  7    no compiler or no torch: nothing can be built or judged
  8    no correct kernel (a search), or not correct (eval, compare)
  9    a model of the configuration needs a key that is not in the environment
  10   only replies by hand are missing (--until-idle)
  130  interrupted; the session is saved and can be resumed
"""


class DefaultRun(click.Group):
    """A group in which ``kernel-tui config.toml`` means ``kernel-tui run config.toml``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {option for parameter in self.get_params(ctx) for option in parameter.opts}
        if args and args[0] not in self.commands and args[0] not in own and self._means_run(args[0]):
            args.insert(0, "run")
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            near = get_close_matches(args[0], list(self.commands), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " See: kernel-tui --help"
            ctx.fail(f"no such command or file: {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    @staticmethod
    def _means_run(word: str) -> bool:
        return word.startswith("-") or word.endswith(".toml") or "/" in word or Path(word).exists()


@click.group(
    cls=DefaultRun,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EXIT_CODES,
    no_args_is_help=True,
)
@click.version_option(__version__, prog_name="kernel-tui")
def cli() -> None:
    """Search for kernels that beat PyTorch, and steer the search while it runs.

    \b
    kernel-tui config.toml    runs what the file says; the same as: kernel-tui run config.toml
    kernel-tui init           writes such a file
    """


for _command in (
    run,
    resume,
    attach,
    replay,
    sessions,
    show,
    kernels,
    *STEERING,
    prompt,
    reply,
    evaluate,
    compare,
    build,
    export,
    sass,
    profile,
    problems,
    doctor,
    init,
):
    cli.add_command(_command)
cli.add_command(completion)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: runs a command and ends the process with a code of ``engine.exit_codes``."""
    from tui.commands.common import shown_errors

    with shown_errors():
        status = cli.main(list(arguments) if arguments is not None else None, "kernel-tui", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
