"""Commands about this machine and this program: doctor, init, problems, completion."""

from __future__ import annotations

import asyncio
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from engine.exit_codes import ExitCode
from tui.commands.common import Failure, cannot_write, json_option, print_json
from tui.echo import echo
from tui.working import working


@click.command()
@click.argument("config_path", metavar="[CONFIG]", required=False, type=click.Path(path_type=Path))
@json_option
def doctor(config_path: Path | None, as_json: bool) -> None:
    """Say what this machine has and lacks for a search.

    Each lack comes with its remedy. With CONFIG, what it asks for must be there. Exits with 7 if a search cannot run,
    with 9 if nothing but a key is missing.
    """
    from engine.config import ConfigError, load_config
    from engine.doctor import run_checks
    from tui.commands.begin import problem_faults

    config = load_config(config_path) if config_path is not None else None
    if config is not None and (faults := problem_faults(config.path)):
        raise ConfigError(config.path, faults)
    with working("looking for GPUs", quiet=as_json) as work:
        findings = run_checks(config, lambda name: work.say(f"checking {name}"))
    if as_json:
        print_json(findings)
    else:
        from tui.tables import print_findings

        print_findings(findings)
    if failed := {finding.name for finding in findings if finding.level == "fail"}:
        sys.exit(ExitCode.NO_KEY if failed == {"keys"} else ExitCode.NO_TOOLS)


@click.command()
@click.option(
    "--preset",
    type=click.Choice(["quickstart", "headline", "published"]),
    default="quickstart",
    show_default=True,
    help="quickstart: four CPU-sized problems; headline: the eight big ones; published: 10 problems, two models.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.argument("path", type=click.Path(path_type=Path), default=Path("config.toml"))
def init(preset: str, force: bool, path: Path) -> None:
    """Write a commented configuration to PATH (config.toml)."""
    from engine.config import PRESETS, preset_text

    if path.is_dir():
        path = path / "config.toml"
    if path.exists() and not force:
        raise Failure(f"{path}: is there already; give another PATH, or --force to replace it", ExitCode.USAGE)
    text = preset_text(next(one for one in PRESETS if one == preset))
    if path.name.isprintable():  # it goes into a comment
        text = text.replace("kernel-tui config.toml", f"kernel-tui {shlex.quote(path.name)}", 1)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_write(path, error) from None
    echo(f"{path} is written; run it with: kernel-tui {shlex.quote(str(path))}")


@click.command()
@click.argument("entries", metavar="[PATHS]...", nargs=-1)
@click.option(
    "--check", is_flag=True, help="Open each here: eager's time, and whether zeros, copies and the like pass."
)
@json_option
def problems(entries: tuple[str, ...], check: bool, as_json: bool) -> None:
    """List problems as a config and --problem name them.

    PATHS are files, globs, directories or builtin:NAME; without them those that ship with kernel-tui. Exits with 2 if
    kernels can be written for none of them.
    """
    from engine.problem.catalog import BUILTIN, builtin_names, resolve, table

    files = resolve(entries or [BUILTIN + name for name in builtin_names()], Path.cwd())
    if check:
        from tui.commands.checking import checked

        rows = asyncio.run(checked(files))
    else:
        with working("inspecting the problems", quiet=as_json) as work:
            rows = asyncio.run(table(files, on_file=lambda name: work.say(f"inspecting {name}")))
    if as_json:
        print_json(rows)
    else:
        from tui.tables import print_problems

        print_problems(rows)
    if not any(row.forms for row in rows):
        sys.exit(ExitCode.USAGE if find_spec("torch") is not None else ExitCode.NO_TOOLS)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: eval "$(kernel-tui completion bash)"
    zsh:  eval "$(kernel-tui completion zsh)"
    fish: kernel-tui completion fish | source
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    echo(kind(ctx.find_root().command, {}, "kernel-tui", "_KERNEL_TUI_COMPLETE").source())
