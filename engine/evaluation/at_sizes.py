"""Judge whether a kernel is correct and faster than eager at sizes other than those of the search."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

from engine.evaluation.evaluator import EvaluationError, Evaluator
from engine.problem.c_header import derive_header
from engine.problem.resize import Resized, shape_words
from engine.problem.spec import MODULES, Language
from engine.session.records.other_sizes import NOT_FOR_THIS_SIZE, AtSizes
from engine.session.records.verdict import Verdict
from engine.session.records.verdict_text import is_uncertain

_SAYS_SO = re.compile(rf"static assertion failed(?::| with) \"?({NOT_FOR_THIS_SIZE}[^\"\n]*)")
"""The format in which g++ and nvcc print the message of a ``static_assert``."""


async def judge_at_sizes(
    evaluator: Evaluator, places: Sequence[Resized], language: Language, source: str
) -> AsyncIterator[tuple[AtSizes, Verdict]]:
    """Build and judge ``source`` for each problem in ``places``. Yield a summary and the full verdict for each problem.

    The judge reopens the problem at each size, with fresh weights and inputs, and times eager again. Errors in the
    kernel never raise an exception. If the reference fails, for example because the device lacks memory, the verdict is
    "error".
    """
    for place in places:
        try:
            header = "" if language in MODULES else derive_header(place.problem, language)
            await evaluator.open(place.problem, header)
            verdict = await evaluator.evaluate(place.problem, language, source, lambda stage: None)
            if verdict.status == "error":  # The kernel is not at fault, so retry once, as a search does.
                verdict = await evaluator.evaluate(place.problem, language, source, lambda stage: None)
        except EvaluationError as error:
            verdict = Verdict(status="error", reason=str(error))
        yield _in_short(place, verdict), verdict


def _in_short(place: Resized, verdict: Verdict) -> AtSizes:
    log = verdict.build.log if verdict.build is not None and verdict.status == "build_error" else ""
    says = _SAYS_SO.search(log)
    return AtSizes(
        label=place.label,
        sizes=place.sizes,
        shapes=shape_words(place.problem),
        status=verdict.status,
        reason=says.group(1) if says is not None else verdict.reason,
        kernel_ms=verdict.kernel.median_ms if verdict.kernel is not None else None,
        eager_ms=verdict.reference.median_ms if verdict.reference is not None else None,
        speedup=verdict.speedup if verdict.correct else None,
        speedup_low=verdict.speedup_low if verdict.correct else None,
        speedup_high=verdict.speedup_high if verdict.correct else None,
        uncertain=verdict.correct and is_uncertain(verdict),
    )
