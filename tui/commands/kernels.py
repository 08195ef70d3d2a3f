"""Commands about one kernel, without a session: judge it, compare two, build it for a GPU that is not here."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from tui.commands.common import Failure, cannot_write, checked_arch, json_option, print_json
from tui.commands.printed import printed
from tui.echo import echo
from tui.working import Working, working

if TYPE_CHECKING:
    from engine.config import EvaluationConfig
    from engine.events import Stage
    from engine.problem.catalog import ProblemFile
    from engine.problem.spec import Form, ProblemSpec
    from engine.verdict import AtSizes, BuildReport, Standing, Verdict
    from engine.workers.protocol import Evaluator, Opened

_PROBLEM = click.option("--problem", required=True, help="A .py file, or builtin:quickstart/softmax.")
_CONFIG = click.option(
    "--config", "config_path", type=click.Path(path_type=Path), help="Take [evaluation] from this file."
)
_DEVICE = click.option("--device", help="auto, cpu, cuda or cuda:1.  [default: as the config says, else auto]")
_QUICK = click.option("--quick", is_flag=True, help="As a search would: in a second or two, with a wider interval.")


@click.command("eval")
@click.argument("kernel", type=click.Path(path_type=Path))
@_PROBLEM
@click.option(
    "--shapes",
    multiple=True,
    metavar="SPEC",
    help="Also judge it at other sizes: ROWS=1000,COLUMNS=512 (names of the problem file), or auto. May be repeated.",
)
@_CONFIG
@_DEVICE
@_QUICK
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
    """Judge KERNEL: is it correct, how fast, on what evidence.

    KERNEL is a .cpp, .cu or .py file.

    With --shapes also at other sizes, for which it is built anew; auto: a smaller, an odd and a larger problem.

    Exits with 0 if it is correct, also at every one of the --shapes, with 8 if not.
    """
    from tui.own_file import of_own_file

    form, source = form_of(kernel), read_kernel(kernel)
    wanted = _wanted_sizes(shapes, problem_file(problem))
    config = _evaluation_config(config_path, device)
    at_sizes: list[AtSizes] = []

    async def judge() -> tuple[Opened, list[Verdict], tuple[Standing, ...]]:
        async def then(evaluator: Evaluator, spec: ProblemSpec) -> None:
            if shapes:
                work.say("judging at other sizes")
                found = await _judge_at(evaluator, spec, wanted, "auto" in shapes, form, source)
                at_sizes.extend(of_own_file(one, kernel.name) for one in found)

        return await _judge(config, problem, {kernel.name: (form, source)}, work, quick=quick, then=then)

    with working("inspecting the problem", quiet=as_json) as work:
        _, verdicts, _ = asyncio.run(judge())
    if as_json:
        print_json({"verdict": verdicts[0], "at_sizes": at_sizes} if shapes else verdicts[0])
    else:
        from tui.tables import print_at_sizes, print_verdict

        print_verdict(kernel.name, verdicts[0])
        if at_sizes:
            print_at_sizes(at_sizes)
    if not all(verdict.correct for verdict in verdicts) or any(one.status != "correct" for one in at_sizes):
        sys.exit(ExitCode.NOTHING_CORRECT)


@click.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@_PROBLEM
@_CONFIG
@_DEVICE
@_QUICK
@json_option
def compare(
    first: Path,
    second: Path,
    problem: str,
    config_path: Path | None,
    device: str | None,
    quick: bool,
    as_json: bool,
) -> None:
    """Time two kernels side by side, after judging both.

    Exits with 8 if one is not correct.
    """
    names = [str(first), str(second)] if first.name == second.name else [first.name, second.name]
    if first == second:
        names = [f"{first} (a)", f"{first} (b)"]
    kernels = {name: (form_of(path), read_kernel(path)) for name, path in zip(names, (first, second), strict=True)}
    problem_file(problem)
    config = _evaluation_config(config_path, device)

    async def judge() -> tuple[Opened, list[Verdict], tuple[Standing, ...]]:
        return await _judge(config, problem, kernels, work, quick=quick, heat=True)

    with working("inspecting the problem", quiet=as_json) as work:
        _, verdicts, standings = asyncio.run(judge())
    if as_json:
        from tui.same_code import same_machine_code

        said = {"verdicts": dict(zip(names, verdicts, strict=True)), "standings": standings}
        print_json({**said, "same_machine_code": same_machine_code(verdicts)})
    else:
        from tui.tables import print_comparison

        print_comparison(dict(zip(names, verdicts, strict=True)), standings)
    if not all(verdict.correct for verdict in verdicts):
        sys.exit(ExitCode.NOTHING_CORRECT)


@click.command()
@click.argument("kernel", type=click.Path(path_type=Path))
@_PROBLEM
@click.option("--arch", callback=checked_arch, help="For .cu: the one to build for.  [default: sm_90a]")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Keep the shared library here.")
@json_option
def build(kernel: Path, problem: str, arch: str | None, output: Path | None, as_json: bool) -> None:
    """Compile KERNEL as a search would, without running it. Needs no GPU."""
    source, form = read_kernel(kernel), form_of(kernel)
    if form == "py":
        raise Failure(f"{kernel}: a .py kernel is not compiled; judge it with kernel-tui eval", ExitCode.USAGE)
    no_arch_for_cpp(kernel, form, arch)

    async def compile_it() -> BuildReport:
        import shutil

        from engine.evaluation.build import build as run_build
        from engine.problem.header import derive_header
        from tui.own_file import of_own_file

        header = derive_header(await inspect_problem(problem), form)
        work.say("compiling")
        with tempfile.TemporaryDirectory(prefix="kernel-tui-build-") as scratch:
            library, report = await run_build(source, form, header, arch or "sm_90a", Path(scratch))
            if library is not None and output is not None:
                try:
                    shutil.copyfile(library, output)
                except OSError as error:
                    raise cannot_write(output, error) from None
        return of_own_file(report, kernel.name)

    with working("inspecting the problem", quiet=as_json) as work:
        report = asyncio.run(compile_it())
    if as_json:
        print_json(report)
    else:
        from tui.tables import print_build

        print_build(kernel.name, report)
        if report.ok and output is not None:
            echo(f"written to {output}")
    if not report.ok:
        sys.exit(ExitCode.FAILURE)


def read_kernel(path: Path) -> str:
    """A kernel's source. Raises UnreadableFile."""
    from engine.text_file import read_text

    return read_text(path)


def form_of(path: Path) -> Form:
    """The form that a file's name tells. Raises Failure."""
    from engine.problem.spec import FORM_OF_SUFFIX

    if (form := FORM_OF_SUFFIX.get(path.suffix)) is None:
        of_session = re.fullmatch(r"v\d+", path.name) is not None and not path.exists()
        hint = (
            f"; one of a session is written to a file by kernel-tui export SESSION {path.name} -o {path.name}.py, "
            "and the monitor's key c compares two"
        )
        raise Failure(f"{path}: a kernel is a .cpp, .cu or .py file{hint if of_session else ''}", ExitCode.USAGE)
    return form


def no_arch_for_cpp(kernel: Path | str, form: Form, arch: str | None) -> None:
    """Raises Failure where ``--arch`` would be ignored."""
    if form == "cpp" and arch is not None:
        raise Failure(
            f"--arch {arch}: {kernel} is C++, compiled for the processor of this machine; --arch is for .cu kernels",
            ExitCode.USAGE,
        )


def _evaluation_config(config_path: Path | None, device: str | None) -> EvaluationConfig:
    from engine.config import EvaluationConfig, load_config

    config = load_config(config_path).evaluation if config_path is not None else EvaluationConfig()
    if device is None:
        return config
    try:
        return EvaluationConfig.model_validate({**config.model_dump(), "device": device})
    except ValueError:
        raise Failure(
            f'--device {device}: no such device, allowed: "auto", "cpu", "cuda", "cuda:1"', ExitCode.USAGE
        ) from None


def problem_file(problem: str) -> ProblemFile:
    """The file of the one problem that ``problem`` names. Raises CatalogError and Failure."""
    from engine.problem.catalog import reference_of, resolve

    files = resolve([problem], Path.cwd())
    if len(files) != 1:
        first = ", ".join(reference_of(file.path) for file in files[:3])
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        raise Failure(f"{problem}: names {len(files)} problems ({first}{more}); name one", ExitCode.USAGE)
    return files[0]


async def inspect_problem(problem: str) -> ProblemSpec:
    """The one problem that ``problem`` names. Raises CatalogError and Failure."""
    from engine.problem.catalog import inspect_files
    from engine.problem.spec import ProblemSpec

    answer = (await inspect_files([problem_file(problem)]))[0]
    if not isinstance(answer, ProblemSpec):
        code = ExitCode.NO_TOOLS if "PyTorch is not installed" in str(answer) else ExitCode.USAGE
        raise Failure(str(answer), code)
    return answer


def _wanted_sizes(shapes: tuple[str, ...], file: ProblemFile) -> list[dict[str, int]]:
    """The sizes of every SPEC that names some; all are sizes that the problem has. Raises Failure, UnreadableFile."""
    from engine.problem.sizes import SizeError, parse_sizes, with_sizes
    from engine.text_file import read_text

    try:
        wanted = [parse_sizes(text) for text in shapes if text != "auto"]
    except SizeError as error:
        raise Failure(f"--shapes {error}", ExitCode.USAGE) from None
    try:
        for sizes in wanted:
            with_sizes(read_text(file.path), sizes)
    except SizeError as error:
        raise Failure(f"--shapes: {error}", ExitCode.USAGE) from None
    except SyntaxError:
        pass  # the inspection says where
    return wanted


async def _judge_at(
    evaluator: Evaluator, spec: ProblemSpec, wanted: list[dict[str, int]], auto: bool, form: Form, source: str
) -> list[AtSizes]:
    """What comes of the kernel at ``wanted`` and, if ``auto``, at derived sizes. Raises Failure."""
    from engine.evaluation.at_sizes import judge_at_sizes
    from engine.problem.resize import NoOtherSizes, other_sizes, resize
    from engine.problem.sizes import SizeError

    try:
        places = await resize(spec, wanted) + (await other_sizes(spec) if auto else [])
    except (SizeError, NoOtherSizes) as error:
        raise Failure(f"--shapes: {error}", ExitCode.USAGE) from None
    return [short async for short, _ in judge_at_sizes(evaluator, places, form, source)]


def _stages_of(name: str, work: Working, sittings: int) -> Callable[[Stage], None]:
    """Says what is done with a kernel, which is judged ``sittings`` times, each time in a process of its own."""
    words: dict[Stage, str] = {"waiting": "waiting for the device", "timing": "timing beside PyTorch"}
    checked = 0

    def say(stage: Stage) -> None:
        nonlocal checked
        checked += stage == "checking"
        sitting = f", sitting {checked} of {sittings}" if sittings > 1 and checked else ""
        work.say(f"{name}: {words.get(stage, stage)}{sitting}")

    return say


async def _judge(
    config: EvaluationConfig,
    problem_name: str,
    kernels: dict[str, tuple[Form, str]],
    work: Working,
    *,
    quick: bool,
    heat: bool = False,
    then: Callable[[Evaluator, ProblemSpec], Awaitable[None]] | None = None,
) -> tuple[Opened, list[Verdict], tuple[Standing, ...]]:
    """Judge each kernel in turn and, if all are correct and ``heat`` is wanted, time them side by side.

    ``work`` is told what is done now and what is waited for; ``then`` is called before the evaluator is closed.
    """
    from engine.evaluation.timing import sittings
    from engine.problem.header import derive_header
    from engine.problem.spec import FORM_OF_DEVICE
    from engine.workers.local import LocalEvaluator
    from engine.workers.protocol import EvaluationError
    from tui.own_file import of_own_file

    with tempfile.TemporaryDirectory(prefix="kernel-tui-eval-") as scratch, printed(work.note) as stderr:
        # Beside the judge's start: both import torch in a process of their own.
        inspection = asyncio.ensure_future(inspect_problem(problem_name))
        evaluator = LocalEvaluator(config, Path(scratch), not quick, work.on_wait, stderr=stderr)
        try:
            try:
                device = (await evaluator.start())[0]
            except EvaluationError as error:
                raise Failure(str(error), ExitCode.NO_TOOLS) from error
            allowed = FORM_OF_DEVICE[device.kind]
            for name, (form, _) in kernels.items():
                if form not in (allowed, "py"):
                    hint = "; kernel-tui build compiles it here" if form == "cu" else ""
                    said = f"{name}: on {device.name} only .{allowed} and .py kernels can be judged{hint}"
                    raise Failure(said, ExitCode.USAGE)
            if find_spec("torch") is None:
                await inspection  # which says so; a judge would only die of it
            problem = await inspection
            if not problem.forms:
                raise Failure(f"{problem.path}: no kernel of it can be judged: {problem.c_refusal}", ExitCode.USAGE)
            in_c = [(form, source) for form, source in kernels.values() if form != "py"]
            header = derive_header(problem, allowed) if in_c else ""
            for form, source in in_c:
                evaluator.begin_build(problem, header, form, source)
            work.say("starting the judge and measuring the device")
            await evaluator.measure_device(device)
            work.say(f"opening {problem.id}: timing eager")
            opened = await evaluator.open(problem, header)
            verdicts = []
            for name, (form, source) in kernels.items():
                on_stage = _stages_of(name, work, sittings(not quick))
                verdicts.append(of_own_file(await evaluator.evaluate(problem, form, source, on_stage), name))
            standings: tuple[Standing, ...] = ()
            if heat and all(verdict.correct for verdict in verdicts):
                work.say("timing them side by side")
                standings = await evaluator.heat(problem, kernels)
            if then is not None:
                await then(evaluator, problem)
            return opened, verdicts, standings
        finally:
            inspection.cancel()
            await evaluator.close()
