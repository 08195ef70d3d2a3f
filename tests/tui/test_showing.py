"""Output for newcomers: complete help, working problem names, a search on one screen, the winner of a comparison."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from textual.strip import Strip

from benchmarks.synthetic_session import CPU, Search, Shape, write_session
from engine.exit_codes import ExitCode
from engine.export.training import records
from engine.session.records.counters import DRAM, SM, TIME, KernelCounters, bottleneck_of
from engine.session.records.events import (
    BY_HAND,
    EngineStopped,
    IdeaProposed,
    IdeaWaiting,
    ModelCallFailed,
    ModelCallStarted,
    NodePruned,
    Profiled,
    Recorded,
    RoundFinished,
    RoundStarted,
    RunoffFinished,
    VerdictGiven,
)
from engine.session.records.model_calls import CallSite
from engine.session.records.speedup_text import ABOVE_SOL, UNCERTAIN, WHY_ABOVE_SOL, speedup
from engine.session.records.verdict import KernelBenchVerdict, Launch, Standing, Timing, Verdict
from engine.session.records.verdict_text import speedup_words
from engine.session.state.comparable import figures_of
from engine.session.state.session_state import SessionState, fold
from engine.session.store import EngineLock, EventWriter, SessionPaths, SessionReader
from tests.commandline import ROOT, KernelTui
from tui.compare.kernels import compare_kernels
from tui.console import tables
from tui.console.clean_console import clean_console
from tui.console.tables import print_comparison
from tui.headless.follow import follow
from tui.monitor.panes.detail.evidence import evidence_lines
from tui.monitor.panes.detail.story import idea_lines
from tui.monitor.panes.leaders import leader_lines
from tui.monitor.panes.tree.tree_lines import RowLines
from tui.monitor.terminal.farewell import print_parting
from tui.monitor.theme.palette import monochrome
from tui.text.narration import Reported, line_of
from tui.text.story import fold_with_story
from tui.view.model import Model
from tui.view.results import ResultRow, Results
from tui.view.row import Row
from tui.view.source import Link, SessionSource

SHAPE = Shape(variants=60, problems=2, rounds=3, flying=0, device=CPU)


@pytest.fixture
def session(tmp_path: Path) -> SessionPaths:
    return write_session(tmp_path / "sessions", "small", SHAPE)


@pytest.fixture
def attended(tmp_path: Path) -> SessionPaths:
    """The same project, in which a model was also called."""
    shape = Shape(variants=60, problems=2, rounds=3, flying=0, device=CPU, attended=True)
    return write_session(tmp_path / "sessions", "small", shape)


def test_every_summary_fits_in_80_columns(kernel_tui: KernelTui) -> None:
    text = kernel_tui("--help", env={"COLUMNS": "80"}).stdout
    commands = text[text.index("Commands:") : text.index("Exit codes:")]
    assert len(commands.splitlines()) > 20
    assert "..." not in commands


def test_problems_are_named_as_problem_options_take_them(kernel_tui: KernelTui) -> None:
    text = kernel_tui("problems", "builtin:quickstart/softmax").stdout
    assert "builtin:quickstart/softmax " in text
    (row,) = kernel_tui.json("problems", "builtin:quickstart/softmax")
    assert row["reference"] == "builtin:quickstart/softmax"
    (kernel_tui.directory / "k.cpp").write_text("int x;\n")
    refused = kernel_tui("build", "k.cpp", "--problem", "softmax")
    assert refused.returncode == ExitCode.USAGE
    assert "builtin:quickstart/softmax" in refused.stderr


def test_what_is_misspelt_is_answered_with_what_may_be_meant(kernel_tui: KernelTui, session: SessionPaths) -> None:
    node = kernel_tui("show", "small", "v999")
    assert node.returncode == ExitCode.USAGE and "no problem, idea or kernel v999" in node.stderr
    name = kernel_tui("show", "smal")
    assert name.returncode == ExitCode.NO_SESSION and "did you mean small?" in name.stderr
    kernels = kernel_tui("compare", "v1", "v2", "--problem", "softmax")
    assert kernels.returncode == ExitCode.USAGE and "kernel-tui export SESSION v1" in kernels.stderr
    (kernel_tui.directory / "k.cpp").write_text("int x;\n")
    problem = kernel_tui("eval", "k.cpp", "--problem", "rmsnorm")
    assert problem.returncode == ExitCode.USAGE and "did you mean builtin:quickstart/rmsnorm" in problem.stderr
    misspelt = kernel_tui("eval", "k.cpp", "--problem", "builtin:rmsnrm")
    assert misspelt.returncode == ExitCode.USAGE and "did you mean builtin:quickstart/rmsnorm?" in misspelt.stderr
    seeded = kernel_tui("seed-idea", "small", "faster", "--problem", "softmx")
    assert seeded.returncode == ExitCode.USAGE and "did you mean softmax? It has" in seeded.stderr
    exported = kernel_tui("export", "small", "--best", "softmx")
    assert exported.returncode == ExitCode.USAGE and "did you mean softmax?" in exported.stderr


def test_a_config_is_told_all_that_is_wrong_at_once(kernel_tui: KernelTui) -> None:
    (kernel_tui.directory / "c.toml").write_text('problems = ["builtin:quickstart/sofmax"]\nfoo = 1\n')
    told = kernel_tui("c.toml", "--headless")
    assert told.returncode == ExitCode.USAGE
    assert "foo: unknown key" in told.stderr
    assert "did you mean builtin:quickstart/softmax?" in told.stderr


def test_show_says_that_an_idea_has_no_kernel(kernel_tui: KernelTui, session: SessionPaths) -> None:
    about: dict[str, Any] = {"problem": "softmax", "round": 2, "parent": "v1", "category": "memory", "proposer": "you"}
    writer = EventWriter(session)
    writer.append(IdeaProposed(idea="i90", text="keep the row in registers", **about))
    writer.append(IdeaProposed(idea="i91", text="use tiles", **{**about, "proposer": "playbook"}))
    writer.append(IdeaWaiting(idea="i91", reason="the playbook has no untried kernel for this idea"))
    writer.append(IdeaProposed(idea="i92", text="use fewer passes", **{**about, "proposer": BY_HAND}))
    writer.append(IdeaWaiting(idea="i92", reason="no proposer in this session reads free text"))
    writer.close()
    lines = kernel_tui("show", "small", "i90").stdout.splitlines()
    assert lines[:2] == ["i90 of softmax, round 2, memory, by you", "keep the row in registers"]
    assert lines[-1].split() == ["kernels", "none", "yet"] and "verdict" not in "".join(lines)
    tried = " ".join(kernel_tui("show", "small", "i91").stdout.split())
    assert tried.endswith("kernels none: the playbook has no untried kernel for this idea")
    assert "waiting" not in tried and "yet" not in tried
    unwritten = " ".join(kernel_tui("show", "small", "i92").stdout.split())
    assert unwritten.endswith("waiting no proposer in this session reads free text kernels none yet")


def test_attach_without_a_name_opens_the_only_running_session(kernel_tui: KernelTui, session: SessionPaths) -> None:
    assert kernel_tui("attach", "--once").returncode == ExitCode.USAGE
    write_session(session.directory.parent, "other", Shape(variants=4, problems=1, rounds=1, flying=0, device=CPU))
    lock = EngineLock(session)
    shown = kernel_tui("attach", "--once")
    lock.release()
    assert shown.returncode == 0 and "geomean 2/2" in shown.stdout.splitlines()[0]
    assert "config.toml: no such file" in kernel_tui("run").stderr, "run reads config.toml here"


def test_resume_without_a_name_points_to_the_running_search(kernel_tui: KernelTui, session: SessionPaths) -> None:
    lock = EngineLock(session)
    refused = kernel_tui("resume")
    lock.release()
    assert refused.returncode == ExitCode.USAGE
    assert "small is still searching; to watch it: kernel-tui attach small" in refused.stderr


def test_show_says_what_a_dead_engine_interrupted(kernel_tui: KernelTui, session: SessionPaths) -> None:
    shape = Shape(variants=9, problems=1, rounds=1, flying=4, device=CPU)
    with SessionReader(write_session(session.directory.parent, "dead", shape)) as reader:
        state, _ = fold_with_story(reader.read())
    busy = next(one.id for one in state.in_flight() if one.stage != "queued")
    text = kernel_tui("show", "dead").stdout
    assert "the engine died; resume with: kernel-tui resume" in text
    assert " running\n" not in text and "unfinished" in text
    assert "none: interrupted" in kernel_tui("show", "dead", busy).stdout


def test_show_fits_on_a_screen_and_full_has_everything(kernel_tui: KernelTui, session: SessionPaths) -> None:
    short = kernel_tui("show", "small").stdout
    assert len(short.splitlines()) <= 30
    assert re.search(r"^ layernorm +0 +", short, re.MULTILINE), "a row for each round"
    full = kernel_tui("show", "small", "--full").stdout
    assert "Double-buffer the tiles with cp.async" not in short
    assert "Double-buffer the tiles with cp.async" in full
    (best,) = (row["best"] for row in kernel_tui.json("show", "small")["problems"] if row["problem"] == "softmax")
    kernel = kernel_tui("show", "small", best).stdout
    assert len(kernel.splitlines()) <= 12 and "checks" in kernel and "cuda_runtime" not in kernel
    whole = kernel_tui("show", "small", best, "--full").stdout
    assert "cuda_runtime" in whole and "\n\n\n" not in whole
    assert "fastest kernels" in kernel_tui("show", "small", "softmax").stdout


def test_the_best_kernel_is_the_first_of_a_problems_fastest_kernels(
    kernel_tui: KernelTui, session: SessionPaths
) -> None:
    state = opened(session).state
    *ahead, best = state.leaders("softmax", 7)
    writer = EventWriter(session)
    for one in ahead:  # The intervals are wide, so that a tied kernel with a narrow interval wins the runoff.
        known = one.verdict
        assert known is not None and known.speedup is not None
        wide = replace(known, speedup_low=known.speedup * 0.6, speedup_high=known.speedup * 1.4)
        writer.append(VerdictGiven(variant=one.id, verdict=wide))
    ratios = [(one.id, 1 + place / 100) for place, one in enumerate([*ahead, best])]
    standings = tuple(Standing(name, 3.0 * ratio, ratio, 0.9, 1.1, True) for name, ratio in ratios)
    writer.append(RunoffFinished(problem="softmax", round=2, standings=standings))
    writer.close()
    state = opened(session).state
    assert state.problems["softmax"].best == best.id
    assert best.id not in [one.id for one in state.standing_order("softmax", 5)]
    table = kernel_tui("show", "small", "softmax").stdout.partition("fastest kernels")[2]
    listed = re.findall(r"^ *(v\d+) ", table, re.MULTILINE)
    assert len(listed) == 5 and listed[0] == best.id


def test_a_kernel_with_the_machine_code_of_another_shows_its_times(
    kernel_tui: KernelTui, session: SessionPaths
) -> None:
    state = opened(session).state
    first, *others = [one for one in state.variants_of("softmax") if one.correct]
    same = others[-1]
    assert first.verdict is not None
    verdict = replace(
        first.verdict, reason=f"same machine code as {first.id}", same_code_as=first.id, speedup=None, kernel=None
    )
    lock, writer = EngineLock(session), EventWriter(session)
    writer.append(VerdictGiven(variant=same.id, verdict=verdict))
    writer.close()
    lock.release()
    model = opened(session)
    figure = speedup(first.speedup)
    shown = kernel_tui("show", "small", same.id).stdout
    assert f"= {first.id} {figure}" in shown and f"measured on {first.id}" in shown
    assert f"= {first.id} {figure}" in kernel_tui("show", "small", same.idea).stdout
    assert f"{same.id} = {first.id} {figure}" in "".join(
        strip.text for strip in idea_lines(model, model.state.ideas[same.idea], monochrome(), 100)
    )
    row = RowLines(model, monochrome(), ascii_only=False).draw(Row("variant", same.id, 3), 100).text
    assert f"{same.id}  = {first.id}  " in row and figure in row


def test_a_pruned_kernel_still_shows_why_it_failed(session: SessionPaths) -> None:
    model = opened(session)
    failed = next(one for one in model.state.variants.values() if one.was_judged and not one.correct)
    assert failed.verdict is not None
    model.state.pruned.add(failed.id)
    status = failed.verdict.status.replace("_", " ")
    assert status in RowLines(model, monochrome(), ascii_only=False).draw(Row("variant", failed.id, 3), 100).text
    shown = "\n".join(one.text for one in evidence_lines(model, failed, monochrome(), 120))
    assert status in shown and failed.verdict.reason.split()[0] in shown


def test_launches_and_hardware_counters_are_evidence_and_training_data(session: SessionPaths) -> None:
    state = opened(session).state
    name = state.problems["softmax"].best
    assert name is not None
    verdict = state.variants[name].verdict
    assert verdict is not None
    launch = Launch("rows", (500, 1, 1), (256, 1, 1), 40, 1024, 65536, 0, 3)
    counters = (KernelCounters("rows", {DRAM: 91.2, SM: 12.0, TIME: 42_500.0}),)
    lock, writer = EngineLock(session), EventWriter(session)
    writer.append(VerdictGiven(variant=name, verdict=replace(verdict, launches=(launch,))))
    writer.append(
        Profiled(variant=name, launches=counters, bottleneck=bottleneck_of(counters), report="profiles/v1.ncu-rep")
    )
    writer.close()
    lock.release()
    model = opened(session)
    shown = "\n".join(one.text for one in evidence_lines(model, model.state.variants[name], monochrome(), 120))
    words = "rows: 500 blocks of 256 threads, 40 registers per thread, 1,024 B static, 65,536 B dynamic shared memory"
    assert words in shown
    assert re.search(r"bottleneck +memory", shown) and "rows, 42.5 us: DRAM 91%, SM pipes 12%" in shown
    assert "profiles/v1.ncu-rep, for Nsight Compute" in shown
    with SessionReader(session) as reader:
        (line,) = (one for one in records(model.state, reader.text) if one.kernel.variant == name)
    assert line.kernel.outcome is not None
    assert (line.kernel.outcome.bottleneck, line.kernel.outcome.launches) == ("memory", (launch,))


def test_a_best_kernel_that_kernelbench_would_refuse_says_so_wherever_it_stands(
    session: SessionPaths, kernel_tui: KernelTui, capsys: pytest.CaptureFixture[str]
) -> None:
    state = opened(session).state
    best, other = state.problems["softmax"].best, state.problems["layernorm"].best
    assert best is not None and other is not None
    wrong = KernelBenchVerdict(status="wrong", reason="trial 0: not within 0.0001")
    lock, writer = EngineLock(session), EventWriter(session)
    for name, theirs in ((best, wrong), (other, KernelBenchVerdict(status="correct", reason="5 trials", speedup=2.5))):
        verdict = state.variants[name].verdict
        assert verdict is not None
        writer.append(VerdictGiven(variant=name, verdict=replace(verdict, kernelbench=theirs)))
    writer.close()
    lock.release()
    model, palette = opened(session), monochrome()
    softmax, layernorm = model.state.problems["softmax"], model.state.problems["layernorm"]
    assert (softmax.best, layernorm.best) == (best, other), "it decides nothing"

    def shown(strips: list[Strip]) -> str:
        return "\n".join(strip.text for strip in strips)

    words = "wrong (trial 0: not within 0.0001)"
    assert f"KernelBench  {words}" in shown(evidence_lines(model, model.state.variants[best], palette, 100))
    fine = shown(evidence_lines(model, model.state.variants[other], palette, 100))
    assert "KernelBench  correct, 2.50x (5 trials)" in fine
    assert "wrong by KernelBench's rules" in shown(leader_lines(model, softmax, palette, ascii_only=False))
    narrow = shown(leader_lines(model, softmax, palette, ascii_only=False, width=70, room=1))
    assert "!KB " in narrow and "KernelBench" not in narrow
    assert "KernelBench" not in shown(leader_lines(model, layernorm, palette, ascii_only=False))
    sides = compare_kernels(model.state, [best, other], "kernelbench")
    (row,) = (one for part in sides.sections for one in part.rows if one.label == "KernelBench")
    assert [cell.text for cell in row.cells] == ["wrong", "correct, 2.50x"]
    tables.print_verdict(best, model.state.variants[best].verdict or Verdict(status="error"))
    assert re.search(rf"KernelBench's rules +{re.escape(words)}", capsys.readouterr().out)
    results = kernel_tui("show", "small").stdout
    assert f"softmax: under KernelBench's rules {best} is {words}" in results and f"rules {other}" not in results
    by_problem = {row["problem"]: row["kernelbench"] for row in kernel_tui.json("show", "small")["problems"]}
    assert by_problem == {"softmax": words, "layernorm": "correct, 2.50x (5 trials)"}


def test_show_names_the_two_times_of_a_sol(tmp_path: Path) -> None:
    run = KernelTui(tmp_path)
    for options in ((), ("--full",)):
        shown = run("show", "by-hand", "v34", *options).stdout
        found = re.search(r"% SOL +(\d+)% = SOL ([\d.]+) ms \(measured once per search\) / kernel ([\d.]+) ms", shown)
        assert found is not None, shown
        share, bound, kernel = map(float, found.groups())
        assert share == pytest.approx(100 * bound / kernel, abs=0.6)


def test_the_leaders_say_which_figures_are_a_kernels_own(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        state = fold(reader.read())
    model = Model(SessionSource(session, read_only=True), state=state)
    softmax = state.problems["softmax"]
    timed = {one.variant for one in softmax.standings}
    text = [strip.text for strip in leader_lines(model, softmax, monochrome(), ascii_only=False, width=58, room=40)]
    rows = {found[1]: line for line in text if (found := re.match(r" +\d+ [★ ] (v\d+) ", line))}
    outside = {name: state.variants[name] for name in rows if name not in timed}
    assert timed & rows.keys() and outside, text
    for name, variant in outside.items():
        scaled = (figures := figures_of(state, variant)) is not None and figures.scaled
        assert ("  earlier  " if scaled else "  own  ") in rows[name]
    assert not any(" own " in rows[name] or " earlier " in rows[name] for name in timed & rows.keys())


def test_the_results_fit_in_80_columns_without_a_broken_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def console() -> Console:
        found = clean_console(80)
        found.file = sys.stdout
        return found

    monkeypatch.setattr(tables, "console", console)
    name = "conv2d_relu_maxpool"
    row = ResultRow(problem=name, eager_ms=4.1, compile_ms=3.2, best_ms=0.4, speedup=9.87, speedup_low=9.7,
                    speedup_high=10.1, over_compile=7.8, sol_share=0.6)  # fmt: skip
    tables.print_results(Results("small", "finished", 1.0, 9, (row,)))
    text = capsys.readouterr().out
    assert name in text and "speedup" in text and "9.87x" in text and "9.70-10.10" in text
    assert all(len(one) <= 80 and one == one.rstrip() for one in text.splitlines())


def test_compare_says_which_is_the_fastest(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "console", lambda: Console(width=120, highlight=False))
    verdict = Verdict(status="correct", speedup=2.0, kernel=Timing(1.0, 1.0, 1.0, 9))
    first, second = Standing("b.cpp", 1.0, 1.0, 1.0, 1.0, False), Standing("a.cpp", 1.5, 1.5, 1.4, 1.6, False)
    print_comparison({"a.cpp": verdict, "b.cpp": verdict}, (first, second))
    text = capsys.readouterr().out
    assert re.search(r"FASTEST +b\.cpp", text) and re.search(r"slower +a\.cpp", text)
    assert "b.cpp is faster: a.cpp takes 1.50 times as long." in text
    print_comparison({"a.cpp": verdict, "b.cpp": verdict}, (first, Standing("a.cpp", 1.0, 1.0, 0.99, 1.01, True)))
    text = capsys.readouterr().out
    assert "FASTEST" not in text and "b.cpp and a.cpp are tied" in text


def test_leaving_a_finished_search_leaves_its_results_in_the_terminal(
    session: SessionPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    lock, writer = EngineLock(session), EventWriter(session)
    writer.append(EngineStopped(reason="finished", message="done"))
    writer.close()
    lock.release()
    print_parting(opened(session), session)
    text = capsys.readouterr().out
    assert "best softmax: v" in text and "speedup" in text
    assert "The search small is finished." in text


def test_json_says_that_an_engine_died(session: SessionPaths, capsys: pytest.CaptureFixture[str]) -> None:
    follow(session, as_json=True, stops_on_interrupt=False)
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last)["results"]["state"] == "died"


def test_a_share_above_the_sol_has_a_footnote_of_its_own(kernel_tui: KernelTui, session: SessionPaths) -> None:
    best = opened(session).state.problems["softmax"].best
    known = opened(session).state.variants[best or ""].verdict
    assert best is not None and known is not None
    lock, writer = EngineLock(session), EventWriter(session)
    writer.append(VerdictGiven(variant=best, verdict=replace(known, sol_ms=1.0, sol_share=1.37)))
    writer.close()
    lock.release()
    report = ("export", "small", "--report", "-")
    for words in (
        ("show", "small"),
        ("show", "small", best, "--full"),
        ("sessions", "--compare", "small", "small"),
        report,
    ):
        said = kernel_tui(*words).stdout
        assert "~137" in said and said.count(ABOVE_SOL) == 1 and UNCERTAIN not in said, words
    assert WHY_ABOVE_SOL in kernel_tui("show", "small", best).stdout
    model = opened(session)
    evidence = "\n".join(strip.text for strip in evidence_lines(model, model.state.variants[best], monochrome(), 200))
    assert "~137% = " in evidence and WHY_ABOVE_SOL in evidence


def test_an_uncertain_speedup_is_marked_wherever_a_person_reads_it(
    kernel_tui: KernelTui, session: SessionPaths
) -> None:
    model = opened(session)
    best = next(one for one in model.state.leaders("softmax") if one.id != model.state.problems["softmax"].best)
    known = best.verdict
    assert known is not None and known.kernel is not None
    assert UNCERTAIN not in kernel_tui("show", "small").stdout, "every interval is narrow"
    kernel = replace(known.kernel, median_ms=0.001)
    wide = replace(known, speedup=77.0, speedup_low=60.0, speedup_high=95.0, kernel=kernel, same_code_as=None)
    lock, writer = EngineLock(session), EventWriter(session)
    given = VerdictGiven(variant=best.id, verdict=wide)
    writer.append(given)
    writer.append(RoundFinished(problem="softmax", round=best.round, selected=(), dropped=()))
    writer.close()
    lock.release()
    for words in (("show", "small"), ("show", "small", "softmax"), ("sessions",), ("kernels", "--problem", "softmax")):
        said = " ".join(kernel_tui(*words).stdout.split())
        assert "~77.00x" in said and said.count(UNCERTAIN) == 1 + (words[0] == "show"), words
        assert not re.search(r"(?<!~)77\.00x", said), words
        if words[0] != "kernels":
            assert "~77" not in json.dumps(kernel_tui.json(*words))
    assert "~77.00x" in kernel_tui("show", "small", best.id).stdout
    assert UNCERTAIN in (full := kernel_tui("show", "small", best.id, "--full").stdout) and "~77.00x (95%" in full
    with SessionReader(session) as reader:
        state, story = fold_with_story(reader.read())
    lines = [line.text for line in story.lines]
    assert any(f"new best {best.id}, ~77.00x" in text for text in lines)
    assert re.search(rf"round {best.round} done, .* ~77\.00x", lines[-1])
    assert "~77.00x" in (line_of(given, state, {}) or "")


@pytest.mark.parametrize(
    ("parent", "data", "words"),
    [
        ("v1", {"move": "tune"}, "softmax: i9 (tune on v1) Vary it."),
        ("v1", {"move": "share_rows+vectorise"}, "softmax: i9 (share rows + vectorize on v1) Vary it."),
        ("v2", {}, "softmax: i9 (memory access on v2) Vary it."),
        (None, {}, "softmax: i9 (memory access) Vary it."),
    ],
)
def test_an_idea_is_told_with_its_transformation_and_the_kernel_that_it_works_on(
    parent: str | None, data: dict[str, str], words: str
) -> None:
    idea = IdeaProposed(
        idea="i9",
        problem="softmax",
        round=1,
        parent=parent,
        category="memory",
        text="Vary it.",
        proposer="m",
        data=data,
    )
    state = SessionState()
    opening = [*Search(Shape(problems=1)).opening(), RoundStarted(problem="softmax", round=1, parents=()), idea]
    for seq, event in enumerate(opening, 1):
        state.apply(Recorded(seq, float(seq), event))
    assert line_of(idea, state, {}) == words


def test_a_round_that_came_to_nothing_is_told_in_words(session: SessionPaths) -> None:
    lock, writer = EngineLock(session), EventWriter(session)
    writer.append(RoundStarted(problem="softmax", round=9, parents=()))
    writer.append(RoundFinished(problem="softmax", round=9, selected=(), dropped=()))
    writer.close()
    lock.release()
    with SessionReader(session) as reader:
        _, story = fold_with_story(reader.read())
    assert story.lines[-1].text == "softmax: round 9 done, no kernel judged; no kernel selected"


def test_leaving_a_search_that_goes_on_says_how_to_come_back(
    session: SessionPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    model = opened(session)
    model.link = Link("live", 4711)
    print_parting(model, session)
    text = capsys.readouterr().out
    assert f"kernel-tui attach {session.directory}" in text and f"kernel-tui stop {session.directory}" in text
    assert "speedup" not in text


def opened(paths: SessionPaths) -> Any:
    source = SessionSource(paths)
    model = Model(source)
    model.take(source.open())
    model.link = Link("ended")
    source.close()
    return model


def test_a_script_reads_what_a_search_came_to_and_what_each_model_cost(
    kernel_tui: KernelTui, attended: SessionPaths
) -> None:
    said = kernel_tui.json("show", "small")
    assert {"session", "state", "seconds", "verdicts", "problems"} <= said.keys()
    with SessionReader(attended) as reader:
        state = SessionState()
        state.apply_all(reader.read())
    for name, best in said["best"].items():
        leader = state.variants[state.problems[name].best or ""]
        assert leader.verdict is not None
        assert (best["status"], best["kernel"], best["speedup"]) == ("solved", leader.id, leader.speedup)
        assert best["interval"] == [leader.verdict.speedup_low, leader.verdict.speedup_high]
        assert best["tolerance"] in ("kernelbench", "unknown")
    assert said["counts"]["kernels"] == len(state.variants) and said["counts"]["problems"] == {
        "solved": len(state.problems)
    }
    assert said["engine"]["minutes"] == pytest.approx(said["seconds"] / 60)
    assert said["device"] == next(iter(state.devices.values())).name and said["config"]
    models = {name: (spend.tokens, spend.dollars) for name, spend in state.spending.model.items()}
    assert models, "models were called"
    assert {name: (one["tokens"], one["dollars"]) for name, one in said["models"].items()} == models
    table = kernel_tui("show", "small").stdout
    for name, (_, dollars) in models.items():
        assert re.search(rf"{re.escape(name)} .*\${dollars:,.2f}", table)


def test_what_an_attempt_may_have_cost_that_no_provider_reported_is_kept_apart(
    kernel_tui: KernelTui, attended: SessionPaths
) -> None:
    before = kernel_tui.json("show", "small")["models"]
    name = next(iter(before))
    lock, writer = EngineLock(attended), EventWriter(attended)
    site = CallSite("softmax", 1, "ideas", "v1", 99)
    writer.append(ModelCallStarted(call="c9999", attempt=1, provider="openai", model=name, site=site, prompt="",
                                   tokens=5000, dollars=0.25))  # fmt: skip
    writer.append(ModelCallFailed(call="c9999", attempt=1, failure="connection", message="", wait_s=None, seconds=1.0,
                                  usage=None, dollars=None))  # fmt: skip
    writer.close()
    lock.release()
    after = kernel_tui.json("show", "small")["models"][name]
    assert after["dollars"] == before[name]["dollars"]
    added = {key: after["unconfirmed"][key] - before[name]["unconfirmed"][key] for key in after["unconfirmed"]}
    assert added == pytest.approx({"calls": 1, "tokens": 5000, "dollars": 0.25})
    assert "unconfirmed" in kernel_tui("show", "small").stdout


def test_a_pruned_problem_is_called_pruned_and_is_not_unsolved(kernel_tui: KernelTui, session: SessionPaths) -> None:
    lock, writer = EngineLock(session), EventWriter(session)
    writer.append(NodePruned(node="softmax"))
    writer.close()
    lock.release()
    said = kernel_tui.json("show", "small")
    assert {row["problem"]: row["status"] for row in said["problems"]}["softmax"] == "pruned"
    assert "softmax: pruned" in kernel_tui("show", "small").stdout
    with SessionReader(session) as reader:
        state = SessionState()
        state.apply_all(reader.read())
    assert not state.nothing_correct
    for name in state.problems:
        state.pruned.add(name)
    assert not state.nothing_correct, "a person has pruned them all: nothing is unsolved"
    assert SessionState().nothing_correct


def test_the_line_of_a_runoff_says_why_a_kernel_with_a_lower_verdict_is_the_new_best() -> None:
    with SessionReader(SessionPaths.at(ROOT / "sessions" / "by-hand")) as reader:
        state = fold(reader.read())
    first, second = (leader.id for leader in state.leaders("layernorm", 2))
    state.problems["layernorm"].best = first
    standings = (Standing(second, 1.0, 1.0, 1.0, 1.0, False), Standing(first, 1.1, 1.1, 1.1, 1.1, False))
    runoff = RunoffFinished(problem="layernorm", round=2, standings=standings)
    state.apply(Recorded(state.seq + 1, state.time + 1.0, runoff))
    verdict = speedup_words(state.variants[first].verdict)
    why = f"10% faster than {first} side by side ({first}'s verdict: {verdict}; the runoff decides)"
    told = f"new best: {second}, {why}"
    assert told in (line_of(runoff, state, {"layernorm": Reported(first, first)}) or "")


def test_progress_lines_say_who_is_the_best_after_a_runoff_and_what_was_judged_again() -> None:
    with SessionReader(SessionPaths.at(ROOT / "sessions" / "by-hand")) as reader:
        events = list(reader.read())
    again = next(one for one in reversed(events) if isinstance(one.event, VerdictGiven) and one.event.verdict.correct)
    state, best = fold([]), dict[str, Reported]()
    lines = []
    for one in (*events, replace(again, seq=events[-1].seq + 1)):
        state.apply(one)
        lines.append(line_of(one.event, state, best) or "")
    assert "softmax: runoff of 4 kernels, fastest: v1" in lines
    tie = "fastest: v42; v42 is now the best, tied with v1, 0.9% faster than v1 side by side (v1's"
    assert any(line.startswith(f"softmax: runoff of 4 kernels, {tie}") for line in lines)
    assert "(judged again) correct" in lines[-1] and ", was " not in lines[-1], "the same verdict"
    verdict = again.event.verdict
    slower = replace(verdict, speedup=verdict.speedup / 2)
    state.apply(Recorded(events[-1].seq + 2, again.time, lower := replace(again.event, verdict=slower)))
    assert f", was {speedup_words(verdict)}" in (line_of(lower, state, best) or "")
