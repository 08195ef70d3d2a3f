"""``kernel-tui bench`` searches one problem at a time, continues after ``kill -9``, and reports the stored session."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from benchmarks.kernelbench_table import FirstTurns
from engine.exit_codes import ExitCode
from engine.session.records import events as ev
from engine.session.records.events import Recorded, TurnEnded, TurnStarted
from engine.session.records.verdict import Baseline, KernelBenchVerdict, Timing, Verdict
from engine.session.state.session_state import fold
from engine.session.store import EventWriter, SessionPaths, SessionReader, create_session, engine_liveness
from tests.commandline import KernelTui
from tests.engine.test_state import problem_added, written
from tests.patience import PATIENCE_S
from tui.bench.files import as_html, as_json, as_markdown
from tui.bench.report import Point, Report, report_of
from tui.cli.search.bench import bench

PROBLEM = """\
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {formula}

def get_inputs():
    return [torch.randn(64, 500)]

def get_init_inputs():
    return []
"""
FORMULAS = {
    "1_raises": "x.no_such_method()",
    "2_softmax": "torch.softmax(x, dim=1)",
    "3_sort": "torch.sort(x, dim=1)[0]",
    "10_chain": "torch.tanh(x * 2.0) * x",
}
CONFIG = """\
[search]
rounds = 1
ideas = 1
variants = 1
runoff = 0
[evaluation]
trials = 3
max_pairs = 8
torch_compile = false
"""


def read(paths: SessionPaths) -> list[Recorded]:
    if not paths.database.exists():
        return []
    with SessionReader(paths) as reader:
        return list(reader.read())


def test_a_killed_benchmark_continues_with_the_same_command_and_has_every_problem(kernel_tui: KernelTui) -> None:
    for name, formula in FORMULAS.items():
        (kernel_tui.directory / f"{name}.py").write_text(PROBLEM.format(formula=formula))
    (kernel_tui.directory / "quick.toml").write_text(CONFIG)
    options = ("--minutes-per-problem", "1", "--config", "quick.toml", "--device", "cpu", "--name", "b")
    command = ("bench", "*.py", *options, "--headless")
    paths = SessionPaths.at(kernel_tui.directory / "sessions" / "b")

    first = kernel_tui.start(*command)
    deadline = time.monotonic() + PATIENCE_S
    while sum(isinstance(one.event, TurnStarted) for one in read(paths)) < 2:
        assert time.monotonic() < deadline and first.poll() is None, first.communicate()[0]
        time.sleep(0.05)
    pid = engine_liveness(paths).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert "engine died" in first.communicate(timeout=PATIENCE_S)[0]
    before = read(paths)

    done = kernel_tui(*command)
    assert done.returncode == 0, done.stderr
    events = read(paths)
    assert events[: len(before)] == before
    turns = [one for one in events if isinstance(one.event, TurnStarted | TurnEnded)]
    assert [(type(one.event), getattr(one.event, "problem", "")) for one in turns] == [
        (TurnStarted, "10_chain"),
        (TurnEnded, "10_chain"),
        (TurnStarted, "2_softmax"),
        (TurnStarted, "2_softmax"),  # by the second engine, which continues the turn
        (TurnEnded, "2_softmax"),
    ]
    for one in events:
        if isinstance(one.event, ev.BaselineMeasured | ev.VariantWritten | ev.RoundFinished):
            during = [turn for turn in turns if turn.seq < one.seq][-1].event
            assert isinstance(during, TurnStarted) and during.problem == one.event.problem, "only in its turn"
    assert not fold(events).in_flight()

    report = json.loads((paths.directory / "report" / "report.json").read_text())
    found = {row["problem"]: (row["status"], row.get("note", "")) for row in report["problems"]}
    assert list(found) == ["1_raises", "2_softmax", "3_sort", "10_chain"]
    assert found["2_softmax"][0] == found["10_chain"][0] == "solved"
    assert "no_such_method" in found["1_raises"][1] and "sort" in found["3_sort"][1]
    assert (report["count"], report["correct"], report["totals"]["eager"]["fast"]["0"]) == (4, 2, 2)

    again = kernel_tui("bench", "--report", "b", "--output", "again")
    assert again.returncode == 0, again.stderr
    for ending in ("json", "md", "html"):
        name = f"report.{ending}"
        assert (kernel_tui.directory / "again" / name).read_text() == (paths.directory / "report" / name).read_text()


def test_a_turn_that_is_too_short_for_torch_compile_leaves_it_out(kernel_tui: KernelTui) -> None:
    (kernel_tui.directory / "chain.py").write_text(PROBLEM.format(formula=FORMULAS["10_chain"]))
    (kernel_tui.directory / "quick.toml").write_text(CONFIG.replace("torch_compile = false", "torch_compile = true"))
    options = ("--minutes-per-problem", "0.1", "--config", "quick.toml", "--device", "cpu", "--name", "b", "--headless")
    done = kernel_tui("bench", "chain.py", *options)
    assert done.returncode == 0, done.stderr
    report = json.loads((kernel_tui.directory / "sessions" / "b" / "report" / "report.json").read_text())
    assert [report["totals"][name]["compared"] for name in ("eager", "compile")] == [1, 0]
    assert "too few minutes" in report["problems"][0]["over"]["compile"]["failure"]
    (row,) = kernel_tui.json("show", "b")["problems"]
    assert "the turn has " in row["compile_note"] and row["compile_note"] in " ".join(
        kernel_tui("show", "b").stdout.split()
    )


@pytest.mark.parametrize(
    "arguments", [(), ("builtin:quickstart/*",), ("--report", "b", "--sample", "3"), ("--report", "b", "--resume", "b")]
)
def test_arguments_that_name_no_benchmark_are_refused(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(bench, arguments)
    assert done.exit_code == 2 and "Error: " in done.output


def test_a_missing_path_is_named_before_missing_minutes(kernel_tui: KernelTui) -> None:
    done = kernel_tui("bench", "nowhere.py")
    assert done.returncode == 2 and "Error: nowhere.py: no such file" in done.stderr, done.stderr


@pytest.mark.parametrize("option", [("--name", "a b"), ("--name", ""), ("--device", "cpu,tpu")])
def test_a_wrong_option_is_named(option: tuple[str, str]) -> None:
    done = CliRunner().invoke(bench, ("builtin:quickstart/softmax", "--minutes-per-problem", "1", *option))
    assert done.exit_code == 2 and f"Invalid value for '{option[0]}'" in done.output, done.output


def test_the_table_script_sees_when_each_problem_has_had_its_turn(tmp_path: Path) -> None:
    paths = create_session(tmp_path, "level1", "", "config.toml", 0)
    turns, writer = FirstTurns(paths.directory), EventWriter(paths)

    def over_after(*events: ev.AnyEvent) -> bool:
        for event in events:
            writer.append(event).result(10)
        return turns.are_over()

    refused = ev.ProblemRefused(problem="c", path="c.py", reason="raises")
    assert not FirstTurns(tmp_path / "none").are_over()
    assert not over_after(problem_added("a"), problem_added("b"), refused)
    assert not over_after(TurnStarted(problem="a", minutes=1.0), TurnEnded(problem="a", reason="near_sol"))
    assert not over_after(TurnStarted(problem="b", minutes=1.0))
    assert over_after(TurnEnded(problem="b", reason="time"))
    assert over_after(TurnStarted(problem="b", minutes=0.5)), "a second turn"
    writer.close()


# The report


def verdict(speedup: float, low: float, high: float, ms: float = 1.0) -> Verdict:
    return Verdict(
        status="correct",
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        kernel=Timing(ms, ms * 0.9, ms * 1.1, 40),
        reference=Timing(ms * speedup, ms * speedup, ms * speedup, 40),
        kernelbench=KernelBenchVerdict("correct", speedup=speedup),
    )


COMPILED = {
    "a": Baseline("compile", Timing(1.3, 1.2, 1.4, 9)),
    "b": Baseline("compile", failure="crashed"),
}


def a_report(*then: ev.AnyEvent) -> Report:
    """Four problems: sure 2x, uncertain 2x, only wrong kernels, and refused. Each has one minute."""
    timed: list[tuple[float, ev.AnyEvent]] = [
        (0, ev.SessionCreated(name="b", version="1", config="", seed=0)),
        (0, ev.EngineStarted(pid=1, host="h", version="1", resumed=False, devices=(), sandbox="")),
        *((0.0, problem_added(name)) for name in ("a", "b", "c")),
        (0, ev.ProblemRefused(problem="d", path="d.py", reason="raises | <on> every call")),
    ]
    verdicts = {
        "a": verdict(2.1, 2.05, 2.2),
        "b": verdict(2.1, 1.4, 2.5),
        "c": Verdict(status="wrong", reason="max abs error 0.5"),
    }
    for number, (name, given) in enumerate(verdicts.items()):
        at = 60.0 * number
        idea = ev.IdeaProposed(
            idea=f"i{number}", problem=name, round=0, parent=None, category="first", text="t", proposer="playbook"
        )
        baselines = (
            Baseline("eager", Timing(2.1, 2.1, 2.1, 9)),
            *((COMPILED[name],) if name in COMPILED else ()),
        )
        timed += [
            (at, TurnStarted(problem=name, minutes=1.0)),
            *((at, ev.BaselineMeasured(problem=name, baseline=one)) for one in baselines),
            (at, ev.RoundStarted(problem=name, round=0, parents=())),
            (at, idea),
            (at, written(f"v{number}", f"i{number}", 0, None, name)),
            (at + 30, ev.VerdictGiven(variant=f"v{number}", verdict=given)),
            (at + 60, TurnEnded(problem=name, reason="time")),
        ]
    timed += [(180.0, event) for event in then]
    recorded = [Recorded(seq, at, event) for seq, (at, event) in enumerate(timed, 1)]
    return report_of(recorded, "[budget]\nminutes_per_problem = 1\n")


def test_a_speedup_counts_only_if_its_whole_interval_is_above_the_mark() -> None:
    totals = a_report().totals
    assert totals["eager"].fast == {"0": 2, "1": 2, "1.5": 1, "2": 1}
    assert totals["compile"].fast == {"0": 2, "1": 1, "1.5": 0, "2": 0}, "1.2 / 1.1 is above 1"
    assert totals["eager"].geomean == pytest.approx(2.1) and totals["eager"].median == pytest.approx(2.1)
    assert totals["eager"].geomean_all == pytest.approx(2.1**0.5), "two of four problems failed"
    assert totals["compile"].compared == 1 and totals["compile"].geomean == pytest.approx(1.3)


def test_failures_have_their_reasons_and_every_problem_its_minutes() -> None:
    report = a_report()
    rows = {row.problem: row for row in report.problems}
    assert (report.count, report.correct, report.kernelbench.fast["0"], report.kernelbench_judged) == (4, 2, 2, 2)
    assert "max abs error 0.5" in rows["c"].note and "raises" in rows["d"].note
    assert [rows[name].minutes for name in "abcd"] == [1.0, 1.0, 1.0, 0.0]
    assert rows["b"].over["compile"].failure == "crashed"


def test_a_turn_that_ran_out_of_time_names_the_reserved_minutes_only_if_it_had_a_verdict() -> None:
    opened = (problem_added("e"), TurnStarted(problem="e", minutes=1.0), TurnEnded(problem="e", reason="time"))
    rows = {row.problem: row for row in a_report(*opened).problems}
    assert "used up" in rows["a"].note and "reserved for final measurements" in rows["a"].note
    assert "used up" in rows["e"].note and "reserved" not in rows["e"].note


def test_the_minutes_are_the_reason_for_a_missing_baseline_only_if_they_are() -> None:
    def reason(*then: ev.AnyEvent) -> str:
        (row,) = [row for row in a_report(*then).problems if row.problem == "c"]
        return row.over["compile"].failure

    correct = ev.VerdictGiven(variant="v2", verdict=verdict(2.0, 1.9, 2.1))
    finished = ev.EngineStopped(reason="finished", message="")
    assert "minutes" in reason(correct, finished)
    assert reason(finished) == "not measured", "the problem has no correct kernel"
    assert reason(correct, ev.EngineStopped(reason="signal", message="")) == "not measured", "another turn may come"
    assert reason(correct, ev.NodePruned(node="c"), finished) == "not measured"


def test_the_curve_is_over_the_minutes_of_each_problem() -> None:
    curve = a_report().curve
    assert (curve[0].minutes, curve[0].geomean, curve[0].fast_1) == (0.0, 1.0, 0)
    assert (curve[-1].minutes, curve[-1].fast_1) == (0.5, 2)
    assert curve[-1].geomean == pytest.approx(2.1**0.5)


def test_the_progress_lists_only_changed_figures_and_both_ends() -> None:
    figures = (
        (0.0, 1.0, 0),
        (0.5, 1.0, 0),
        (1.0, 2.0, 1),
        (1.5, 2.001, 1),
        (2.0, 2.0, 2),
        (2.5, 2.0, 2),
        (3.0, 2.0, 2),
    )
    report = replace(a_report(), curve=tuple(Point(*one) for one in figures))
    section = as_markdown(report).split("## Progress")[1]
    assert re.findall(r"^\| (\d\.\d+) ", section, re.MULTILINE) == ["0.00", "1.00", "2.00", "3.00"]


def test_the_files_hold_every_problem_and_need_nothing_else() -> None:
    report = a_report()
    assert json.loads(as_json(report))["problems"][3]["note"] == "refused: raises | <on> every call"
    assert "raises \\| <on> every call" in as_markdown(report)
    page = as_html(report)
    assert "raises | &lt;on&gt; every call" in page
    assert not re.search(r"<script|<link|src=|href=", page)


def test_a_benchmark_continues_on_another_host_with_the_same_model_of_device_only(
    kernel_tui: KernelTui, tmp_path: Path
) -> None:
    problems = kernel_tui.directory / "problems"
    problems.mkdir()
    for name in ("2_softmax", "10_chain"):
        (problems / f"{name}.py").write_text(PROBLEM.format(formula=FORMULAS[name]))
    (kernel_tui.directory / "quick.toml").write_text(CONFIG)
    options = ("--minutes-per-problem", "1", "--config", "quick.toml", "--device", "cpu", "--name", "b", "--headless")
    first = kernel_tui.start("bench", "problems", *options)
    paths = SessionPaths.at(kernel_tui.directory / "sessions" / "b")
    deadline = time.monotonic() + PATIENCE_S
    while not any(isinstance(one.event, TurnEnded) for one in read(paths)):
        assert time.monotonic() < deadline and first.poll() is None, first.communicate()[0]
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=PATIENCE_S)
    before = read(paths)
    assert isinstance(before[-1].event, ev.EngineStopped)

    shutil.copytree(kernel_tui.directory / "sessions", tmp_path / "elsewhere")
    problems.rename(tmp_path / "moved")
    (device,) = fold(before).devices.values()
    writer = EventWriter(SessionPaths.at(tmp_path / "elsewhere" / "b"))
    writer.append(ev.DeviceMeasured(device=replace(device, name="Another CPU"))).result()
    writer.close()
    given = ("bench", str(tmp_path / "moved"), *options)
    refused = kernel_tui(*given, "--sessions", str(tmp_path / "elsewhere"))
    assert refused.returncode == ExitCode.NO_TOOLS, refused.stderr
    assert "Another CPU" in refused.stderr and "--new" in refused.stderr

    done = kernel_tui(*given)
    assert done.returncode == 0 and "1 of 2 problems are done" in done.stderr, done.stderr
    assert read(paths)[: len(before)] == before
    report = json.loads((paths.directory / "report" / "report.json").read_text())
    assert [row["status"] for row in report["problems"]] == ["solved", "solved"]
