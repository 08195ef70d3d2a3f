"""Command: what the compiler made of a kernel."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from engine.near import did_you_mean
from tui.commands.common import Failure, checked_arch, find, json_option, print_json, sessions_option
from tui.commands.kernels import form_of, inspect_problem, no_arch_for_cpp, read_kernel
from tui.echo import echo
from tui.working import working

if TYPE_CHECKING:
    from engine.evaluation.machine_code import Function, MachineCode
    from engine.problem.spec import Form


@click.command()
@click.argument("what", metavar="KERNEL|SESSION")
@click.argument("variant", required=False)
@click.option("--problem", help="For a KERNEL file: its problem, a .py file or builtin:quickstart/softmax.")
@click.option(
    "--arch",
    callback=checked_arch,
    help="For .cu: the architecture.  [default: the session's device; sm_90a for a file]",
)
@click.option("--ptx", is_flag=True, help="Print PTX instead of SASS.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads per block to compute the occupancy for.")
@click.option("--dynamic-shared", type=click.IntRange(0), default=0, help="Dynamic shared memory per block, in bytes.")
@sessions_option
@json_option
def sass(
    what: str,
    variant: str | None,
    problem: str | None,
    arch: str | None,
    ptx: bool,
    threads: int | None,
    dynamic_shared: int,
    root: Path,
    as_json: bool,
) -> None:
    """Show a kernel's machine code beside its source lines.

    With its registers, shared memory, spills and occupancy.

    \b
    kernel-tui sass SESSION VARIANT
    kernel-tui sass KERNEL --problem P [--arch sm_90a]

    SASS and PTX for .cu, x86 for .cpp. Needs no GPU.
    """
    from engine.evaluation.machine_code import DoesNotBuild, machine_code
    from engine.toolkit import NoTool
    from tui.own_file import in_own_words

    if variant is not None:
        source, form, header, session_arch = _of_session(root, what, variant)
        no_arch_for_cpp(variant, form, arch)
        arch, name = arch or session_arch, variant
    else:
        if problem is None:
            raise Failure("name a SESSION and a VARIANT, or a KERNEL file with --problem P", ExitCode.USAGE)
        with working("inspecting the problem", quiet=as_json):
            no_arch_for_cpp(what, form_of(Path(what)), arch)
            source, form, header = asyncio.run(_of_file(Path(what), problem))
        arch, name = arch or "sm_90a", what
    try:
        with working("compiling and disassembling", quiet=as_json):
            code = asyncio.run(machine_code(source, form, header, arch))
    except DoesNotBuild as error:
        place = f" for {arch}" if form == "cu" else ""
        file = name if variant is None else f"{name}.{form}"
        raise Failure(f"{name} does not build{place}:\n{in_own_words(str(error), file)}") from None
    except ValueError as error:
        raise Failure(f"{name}: {error}", ExitCode.USAGE) from None
    except NoTool as error:
        raise Failure(str(error), ExitCode.NO_TOOLS) from None
    if as_json:
        print_json(code)
    elif ptx:
        if form != "cu":
            raise Failure(f"{name}: PTX is of .cu kernels", ExitCode.USAGE)
        echo(code.ptx)
    else:
        _print(name, code, source, threads, dynamic_shared)


def _of_session(root: Path, session: str, name: str) -> tuple[str, Form, str, str]:
    """Source, form, header and architecture of a session's variant."""
    from engine.session import SessionReader
    from engine.state import fold

    with SessionReader(find(root, session)) as reader:
        state = fold(reader.read(without=("variant_stage", "log_line")))
        if (variant := state.variants.get(name)) is None:
            raise Failure(f"{session}: no kernel {name}{did_you_mean(name, state.variants)}", ExitCode.USAGE)
        archs = [device.arch for device in state.devices.values() if device.kind == "cuda"]
        header = state.problems[variant.problem].header
        return reader.text(variant.source), variant.form, header, archs[0] if archs else "sm_90a"


async def _of_file(path: Path, problem: str) -> tuple[str, Form, str]:
    from engine.problem.header import derive_header

    source, form = read_kernel(path), form_of(path)
    if form == "py":
        return source, form, ""
    return source, form, derive_header(await inspect_problem(problem), form)


def _in_words(function: Function) -> str:
    """Its name, with its instructions where they could be listed."""
    return f"{function.name} ({function.instructions} instructions)" if function.blocks else function.name


def _print(name: str, code: MachineCode, source: str, threads: int | None, dynamic_shared: int) -> None:
    from tui.machine_code import code_lines, occupancy_lines
    from tui.sanitize import one_line

    title = f"{name} for {code.arch}" if code.arch else name
    echo(f"{title}: {', '.join(map(_in_words, code.functions))}")
    if code.note:
        echo(one_line(code.note))
    for function in code.functions:
        echo()
        click.secho(function.name, bold=True)
        for line in occupancy_lines(code.arch, function, source, threads, dynamic_shared):
            echo(line)
        for shown in code_lines(function):
            click.secho(shown.text, fg="cyan" if shown.is_source else None)
