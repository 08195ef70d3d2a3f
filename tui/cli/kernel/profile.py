"""Command: profile a kernel with hardware counters."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from engine.suggestions import did_you_mean
from tui.cli.shared.common import Failure, find, json_option, print_json, run_async, sessions_option
from tui.cli.shared.completion import complete_kernel, complete_session_or_file
from tui.cli.shared.kernel_file import inspect_problem, kernel_of
from tui.console.progress_line import working

if TYPE_CHECKING:
    from engine.evaluation.inspect.profiler import KernelProfile
    from engine.problem.spec import Language, ProblemSpec


@click.command()
@click.argument("what", metavar="KERNEL|SESSION", shell_complete=complete_session_or_file)
@click.argument("variant", required=False, shell_complete=complete_kernel)
@click.option("--problem", help="Problem of a KERNEL file: a .py file or a built-in problem.")
@click.option(
    "--trust",
    is_flag=True,
    help="Profile the kernel even if a language model wrote it. The kernel runs with your permissions.",
)
@sessions_option
@json_option
def profile(what: str, variant: str | None, problem: str | None, trust: bool, root: Path, as_json: bool) -> None:
    """Profile a CUDA or Triton kernel with hardware counters.

    The command runs Nsight Compute (ncu) on this machine's first GPU.

    \b
    kernel-tui profile SESSION VARIANT
    kernel-tui profile KERNEL --problem P

    ncu cannot profile inside the sandbox, so the kernel runs outside it, with your permissions. From a session, you
    can profile only correct kernels. Kernels that a language model wrote also need --trust.
    """
    from engine.evaluation.inspect.profiler import ProfileError
    from engine.problem.spec import suffix_of
    from engine.system.tool_paths import NoTool

    if variant is not None:
        source, language, spec = _of_session(root, what, variant, trust)
        name = f"{variant}{suffix_of(language)}"
    elif problem is not None:
        language, source = kernel_of(Path(what))
        with working("inspecting the problem", quiet=as_json):
            spec = run_async(inspect_problem(problem))
        name = Path(what).name
    else:
        raise Failure("specify a SESSION and a VARIANT, or a KERNEL file with --problem P", ExitCode.USAGE)
    if language == "cpp":
        from engine.problem.spec import LANGUAGE_NAMES

        raise Failure(
            f"{variant or what}: only GPU kernels can be profiled; this is a {LANGUAGE_NAMES[language]} kernel",
            ExitCode.USAGE,
        )
    try:
        with working("reading hardware counters", quiet=as_json):
            found = run_async(_profiled(spec, source, language, name))
    except NoTool as error:
        raise Failure(str(error), ExitCode.NO_TOOLS) from None
    except ProfileError as error:
        raise Failure(str(error)) from None
    if as_json:
        print_json(found)
    else:
        from tui.console.tables import print_profile

        print_profile(found)


def _of_session(root: Path, session: str, name: str, trust: bool) -> tuple[str, Language, ProblemSpec]:
    from engine.session.state.session_state import fold
    from engine.session.store import SessionReader
    from tui.view.source import argument_of

    paths = find(root, session)
    with SessionReader(paths) as reader:
        state = fold(reader.read(without=("variant_stage", "log_line")))
        if (variant := state.variants.get(name)) is None:
            raise Failure(f"{session}: no kernel {name}{did_you_mean(name, state.variants)}", ExitCode.USAGE)
        if not variant.correct:
            raise Failure(f"{name} is not correct; only correct kernels can be profiled", ExitCode.USAGE)
        if variant.proposer not in ("playbook", "hand") and not trust:
            raise Failure(
                f"{variant.proposer} wrote {name}, and ncu runs it outside the sandbox, with your permissions. "
                f"Read it first: kernel-tui show {argument_of(paths)} {name} --full. Then add --trust",
                ExitCode.USAGE,
            )
        return reader.text(variant.source), variant.language, state.problems[variant.problem].spec


async def _profiled(spec: ProblemSpec, source: str, language: Language, name: str) -> tuple[KernelProfile, ...]:
    """Build the kernel for the first GPU and profile it while no other search uses that GPU.

    Raises NoTool, ProfileError, NoCompiler and Failure.
    """
    from engine.devices.hardware import discover
    from engine.evaluation.build.build_cache import BuildCache
    from engine.evaluation.build.kernel_source import kernel_source
    from engine.evaluation.inspect.profiler import find_ncu
    from engine.evaluation.inspect.profiler import profile as read_counters
    from engine.evaluation.judge.device_lock import alone
    from engine.problem.c_header import derive_header
    from engine.problem.spec import MODULES
    from tui.console.file_names import in_own_words

    find_ncu()
    gpus = [device for device in discover() if device.kind == "cuda"]
    if not gpus:
        raise Failure("no NVIDIA GPU found; check with: kernel-tui doctor", ExitCode.NO_TOOLS)
    with tempfile.TemporaryDirectory(prefix="kernel-tui-profile-") as scratch:
        header = "" if language in MODULES else derive_header(spec, language)
        kernel = kernel_source(spec, header, language, source, gpus[0])
        built = await BuildCache(Path(scratch), isolate=True).build(kernel)
        if built.library is None:
            raise Failure(f"{name} does not build for {gpus[0].arch}:\n{in_own_words(built.report.log, name)}")
        with alone(gpus[0].id, lambda: False):
            return await read_counters(spec, built.library)
