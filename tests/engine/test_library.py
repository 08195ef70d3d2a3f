"""Text search over the kernels of many sessions, and warm starts from these kernels."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from msgspec import structs

from engine.daemon.launch import log_tail, start_engine
from engine.devices.fact import DeviceFact
from engine.problem.c_header import derive_header
from engine.problem.catalog import inspect_files, resolve
from engine.problem.spec import ProblemSpec
from engine.proposers.llm.facts import worked_elsewhere, worked_line
from engine.proposers.protocol import Board, Task
from engine.session.library import best_for, matching, newest_first, problem_key, read_library, session_directories
from engine.session.records.events import (
    EngineStarted,
    IdeaProposed,
    ProblemAdded,
    RoundStarted,
    RunoffFinished,
    VariantWritten,
)
from engine.session.records.events import VerdictGiven as Given
from engine.session.records.verdict import Standing, Timing, Verdict
from engine.session.state.session_state import fold
from engine.session.store import EventWriter, SessionPaths, SessionReader, create_session, engine_liveness
from tests.commandline import ROOT, KernelTui
from tests.patience import PATIENCE_S

PROBLEM = """\
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim={dim})

def get_inputs():
    return [torch.randn({rows}, 1000)]
"""
KERNEL = """\
#include <math.h>
// {note}
extern "C" int launch(const float* x, float* out, void* workspace) {{
    for (long long r = 0; r < x_dim0; ++r) {{
        const float* a = x + r * x_dim1;
        float* b = out + r * x_dim1;
        float top = a[0], sum = 0.0f;
        for (long long c = 1; c < x_dim1; ++c) top = fmaxf(top, a[c]);
        for (long long c = 0; c < x_dim1; ++c) sum += b[c] = expf(a[c] - top);
        for (long long c = 0; c < x_dim1; ++c) b[c] /= sum;
    }}
    return 0;
}}
"""
CONFIG = """\
problems = ["{problem}"]
bank = ["{examples}"]
[search]
rounds = 1
ideas = 1
variants = 1
parents = 4
runoff = 0
[evaluation]
device = "cpu"
trials = 3
max_pairs = 8
torch_compile = false
other_sizes = false
"""
CPU = DeviceFact(id="cpu", kind="cpu", name="An old processor", arch="x86_64", memory_bytes=1 << 33, cores=2)


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ProblemSpec]:
    """Return a problem, the same problem under another name, and two with a different shape or operator."""
    root = tmp_path_factory.mktemp("problems")
    texts = {
        "softmax": PROBLEM.format(rows=200, dim=1),
        "renamed": "# another name\n" + PROBLEM.format(rows=200, dim=1),
        "rows": PROBLEM.format(rows=201, dim=1),
        "columns": PROBLEM.format(rows=200, dim=0),
    }
    for name, text in texts.items():
        (root / f"{name}.py").write_text(text)
    found = asyncio.run(inspect_files(resolve([str(root)], root)))
    return {spec.name: spec for spec in found if isinstance(spec, ProblemSpec)}


def write_session(root: Path, name: str, spec: ProblemSpec, speedups: dict[str, float]) -> SessionPaths:
    """Create a session in which an engine has judged one kernel for each note of ``speedups``."""
    paths = create_session(root, name, "", "config.toml", 0)
    writer = EventWriter(paths)
    writer.append(EngineStarted(pid=1, host="h", version="0", resumed=False, devices=(CPU,), sandbox="none"))
    writer.append(ProblemAdded(problem=spec, language="cpp", header=derive_header(spec, "cpp")))
    writer.append(RoundStarted(problem=spec.id, round=0, parents=()))
    for number, (note, speedup) in enumerate(speedups.items(), start=1):
        writer.append(
            IdeaProposed(
                idea=f"i{number}", problem=spec.id, round=0, parent=None, category="memory",
                text=f"Try to be {note}.", proposer="gpt", data={"move": f"{note}_loops"},
            )
        )  # fmt: skip
        writer.append(
            VariantWritten(
                variant=f"v{number}", idea=f"i{number}", problem=spec.id, round=0, parent=None, language="cpp",
                source=writer.put_blob(KERNEL.format(note=note)), proposer="gpt", note=note,
            )
        )  # fmt: skip
        timing = Timing(10.0 / speedup, 1.0, 2.0, 9)
        writer.append(
            Given(
                variant=f"v{number}",
                verdict=Verdict(status="correct", device=CPU.name, speedup=speedup, kernel=timing),
            )
        )
    writer.flush(10)
    writer.close()
    return paths


@pytest.fixture(scope="module")
def examples(specs: dict[str, ProblemSpec], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create two sessions of one problem and one session of another."""
    root = tmp_path_factory.mktemp("earlier")
    write_session(root / "sessions", "first", specs["softmax"], {"careful": 1.5, "bold": 3.0})
    write_session(root / "sessions", "second", specs["softmax"], {"bold": 2.9, "plain": 2.0})
    write_session(root / "sessions", "other", specs["columns"], {"swift": 9.0})
    return root


def test_the_same_problem_is_known_by_what_it_asks_not_by_its_file(specs: dict[str, ProblemSpec]) -> None:
    key = problem_key(specs["softmax"])
    assert problem_key(specs["renamed"]) == key
    assert problem_key(specs["rows"]) != key
    assert problem_key(specs["columns"]) != key


def test_sessions_are_named_by_themselves_by_their_directory_or_by_a_glob(examples: Path) -> None:
    every = [examples / "sessions" / name for name in ("first", "other", "second")]
    assert session_directories([examples / "sessions"]) == every
    assert session_directories([f"{examples}/sessions/*"]) == every
    assert session_directories([examples / "sessions" / "first", f"{examples}/*"]) == every
    assert session_directories([examples / "nothing", f"{examples}/none*"]) == []


def test_kernels_are_found_by_words_problem_and_device(examples: Path) -> None:
    library = read_library([examples / "sessions"])
    assert (library.sessions, library.unread) == (3, ())
    assert [(one.session, one.variant) for one in matching(library.kernels, ["BOLD"])] == [
        ("first", "v2"),
        ("second", "v1"),
    ]
    assert [one.note for one in matching(library.kernels, problem="columns")] == ["swift"]
    assert [one.note for one in matching(library.kernels, ["swift_loops"])] == ["swift"], "by the transformation's name"
    assert len(list(matching(library.kernels, ["fmaxf", "memory"], device="old", language="cpp"))) == 5
    assert list(matching(library.kernels, language="cu")) == []


def test_the_newest_session_comes_first(examples: Path) -> None:
    found = newest_first(read_library([examples / "sessions"]).kernels)
    assert [(one.session, one.note) for one in found] == [
        ("other", "swift"),
        ("second", "bold"),
        ("second", "plain"),
        ("first", "bold"),
        ("first", "careful"),
    ]


def test_a_session_that_cannot_be_read_costs_only_itself(examples: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "session.db").write_text("this is no database")
    library = read_library([tmp_path / "*", examples / "sessions"])
    assert len(library.kernels) == 5
    assert len(library.unread) == 1 and str(broken) in library.unread[0]


def test_the_best_of_the_very_same_problem_are_chosen_with_reasons(
    examples: Path, specs: dict[str, ProblemSpec]
) -> None:
    library = read_library([examples / "sessions"])
    spec = specs["renamed"]
    chosen = best_for(library, spec, ("cpp",), CPU, 2)
    assert [(one.session, one.variant) for one, _ in chosen] == [("first", "v2"), ("second", "v2")]
    assert chosen[0][1] == (
        "the fastest of 4 kernels for the same problem on this type of device: 3.33 ms, 3.00x over eager"
    )
    elsewhere = DeviceFact(id="c", kind="cpu", name="New", arch="x86_64", memory_bytes=1, cores=1)
    assert "on An old processor, another device" in best_for(library, spec, ("cpp",), elsewhere, 1)[0][1]
    assert best_for(library, spec, ("cu",), CPU, 2) == []
    assert best_for(library, specs["rows"], ("cpp",), CPU, 2) == []


def test_ideas_that_worked_in_earlier_sessions_are_offered_for_similar_problems(
    examples: Path, specs: dict[str, ProblemSpec]
) -> None:
    library = read_library([examples / "sessions"])
    assert {(idea.session, idea.problem) for idea in library.ideas} >= {("first", "softmax"), ("other", "columns")}
    task = Task(specs["rows"], "", "cpp", CPU, None, None)
    offered = worked_elsewhere(task, Board(worked=library.ideas))
    assert offered[0].text == "Try to be swift." and "columns in session other" in worked_line(offered[0])
    assert len(offered) == 3
    gpu = Task(specs["rows"], "", "cu", CPU, None, None)
    assert worked_elsewhere(gpu, Board(worked=library.ideas)) == []


def test_a_new_search_begins_with_the_best_of_earlier_sessions(
    examples: Path, specs: dict[str, ProblemSpec], tmp_path: Path
) -> None:
    text = CONFIG.format(problem=specs["renamed"].path, examples=examples / "sessions" / "*")
    paths = create_session(tmp_path, "demo", text, "config.toml", 0)
    start_engine(paths)
    deadline = time.monotonic() + PATIENCE_S
    while engine_liveness(paths).running:
        assert time.monotonic() < deadline, log_tail(paths, 50)
        time.sleep(0.1)
    with SessionReader(paths) as reader:
        state = fold(reader.read())
        first, second = list(state.variants.values())[:2]
        assert reader.text(first.source) == KERNEL.format(note="bold")
        assert reader.text(second.source) == KERNEL.format(note="plain")
    assert state.finished, log_tail(paths, 50)
    assert (first.note, second.note) == ("v2 of first", "v2 of second")
    assert first.correct and second.correct and first.round == 0
    assert state.ideas[first.idea].text.startswith("Warm start from v2 of session first: the fastest of 4 kernels ")
    assert state.ideas[first.idea].proposer == "bank"
    own = [one for one in state.ideas.values() if one.proposer == "playbook"]
    assert any(one.round == 0 for one in own) and any(one.round == 1 for one in own)


def test_the_command(examples: Path, specs: dict[str, ProblemSpec], tmp_path: Path) -> None:
    run = KernelTui(tmp_path)
    found = run.json("kernels", "bold", "--sessions", examples / "sessions")
    assert [(one["session"], one["variant"], one["speedup"]) for one in found] == [
        ("first", "v2", 3.0),
        ("second", "v1", 2.9),
    ]
    shown = run("kernels", "--problem", "columns", "--bank", examples / "sessions")
    assert shown.returncode == 0, shown.stderr
    assert "swift" in shown.stdout and "9.00x" in shown.stdout and "v1 (best)" in shown.stdout
    idea = run("show", examples / "sessions" / "other", "i1").stdout
    assert re.search(r"^transformation +swift loops \(swift_loops\)$", idea, re.MULTILINE)
    # The problem "a_columns" precedes "columns" in the order of names.
    longer = structs.replace(specs["columns"], id="a_columns", name="a_columns")
    write_session(tmp_path / "more", "longer", longer, {"swift": 9.0})
    both = ("--sessions", tmp_path / "more", "--sessions", examples / "sessions")
    assert [one["problem"] for one in run.json("kernels", "--problem", "Columns", *both)] == ["columns", "a_columns"]
    assert [one["problem"] for one in run.json("kernels", "--problem", "column", *both)] == ["a_columns", "columns"]
    nothing = run("kernels", "nonsense", "--sessions", examples / "sessions")
    assert "5 correct kernels in 3 sessions" in nothing.stdout
    misnamed = run("kernels", "--problem", "colunms", "--sessions", examples / "sessions").stdout.strip()
    assert "5 correct kernels in 3 sessions" in misnamed and "did you mean columns?" in misnamed
    assert json.loads(run("kernels", "nonsense", "--sessions", examples / "sessions", "--json").stdout) == []


def test_the_command_prints_one_line_per_kernel(tmp_path: Path, specs: dict[str, ProblemSpec]) -> None:
    note = (
        "unroll 1 -> 4, block reduction tree -> shuffle, floats per access 1 -> 4, threads 256 -> 1024, kept pieces 4"
    )
    write_session(tmp_path / "sessions", "noted", specs["softmax"], {note: 2.0, "": 1.5})
    run = KernelTui(tmp_path)
    for width in (120, 150):
        lines = run("kernels", env={"COLUMNS": str(width)}).stdout.splitlines()
        noted, plain = (next(line for line in lines if f" {name} " in line) for name in ("v1", "v2"))
        assert "  unroll 1 -> 4, block red" in noted and noted.endswith("…") and "Try to be" not in noted
        assert "  Try to be ." in plain, "a kernel without a note shows its idea"
        assert max(map(len, lines)) <= width and lines.index(plain) == lines.index(noted) + 1


def test_the_command_shows_the_same_figures_as_show_for_kernels_of_a_runoff(
    tmp_path: Path, specs: dict[str, ProblemSpec]
) -> None:
    spec = specs["softmax"]
    paths = write_session(tmp_path / "sessions", "raced", spec, {"winner": 2.0, "loser": 2.5})
    writer = EventWriter(paths)
    standings = (Standing("v1", 5.0, 1.0, 1.0, 1.0, False), Standing("v2", 6.25, 1.25, 1.2, 1.3, False))
    writer.append(RunoffFinished(problem=spec.id, round=0, standings=standings))
    writer.flush(10)
    writer.close()
    run = KernelTui(tmp_path)
    wide = {"COLUMNS": "200"}
    for shown in (run("kernels", env=wide).stdout, run("show", "raced", "softmax", env=wide).stdout):
        (loser,) = (line for line in shown.splitlines() if re.search(r"\bv2 .*\bloser\b", line))
        assert "1.60x" in loser and "6.25" in loser and "runoff" in loser
        assert "runoff: the best kernel's verdict, scaled" in shown


def test_a_short_list_has_a_share_of_every_problem(tmp_path: Path) -> None:
    session = ROOT / "sessions" / "headline-h200"
    found = KernelTui(tmp_path).json("kernels", "--sessions", session, "--limit", "18")
    shares = Counter(one["problem"] for one in found)
    assert len(shares) == 8 and set(shares.values()) == {2, 3}
    assert sum(one["best"] for one in found) == 8 and [one["problem"] for one in found] == sorted(shares.elements())
    said = KernelTui(tmp_path)("kernels", "--sessions", session, "--limit", "18").stdout
    assert "212 more; to list all, add --limit 230" in said and "--problem NAME" in said
