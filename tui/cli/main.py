"""The ``kernel-tui`` command, which starts fast: it imports only click and the module of the requested command."""

from __future__ import annotations

import atexit
import gc
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from engine import __version__

COMMANDS = {
    "run": "search.run.run",
    "resume": "search.resume.resume",
    "attach": "search.attach.attach",
    "bench": "search.bench.bench",
    "replay": "search.replay.replay",
    "serve": "search.serve.serve",
    "sessions": "saved.sessions.sessions",
    "show": "saved.show.show",
    "report": "saved.report.report",
    "kernels": "saved.kernels.kernels",
    "pause": "steering.requests.pause",
    "unpause": "steering.requests.unpause",
    "stop": "steering.requests.stop",
    "prune": "steering.requests.prune",
    "restore": "steering.requests.restore",
    "pin": "steering.requests.pin",
    "unpin": "steering.requests.unpin",
    "seed-idea": "steering.seed_idea.seed_idea",
    "seed-kernel": "steering.seed_kernel.seed_kernel",
    "retry": "steering.requests.retry",
    "budget": "steering.budget.budget",
    "prompt": "steering.prompt.prompt",
    "reply": "steering.reply.reply",
    "eval": "kernel.eval.evaluate",
    "compare": "kernel.compare.compare",
    "build": "kernel.build.build",
    "export": "saved.export.export",
    "sass": "kernel.sass.sass",
    "profile": "kernel.profile.profile",
    "problems": "machine.problems.problems",
    "worker": "cluster.worker.worker",
    "cluster": "cluster.group.cluster",
    "doctor": "machine.doctor.doctor",
    "init": "machine.init.init",
    "completion": "machine.completion.completion",
}
"""Each command's group, module and function under ``tui.cli``, in ``--help`` order."""
ALIASES = {"continue": "unpause"}
"""Earlier command names that still work. ``--help`` does not list them."""
OTHER_NAMES = {"status": "sessions", "list": "sessions", "ls": "sessions", "ps": "sessions", "start": "run"}
"""Command names that users may know from other programs, each with the equivalent command."""

_EXIT_CODES = """\b
Exit codes:
  0    success
  1    failure; the message says why
  2    invalid arguments, unknown name, invalid configuration or problem
  3    session not found
  4    an engine is already running on the session
  5    a newer kernel-tui wrote the session
  6    cannot write a file: disk full, read-only, or unsafe for a session
  7    no compiler, PyTorch or GPU that the command needs
  8    no correct kernel found (search), or kernel not correct (eval, compare)
  9    a configured model needs an API key that the environment lacks
  10   waiting only for replies by hand (--until-idle)
  11   a problem failed to open: its judge was killed; resume tries again
  130  interrupted; the session is saved and can be resumed
"""


class DefaultRun(click.Group):
    """Import a command only when it is used. ``kernel-tui config.toml`` means ``kernel-tui run config.toml``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {option for parameter in self.get_params(ctx) for option in parameter.opts}
        if args and args[0] not in (*COMMANDS, *ALIASES) and args[0] not in own and self._means_run(args[0]):
            args.insert(0, "run")
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].rpartition(".")
        command: click.Command = getattr(import_module(f"tui.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in (*COMMANDS, *ALIASES):
            ctx.fail(f"no such command or file: {args[0]!r}.{_meant_by(args[0])}")
        return super().resolve_command(ctx, args)

    @staticmethod
    def _means_run(word: str) -> bool:
        return word.startswith("-") or word.endswith(".toml") or "/" in word or Path(word).exists()


def _meant_by(word: str) -> str:
    """Suggest what the user may have meant by a word that is not a command."""
    from difflib import get_close_matches

    from tui.cli.shared.common import sessions_root

    if (sessions_root(None) / word / "config.toml").exists():
        return f" To watch the session: kernel-tui attach {shlex.quote(word)}"
    if word in OTHER_NAMES:
        return f" Did you mean {OTHER_NAMES[word]!r}?"
    near = get_close_matches(word, [*COMMANDS, *map(str, Path().glob("*.toml"))], n=1)
    return f" Did you mean {near[0]!r}?" if near else " See: kernel-tui --help"


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
    kernel-tui init           write a configuration file
    kernel-tui config.toml    start its search (short for kernel-tui run)
    """


def _open_closed_streams() -> None:
    """Open the null device for each standard stream that the caller closed (``>&-``). Python sets these to None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115  open until the process ends
            # Without this call, the first file that a child opens would become its output.
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with a code from ``engine.exit_codes``."""
    from tui.cli.shared.common import shown_errors

    _open_closed_streams()
    # pydantic would look for plugins in every installed package, which takes as long as its own import.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "true")
    atexit.register(gc.freeze)  # Python would collect all imported objects before it exits, which takes 20 ms.
    with shown_errors():
        status = cli.main(list(arguments) if arguments is not None else None, "kernel-tui", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
