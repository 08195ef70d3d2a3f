"""Report on a search in Markdown: a table of results, then the lineage and source of each problem's best kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import exp, log

from engine.config.tolerance import short_caption, tolerance_of, tolerance_words
from engine.problem.spec import LANGUAGE_NAMES
from engine.session.records.speedup_text import MARK, footnotes, marked, sol_percent
from engine.session.records.verdict import Baseline
from engine.session.records.verdict_text import disturbance, is_disturbed, is_uncertain, kernelbench_outcome
from engine.session.state.nodes import ProblemState, VariantState
from engine.session.state.over_compile import compile_ms
from engine.session.state.session_state import SessionState


def report(state: SessionState, text: Callable[[str], str]) -> str:
    """Return the report as Markdown. ``text`` reads a blob of the session."""
    devices = ", ".join(device.name for device in state.devices.values()) or "no device"
    judged = state.verdicts
    correct = sum(variant.correct for variant in state.variants.values())
    tolerance = tolerance_of(state.config, text)
    over_eager = f"speedup over eager [95% interval] ({short_caption(tolerance)})"
    found = [
        f"# {_line(state.name)}",
        (
            f"The judge evaluated {judged} kernels from {len(state.ideas)} ideas on {_line(devices)}; {correct} were "
            f"correct. kernel-tui {state.version} wrote this report. A kernel is correct if its outputs are within "
            f"tolerance {tolerance_words(tolerance)}."
        ),
        _summary(state, over_eager),
    ]
    for problem in state.problems.values():
        found += _problem(state, problem, text, over_eager)
    for refused in state.refused.values():
        found.append(f"kernel-tui skipped {_line(refused.problem)}: {_line(refused.reason)}.")
    uncertain = any(re.search(rf"\| {MARK}\d[^%|]*\|", part) for part in found)
    above_sol = any(re.search(rf"\| {MARK}\d+% \|", part) for part in found)
    found += [f"{note}." for note in footnotes(uncertain=uncertain, above_sol=above_sol)]
    return "\n\n".join(part for part in found if part) + "\n"


def _summary(state: SessionState, over_eager: str) -> str:
    """Return the table of results. ``over_eager``: the header of the speedup column."""
    rows, speedups, uncertain = [], [], False
    for problem in state.problems.values():
        best, first = _best(state, problem), _first(state, problem)
        eager_ms, compiled = problem.eager_ms(best), problem.baselines.get("compile")
        speedup = best.speedup if best is not None else None
        speedups += [speedup] if speedup is not None else []
        uncertain |= best is not None and is_uncertain(best.verdict)
        rows.append(
            [
                problem.spec.id,
                f"{eager_ms:.4g}" if eager_ms is not None else "-",
                _baseline(compiled, compile_ms(problem, best)),
                _ms(first),
                _ms(best),
                _speedup(best),
                _share(best),
                _by_kernelbench(best),
            ]
        )
    head = ["problem", "eager ms", "torch.compile ms", "first correct ms", "best ms", over_eager, "% SOL",
            "by KernelBench's rules"]  # fmt: skip
    table = _table(head, rows)
    if len(speedups) > 1:
        mean = exp(sum(log(speedup) for speedup in speedups) / len(speedups))
        table += f"\n\nGeometric mean of the speedups over eager: {marked(f'{mean:.3g}', uncertain)}."
    return table


def _problem(state: SessionState, problem: ProblemState, text: Callable[[str], str], over_eager: str) -> list[str]:
    best = _best(state, problem)
    found = [f"## {_line(problem.spec.id)}"]
    if state.is_pruned(problem.spec.id):
        return [*found, "A person pruned this problem."]
    if best is None:
        return [*found, f"None of the {len(problem.variants)} kernels is correct."]
    if problem.tightened:
        found.append(f"Remark: {_line(problem.tightened)}.")
    rows = []
    for name in reversed(state.ancestors(best.id)):
        variant = state.variants[name]
        idea = state.ideas.get(variant.idea)
        words = f"{idea.category}: {idea.text}" if idea is not None else ""
        rows.append([str(variant.round), variant.id, _ms(variant), _speedup(variant), words, variant.note])
    found.append(f"Lineage of {best.id}, by idea:")
    found.append(_table(["round", "kernel", "ms", over_eager, "idea", "note"], rows))
    source = text(best.source)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", source)), default=0))
    return [*found, f"{fence}{LANGUAGE_NAMES[best.language]}\n{source.rstrip()}\n{fence}"]


def _best(state: SessionState, problem: ProblemState) -> VariantState | None:
    return state.variants.get(problem.best) if problem.best is not None else None


def _first(state: SessionState, problem: ProblemState) -> VariantState | None:
    return next((variant for variant in state.variants_of(problem.spec.id) if variant.correct), None)


def _baseline(baseline: Baseline | None, ms: float | None) -> str:
    if baseline is None or ms is None:
        return "-"
    figure = marked(f"{ms:.4g}", is_disturbed(baseline))
    return f"{figure} ({disturbance(baseline)})" if is_disturbed(baseline) else figure


def _ms(variant: VariantState | None) -> str:
    timing = variant.verdict.kernel if variant is not None and variant.verdict is not None else None
    return f"{timing.median_ms:.4g}" if timing is not None else "-"


def _speedup(variant: VariantState | None) -> str:
    verdict = variant.verdict if variant is not None else None
    if verdict is None or verdict.speedup is None:
        return "-"
    figure = marked(f"{verdict.speedup:.3g}", is_uncertain(verdict))
    if verdict.speedup_low is None or verdict.speedup_high is None:
        return figure
    return f"{figure} [{verdict.speedup_low:.3g}, {verdict.speedup_high:.3g}]"


def _share(variant: VariantState | None) -> str:
    share = variant.verdict.sol_share if variant is not None and variant.verdict is not None else None
    return f"{sol_percent(share)}%" if share is not None else "-"


def _by_kernelbench(variant: VariantState | None) -> str:
    verdict = variant.verdict if variant is not None else None
    return kernelbench_outcome(verdict.kernelbench) if verdict is not None and verdict.kernelbench is not None else "-"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_line(cell).replace("|", "\\|") for cell in row) + " |" for row in lines)


def _line(words: str) -> str:
    """Format ``words`` as one line. Text from proposers may contain line breaks, which would break a table."""
    return " ".join(words.split())
