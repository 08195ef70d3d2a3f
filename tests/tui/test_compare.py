"""Comparisons of kernels and sessions name a leader only if it is certain, and read real session files."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from engine.config.schema import parse_config
from engine.devices.fact import DeviceFact
from engine.exit_codes import ExitCode
from engine.problem.spec import ProblemSpec, TensorSpec
from engine.session.records import events as ev
from engine.session.records.model_calls import CallSite, Usage
from engine.session.records.verdict import Baseline, BuildReport, Standing, Timing, Verdict
from engine.session.state.session_state import SessionState, fold
from engine.session.store import EngineLock, EventWriter, SessionPaths, SessionReader, create_session
from tests.commandline import KernelTui
from tui.compare.comparison import Cell, Comparison, Row
from tui.compare.kernels import chosen, compare_kernels
from tui.compare.sessions import compare_sessions, differing
from tui.monitor.panes.compare import head_line, table_lines
from tui.monitor.theme.palette import monochrome
from tui.view.session_figures import read_figures

CONFIG = 'name = "{name}"\nproblems = ["builtin:quickstart/softmax"]\n[search]\nrounds = {rounds}\n'
H200 = DeviceFact(id="GPU-1", kind="cuda", name="NVIDIA H200", arch="sm_90a", memory_bytes=141 << 30, cores=132)
CPU = DeviceFact(id="cpu", kind="cpu", name="Xeon", arch="x86_64", memory_bytes=1 << 30, cores=2)
WRONG = Verdict(status="wrong", reason="max abs error 0.5", build=BuildReport(True, 0.5, code="cc" * 32))


def right(speedup: float, *, code: str = "aa", sure: float = 0.01, spills: int = 0, **more: object) -> Verdict:
    """Return a correct verdict with this speedup and relative uncertainty ``sure``; eager takes 4 ms."""
    ms = 4.0 / speedup
    return Verdict(
        status="correct", speedup=speedup, speedup_low=speedup * (1 - sure), speedup_high=speedup * (1 + sure),
        pairs=40, kernel=Timing(ms, ms * 0.99, ms * 1.02, 40), sol_share=0.5 / ms, max_abs_error=1e-7,
        build=BuildReport(True, 0.8, registers=40, spill_bytes=spills, code=code * 32), **more,
    )  # fmt: skip


def write(
    root: Path, name: str, verdicts: list[Verdict], *, rounds: int = 3, device: DeviceFact = H200,
    source: str = "softmax", tolerance: str = "kernelbench", after: tuple[ev.AnyEvent, ...] = (),
) -> SessionPaths:  # fmt: skip
    """Create a session of one problem: v1, v2, ... with one idea each, then the events ``after``.

    ``tolerance``: value in its frozen config, which may be an older name.
    """
    config = parse_config(CONFIG.format(name=name, rounds=rounds), root / "config.toml")
    frozen = config.frozen_toml().replace('tolerance = "kernelbench"', f'tolerance = "{tolerance}"')
    paths = create_session(root, name, frozen, "config.toml", 0)
    spec = ProblemSpec("softmax", "softmax", "s.py", source, (TensorSpec("x", "input", "float32", (8, 8)),))
    lock, writer = EngineLock(paths), EventWriter(paths)
    opening = (
        ev.EngineStarted(pid=1, host="h", version="0.1.0", resumed=False, devices=(device,), sandbox=""),
        ev.ProblemAdded(problem=spec, language="cu", header=""),
        ev.BaselineMeasured(problem="softmax", baseline=Baseline("eager", Timing(4.0, 4.0, 4.0, 9)), sol_ms=0.5),
        ev.RoundStarted(problem="softmax", round=0, parents=()),
    )
    for event in opening:
        writer.append(event)
    for number, verdict in enumerate(verdicts, 1):
        parent = f"v{number - 1}" if number > 1 else None
        digest = writer.put_blob(f"// kernel {number}\nint x = {number};\n".encode())
        writer.append(ev.IdeaProposed(idea=f"i{number}", problem="softmax", round=0, parent=parent, category="memory",
                                      text=f"idea number {number}", proposer="playbook"))  # fmt: skip
        writer.append(ev.VariantWritten(variant=f"v{number}", idea=f"i{number}", problem="softmax", round=0,
                                        parent=parent, language="cu", source=digest, proposer="playbook"))  # fmt: skip
        writer.append(ev.VerdictGiven(variant=f"v{number}", verdict=verdict))
    for event in after:
        writer.append(event)
    writer.close()
    lock.release()
    return paths


def state_of(paths: SessionPaths) -> SessionState:
    with SessionReader(paths) as reader:
        return fold(reader.read())


def row(comparison: Comparison, label: str, section: str = "") -> Row:
    return next(one for part in comparison.sections if part.title == section for one in part.rows if one.label == label)


def texts(comparison: Comparison, label: str, section: str = "") -> list[str]:
    return [cell.text for cell in row(comparison, label, section).cells]


# The leader


def test_the_best_figure_leads_and_whatever_cannot_be_told_from_it() -> None:
    sure = Row(
        "speedup", (Cell("2.0x", 2.0, 1.9, 2.1), Cell("1.5x", 1.5, 1.4, 1.6), Cell("2.1x", 2.1, 2.0, 2.2)), "more"
    )
    assert sure.leaders == {0, 2} and sure.spread == pytest.approx(1.4) and sure.notable
    times = Row("ms", (Cell("1.00", 1.0), Cell("-"), Cell("1.02", 1.02)), "less")
    assert times.leaders == {0} and not times.notable, "by two percent: it leads, and not loudly"


def test_nothing_leads_where_all_are_as_good_or_none_is_better() -> None:
    overlap = (Cell("2.0x", 2.0, 1.9, 2.1), Cell("2.1x", 2.1, 2.0, 2.2))
    assert Row("speedup", overlap, "more").leaders == frozenset()
    assert Row("registers", (Cell("40", 40), Cell("80", 80))).leaders == frozenset()
    assert Row("speedup", (Cell("2.0x", 2.0), Cell("-")), "more").leaders == frozenset(), "nothing to compare with"
    assert Row("error", (Cell("1e-7", 1e-7), Cell("2e-7", 2e-7)), "less", margin=2.0).leaders == frozenset()
    assert Row("error", (Cell("1e-7", 1e-7), Cell("3e-7", 3e-7)), "less", margin=2.0).leaders == {0}


# Kernels


def test_kernels_side_by_side(tmp_path: Path) -> None:
    flag = "other programs used 20% of the processor while it was timed"
    verdicts = [right(2.0), right(2.6, code="bb", spills=32, flags=(flag,)), WRONG, right(2.6, code="bb")]
    state = state_of(write(tmp_path, "s", verdicts))
    found = compare_kernels(state, ["v1", "v2", "v3", "v4"], "kernelbench")
    assert [head.standing for head in found.heads] == ["correct", "best", "wrong", "correct"]
    assert texts(found, "ms") == ["2.000", "1.538", "-", "1.538"] and row(found, "ms").leaders == {1, 3}
    assert texts(found, "95%") == ["1.980-2.020", "2.574-2.626", "-", "2.574-2.626"]
    assert texts(found, "verdict")[2] == "wrong: max abs error 0.5"
    assert texts(found, "% SOL") == ["25%", "32%", "-", "32%"] and texts(found, "pairs")[0] == "40"
    assert texts(found, "remarks") == ["-", flag, "-", "-"]
    assert texts(found, "machine code", "build") == [
        "aaaaaaaa",
        "bbbbbbbb same as v4",
        "cccccccc",
        "bbbbbbbb same as v2",
    ]
    assert row(found, "spills", "build").leaders == {0, 3} and texts(found, "registers", "build")[0] == "40"
    assert texts(found, "lineage", "origin")[2] == "v3 < v2 < v1"
    assert texts(found, "idea", "origin")[0] == "i1 memory: idea number 1"
    assert found.words == (
        "v2 and v4 are tied in separate verdicts: speedup 2.60x against 2.60x.",
        "v2 and v4 have the same machine code.",
    )


def test_kernels_of_different_problems_have_no_leader(tmp_path: Path) -> None:
    worse = structs.replace(right(8.0, code="bb", spills=32), max_abs_error=1e-5)
    state = state_of(write(tmp_path, "s", [right(2.0), worse]))
    assert row(compare_kernels(state, ["v1", "v2"], "kernelbench"), "max error").leaders == {0}
    state.variants["v2"].problem = "gelu"
    found = compare_kernels(state, ["v1", "v2"], "kernelbench")
    assert found.words == (
        "These kernels solve different problems (softmax, gelu), so their times are not comparable.",
    )
    assert not any(one.leaders for section in found.sections for one in section.rows)


def test_a_build_from_the_cache_has_no_time(tmp_path: Path) -> None:
    cached = structs.replace(right(2.0), build=BuildReport(True, 0.0, cached=True))
    found = compare_kernels(state_of(write(tmp_path, "s", [right(2.0), cached])), ["v1", "v2"], "kernelbench")
    assert texts(found, "build time", "build") == ["0.80 s", "cached"]


def test_a_runoff_has_the_word_over_verdicts_of_their_own(tmp_path: Path) -> None:
    runoff = (Standing("v2", 1.5, 1.0, 1.0, 1.0, False), Standing("v1", 1.8, 1.2, 1.18, 1.22, False),
            Standing("v3", 1.81, 1.21, 1.19, 1.23, False))  # fmt: skip
    after = (ev.RunoffFinished(problem="softmax", round=0, standings=runoff),)
    state = state_of(write(tmp_path, "s", [right(2.0), right(2.0), right(2.1), right(1.0)], after=after))
    (said,) = compare_kernels(state, ["v1", "v2"], "kernelbench").words[:1]
    assert said == "v2 is the fastest: v1 takes 1.2 times as long; the runoff of round 0 timed them side by side."
    assert "v1 and v3 are tied" in compare_kernels(state, ["v3", "v1"], "kernelbench").words[0], (
        "neither was the fastest"
    )
    assert "no runoff has timed them side by side" in compare_kernels(state, ["v2", "v4"], "kernelbench").words[0]
    assert texts(compare_kernels(state, ["v1", "v2", "v4"], "kernelbench"), "runoff place") == [
        "+20% time",
        "first",
        "-",
    ]


def test_figures_of_different_moments_are_said_to_be(tmp_path: Path) -> None:
    slow, quick = (right(2.0, reference=Timing(ms, ms, ms, 40)) for ms in (4.9, 4.0))
    state = state_of(
        write(tmp_path, "s", [slow, quick, msgspec.structs.replace(quick, reference=Timing(4.1, 4.1, 4.1, 40))])
    )
    state.variants["v1"].judged_at, state.variants["v2"].judged_at = 1000.0, 1000.0 + 25 * 60
    found = compare_kernels(state, ["v1", "v2"], "kernelbench")
    assert found.words[1] == (
        "The machine's speed changed in the 25 m between their verdicts: eager took 4.900 ms with v1, "
        "but 4.000 ms with v2."
    )
    assert texts(found, "eager ms") == ["4.900", "4.000"] and len(texts(found, "judged at")[0]) == len("20:26:02")
    assert len(compare_kernels(state, ["v2", "v3"], "kernelbench").words) == 2, (
        "and the machine code: eager was the same"
    )


def test_kernels_that_cannot_be_compared_are_said_to_be(tmp_path: Path) -> None:
    state = state_of(write(tmp_path, "s", [right(2.0), WRONG]))
    assert compare_kernels(state, ["v1", "v2"], "kernelbench").words[0] == "Only v1 is correct."
    assert row(compare_kernels(state, ["v1", "v2"], "kernelbench"), "ms").leaders == frozenset()


def test_what_is_compared_without_marks_is_the_selected_and_the_best(tmp_path: Path) -> None:
    state = state_of(write(tmp_path, "s", [right(1.0), right(3.0), right(2.0)]))
    variants = state.variants
    assert chosen(state, (), variants["v1"]) == ["v1", "v2"]
    assert chosen(state, (), variants["v2"]) == ["v2", "v1"], "the best itself: its parent"
    assert chosen(state, ("v3",), variants["v1"]) == ["v3", "v1"]
    assert chosen(state, ("v3", "v2", "gone"), variants["v1"]) == ["v3", "v2"], "what is marked, in that order"
    assert chosen(state, (), None) == []


def test_a_table_reads_in_monochrome_and_ascii_and_fits(tmp_path: Path) -> None:
    state = state_of(write(tmp_path, "s", [right(2.0), right(2.6, code="bb"), right(1.0), WRONG]))
    found = compare_kernels(state, ["v1", "v2", "v3", "v4"], "kernelbench")
    lines = table_lines(found, monochrome(), 77, ascii_only=True)
    assert all(strip.cell_length <= 77 for strip in lines)
    assert head_line(found, monochrome(), 77, ascii_only=True).text.split() == [
        "o",
        "v1",
        "*",
        "v2",
        "o",
        "v3",
        "x",
        "v4",
    ]
    times = next(strip for strip in lines if strip.text.startswith("ms "))
    assert "1.538 <" in times.text and times.text.count("<") == 1
    assert any(segment.style is not None and segment.style.bold and "1.538" in segment.text for segment in times)


HOSTILE = "\x1b[31mred\x1b]52;c;aGk=\x07[bold]\r\n\u202e" + "x" * 3000


def test_texts_of_models_and_compilers_cannot_leave_their_cells(tmp_path: Path) -> None:
    wrong = Verdict(status="cheating", reason=HOSTILE, pattern=HOSTILE)
    idea = ev.IdeaProposed(idea="i9", problem="softmax", round=0, parent=None, category=HOSTILE, text=HOSTILE,
                           proposer=HOSTILE)  # fmt: skip
    written = ev.VariantWritten(variant="v9", idea="i9", problem="softmax", round=0, parent=None, language="cu",
                                source="", proposer=HOSTILE, note=HOSTILE)  # fmt: skip
    after = (idea, written, ev.VerdictGiven(variant="v9", verdict=right(1.5, flags=(HOSTILE,))))
    paths = write(tmp_path, "s", [right(2.0), wrong], after=after)
    kernels = compare_kernels(state_of(paths), ["v1", "v2", "v9"], "kernelbench")
    figures = read_figures(paths)
    sessions = compare_sessions([figures, msgspec.structs.replace(figures, name=HOSTILE, config={HOSTILE: HOSTILE})])
    for found in (kernels, sessions):
        drawn = [head_line(found, monochrome(), 80, ascii_only=False)]
        drawn += table_lines(found, monochrome(), 80, ascii_only=False, tall=True)
        text = "\n".join(strip.text for strip in drawn)
        assert "red" in text and not set(text) & set("\x1b\x07\r\u202e")
        assert all(strip.cell_length <= 80 and len(strip.text.splitlines()) <= 1 for strip in drawn)


# Sessions


def calls(dollars: float | None) -> tuple[ev.AnyEvent, ...]:
    site = CallSite("softmax", 0, "ideas", "")
    return (
        ev.ModelCallStarted(call="c1", attempt=1, provider="openai", model="gpt", site=site, prompt="",
                            tokens=9, dollars=1.0),
        ev.ModelReplied(call="c1", attempt=1, answered="gpt", prompt="", reply="", finish="stop", seconds=1.0,
                        usage=Usage(900, 100), dollars=dollars),
    )  # fmt: skip


def test_sessions_side_by_side(tmp_path: Path) -> None:
    done = ev.EngineStopped(reason="finished", message="done")
    a = write(tmp_path, "a", [right(2.0), WRONG], after=(*calls(0.25), done))
    b = write(tmp_path, "b", [right(3.0), right(1.0)], rounds=9, after=(*calls(None), ev.BudgetChanged(minutes=7.0)))
    figures = [read_figures(a), read_figures(b)]
    found = compare_sessions(figures)
    assert [head.name for head in found.heads] == ["a", "b"]
    assert found.words == ("Geomeans cover 1 comparable problem that all solved; leader: b on 1.",)
    assert texts(found, "state") == ["finished", "died"]
    assert texts(found, "geomean") == ["2.00x", "3.00x"] and row(found, "geomean").leaders == {1}
    assert texts(found, "correct") == ["1/2 50%", "2/2 100%"]
    assert row(found, "correct").leaders == frozenset(), "two verdicts say nothing about shares"
    assert texts(found, "dollars") == ["$0.25", "$0.00 + 1 of unknown price"]
    assert texts(found, "best speedup", "softmax") == ["2.00x", "3.00x"]
    assert texts(found, "ms", "softmax") == ["2.000", "1.333"] and row(found, "ms", "softmax").leaders == {1}
    assert texts(found, "best kernel", "softmax") == ["v1 (cuda) by playbook", "v1 (cuda) by playbook"]
    assert texts(found, "failures", "search") == ["wrong 1", "-"]
    assert texts(found, "tokens", "search") == ["1,000", "1,000"]
    assert texts(found, "device", "search") == ["NVIDIA H200", "NVIDIA H200"]
    assert differing(figures) == {"search.rounds": ["3", "9"], "budget.minutes": [None, "7 (by hand)"]}


def test_sessions_of_different_tolerances_have_no_leader(tmp_path: Path) -> None:
    made = {"strict": (2.0, "kernelbench"), "loose": (3.0, "crfm"), "old": (4.0, "published")}
    figures = [
        read_figures(write(tmp_path, name, [right(speedup)], tolerance=tolerance))
        for name, (speedup, tolerance) in made.items()
    ]
    found = compare_sessions(figures)
    assert found.words == (
        "The tolerances differ, so speedups are not comparable (strict kernelbench, loose crfm, old crfm).",
    )
    assert texts(found, "tolerance") == ["kernelbench (1e-4 in fp32)", "crfm (1e-2)", "crfm (1e-2)"]
    for label, section in (("geomean", ""), ("best speedup", "softmax"), ("ms", "softmax")):
        assert row(found, label, section).leaders == frozenset()
    assert differing(figures) == {"evaluation.tolerance": ["kernelbench", "crfm", "crfm"]}
    alike = compare_sessions(figures[1:])
    assert alike.words == ("Geomeans cover 1 comparable problem that all solved; leader: old on 1.",)
    assert row(alike, "geomean").leaders == {1} and differing(figures[1:]) == {}


def test_other_devices_and_other_references_are_not_compared(tmp_path: Path) -> None:
    a, b = write(tmp_path, "a", [right(2.0)]), write(tmp_path, "b", [right(3.0)], device=CPU)
    found = compare_sessions([read_figures(a), read_figures(b)])
    assert "The devices differ" in found.words[1] and row(found, "ms", "softmax").leaders == frozenset()
    assert row(found, "best speedup", "softmax").leaders == {1}, "each against its own eager"
    c = write(tmp_path, "c", [right(9.0)], source="another softmax")
    found = compare_sessions([read_figures(a), read_figures(c)])
    assert "The reference or the shapes differ" in found.words[1] and "softmax" in found.words[1]
    assert row(found, "best speedup", "softmax").leaders == frozenset()


def test_the_command_compares_sessions(kernel_tui: KernelTui) -> None:
    root = kernel_tui.directory / "sessions"
    write(root, "a", [right(2.0), WRONG])
    write(root, "b", [right(3.0)], rounds=9)
    text = kernel_tui("sessions", "--compare", "a", "b").stdout
    assert "3.00x *" in text and "*: the row's leader" in text and "mean speedup" not in text
    assert "geomean" in text and "configuration differences" in text and "leader: b on 1" in text
    found = kernel_tui.json("sessions", "--compare", "a", "b")
    assert [one["problems"][0]["result"]["speedup"] for one in found["sessions"]] == [2.0, 3.0]
    assert found["differing"] == {"search.rounds": ["3", "9"]}
    assert [one["name"] for one in kernel_tui.json("sessions", "b")] == ["b"]
    (root / "b").rename(root / "b-h200")
    text = kernel_tui("sessions", "--compare", "a", "b-h200").stdout
    assert "leader: b-h200 on 1" in text and re.search(r"^ +a +b-h200 *$", text, re.MULTILINE)
    assert [one["name"] for one in kernel_tui.json("sessions", "b-h200")] == ["b-h200"]
    assert kernel_tui("sessions", "--compare", "a").returncode == ExitCode.USAGE
    assert kernel_tui("sessions", "--compare", "a", "gone").returncode == ExitCode.NO_SESSION
