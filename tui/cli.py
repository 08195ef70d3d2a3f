"""The ``kernel-tui`` command. Starts fast: it imports click alone, then the module of the command that is asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from engine import __version__

COMMANDS = {
    "run": "run.run",
    "resume": "run.resume",
    "attach": "monitor.attach",
    "replay": "monitor.replay",
    "sessions": "look.sessions",
    "show": "look.show",
    "kernels": "library.kernels",
    "pause": "steer.pause",
    "continue": "steer.go_on",
    "stop": "steer.stop",
    "prune": "steer.prune",
    "restore": "steer.restore",
    "pin": "steer.pin",
    "unpin": "steer.unpin",
    "seed-idea": "steer.seed_idea",
    "seed-kernel": "steer.seed_kernel",
    "retry": "steer.retry",
    "budget": "steer.budget",
    "prompt": "talk.prompt",
    "reply": "talk.reply",
    "eval": "kernels.evaluate",
    "compare": "kernels.compare",
    "build": "kernels.build",
    "export": "export.export",
    "sass": "machine_code.sass",
    "profile": "profile.profile",
    "problems": "machine.problems",
    "doctor": "machine.doctor",
    "init": "machine.init",
    "completion": "machine.completion",
}
"""Each in the module of ``tui.commands`` that has it, in the order of the help."""

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
  11   a problem could not be opened since its judge was killed; resume tries again
  130  interrupted; the session is saved and can be resumed
"""


class DefaultRun(click.Group):
    """Imports a command when it is asked for; ``kernel-tui config.toml`` means ``kernel-tui run config.toml``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {option for parameter in self.get_params(ctx) for option in parameter.opts}
        if args and args[0] not in COMMANDS and args[0] not in own and self._means_run(args[0]):
            args.insert(0, "run")
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(".")
        command: click.Command = getattr(import_module(f"tui.commands.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " See: kernel-tui --help"
            ctx.fail(f"no such command or file: {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

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


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: runs a command and ends the process with a code of ``engine.exit_codes``."""
    from tui.commands.common import shown_errors

    with shown_errors():
        status = cli.main(list(arguments) if arguments is not None else None, "kernel-tui", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
