"""Command: time two kernels side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from tui.cli.kernel.judging import CONFIG, DEVICE, evaluation_config, judge_kernels
from tui.cli.shared.common import json_option, print_json, run_async
from tui.cli.shared.kernel_file import kernel_of
from tui.cli.shared.problem_option import PROBLEM
from tui.console.progress_line import working

if TYPE_CHECKING:
    from engine.session.records.verdict import Standing, Verdict


@click.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@PROBLEM
@CONFIG
@DEVICE
@click.option("--thorough", is_flag=True, help="Use three timing processes per kernel, as eval does.")
@click.option("--quick", is_flag=True, hidden=True)
@json_option
def compare(
    first: Path,
    second: Path,
    problem: str,
    config_path: Path | None,
    device: str | None,
    thorough: bool,
    quick: bool,
    as_json: bool,
) -> None:
    """Judge two kernels, then time them side by side.

    FIRST and SECOND are .cpp, .cu or .py files. By default, each kernel gets one timing process, as in a search. The
    side-by-side times decide which kernel is faster.

    Exit code 8: at least one kernel is not correct, or does not compile.
    """
    names = [str(first), str(second)] if first.name == second.name else [first.name, second.name]
    if thorough and quick:
        raise click.UsageError("--quick and --thorough cannot be combined; give only one of them")
    if first == second:
        names = [f"{first} (a)", f"{first} (b)"]
    kernels = {name: kernel_of(path) for name, path in zip(names, (first, second), strict=True)}
    config = evaluation_config(config_path, device, first, second)

    async def judge() -> tuple[list[Verdict], tuple[Standing, ...]]:
        return await judge_kernels(config, problem, kernels, (first, second), work, quick=not thorough, runoff=True)

    with working("inspecting the problem", quiet=as_json, lines=True) as work:
        verdicts, standings = run_async(judge())
    if as_json:
        from tui.text.same_code import same_machine_code

        said = {"verdicts": dict(zip(names, verdicts, strict=True)), "standings": standings}
        print_json({**said, "same_machine_code": same_machine_code(verdicts)})
    else:
        from tui.console.tables import print_comparison

        print_comparison(dict(zip(names, verdicts, strict=True)), standings, config.tolerance)
    if not all(verdict.correct for verdict in verdicts):
        sys.exit(ExitCode.NOTHING_CORRECT)
