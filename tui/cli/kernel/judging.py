"""Options of ``eval`` and ``compare``, and the code that judges kernels without a session."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine.exit_codes import ExitCode
from tui.cli.shared.common import Failure, scratch_path
from tui.cli.shared.kernel_file import inspect_problem
from tui.cli.shared.problem_option import session_of_best
from tui.console.problem_output import printed
from tui.console.progress_line import Working

if TYPE_CHECKING:
    from engine.config.evaluation_table import EvaluationConfig
    from engine.evaluation.evaluator import Evaluator
    from engine.evaluation.local_evaluator import LocalEvaluator
    from engine.problem.spec import Language, ProblemSpec
    from engine.session.records.verdict import BuildReport, Stage, Standing, Verdict

T = TypeVar("T")
CONFIG = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help="Use this config file's [evaluation] settings.",
)
DEVICE = click.option("--device", help="Device: auto, cpu, cuda or cuda:1.  [default: the config's device, else auto]")
QUICK = click.option(
    "--quick", is_flag=True, help="Use one timing process, as a search does: faster, with a wider interval."
)


def evaluation_config(config_path: Path | None, device: str | None, *kernels: Path) -> EvaluationConfig:
    """Return the evaluation settings of ``config_path``, with ``device`` if given.

    Without ``config_path``, the settings come from the session whose ``best/`` contains one of the kernels.
    """
    from engine.config.evaluation_table import EvaluationConfig
    from engine.session.store.paths import must_have_config

    config = EvaluationConfig()
    sessions = [session for kernel in kernels if (session := session_of_best(kernel)) is not None]
    if config_path is None and sessions:
        must_have_config(sessions[0])
        config_path = sessions[0].config
    if config_path is not None:
        from engine.config.schema import load_evaluation

        config = load_evaluation(config_path)
    if device is None:
        return config
    try:
        return EvaluationConfig.model_validate({**config.model_dump(), "device": device})
    except ValueError:
        raise Failure(f"--device {device}: unknown device; use auto, cpu, cuda or cuda:1", ExitCode.USAGE) from None


def _stages_of(name: str, work: Working, processes: int) -> Callable[[Stage], None]:
    """Return a callback that reports each stage. ``processes`` is the number of timing processes.

    With several processes, a pipe gets one line per process.
    """
    words: dict[Stage, str] = {"waiting": "waiting for the device", "timing": "timing against PyTorch"}
    checked = 0
    if processes > 1:
        words["checking"] = "checking and timing"

    def say(stage: Stage) -> None:
        nonlocal checked
        checked = min(processes, checked + (stage == "checking"))  # The judge repeats an evaluation that failed.
        process = f", process {checked} of {processes}" if processes > 1 and checked else ""
        process += " (--quick: 1)" if processes > 1 and checked == 1 else ""
        tell = work.flash if stage == "waiting" or (stage == "timing" and processes > 1) else work.say
        tell(f"{name}: {words.get(stage, stage)}{process}")

    return say


async def judge_kernels(
    config: EvaluationConfig,
    problem_name: str,
    kernels: dict[str, tuple[Language, str]],
    paths: Sequence[Path],
    work: Working,
    *,
    quick: bool,
    runoff: bool = False,
    then: Callable[[Evaluator, ProblemSpec], Awaitable[None]] | None = None,
) -> tuple[list[Verdict], tuple[Standing, ...]]:
    """Judge each kernel in turn. If ``runoff`` is set and all kernels are correct, also time them side by side.

    ``paths`` are the files of ``kernels``, in the same order.

    If no kernel builds, the function does not open the problem, so it does not wait for the device. ``work`` shows
    progress. ``then`` runs after the verdicts if any kernel builds, while the evaluator is still open.
    """
    import asyncio

    from engine.evaluation.evaluator import EvaluationError
    from engine.evaluation.local_evaluator import LocalEvaluator
    from engine.problem.spec import LANGUAGE_OF_DEVICE, LANGUAGES_OF_DEVICE, MODULES
    from engine.system.background_import import imported

    with scratch_path("eval") as scratch, printed(work.note) as stderr:
        modules = any(language in MODULES for language, _ in kernels.values())
        evaluator = LocalEvaluator(config, scratch, not quick, work.on_wait, stderr=stderr, modules=modules)
        begun: list[asyncio.Future[Any]] = []

        def begin(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
            begun.append(task := asyncio.ensure_future(work))
            return task

        try:
            starting = begin(evaluator.start())
            # The judge takes longest to start, so its process comes first. Until PyTorch is imported there, this
            # process inspects the problem and imports the modules for the output.
            await asyncio.sleep(0)
            inspection = begin(inspect_problem(problem_name))
            begin(imported("tui.console.tables"))
            try:
                device = (await starting)[0]
            except EvaluationError as error:
                raise Failure(str(error), ExitCode.NO_TOOLS) from error
            from engine.evaluation.timing.statistics import timing_processes
            from engine.problem.c_header import derive_header
            from tui.console.file_names import of_own_file

            allowed = LANGUAGE_OF_DEVICE[device.kind]
            for (name, (language, _)), path in zip(kernels.items(), paths, strict=True):
                if language not in LANGUAGES_OF_DEVICE[device.kind]:
                    build = f"kernel-tui build {shlex.quote(str(path))} --problem {shlex.quote(problem_name)}"
                    hint = f"; to compile it here: {build}" if language == "cu" else ""
                    said = (
                        f"{name}: Triton compiles for GPUs only, and this command judges on {device.name}"
                        if language == "triton"
                        else f"{name}: {device.name} runs only .{allowed} and .py kernels{hint}"
                    )
                    raise Failure(said, ExitCode.USAGE)
            if find_spec("torch") is None:
                await inspection  # This raises an error that says PyTorch is missing. A judge would only crash.
            # On a CPU, the judge measures only the peaks that the problem's SOL needs.
            measuring = begin(evaluator.measure_device(device)) if device.kind == "cuda" else None
            work.say("inspecting the problem and starting the judge")
            problem = await inspection
            if not problem.languages:
                raise Failure(
                    f"{problem.path}: cannot judge kernels of this problem: {problem.c_refusal}", ExitCode.USAGE
                )
            header = (
                derive_header(problem, allowed)
                if any(language not in MODULES for language, _ in kernels.values())
                else ""
            )
            work.say(f"{', '.join(kernels)}: building")
            building = begin(_build(evaluator, problem, header, kernels))

            async def measure_and_open() -> None:
                if measuring is not None:
                    work.say("starting the judge and measuring the device's peaks")
                    await measuring
                work.say(f"opening {problem.id}: timing eager")
                await evaluator.open(problem, header)

            opening = begin(measure_and_open())
            await asyncio.wait((opening, building), return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                await opening  # This raises an error if the problem cannot be opened.
                work.say(f"{', '.join(kernels)}: building")
            reports = await building
            builds = reports is None or any(report.ok for report in reports.values())
            if builds:
                await opening
            else:
                opening.cancel()
            verdicts = []
            for name, (language, source) in kernels.items():
                on_stage = _stages_of(name, work, timing_processes(not quick))
                verdict = await evaluator.evaluate(problem, language, source, on_stage)
                if reports is not None:
                    verdict = _with_first_build(verdict, reports[name])
                verdicts.append(of_own_file(verdict, name))
            standings: tuple[Standing, ...] = ()
            if runoff and all(verdict.correct for verdict in verdicts):
                work.say("timing side by side")
                standings = await evaluator.runoff(problem, kernels)
            if then is not None and builds:
                await then(evaluator, problem)
            return verdicts, standings
        finally:
            for task in begun:
                task.cancel()
            await asyncio.gather(*begun, return_exceptions=True)
            await evaluator.close()


async def _build(
    evaluator: LocalEvaluator, problem: ProblemSpec, header: str, kernels: dict[str, tuple[Language, str]]
) -> dict[str, BuildReport] | None:
    """Build all kernels, and return a report for each.

    If a compiler is missing or a build raises OSError, return None. The evaluation then reports the error.
    """
    import asyncio

    from engine.evaluation.build.compilers import NoCompiler

    builds = (evaluator.build(problem, header, language, source) for language, source in kernels.values())
    try:
        return dict(zip(kernels, await asyncio.gather(*builds), strict=True))
    except (NoCompiler, OSError):
        return None


def _with_first_build(verdict: Verdict, first: BuildReport) -> Verdict:
    """Return the verdict, with the build report of the first build if the verdict's own build came from the cache."""
    from msgspec.structs import replace

    if verdict.build is None or not verdict.build.cached:
        return verdict
    return replace(verdict, build=first, stage_s={**verdict.stage_s, "build": first.seconds})
