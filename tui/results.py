"""What a search came to: one row per problem. Pure, from the folded state."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from engine.state import ProblemState, SessionState, VariantState
from engine.verdict import Baseline, only_searched_sizes, sizes_in_words


class ResultRow(Struct, frozen=True, kw_only=True):
    """Times in milliseconds. ``factor``: over eager, with its 95 % interval; ``eager_ms`` is of the same minute.
    ``over_compile``: over torch.compile; ``compile_unsure``: other programs had a hand in that time.

    ``floor_share``: floor time / best time. ``compile_note``: why there is no torch.compile time, "" if there is one.
    ``kernelbench``: what KernelBench's rules say of the best kernel, "" where that was not asked.
    ``sizes``: whether the best kernel is right, and a win, at other sizes. ``remark``: why the problem was not
    searched, or why its search ended.
    """

    problem: str
    rounds: int = 0
    verdicts: int = 0
    correct: int = 0
    eager_ms: float | None = None
    compile_ms: float | None = None
    compile_note: str = ""
    first_ms: float | None = None
    best_ms: float | None = None
    best: str | None = None
    factor: float | None = None
    factor_low: float | None = None
    factor_high: float | None = None
    over_compile: float | None = None
    compile_unsure: bool = False
    floor_share: float | None = None
    kernelbench: str = ""
    file: str | None = None
    sizes: str = ""
    remark: str = ""


class Results(Struct, frozen=True):
    """``seconds``: engine life so far. ``verdicts``: kernels that have one, as in the rows. ``state``: why the engine
    stopped, or "running" or "died"."""

    session: str
    state: str
    seconds: float
    verdicts: int
    problems: tuple[ResultRow, ...]


def results_of(
    state: SessionState,
    directory: Path,
    seconds: float,
    *,
    torch_compile: bool = True,
    pending: bool = False,
    died: bool = False,
) -> Results:
    """The results of a session that lies in ``directory``. ``torch_compile``: whether its config has that measured.
    ``pending``: an engine lives that still may. ``died``: none lives, whether or not one has said why it stopped."""
    searched = [problem for problem in state.problems.values() if problem.id not in state.refused]
    notes = {one.id: without_compile(one, measured=torch_compile, pending=pending) for one in searched}
    rows = [_row(state, problem, directory, notes[problem.id]) for problem in searched]
    rows += [ResultRow(problem=one.problem, remark=f"not searched: {one.reason}") for one in state.refused.values()]
    stopped = state.engine.stopped if state.engine is not None else None
    return Results(state.name, stopped or ("died" if died else "running"), seconds, state.verdicts, tuple(rows))


def without_compile(problem: ProblemState, *, measured: bool, pending: bool) -> str:
    """Why there is no time of torch.compile. ``measured``: as configured. ``pending``: an engine may still do it."""
    compiled = problem.baselines.get("compile")
    if compiled is not None:
        return compiled.failure or "no time"
    if not measured:
        return "off"
    return "pending" if pending else "not measured"


def first_correct_ms(state: SessionState, problem: str) -> float | None:
    """Time of the problem's first correct kernel, in order of judgement."""
    correct = [one for one in state.variants_of(problem) if one.correct]
    first = min(correct, key=lambda one: one.judged_at or 0.0, default=None)
    return first.kernel_ms if first is not None else None


def at_other_sizes(variant: VariantState) -> str:
    """What came of the kernel at other sizes than the searched ones, in words; "" where that was not tried."""
    checked = variant.at_sizes
    return "" if checked is None else checked.note or sizes_in_words(checked.results)


def is_for_searched_sizes_only(variant: VariantState) -> bool:
    """Whether the kernel was tried at other sizes and is right at none of them."""
    return variant.at_sizes is not None and only_searched_sizes(variant.at_sizes.results)


def _degenerate(problem: ProblemState) -> str:
    return f"degenerate: {problem.degenerate} pass every check" if problem.degenerate else ""


def _floor_words(best: VariantState | None) -> str:
    share = best.verdict.floor_share if best is not None and best.verdict is not None else None
    if best is None or share is None or share <= 1.02:
        return ""
    return f"{best.id} is faster than the floor: caches keep its data, or the peaks were measured on a busy machine"


def _disturbance(compiled: Baseline | None) -> str:
    return f"torch.compile was {compiled.disturbance}" if compiled is not None and compiled.disturbed else ""


def _row(state: SessionState, problem: ProblemState, directory: Path, without: str) -> ResultRow:
    judged = [one for one in state.variants_of(problem.id) if one.was_judged]
    best = state.variants[problem.best] if problem.best is not None else None
    verdict = best.verdict if best is not None else None
    compiled = problem.baselines.get("compile")
    compile_ms = compiled.timing.median_ms if compiled is not None and compiled.timing is not None else None
    best_ms = best.kernel_ms if best is not None else None
    return ResultRow(
        problem=problem.id,
        rounds=problem.rounds[-1].number if problem.rounds else 0,
        verdicts=len(judged),
        correct=sum(one.correct for one in judged),
        eager_ms=problem.eager_ms(best),
        compile_ms=compile_ms,
        compile_note="" if compile_ms is not None else without,
        first_ms=first_correct_ms(state, problem.id),
        best_ms=best_ms,
        best=problem.best,
        factor=verdict.speedup if verdict is not None else None,
        factor_low=verdict.speedup_low if verdict is not None else None,
        factor_high=verdict.speedup_high if verdict is not None else None,
        over_compile=compile_ms / best_ms if compile_ms is not None and best_ms else None,
        compile_unsure=compiled is not None and compiled.disturbed,
        floor_share=verdict.floor_share if verdict is not None else None,
        kernelbench=verdict.kernelbench.words if verdict is not None and verdict.kernelbench is not None else "",
        file=str(directory / "best" / f"{problem.id}.{best.form}") if best is not None else None,
        sizes=at_other_sizes(best) if best is not None else "",
        remark="; ".join(
            filter(None, [_degenerate(problem), _floor_words(best), _disturbance(compiled), problem.finished])
        ),
    )
