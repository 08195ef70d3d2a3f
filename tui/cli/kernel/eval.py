"""Command: judge a kernel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from tui.cli.kernel.judging import CONFIG, DEVICE, QUICK, evaluation_config, judge_kernels
from tui.cli.shared.common import Failure, json_option, print_json, run_async
from tui.cli.shared.kernel_file import kernel_of, problem_file
from tui.cli.shared.problem_option import PROBLEM
from tui.console.progress_line import working

if TYPE_CHECKING:
    from engine.evaluation.evaluator import Evaluator
    from engine.problem.names import ProblemFile
    from engine.problem.spec import Language, ProblemSpec
    from engine.session.records.other_sizes import AtSizes
    from engine.session.records.verdict import Standing, Verdict

PEAKS_OF_THIS_RUN = "SOL: based on device peaks measured now; a search measures them once, so its % SOL can differ"
"""Footnote for the SOL."""
AUTO = "auto"
"""The value of ``--shapes`` for sizes that the engine chooses."""


@click.command("eval")
@click.argument("kernel", type=click.Path(path_type=Path))
@PROBLEM
@click.option(
    "--shapes",
    multiple=True,
    metavar="SPEC",
    help="Also judge at other sizes: ROWS=1000,COLUMNS=512 (constants of the problem file), or auto. Repeatable.",
)
@CONFIG
@DEVICE
@QUICK
@json_option
def evaluate(
    kernel: Path,
    problem: str,
    shapes: tuple[str, ...],
    config_path: Path | None,
    device: str | None,
    quick: bool,
    as_json: bool,
) -> None:
    """Judge KERNEL: check its outputs and measure its speedup.

    KERNEL is a .cpp, .cu or .py file. A file in a session's best/ uses the session's problem and [evaluation] settings
    by default.

    A full verdict uses three timing processes and takes 10 to 20 seconds on a CPU. With --quick, the command uses one
    process.

    With --shapes, the command also builds and judges the kernel at other sizes. With --shapes auto, the command chooses
    three sizes: smaller, odd and larger.

    Exit code 0: the kernel is correct at every size. Exit code 8: the kernel is not correct, or does not
    compile.
    """
    language, source = kernel_of(kernel)
    shapes = tuple(AUTO if text.strip().lower() == AUTO else text for text in shapes)
    wanted = _wanted_sizes(shapes, problem_file(problem)) if shapes else []
    config = evaluation_config(config_path, device, kernel)
    at_sizes: list[AtSizes] = []

    async def judge() -> tuple[list[Verdict], tuple[Standing, ...]]:
        async def then(evaluator: Evaluator, spec: ProblemSpec) -> None:
            if shapes:
                from tui.console.file_names import of_own_file

                work.say("judging at other sizes")
                found = await _judge_at(evaluator, spec, wanted, AUTO in shapes, language, source)
                at_sizes.extend(of_own_file(one, kernel.name) for one in found)

        kernels = {kernel.name: (language, source)}
        return await judge_kernels(config, problem, kernels, (kernel,), work, quick=quick, then=then)

    with working("inspecting the problem", quiet=as_json, lines=True) as work:
        verdicts, _ = run_async(judge())
    if as_json:
        print_json({"verdict": verdicts[0], "at_sizes": at_sizes} if shapes else verdicts[0])
    else:
        from tui.console.tables import print_at_sizes, print_verdict

        print_verdict(
            kernel.name, verdicts[0], config.tolerance, sol_note=PEAKS_OF_THIS_RUN, sol_measured="measured now"
        )
        if at_sizes:
            print_at_sizes(at_sizes, config.tolerance)
    if not all(verdict.correct for verdict in verdicts) or any(one.status != "correct" for one in at_sizes):
        sys.exit(ExitCode.NOTHING_CORRECT)


def _wanted_sizes(shapes: tuple[str, ...], file: ProblemFile) -> list[dict[str, int]]:
    """Parse each SPEC except auto, and check its size names against the problem. Raises Failure, UnreadableFile."""
    from engine.problem.sizes import SizeError, parse_sizes, with_sizes
    from engine.system.text_file import read_text

    try:
        wanted = [parse_sizes(text) for text in shapes if text != AUTO]
    except SizeError as error:
        raise Failure(f"--shapes {error}, or {AUTO}", ExitCode.USAGE) from None
    try:
        for sizes in wanted:
            with_sizes(read_text(file.path), sizes)
    except SizeError as error:
        raise Failure(f"--shapes: {error}", ExitCode.USAGE) from None
    except SyntaxError:
        pass  # The later inspection of the problem reports this error.
    return wanted


async def _judge_at(
    evaluator: Evaluator, spec: ProblemSpec, wanted: list[dict[str, int]], auto: bool, language: Language, source: str
) -> list[AtSizes]:
    """Judge the kernel at the ``wanted`` sizes and, if ``auto`` is true, at derived sizes too. Raises Failure."""
    from engine.evaluation.at_sizes import judge_at_sizes
    from engine.problem.resize import NoOtherSizes, other_sizes, resize
    from engine.problem.sizes import SizeError

    try:
        places = await resize(spec, wanted) + (await other_sizes(spec) if auto else [])
    except (SizeError, NoOtherSizes) as error:
        raise Failure(f"--shapes: {error}", ExitCode.USAGE) from None
    return [short async for short, _ in judge_at_sizes(evaluator, places, language, source)]
