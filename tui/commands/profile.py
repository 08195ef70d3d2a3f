"""Command: hardware counters of one kernel."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from engine.near import did_you_mean
from tui.commands.common import Failure, find, json_option, print_json, sessions_option
from tui.commands.kernels import form_of, inspect_problem, read_kernel
from tui.working import working

if TYPE_CHECKING:
    from engine.evaluation.profile import KernelProfile
    from engine.problem.spec import Form, ProblemSpec


@click.command()
@click.argument("what", metavar="KERNEL|SESSION")
@click.argument("variant", required=False)
@click.option("--problem", help="For a KERNEL file: its problem, a .py file or builtin:quickstart/softmax.")
@click.option("--trust", is_flag=True, help="Also a kernel that a language model wrote: it runs with your rights.")
@sessions_option
@json_option
def profile(what: str, variant: str | None, problem: str | None, trust: bool, root: Path, as_json: bool) -> None:
    """Read a .cu kernel's hardware counters.

    With Nsight Compute (ncu), on this machine's first GPU.

    \b
    kernel-tui profile SESSION VARIANT
    kernel-tui profile KERNEL --problem P

    ncu must see the process, so the kernel runs outside of the sandbox, with your rights. Of a session, only kernels
    that were judged correct are profiled, and those of a language model only with --trust.
    """
    from engine.evaluation.profile import ProfileError
    from engine.toolkit import NoTool

    if variant is not None:
        source, form, spec = _of_session(root, what, variant, trust)
        name = f"{variant}.{form}"
    elif problem is not None:
        source, form = read_kernel(Path(what)), form_of(Path(what))
        with working("inspecting the problem", quiet=as_json):
            spec = asyncio.run(inspect_problem(problem))
        name = Path(what).name
    else:
        raise Failure("name a SESSION and a VARIANT, or a KERNEL file with --problem P", ExitCode.USAGE)
    if form != "cu":
        raise Failure(f"{variant or what}: a .{form} kernel has no GPU counters; only .cu kernels do", ExitCode.USAGE)
    try:
        with working("reading hardware counters", quiet=as_json):
            found = asyncio.run(_profiled(spec, source, name))
    except NoTool as error:
        raise Failure(str(error), ExitCode.NO_TOOLS) from None
    except ProfileError as error:
        raise Failure(str(error)) from None
    if as_json:
        print_json(found)
    else:
        from tui.tables import print_profile

        print_profile(found)


def _of_session(root: Path, session: str, name: str, trust: bool) -> tuple[str, Form, ProblemSpec]:
    from engine.session import SessionReader
    from engine.state import fold

    with SessionReader(find(root, session)) as reader:
        state = fold(reader.read(without=("variant_stage", "log_line")))
        if (variant := state.variants.get(name)) is None:
            raise Failure(f"{session}: no kernel {name}{did_you_mean(name, state.variants)}", ExitCode.USAGE)
        if not variant.correct:
            raise Failure(f"{name} was not judged correct; only correct kernels are profiled", ExitCode.USAGE)
        if variant.proposer not in ("playbook", "hand") and not trust:
            raise Failure(
                f"{name} was written by {variant.proposer}, and ncu runs it outside of the sandbox, with your rights: "
                f"read it first (kernel-tui show {session} {name}), then add --trust",
                ExitCode.USAGE,
            )
        return reader.text(variant.source), variant.form, state.problems[variant.problem].spec


async def _profiled(spec: ProblemSpec, source: str, name: str) -> tuple[KernelProfile, ...]:
    """Build for the first GPU and profile, alone on it. Raises NoTool, ProfileError, NoCompiler and Failure."""
    from engine.devices import discover
    from engine.evaluation.build import build
    from engine.evaluation.locks import alone
    from engine.evaluation.profile import find_ncu
    from engine.evaluation.profile import profile as read_counters
    from engine.problem.header import derive_header
    from tui.own_file import in_own_words

    find_ncu()
    gpus = [device for device in discover() if device.kind == "cuda"]
    if not gpus:
        raise Failure("there is no NVIDIA GPU here, so there are no counters to read", ExitCode.NO_TOOLS)
    with tempfile.TemporaryDirectory(prefix="kernel-tui-profile-") as scratch:
        library, report = await build(source, "cu", derive_header(spec, "cu"), gpus[0].arch, Path(scratch))
        if library is None:
            raise Failure(f"{name} does not build for {gpus[0].arch}:\n{in_own_words(report.log, name)}")
        with alone(gpus[0].id, lambda: False):
            return await read_counters(spec, library)
