"""``problems --check``: what opening a problem on this machine tells before a search spends anything on it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tui.commands.common import Failure
from tui.commands.printed import printed
from tui.format import milliseconds
from tui.working import working

if TYPE_CHECKING:
    from engine.problem.catalog import ProblemFile, ProblemRow
    from engine.problem.spec import ProblemSpec
    from engine.workers.local import LocalEvaluator

OPEN_S = 120.0
"""What takes longer to open here is too slow to search on, if it does not hang: a verdict needs as many calls."""


async def checked(files: Sequence[ProblemFile]) -> list[ProblemRow]:
    """Rows as :func:`engine.problem.catalog.table` gives them, each with what came of opening the problem.

    Raises ``Failure`` where nothing can be evaluated here.
    """
    from msgspec.structs import replace

    from engine.config import EvaluationConfig
    from engine.exit_codes import ExitCode
    from engine.problem.catalog import inspect_files, row_of
    from engine.problem.spec import ProblemSpec
    from engine.workers.local import LocalEvaluator
    from engine.workers.protocol import EvaluationError

    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="kernel-tui-check-") as scratch,
        working("inspecting the problems") as work,
        printed(work.note) as stderr,
    ):
        answers = await inspect_files(files, on_file=lambda name: work.say(f"inspecting {name}"))
        evaluator = LocalEvaluator(EvaluationConfig(), Path(scratch), on_wait=work.on_wait, stderr=stderr)
        try:
            await evaluator.start()
            for number, (file, answer) in enumerate(zip(files, answers, strict=True), 1):
                work.say(f"opening {file.id} ({number} of {len(files)})")
                row = row_of(file, answer)
                if isinstance(answer, ProblemSpec):
                    row = replace(row, remark="; ".join(filter(None, [await _found(evaluator, answer), row.remark])))
                rows.append(row)
        except EvaluationError as error:
            raise Failure(str(error), ExitCode.NO_TOOLS) from None
        finally:
            await evaluator.close()
    return rows


async def _found(evaluator: LocalEvaluator, problem: ProblemSpec) -> str:
    from engine.workers.judge_process import JudgeSilent
    from engine.workers.protocol import EvaluationError

    try:
        opened = await evaluator.open(problem, "", limit_s=OPEN_S)
    except JudgeSilent:
        return f"TOOK TOO LONG to open here, more than {OPEN_S:g} s: it hangs, or is too slow for this device"
    except EvaluationError as error:
        return f"cannot be opened here: {error}"
    took = f"eager {milliseconds(opened.eager.timing.median_ms)} ms" if opened.eager.timing is not None else ""
    said = f"DEGENERATE: {opened.degenerate} pass every check" if opened.degenerate else opened.tightened
    return "; ".join(filter(None, [took, said or "kernels that compute nothing do not pass"]))
