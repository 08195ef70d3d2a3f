"""Command: compile a kernel."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from tui.cli.shared.common import (
    Failure,
    cannot_write,
    checked_arch,
    force_option,
    json_option,
    print_json,
    refuse_existing,
    run_async,
)
from tui.cli.shared.kernel_file import inspect_problem, language_of, no_arch_for_cpp, read_kernel
from tui.cli.shared.problem_option import PROBLEM
from tui.console.echo import echo
from tui.console.progress_line import working

if TYPE_CHECKING:
    from engine.session.records.verdict import BuildReport


@click.command()
@click.argument("kernel", type=click.Path(path_type=Path))
@PROBLEM
@click.option("--arch", callback=checked_arch, help="GPU architecture, for .cu kernels.  [default: sm_90a]")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the shared library to this file."
)
@force_option
@json_option
def build(kernel: Path, problem: str, arch: str | None, output: Path | None, force: bool, as_json: bool) -> None:
    """Compile KERNEL as a search would, without running it. Needs no GPU.

    KERNEL is a .cpp or .cu file. Exit code 1: the kernel does not compile.
    """
    from engine.problem.spec import MODULES

    source, language = read_kernel(kernel), language_of(kernel)
    if language in MODULES:
        raise Failure(
            f"{kernel}: this command does not compile .py kernels; to judge the kernel: "
            f"kernel-tui eval {shlex.quote(str(kernel))} --problem {shlex.quote(problem)}",
            ExitCode.USAGE,
        )
    no_arch_for_cpp(kernel, language, arch)
    if output is not None:
        refuse_existing(output, force=force)

    async def compile_it() -> BuildReport:
        import shutil

        from engine.evaluation.build.compilers import build as run_build
        from engine.problem.c_header import derive_header
        from tui.console.file_names import of_own_file

        header = derive_header(await inspect_problem(problem), language)
        work.say("compiling")
        with tempfile.TemporaryDirectory(prefix="kernel-tui-build-") as scratch:
            library, report = await run_build(source, language, header, arch or "sm_90a", Path(scratch))
            if library is not None and output is not None:
                try:
                    shutil.copyfile(library, output)
                except OSError as error:
                    raise cannot_write(output, error) from None
        return of_own_file(report, kernel.name)

    with working("inspecting the problem", quiet=as_json) as work:
        report = run_async(compile_it())
    if as_json:
        print_json(report)
    else:
        from tui.console.tables import print_build

        print_build(kernel.name, report)
        if report.ok and output is not None:
            echo(f"wrote {output}")
    if not report.ok:
        sys.exit(ExitCode.FAILURE)
