"""Command: export a KernelBench solution, training data or a report."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.config.tolerance import short_caption, tolerance_of
from engine.exit_codes import ExitCode
from engine.session.records.speedup_text import marked
from engine.session.records.verdict_text import is_uncertain
from engine.suggestions import did_you_mean
from tui.cli.shared.common import Failure, cannot_write, find, sessions_option
from tui.cli.shared.kernel_file import inspect_problem, language_of, read_kernel
from tui.console.echo import echo
from tui.console.progress_line import working

if TYPE_CHECKING:
    from engine.problem.spec import Language, ProblemSpec
    from engine.session.state.session_state import SessionState
    from engine.session.store import SessionReader


@click.command()
@click.argument("source")
@click.argument("variant", required=False)
@click.option("--best", metavar="PROBLEM", help="Export the best kernel of this problem.")
@click.option("--problem", metavar="P", help="Problem of a kernel file: a .py file or a built-in problem.")
@click.option(
    "--training", metavar="FILE", help="Write every judged kernel with its idea, parent and verdict, as JSON lines."
)
@click.option("--report", metavar="FILE", help="Write a Markdown report of the whole search.")
@click.option("-o", "--output", metavar="FILE", default="-", help="File for the solution.  [default: standard output]")
@sessions_option
def export(
    source: str,
    variant: str | None,
    best: str | None,
    problem: str | None,
    training: str | None,
    report: str | None,
    output: str,
    root: Path,
) -> None:
    """Export a KernelBench solution, training data or a report.

    SOURCE is a session or a kernel file. For a session, give a VARIANT (v34) or --best PROBLEM. For a kernel file,
    give --problem. FILE "-" is standard output.
    """
    wanted = [name for name, given in (("VARIANT", variant), ("--best", best), ("--training", training),
                                       ("--report", report)) if given is not None]  # fmt: skip
    if problem is not None:
        if wanted:
            raise Failure(
                f"--problem applies to a kernel file, {wanted[0]} to a session; give only one of them", ExitCode.USAGE
            )
        _write(output, [_of_file(Path(source), problem).encode()])
        return
    if len(wanted) != 1:
        hint = "give VARIANT, --best PROBLEM, --training FILE or --report FILE; for a kernel file, give --problem P"
        raise Failure(hint, ExitCode.USAGE)

    from engine.session.state.session_state import fold
    from engine.session.store import SessionReader

    with SessionReader(find(root, source)) as reader:
        state = fold(reader.read(without=("variant_stage", "log_line")))
        if training is not None:
            from engine.export.training import encode, records

            _write(training, (encode(record) for record in records(state, reader.text)))
        elif report is not None:
            from engine.export.report import report as written

            _write(report, [written(state, reader.text).encode()])
        else:
            _write(output, [_of_session(reader, state, variant, best).encode()])


def _of_session(reader: SessionReader, state: SessionState, variant: str | None, best: str | None) -> str:
    if best is not None:
        if (found := state.problems.get(best)) is None:
            near, there = did_you_mean(best, state.problems), ", ".join(state.problems) or "none"
            lacks = f"no problem {best}{f'{near} Problems:' if near else '; problems:'} {there}"
            raise Failure(f"{state.name}: {lacks}" if state.name else lacks, ExitCode.USAGE)
        if (variant := found.best) is None:
            raise Failure(f"{state.name}: no correct kernel for {best} yet", ExitCode.NOTHING_CORRECT)
    if (kernel := state.variants.get(variant or "")) is None:
        near = did_you_mean(variant or "", state.variants)
        raise Failure(f"{state.name}: no kernel {variant}{near}", ExitCode.USAGE)
    about, verdict = f"Kernel {kernel.id} of session {state.name}", kernel.verdict
    if verdict is not None and verdict.speedup is not None:
        speedup = marked(f"{verdict.speedup:.3g}", is_uncertain(verdict))
        about += f": speedup {speedup}x over eager PyTorch on {verdict.device}"
        between = ""
        if verdict.speedup_low is not None and verdict.speedup_high is not None:
            between = f"95%: {verdict.speedup_low:.3g} to {verdict.speedup_high:.3g}; "
        about += f" ({between}{short_caption(tolerance_of(state.config, reader.text))})"
    elif verdict is not None:
        about += f"; verdict: {verdict.status.replace('_', ' ')}"
    if verdict is None or not verdict.correct:
        result = "has no verdict" if verdict is None else f"is not correct ({verdict.status.replace('_', ' ')})"
        echo(f"warning: {kernel.id} {result}", err=True)
    return _solution(state.problems[kernel.problem].spec, kernel.language, reader.text(kernel.source), about + ".")


def _of_file(path: Path, problem: str) -> str:
    text, language = read_kernel(path), language_of(path)
    with working("inspecting the problem"):
        spec = asyncio.run(inspect_problem(problem))
    return _solution(spec, language, text, f"From {path.name}.")


def _solution(problem: ProblemSpec, language: Language, text: str, about: str) -> str:
    from engine.export import ExportError
    from engine.export.kernelbench import solution

    try:
        return solution(problem, language, text, about)
    except ExportError as error:
        raise Failure(str(error)) from None


def _write(place: str, parts: Iterable[bytes]) -> None:
    if place == "-":
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    try:
        with Path(place).open("wb") as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        raise cannot_write(place, error) from None
    echo(f"wrote {place}", err=True)
