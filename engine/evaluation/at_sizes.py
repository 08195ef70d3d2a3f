"""Whether a kernel is right, and still a win, at other sizes than those it was searched at."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

from engine.problem.header import derive_header
from engine.problem.resize import Resized, shape_words
from engine.problem.spec import Form
from engine.verdict import NOT_FOR_THIS_SIZE, AtSizes, Verdict
from engine.workers.protocol import EvaluationError, Evaluator

_SAYS_SO = re.compile(rf"static assertion failed(?::| with) \"?({NOT_FOR_THIS_SIZE}[^\"\n]*)")
"""How g++ and nvcc print the message of a ``static_assert``."""


async def judge_at_sizes(
    evaluator: Evaluator, places: Sequence[Resized], form: Form, source: str
) -> AsyncIterator[tuple[AtSizes, Verdict]]:
    """Build and judge ``source`` at each of ``places``, in order: what came out in short, and the whole verdict.

    The judge opens the problem anew at each: fresh weights and inputs, its own eager time. Never raises for what the
    kernel does, nor where the reference itself cannot run (too large for the device): that is a verdict "error".
    """
    for place in places:
        try:
            header = "" if form == "py" else derive_header(place.problem, form)
            await evaluator.open(place.problem, header)
            verdict = await evaluator.evaluate(place.problem, form, source, lambda stage: None)
            if verdict.status == "error":  # says nothing about the kernel: once more, as in a search
                verdict = await evaluator.evaluate(place.problem, form, source, lambda stage: None)
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
    )
