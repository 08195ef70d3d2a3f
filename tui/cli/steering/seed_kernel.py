"""Command: add a kernel to a running search."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from engine.problem.spec import Language, language_of_file
from tui.cli.shared.common import find
from tui.cli.shared.language_option import language_option
from tui.cli.steering.send import PROBLEM_HELP, problem_id, request_options, send


@click.command("seed-kernel")
@request_options
@click.argument("kernel", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--problem", help=f"{PROBLEM_HELP[:-1]}, or the problem of --idea or --parent]")
@click.option("--parent", help="Parent: the kernel that you started from.")
@click.option("--idea", help="Idea that this kernel implements.")
@language_option("Language of the kernel. Required if KERNEL is '-' (standard input).")
@click.option("--text", help='Description of the idea behind the kernel.  [default: "seeded from" and the file name]')
def seed_kernel(
    session: str,
    kernel: Path,
    problem: str | None,
    parent: str | None,
    idea: str | None,
    language: Language | None,
    text: str | None,
    root: Path,
    as_json: bool,
) -> None:
    """Add a kernel that you wrote. The engine judges the kernel next.

    KERNEL is a .cpp, .cu or .py file, or '-' for standard input. Run `kernel-tui problems FILE` to see the signature of
    the problem's C++ and CUDA kernels. The kernel can become a parent in the same round. A corrected version of the
    file belongs to the earlier version's idea if the round, --text and --parent are unchanged.
    """
    from engine.session.records.requests import SeedKernel
    from engine.system.text_file import read_stream
    from tui.cli.shared.kernel_file import read_kernel

    from_file = str(kernel) != "-"
    source = read_kernel(kernel) if from_file else read_stream(sys.stdin.buffer, "standard input")
    language = language or language_of_file(kernel.suffix, source)
    if language is None:
        raise click.UsageError("unknown language: use a file name that ends in .cpp, .cu or .py, or give --language")
    of_problem = problem_id(find(root, session), problem, idea or parent)
    command = SeedKernel(
        problem=of_problem,
        language=language,
        source=source,
        text=text or (f"seeded from {kernel.name}" if from_file else "seeded by hand"),
        parent=parent,
        idea=idea,
        file=str(kernel.resolve()) if from_file else "",
    )
    send(root, session, command, as_json)
