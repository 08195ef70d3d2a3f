"""Print the output of ``kernel-tui show``: columns that fit a screen or, with ``--full``, everything."""

from __future__ import annotations

from rich.text import Text

from engine.config.tolerance import SessionTolerance, short_caption, tolerance_caption
from engine.session.records.speedup_text import WHY_ABOVE_SOL, interval, is_above_sol
from engine.session.records.verdict import Verdict
from engine.session.records.verdict_text import disturbance, kernelbench_words, speedup_words
from engine.session.state.session_state import ProblemState, SessionState, VariantState
from engine.session.store import SessionReader
from tui.compare.change import LEGEND, Change, change_of_round, change_words
from tui.console.clean_console import print_prose
from tui.console.echo import echo
from tui.console.tables import (
    columns,
    console,
    drop_columns,
    print_at_sizes,
    print_marked,
    print_results,
    print_rounds,
    print_variants,
    print_verdict,
)
from tui.text.certainty import PER_SEARCH, correction_words, remarks_of, round_speedup_words, sol_words
from tui.text.format import fit, milliseconds, transformation_label
from tui.text.glyphs import stage_words_with_reason
from tui.text.narration import repeat_words, undecided_words
from tui.text.program import as_typed
from tui.text.runoff_text import lost_runoff, scaled_words
from tui.text.same_code import speedup_in_words, twin_of
from tui.text.sanitize import clean_lines, one_line
from tui.view.results import Results
from tui.view.spend import count as spend_count
from tui.view.spend import money

LABEL = 14
LEADERS = 5
CORRECTED = "was: best at the round's end, before later runoffs, verdicts or prunes changed it"
"""Footnote for the column "was"."""
PRINTED_LINES = 50_000
"""Maximum number of source lines printed. ``--json`` prints longer sources in full."""


def show_session(
    state: SessionState, results: Results, head: str, argument: str, *, full: bool, to_time_compile: str = ""
) -> None:
    """Print the results, then each problem's rounds. ``argument`` names the session on the command line.
    ``to_time_compile`` says how to get missing torch.compile times.
    """
    echo(head)
    if results.problems:
        print_results(results, to_time_compile)
    _print_models(state)
    if full:
        print_rounds(state, results.tolerance)
        return
    problems = list(state.problems.values())
    if any(problem.rounds for problem in problems):
        _print_round_table(problems, state, results.tolerance)
    some = next((problem.best for problem in problems if problem.best is not None), next(iter(state.variants), None))
    if some is not None:
        echo(f"show a kernel: kernel-tui show {argument} {some}")
        echo(f"show everything: kernel-tui show {argument} --full")


def _print_models(state: SessionState) -> None:
    """Print the calls, tokens and dollars of each model."""
    spends = state.spending.model
    if not spends:
        return
    figures = ("calls", "tokens", "dollars", "unconfirmed")
    table = columns("model", *figures, right=figures)
    for name, spend in [*spends.items(), *([("all", state.spending.total)] if len(spends) > 1 else [])]:
        dollars = "unknown" if spend.unpriced else money(spend.dollars)
        unknown = f"up to {spend_count(spend.unknown.tokens)} tokens, {money(spend.unknown.dollars)}"
        table.add_row(Text(name), str(spend.calls), spend_count(spend.tokens), dollars,
                      unknown if spend.uncertain else "-")  # fmt: skip
    console().print(table)
    if any(spend.uncertain for spend in spends.values()):
        echo("unconfirmed: the provider never reported a cost; budgets assume the maximum")


def show_problem(state: SessionState, name: str, tolerance: SessionTolerance, *, full: bool) -> None:
    problem = state.problems[name]
    echo(f"{name}: {problem.spec.path}")
    if full:
        echo(problem.header.strip(), is_message=False)
        print_rounds(state, tolerance, name)
        return
    for which, baseline in problem.baselines.items():
        took = f"{milliseconds(baseline.timing.median_ms)} ms" if baseline.timing is not None else baseline.failure
        took = ", ".join(filter(None, [took, disturbance(baseline)]))
        _field("torch.compile" if which == "compile" else which, one_line(took or "no time"))
    _field("SOL", f"{milliseconds(problem.sol_ms)} ms")
    if problem.cannot_write is not None:
        _field("no proposer", one_line(problem.cannot_write), whole=True)
        for remedy in problem.remedies:
            for line in clean_lines(remedy):
                _field("", line, whole=True)
    if problem.degenerate:
        _field("degenerate", f"{problem.degenerate} pass every check, so speedups mean nothing here")
    if problem.tightened:
        _field("remark", problem.tightened)
    _field("inputs", ", ".join(f"{one.name} {one.shape} {one.dtype}" for one in problem.spec.inputs))
    _print_round_table([problem], state, tolerance)
    echo("fastest kernels")
    # Kernels that the runoffs overruled can have higher speedups than the best kernel.
    order = sorted(state.standing_order(name), key=lambda one: one.id != problem.best)
    print_variants(state, [leader.id for leader in order[:LEADERS]], tolerance)


def show_idea(state: SessionState, name: str, tolerance: SessionTolerance) -> None:
    idea = state.ideas[name]
    echo(f"{name} of {idea.problem}, round {idea.round}, {idea.category}, by {idea.proposer}")
    for text in clean_lines(idea.text):
        console().print(Text(text))
    if idea.transformation:
        name = one_line(idea.transformation)
        label = transformation_label(name)
        _field("transformation", label if label == name else f"{label} ({name})")
    if idea.parent is not None:
        _field("parent", idea.parent)
    if idea.needs_kernel:
        _field("waiting", one_line(idea.waiting or ""))
    for repeat in idea.repeats:
        _field("not judged", repeat_words(repeat))
    if idea.variants:
        print_variants(state, idea.variants, tolerance)
    else:
        final = "the idea is pruned" if state.is_pruned(idea.id) else "" if idea.needs_kernel else idea.waiting
        _field("kernels", f"none: {one_line(final)}" if final else "none yet", whole=True)


def show_variant(
    reader: SessionReader, state: SessionState, variant: VariantState, tolerance: SessionTolerance, *, full: bool
) -> None:
    """Print a kernel. ``full`` adds the evidence and the source. Raises SessionError if the source is unreadable."""
    name = variant.id
    echo(f"{name} of {variant.idea} in {variant.problem}, round {variant.round}, by {variant.proposer}")
    _field("idea", one_line(state.ideas[variant.idea].text), whole=full)
    _field("lineage", " <- ".join(state.ancestors(name)), whole=full)
    if variant.note:
        _field("note", one_line(variant.note), whole=full)
    if why := variant.selected_because or variant.dropped:
        _field("selected" if variant.selected_because else "dropped", one_line(why), whole=full)
    elif variant.correct and (ended := undecided_words(state, variant)):
        _field("not selected", ended, whole=full)
    if (problem := state.problems.get(variant.problem)) is not None and (lost := lost_runoff(problem, variant)):
        _field("lost runoff", lost, whole=full)
    if not full:
        _print_short(state, variant, tolerance)
        return
    if variant.verdict is not None:
        print_verdict(name, variant.verdict, tolerance)
    if (checked := variant.at_sizes) is not None:
        print_at_sizes(checked.results, tolerance) if checked.results else echo(checked.note)
    echo("source:")
    for text in clean_lines(
        reader.text(variant.source), most=PRINTED_LINES, whole="to print the whole source, add --json"
    ):
        echo(text, is_message=False)


def _print_short(state: SessionState, variant: VariantState, tolerance: SessionTolerance) -> None:
    verdict = variant.verdict
    if verdict is None:
        _field("verdict", f"none: {stage_words_with_reason(state, variant)}")
        return
    _field("verdict", verdict.status.replace("_", " ") + (f": {one_line(verdict.reason)}" if verdict.reason else ""))
    if (twin := twin_of(state, variant)) is not None:
        _field("time", f"{milliseconds(twin.kernel_ms)} ms, measured on {twin.id} (same machine code)")
        _field("speedup", f"{speedup_in_words(state, variant)} ({short_caption(tolerance)})")
    if verdict.kernel is not None:
        eager = f", eager {milliseconds(verdict.reference.median_ms)} ms" if verdict.reference is not None else ""
        _field("time", f"{milliseconds(verdict.kernel.median_ms)} ms{eager}")
    if verdict.speedup is not None:
        between = interval(verdict.speedup_low, verdict.speedup_high)
        _field("speedup", f"{speedup_words(verdict)} (95%: {between}; {short_caption(tolerance)})")
    if (sol := sol_words(verdict, PER_SEARCH)) is not None:
        _field("% SOL", sol)
        if is_above_sol(verdict.sol_share):
            _field("", WHY_ABOVE_SOL, whole=True)
    if scaled := scaled_words(state, variant):
        _field("in tables", scaled)
    if verdict.checks:
        _field("checks", _checks_in_words(verdict))
    if verdict.kernelbench is not None:
        _field("KernelBench", one_line(kernelbench_words(verdict.kernelbench)))
    for flag in remarks_of(verdict):
        _field("remark", one_line(flag))
    _field("", "--full adds the evidence and the source")


def _checks_in_words(verdict: Verdict) -> str:
    failed = [check for check in verdict.checks if not check.passed]
    words = f"{len(verdict.checks) - len(failed)} of {len(verdict.checks)} passed"
    return words + "".join(f"; FAILED {check.name}: {one_line(check.detail)}" for check in failed)


def _field(label: str, value: str, *, whole: bool = False) -> None:
    """Print a labeled value, cut to the width of the console unless ``whole``."""
    out = console()
    value, room = as_typed(value), max(20, out.width - LABEL - 2)
    print_prose(out, f"{label:<{LABEL}}  {value if whole else fit(value, room)}", indent=LABEL + 2)


def _gain_words(change: Change | None) -> str:
    """Format a round's gain, or return "" if the gain is unknown or uncertain."""
    return "" if change is None or change.uncertain else change_words(change)


def _print_round_table(problems: list[ProblemState], state: SessionState, tolerance: SessionTolerance) -> None:
    corrected = any(correction_words(state, round_) for problem in problems for round_ in problem.rounds)
    not_judged = any(state.not_judged(problem.id) for problem in problems)
    figures = ("round", "ideas", "kernels", "correct", *(["not judged"] if not_judged else []), "best")
    figures += ("was",) if corrected else ()
    table = columns("problem", *figures, "gain", "selected", right=(*figures, "gain"))
    for problem in problems:
        for round_ in problem.rounds:
            table.add_row(
                problem.id if round_ is problem.rounds[0] else "",
                str(round_.number),
                str(len(round_.ideas)),
                str(len(round_.variants)),
                str(sum(state.variants[name].correct for name in round_.variants)),
                *([str(sum(name in state.flight for name in round_.variants))] if not_judged else []),
                round_speedup_words(state, problem.id, round_.number),
                *([correction_words(state, round_).removeprefix("was ")] if corrected else []),
                _gain_words(change_of_round(state, problem, round_.number)),
                " ".join(one.variant for one in round_.selected)
                or ("-" if round_.finished_at else "unfinished" if state.at_rest else "running"),
            )
    out = console()
    caption = f"{tolerance_caption(tolerance)}; {LEGEND}" + f"; {CORRECTED}" * corrected
    print_marked(out, drop_columns(out, table, ("ideas", "kernels")), caption)
