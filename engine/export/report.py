"""A report of a search in Markdown: a table, then for each problem how its best kernel came about, and the kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import exp, log

from engine.factor import MARK, UNSURE, marked
from engine.nodes import ProblemState, VariantState
from engine.state import SessionState
from engine.verdict import Baseline

_FENCES = {"cpp": "cpp", "cu": "cuda", "py": "python"}


def report(state: SessionState, text: Callable[[str], str]) -> str:
    """The whole report. ``text`` reads a blob of the session."""
    devices = ", ".join(device.name for device in state.devices.values()) or "no device"
    judged = state.verdicts
    correct = sum(variant.correct for variant in state.variants.values())
    found = [
        f"# {_line(state.name)}",
        f"{judged} kernels judged on {_line(devices)}, {correct} of them correct, from {len(state.ideas)} ideas;"
        f" written by kernel-tui {state.version}.",
        _summary(state),
    ]
    for problem in state.problems.values():
        found += _problem(state, problem, text)
    for refused in state.refused.values():
        found.append(f"{_line(refused.problem)} was not searched: {_line(refused.reason)}.")
    if any(f"| {MARK}" in part for part in found):
        found.append(f"{UNSURE}.")
    return "\n\n".join(part for part in found if part) + "\n"


def _summary(state: SessionState) -> str:
    rows, factors, unsure = [], [], False
    for problem in state.problems.values():
        best, first = _best(state, problem), _first(state, problem)
        eager_ms, compiled = problem.eager_ms(best), problem.baselines.get("compile")
        factor = best.speedup if best is not None else None
        factors += [factor] if factor is not None else []
        unsure |= best is not None and best.verdict is not None and best.verdict.hardly_known
        rows.append(
            [
                problem.spec.id,
                f"{eager_ms:.4g}" if eager_ms is not None else "-",
                _baseline(compiled),
                _ms(first),
                _ms(best),
                _factor(best),
                _share(best),
                _by_kernelbench(best),
            ]
        )
    head = ["problem", "eager ms", "torch.compile ms", "first correct ms", "best ms", "x eager, 95 %", "of the floor",
            "by KernelBench's rules"]  # fmt: skip
    table = _table(head, rows)
    if len(factors) > 1:
        mean = exp(sum(log(factor) for factor in factors) / len(factors))
        table += f"\n\nGeometric mean of the factors over eager: {marked(f'{mean:.3g}', unsure)}."
    return table


def _problem(state: SessionState, problem: ProblemState, text: Callable[[str], str]) -> list[str]:
    best = _best(state, problem)
    found = [f"## {_line(problem.spec.id)}"]
    if best is None:
        return [*found, f"No correct kernel among {len(problem.variants)}."]
    rows = []
    for name in reversed(state.ancestors(best.id)):
        variant = state.variants[name]
        idea = state.ideas.get(variant.idea)
        words = f"{idea.category}: {idea.text}" if idea is not None else ""
        rows.append([str(variant.round), variant.id, _ms(variant), _factor(variant), words, variant.note])
    found.append(f"How {best.id} came about, by the ideas that led to it:")
    found.append(_table(["round", "kernel", "ms", "x eager, 95 %", "idea", "note"], rows))
    source = text(best.source)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", source)), default=0))
    return [*found, f"{fence}{_FENCES[best.form]}\n{source.rstrip()}\n{fence}"]


def _best(state: SessionState, problem: ProblemState) -> VariantState | None:
    return state.variants.get(problem.best) if problem.best is not None else None


def _first(state: SessionState, problem: ProblemState) -> VariantState | None:
    return next((variant for variant in state.variants_of(problem.spec.id) if variant.correct), None)


def _baseline(baseline: Baseline | None) -> str:
    if baseline is None or baseline.timing is None:
        return "-"
    return f"{baseline.timing.median_ms:.4g}" + (f" ({baseline.disturbance})" if baseline.disturbed else "")


def _ms(variant: VariantState | None) -> str:
    timing = variant.verdict.kernel if variant is not None and variant.verdict is not None else None
    return f"{timing.median_ms:.4g}" if timing is not None else "-"


def _factor(variant: VariantState | None) -> str:
    verdict = variant.verdict if variant is not None else None
    if verdict is None or verdict.speedup is None:
        return "-"
    figure = marked(f"{verdict.speedup:.3g}", verdict.hardly_known)
    if verdict.speedup_low is None or verdict.speedup_high is None:
        return figure
    return f"{figure} [{verdict.speedup_low:.3g}, {verdict.speedup_high:.3g}]"


def _share(variant: VariantState | None) -> str:
    share = variant.verdict.floor_share if variant is not None and variant.verdict is not None else None
    return f"{share:.0%}" if share is not None else "-"


def _by_kernelbench(variant: VariantState | None) -> str:
    verdict = variant.verdict if variant is not None else None
    return verdict.kernelbench.outcome if verdict is not None and verdict.kernelbench is not None else "-"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_line(cell).replace("|", "\\|") for cell in row) + " |" for row in lines)


def _line(words: str) -> str:
    """Text of whoever wrote it, on one line."""
    return " ".join(words.split())
