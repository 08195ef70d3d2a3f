"""Command: show a kernel's machine code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from engine.suggestions import did_you_mean
from tui.cli.shared.common import (
    Failure,
    Integer,
    checked_arch,
    find,
    json_option,
    print_json,
    run_async,
    sessions_option,
)
from tui.cli.shared.completion import complete_kernel, complete_session_or_file
from tui.cli.shared.kernel_file import inspect_problem, language_of, no_arch_for_cpp, read_kernel
from tui.console.echo import echo
from tui.console.progress_line import working

if TYPE_CHECKING:
    from engine.evaluation.inspect.machine_code import Function, MachineCode
    from engine.problem.spec import Language


@click.command()
@click.argument("what", metavar="KERNEL|SESSION", shell_complete=complete_session_or_file)
@click.argument("variant", required=False, shell_complete=complete_kernel)
@click.option("--problem", help="Problem of a KERNEL file: a .py file or a built-in problem.")
@click.option(
    "--arch",
    callback=checked_arch,
    help="GPU architecture, for .cu kernels.  [default: the session's device; sm_90a for a file]",
)
@click.option("--ptx", is_flag=True, help="Print PTX instead of SASS.")
@click.option("--threads", type=Integer(1, 1024), help="Threads per block for the occupancy figures.")
@click.option("--dynamic-shared", type=Integer(0), default=0, help="Dynamic shared memory per block, in bytes.")
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
    """Show a kernel's source lines, each with its machine code.

    Also show registers, shared memory, spills and occupancy.

    \b
    kernel-tui sass SESSION VARIANT
    kernel-tui sass KERNEL --problem P [--arch sm_90a]

    The command prints SASS or PTX for a .cu kernel, and x86 for a .cpp kernel. Needs no GPU.
    """
    from engine.evaluation.inspect.machine_code import DoesNotBuild, machine_code
    from engine.system.tool_paths import NoTool
    from tui.console.file_names import in_own_words

    if variant is not None:
        source, language, header, session_arch = _of_session(root, what, variant)
        no_arch_for_cpp(variant, language, arch)
        arch, name = arch or session_arch, variant
    else:
        if problem is None:
            raise Failure("specify a SESSION and a VARIANT, or a KERNEL file with --problem P", ExitCode.USAGE)
        with working("inspecting the problem", quiet=as_json):
            no_arch_for_cpp(what, language_of(Path(what)), arch)
            source, language, header = run_async(_of_file(Path(what), problem))
        arch, name = arch or "sm_90a", what
    try:
        with working("compiling and disassembling", quiet=as_json):
            code = run_async(machine_code(source, language, header, arch))
    except DoesNotBuild as error:
        place = f" for {arch}" if language == "cu" else ""
        file = name if variant is None else f"{name}.{language}"
        raise Failure(f"{name} does not build{place}:\n{in_own_words(str(error), file)}") from None
    except ValueError as error:
        raise Failure(f"{name}: {error}", ExitCode.USAGE) from None
    except NoTool as error:
        raise Failure(str(error), ExitCode.NO_TOOLS) from None
    if as_json:
        print_json(code)
    elif ptx:
        if language != "cu":
            raise Failure(f"{name}: --ptx applies only to CUDA kernels; omit it", ExitCode.USAGE)
        echo(code.ptx, is_message=False)
    else:
        _print(name, code, source, threads, dynamic_shared)


def _of_session(root: Path, session: str, name: str) -> tuple[str, Language, str, str]:
    """Return a session variant's source, language, header and architecture."""
    from engine.session.state.session_state import fold
    from engine.session.store import SessionReader

    with SessionReader(find(root, session)) as reader:
        state = fold(reader.read(without=("variant_stage", "log_line")))
        if (variant := state.variants.get(name)) is None:
            raise Failure(f"{session}: no kernel {name}{did_you_mean(name, state.variants)}", ExitCode.USAGE)
        archs = [device.arch for device in state.devices.values() if device.kind == "cuda"]
        header = state.problems[variant.problem].header
        return reader.text(variant.source), variant.language, header, archs[0] if archs else "sm_90a"


async def _of_file(path: Path, problem: str) -> tuple[str, Language, str]:
    from engine.problem.c_header import derive_header
    from engine.problem.spec import MODULES

    source, language = read_kernel(path), language_of(path)
    if language in MODULES:
        return source, language, ""
    return source, language, derive_header(await inspect_problem(problem), language)


def _in_words(function: Function) -> str:
    """Return the function's name, with its instruction count if the code was disassembled."""
    return f"{function.name} ({function.instructions} instructions)" if function.blocks else function.name


def _print(name: str, code: MachineCode, source: str, threads: int | None, dynamic_shared: int) -> None:
    from tui.text.machine_code import code_lines, occupancy_lines
    from tui.text.sanitize import one_line

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
