"""Command: list problems, or open each one to check it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import click

from engine.exit_codes import ExitCode
from tui.cli.shared.common import checked_arch, json_option, print_json, run_async
from tui.console.echo import echo
from tui.console.progress_line import working


@click.command()
@click.argument("entries", metavar="[PATHS]...", nargs=-1)
@click.option("--check", is_flag=True, help="Open each problem: time eager and test whether trivial outputs pass.")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help="Report in which languages this config's proposers can write kernels.",
)
@click.option(
    "--device",
    callback=lambda ctx, parameter, value: value if value == "cpu" else checked_arch(ctx, parameter, value),
    help="Also report whether the playbook can write kernels for this device: cpu, or a GPU such as sm_90a.",
)
@json_option
def problems(
    entries: tuple[str, ...], check: bool, config_path: Path | None, device: str | None, as_json: bool
) -> None:
    """List problems and the proposers that support each.

    You can use the listed names in a config and with --problem. PATHS are files, globs, directories or builtin:NAME.
    Without PATHS, list the problems of the --config file or, without --config, the built-in problems. Without --config,
    the only proposer is the playbook, which writes kernels from templates, without a language model. Exit code 2: none
    of the problems can be searched.
    """
    from engine.problem.catalog import BUILTIN, builtin_names, inspect_files, resolve, row_of
    from engine.problem.spec import ProblemSpec
    from engine.proposers.coverage import refusal_on, writers_of

    config = None
    if config_path is not None:
        from engine.config.schema import load_config
        from tui.cli.search.begin import say_renamed_keys

        config = load_config(config_path)
        say_renamed_keys(config.path)
    if not entries:
        entries = config.problems if config is not None else tuple(BUILTIN + name for name in builtin_names())
    files = resolve(entries, Path.cwd())
    if check:
        from tui.cli.machine.check_problems import checked

        found = run_async(checked(files))
    else:
        with working("inspecting the problems", quiet=as_json) as work:
            answers = run_async(inspect_files(files, on_file=lambda name: work.say(f"inspecting {name}")))
        found = [(row_of(file, answer), answer) for file, answer in zip(files, answers, strict=True)]
    rows = [row for row, _ in found]
    proposers = [writers_of(config, one) if isinstance(one, ProblemSpec) else () for _, one in found]
    refusals = [refusal_on(one, device) if isinstance(one, ProblemSpec) else str(one) for _, one in found if device]
    if as_json:
        from msgspec.structs import asdict

        printed = [asdict(row) | {"proposers": who} for row, who in zip(rows, proposers, strict=True)]
        for row_json, why in zip(printed, refusals, strict=False):
            row_json |= {"device": device, "playbook": why is None, "playbook_refusal": why or ""}
        print_json(printed)
    else:
        from engine.problem.c_header import COMPILED, prototype
        from engine.problem.spec import LANGUAGE_TITLES
        from tui.console.lists import print_problems

        print_problems(rows, proposers)
        if len(found) == 1 and isinstance(spec := found[0][1], ProblemSpec):
            for language in (one for one in COMPILED if one in spec.languages):
                echo(f"signature in {LANGUAGE_TITLES[language]}:\n  {prototype(spec, language)}")
        if device is not None:
            able = sum(why is None for why in refusals)
            echo(f"{device}: the playbook can write kernels for {able} of {len(rows)} problems")
            for row, why in zip(rows, refusals, strict=True):
                if why is not None:
                    echo(f"{row.id}: {why}")
    if not any(row.languages for row in rows):
        sys.exit(ExitCode.USAGE if find_spec("torch") is not None else ExitCode.NO_TOOLS)
