"""What ``kernel-tui show`` prints: by default what fits on a screen, in columns; with ``--full`` all that is known."""

from __future__ import annotations

from rich.text import Text

from engine.session import SessionReader
from engine.state import ProblemState, SessionState, VariantState
from engine.verdict import Verdict
from tui.certainty import factor_words, round_factor_words
from tui.echo import echo
from tui.format import fit, milliseconds
from tui.results import Results
from tui.same_code import factor_in_words, twin_of
from tui.sanitize import clean_lines, one_line
from tui.tables import (
    columns,
    console,
    interval,
    print_at_sizes,
    print_marked,
    print_results,
    print_rounds,
    print_variants,
    print_verdict,
)

LABEL = 13
LEADERS = 5
PRINTED_LINES = 50_000
"""Of a source: what is longer is for a program to read."""


def show_session(state: SessionState, results: Results, head: str, argument: str, *, full: bool) -> None:
    """Results, then the rounds of every problem. ``argument``: what names the session on the command line."""
    echo(head)
    if results.problems:
        print_results(results)
    if full:
        print_rounds(state)
        return
    problems = list(state.problems.values())
    if any(problem.rounds for problem in problems):
        _print_round_table(problems, state)
    some = next((problem.best for problem in problems if problem.best is not None), next(iter(state.variants), None))
    if some is not None:
        echo(f"a kernel: kernel-tui show {argument} {some}    ideas and reasons: kernel-tui show {argument} --full")


def show_problem(state: SessionState, name: str, *, full: bool) -> None:
    problem = state.problems[name]
    echo(f"{name}: {problem.spec.path}")
    if full:
        echo(problem.header.strip())
        print_rounds(state, name)
        return
    for which, baseline in problem.baselines.items():
        took = f"{milliseconds(baseline.timing.median_ms)} ms" if baseline.timing is not None else baseline.failure
        took = ", ".join(filter(None, [took, baseline.disturbance]))
        _field("torch.compile" if which == "compile" else which, one_line(took or "no time"))
    _field("floor", f"{milliseconds(problem.floor_ms)} ms")
    if problem.degenerate:
        _field("degenerate", f"{problem.degenerate} pass every check: a win here says nothing")
    if problem.tightened:
        _field("remark", problem.tightened)
    _field("inputs", ", ".join(f"{one.name} {one.shape} {one.dtype}" for one in problem.spec.inputs))
    _print_round_table([problem], state)
    echo("fastest kernels")
    print_variants(state, [leader.id for leader in state.standing_order(name, LEADERS)])


def show_idea(state: SessionState, name: str) -> None:
    idea = state.ideas[name]
    echo(f"{name} of {idea.problem}, round {idea.round}, {idea.category}, by {idea.proposer}")
    for text in clean_lines(idea.text):
        console().print(Text(text))
    if idea.move:
        _field("move", one_line(idea.move))
    if idea.parent is not None:
        _field("works on", idea.parent)
    if idea.waiting:
        _field("waiting", one_line(idea.waiting))
    print_variants(state, idea.variants)


def show_variant(reader: SessionReader, state: SessionState, variant: VariantState, *, full: bool) -> None:
    """Raises SessionError if the source cannot be read (``full``)."""
    name = variant.id
    echo(f"{name} of {variant.idea} in {variant.problem}, round {variant.round}, by {variant.proposer}")
    _field("idea", one_line(state.ideas[variant.idea].text), whole=full)
    _field("lineage", " <- ".join(state.ancestors(name)), whole=full)
    if variant.note:
        _field("note", one_line(variant.note), whole=full)
    if why := variant.carried or variant.dropped:
        _field("carried" if variant.carried else "dropped", one_line(why), whole=full)
    if not full:
        _print_short(state, variant)
        return
    if variant.verdict is not None:
        print_verdict(name, variant.verdict)
    if variant.at_sizes is not None:
        print_at_sizes(variant.at_sizes.results) if variant.at_sizes.results else echo(variant.at_sizes.note)
    echo()
    for text in clean_lines(reader.text(variant.source), most=PRINTED_LINES, whole="--json has all of it"):
        echo(text)


def _print_short(state: SessionState, variant: VariantState) -> None:
    verdict = variant.verdict
    if verdict is None:
        _field("verdict", f"none yet: {variant.stage or 'not queued'}")
        return
    _field("verdict", verdict.status.replace("_", " ") + (f": {one_line(verdict.reason)}" if verdict.reason else ""))
    if (twin := twin_of(state, variant)) is not None:
        _field("time", f"{milliseconds(twin.kernel_ms)} ms, that of {twin.id}: not timed again")
        _field("x eager", factor_in_words(state, variant))
    if verdict.kernel is not None:
        eager = f", eager {milliseconds(verdict.reference.median_ms)} ms" if verdict.reference is not None else ""
        _field("time", f"{milliseconds(verdict.kernel.median_ms)} ms{eager}")
    if verdict.speedup is not None:
        between = interval(verdict.speedup_low, verdict.speedup_high)
        share = f"; {verdict.floor_share * 100:.0f} % of the floor" if verdict.floor_share is not None else ""
        _field("x eager", f"{factor_words(verdict)} (95 %: {between}){share}")
    if verdict.checks:
        _field("checks", _checks_in_words(verdict))
    if verdict.kernelbench is not None:
        _field("KernelBench", one_line(verdict.kernelbench.words))
    for flag in verdict.flags:
        _field("remark", one_line(flag))
    _field("", "--full has the evidence and the source")


def _checks_in_words(verdict: Verdict) -> str:
    failed = [check for check in verdict.checks if not check.passed]
    words = f"{len(verdict.checks) - len(failed)} of {len(verdict.checks)} passed"
    return words + "".join(f"; FAILED {check.name}: {one_line(check.detail)}" for check in failed)


def _field(label: str, value: str, *, whole: bool = False) -> None:
    """A labelled value; unless ``whole``, cut to the line."""
    out = console()
    room = max(20, out.width - LABEL - 2)
    out.print(Text(f"{label:<{LABEL}}  {value if whole else fit(value, room)}"), soft_wrap=whole)


def _print_round_table(problems: list[ProblemState], state: SessionState) -> None:
    figures = ("round", "ideas", "kernels", "correct", "best")
    table = columns("problem", *figures, "gain", "carried", right=(*figures, "gain"))
    for problem in problems:
        reached = 0.0
        for round_ in problem.rounds:
            best = state.best_of_round(problem.id, round_.number)
            gain = f"{(best / reached - 1) * 100:+.0f} %" if best is not None and reached else ""
            reached = max(reached, best or 0.0)
            table.add_row(
                problem.id if round_ is problem.rounds[0] else "",
                str(round_.number),
                str(len(round_.ideas)),
                str(len(round_.variants)),
                str(sum(state.variants[name].correct for name in round_.variants)),
                round_factor_words(state, problem.id, round_.number),
                gain,
                " ".join(one.variant for one in round_.survivors) or ("-" if round_.finished_at else "under way"),
            )
    print_marked(console(), table)
