"""Implement ``problems --check``: open each problem on this machine before a search spends time on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tui.cli.shared.common import Failure, scratch_path
from tui.console.problem_output import printed
from tui.console.progress_line import working
from tui.text.format import milliseconds

if TYPE_CHECKING:
    from engine.evaluation.local_evaluator import LocalEvaluator
    from engine.problem.catalog import ProblemRow
    from engine.problem.failure import ProblemFailure
    from engine.problem.names import ProblemFile
    from engine.problem.spec import ProblemSpec

OPEN_S = 120.0
"""Time limit for opening a problem, in seconds. Each verdict takes about as long, so a search of a slower problem would
judge few kernels."""


async def checked(files: Sequence[ProblemFile]) -> list[tuple[ProblemRow, ProblemSpec | ProblemFailure]]:
    """Open each problem, and return its catalog row and its inspection result.

    The row's remark contains eager's time, or the reason why the problem did not open.

    Raises ``Failure`` if this machine cannot evaluate kernels.
    """
    from msgspec.structs import replace

    from engine.config.evaluation_table import EvaluationConfig
    from engine.evaluation.evaluator import EvaluationError
    from engine.evaluation.local_evaluator import LocalEvaluator
    from engine.exit_codes import ExitCode
    from engine.problem.catalog import inspect_files, row_of
    from engine.problem.spec import ProblemSpec

    rows = []
    with (
        scratch_path("check") as scratch,
        working("inspecting the problems") as work,
        printed(work.note) as stderr,
    ):
        answers = await inspect_files(files, on_file=lambda name: work.say(f"inspecting {name}"))
        evaluator = LocalEvaluator(EvaluationConfig(), scratch, on_wait=work.on_wait, stderr=stderr)
        try:
            await evaluator.start()
            for number, (file, answer) in enumerate(zip(files, answers, strict=True), 1):
                work.say(f"opening {file.id} ({number} of {len(files)})")
                row = row_of(file, answer)
                if isinstance(answer, ProblemSpec):
                    row = replace(row, remark="; ".join(filter(None, [await _found(evaluator, answer), row.remark])))
                rows.append((row, answer))
        except EvaluationError as error:
            raise Failure(str(error), ExitCode.NO_TOOLS) from None
        finally:
            await evaluator.close()
    return rows


async def _found(evaluator: LocalEvaluator, problem: ProblemSpec) -> str:
    from engine.evaluation.evaluator import EvaluationError
    from engine.evaluation.judge_process import JudgeSilent

    limit_s = OPEN_S
    try:
        opened = await evaluator.open(problem, "", limit_s=limit_s)
    except JudgeSilent:
        return f"TIMED OUT after {limit_s:g} s: the problem hangs, or is too slow for this device"
    except EvaluationError as error:
        return f"failed to open: {error}"
    took = f"eager alone {milliseconds(opened.eager.timing.median_ms)} ms" if opened.eager.timing is not None else ""
    said = f"DEGENERATE: {opened.degenerate} pass every check" if opened.degenerate else ""
    return "; ".join(filter(None, [took, said or "trivial outputs fail"]))
