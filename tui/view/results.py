"""Summarize a search, with one row per problem."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from engine.config.tolerance import SessionTolerance
from engine.problem.spec import suffix_of
from engine.session.records.other_sizes import only_searched_sizes, sizes_in_words
from engine.session.records.verdict import Baseline
from engine.session.records.verdict_text import disturbance, is_disturbed, is_uncertain, kernelbench_words
from engine.session.state.comparable import figures_of
from engine.session.state.over_compile import compile_ms, over_compile
from engine.session.state.session_state import Outcome, ProblemState, SessionState, VariantState
from engine.session.store import SessionPaths
from tui.text.certainty import over_compile_is_uncertain
from tui.text.narration import end_words


class ResultRow(Struct, frozen=True, kw_only=True):
    """A problem's results. Times are in milliseconds.

    ``speedup`` is the speedup over eager, with the 95% interval ``speedup_low`` to ``speedup_high``. ``over_compile``
    is the speedup over torch.compile. The times belong to one measurement: ``eager_ms`` / ``best_ms`` is ``speedup``,
    and ``compile_ms`` / ``best_ms`` is ``over_compile``.
    ``uncertain``, ``compile_uncertain`` and ``over_compile_uncertain`` say which figures are uncertain: the speedup
    over eager, the time of torch.compile, and the speedup over torch.compile. ``compile_note`` says why there is no
    torch.compile time, or is "". ``sol_share`` is SOL / best time. ``kernelbench`` is the best kernel's verdict under
    KernelBench's rules, or "". ``sizes`` describes the best kernel's results at other sizes. ``file`` is the path of
    the best kernel's source, or None if the session is packed. ``status`` is "solved", or says why there is no best
    kernel; see :data:`session_data.Outcome`. ``remark`` says why the problem was not searched, or why
    its search ended.
    """

    problem: str
    status: Outcome = "unsolved"
    rounds: int = 0
    verdicts: int = 0
    correct: int = 0
    eager_ms: float | None = None
    compile_ms: float | None = None
    compile_note: str = ""
    first_ms: float | None = None
    best_ms: float | None = None
    best: str | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    uncertain: bool = False
    over_compile: float | None = None
    compile_uncertain: bool = False
    over_compile_uncertain: bool = False
    sol_share: float | None = None
    kernelbench: str = ""
    file: str | None = None
    sizes: str = ""
    remark: str = ""


class Results(Struct, frozen=True):
    """A session's results.

    ``seconds`` is the search time. ``verdicts`` counts the kernels with a verdict. ``state`` is "running", "died" or
    the reason why the engine stopped. Correct kernels meet ``tolerance``.
    """

    session: str
    state: str
    seconds: float
    verdicts: int
    problems: tuple[ResultRow, ...]
    tolerance: SessionTolerance = None


def results_of(
    state: SessionState,
    directory: Path,
    seconds: float,
    *,
    tolerance: SessionTolerance = None,
    torch_compile: bool = True,
    pending: bool = False,
    died: bool = False,
) -> Results:
    """Compute a session's results.

    ``directory`` is the session's directory. ``tolerance`` and ``torch_compile`` come from its config. ``pending`` is
    true if a running engine may still take measurements. ``died`` is true if no engine is running.
    """
    searched = [problem for problem in state.problems.values() if problem.id not in state.refused]
    notes = {one.id: without_compile(one, measured=torch_compile, pending=pending) for one in searched}
    rows = [_row(state, problem, directory, notes[problem.id]) for problem in searched]
    rows += [
        ResultRow(problem=one.problem, status="refused", remark=f"not searched: {one.reason}")
        for one in state.refused.values()
    ]
    stopped = state.engine.stopped if state.engine is not None else None
    return Results(
        directory.name, stopped or ("died" if died else "running"), seconds, state.verdicts, tuple(rows), tolerance
    )


def without_compile(problem: ProblemState, *, measured: bool, pending: bool) -> str:
    """Say why there is no torch.compile time.

    ``measured`` says whether the config enables torch.compile, and ``pending`` whether an engine may still time it.
    """
    compiled = problem.baselines.get("compile")
    if compiled is not None:
        return compiled.failure or "no time"
    if not measured:
        return "off"
    return "pending" if pending else problem.compile_skipped or "not measured"


def first_correct_ms(state: SessionState, problem: str) -> float | None:
    """Return the time of the problem's first correct kernel, from the kernel's own verdict.

    If this kernel is the best, return the best kernel's time, which a runoff may have measured again.
    """
    first = next((one for one in state.variants_of(problem) if one.correct), None)
    if first is None:
        return None
    figures = figures_of(state, first) if first.id == state.problems[problem].best else None
    return figures.ms if figures is not None else first.kernel_ms


def at_other_sizes(variant: VariantState) -> str:
    """Describe the kernel's results at other sizes, or return "" if it has none."""
    checked = variant.at_sizes
    return "" if checked is None else checked.note or sizes_in_words(checked.results)


def is_for_searched_sizes_only(variant: VariantState) -> bool:
    """Return whether the kernel was judged at other sizes and is correct at none of them."""
    return variant.at_sizes is not None and only_searched_sizes(variant.at_sizes.results)


def _degenerate(problem: ProblemState) -> str:
    return f"degenerate: {problem.degenerate} pass every check" if problem.degenerate else ""


def _disturbance(compiled: Baseline | None) -> str:
    return f"torch.compile was {disturbance(compiled)}" if compiled is not None and is_disturbed(compiled) else ""


def _remarks(state: SessionState, problem: ProblemState, compiled: Baseline | None) -> list[str | None]:
    known = [_degenerate(problem), problem.tightened, _disturbance(compiled)]
    if state.is_pruned(problem.id):
        return [*known, "pruned"]
    ended = problem.finished and end_words(state, problem.id, problem.finished)
    return [*known, ended, problem.cannot_write and f"needs seeded kernels: {problem.cannot_write}"]


def _row(state: SessionState, problem: ProblemState, directory: Path, without: str) -> ResultRow:
    judged = [one for one in state.variants_of(problem.id) if one.was_judged]
    best = state.variants[problem.best] if problem.best is not None else None
    verdict = best.verdict if best is not None else None
    theirs = verdict.kernelbench if verdict is not None else None
    compiled = problem.baselines.get("compile")
    compiled_ms = compile_ms(problem, best)
    best_ms = best.kernel_ms if best is not None else None
    paths, file = SessionPaths(directory), None
    if best is not None and not paths.is_packed:
        file = str(paths.best(problem.id, suffix_of(best.language)))
    return ResultRow(
        problem=problem.id,
        status=state.outcome(problem.id),
        rounds=problem.rounds[-1].number if problem.rounds else 0,
        verdicts=len(judged),
        correct=sum(one.correct for one in judged),
        eager_ms=problem.eager_ms(best),
        compile_ms=compiled_ms,
        compile_note="" if compiled_ms is not None else without,
        first_ms=first_correct_ms(state, problem.id),
        best_ms=best_ms,
        best=problem.best,
        speedup=verdict.speedup if verdict is not None else None,
        speedup_low=verdict.speedup_low if verdict is not None else None,
        speedup_high=verdict.speedup_high if verdict is not None else None,
        uncertain=is_uncertain(verdict),
        over_compile=over_compile(problem, verdict),
        compile_uncertain=compiled is not None and is_disturbed(compiled),
        over_compile_uncertain=best is not None
        and compiled_ms is not None
        and over_compile_is_uncertain(problem, best),
        sol_share=verdict.sol_share if verdict is not None else None,
        kernelbench=kernelbench_words(theirs) if theirs is not None else "",
        file=file,
        sizes=at_other_sizes(best) if best is not None else "",
        remark="; ".join(filter(None, _remarks(state, problem, compiled))),
    )
