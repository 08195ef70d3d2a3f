"""The command that takes something out of a session: a KernelBench solution, training data, a report."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from engine.factor import marked
from engine.near import did_you_mean
from tui.commands.common import Failure, cannot_write, find, sessions_option
from tui.commands.kernels import form_of, inspect_problem, read_kernel
from tui.echo import echo
from tui.working import working

if TYPE_CHECKING:
    from engine.problem.spec import Form, ProblemSpec
    from engine.session import SessionReader
    from engine.state import SessionState


@click.command()
@click.argument("source")
@click.argument("variant", required=False)
@click.option("--best", metavar="PROBLEM", help="The best kernel of this problem.")
@click.option("--problem", metavar="P", help="For a kernel in a file: a .py file, or builtin:quickstart/softmax.")
@click.option("--training", metavar="FILE", help="Every judged kernel with idea, parent and verdict, as JSON lines.")
@click.option("--report", metavar="FILE", help="The whole search in Markdown.")
@click.option(
    "-o", "--output", metavar="FILE", default="-", help="Where the solution goes.  [default: standard output]"
)
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
    """Write a kernel for KernelBench, or a search as data.

    SOURCE is a session, of which VARIANT (v34) or the --best of a problem is exported, or a kernel's file with its
    --problem. "-" as a FILE is standard output.
    """
    wanted = [name for name, given in (("VARIANT", variant), ("--best", best), ("--training", training),
                                       ("--report", report)) if given is not None]  # fmt: skip
    if problem is not None:
        if wanted:
            raise Failure(f"--problem is for a kernel in a file; {wanted[0]} is of a session", ExitCode.USAGE)
        _write(output, [_of_file(Path(source), problem).encode()])
        return
    if len(wanted) != 1:
        hint = (
            "name one of VARIANT, --best PROBLEM, --training FILE, --report FILE (or --problem P for a kernel's file)"
        )
        raise Failure(hint, ExitCode.USAGE)

    from engine.session import SessionReader
    from engine.state import fold

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
            lacks = f"no problem {best}{f'{near} It' if near else '; it'} has {there}"
            raise Failure(f"{state.name}: {lacks}" if state.name else lacks, ExitCode.USAGE)
        if (variant := found.best) is None:
            raise Failure(f"{state.name}: no correct kernel of {best} yet", ExitCode.NOTHING_CORRECT)
    if (kernel := state.variants.get(variant or "")) is None:
        near = did_you_mean(variant or "", state.variants)
        raise Failure(f"{state.name}: no kernel {variant}{near}", ExitCode.USAGE)
    about, verdict = f"Kernel {kernel.id} of the search {state.name}", kernel.verdict
    if verdict is not None and verdict.speedup is not None:
        factor = marked(f"{verdict.speedup:.3g}", verdict.hardly_known)
        about += f": {factor} times as fast as eager PyTorch on {verdict.device}"
        if verdict.speedup_low is not None and verdict.speedup_high is not None:
            about += f" (95 %: {verdict.speedup_low:.3g} to {verdict.speedup_high:.3g})"
    elif verdict is not None:
        about += f"; its verdict: {verdict.status.replace('_', ' ')}"
    return _solution(state.problems[kernel.problem].spec, kernel.form, reader.text(kernel.source), about + ".")


def _of_file(path: Path, problem: str) -> str:
    text, form = read_kernel(path), form_of(path)
    with working("inspecting the problem"):
        spec = asyncio.run(inspect_problem(problem))
    return _solution(spec, form, text, f"From {path.name}.")


def _solution(problem: ProblemSpec, form: Form, text: str, about: str) -> str:
    from engine.export import ExportError
    from engine.export.kernelbench import solution

    try:
        return solution(problem, form, text, about)
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
    echo(f"written to {place}", err=True)
