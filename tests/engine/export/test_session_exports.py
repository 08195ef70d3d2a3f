"""Exports of a session: training data, report and kernel files, also from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.exit_codes import ExitCode
from engine.export.report import report
from engine.export.training import Record, encode, records
from engine.session.records.events import VerdictGiven
from engine.session.records.speedup_text import UNCERTAIN
from engine.session.state.session_state import SessionState, fold
from engine.session.store import EventWriter, SessionPaths, SessionReader
from tests.commandline import KernelTui
from tests.engine.export.conftest import FIRST, SECOND
from tests.patience import PATIENCE_S

Opened = tuple[SessionState, SessionReader]


def test_training_data_holds_idea_parent_source_and_verdict(opened: Opened) -> None:
    state, reader = opened
    lines = [json.loads(encode(record)) for record in records(state, reader.text)]
    assert [line["kernel"]["variant"] for line in lines] == [
        "v1",
        "v2",
        "v3",
    ]  # an evaluation error is no statement about the kernel
    second = lines[1]
    assert second["idea"]["text"] == "Unroll the loop | by eight"
    assert second["parent"]["variant"] == "v1" and second["parent"]["source"].startswith(FIRST)
    assert second["parent"]["outcome"]["speedup"] == 1.25
    assert second["kernel"]["source"].startswith(SECOND)
    assert second["kernel"]["outcome"]["kernel_ms"] == 0.4
    assert second["kernel"]["outcome"]["kernelbench"] == "correct"
    assert {line["tolerance"] for line in lines} == {"kernelbench"}
    assert "class Model" in second["reference"] and "launch(const float* x" in second["header"]
    assert lines[2]["kernel"]["outcome"] | {"log": ""} == lines[2]["kernel"]["outcome"]
    assert lines[2]["kernel"]["outcome"]["reason"] == "1 element is off"


def test_every_line_reads_back_as_a_record(opened: Opened) -> None:
    import msgspec

    state, reader = opened
    for record in records(state, reader.text):
        assert msgspec.json.decode(encode(record), type=Record) == record


def test_the_report_shows_table_lineage_and_kernel(opened: Opened) -> None:
    state, reader = opened
    text = report(state, reader.text)
    assert "| relu | 1 | - | 0.8 | 0.4 | 2.5 [2.48, 2.52] | 50% | correct, 2.75x |" in text
    rows = [line for line in text.splitlines() if line.startswith(("| 0 | v1", "| 1 | v2"))]
    assert len(rows) == 2 and "Write a plain loop" in rows[0]
    assert "Unroll the loop \\| by eight" in rows[1]
    assert text.count("[95% interval] (tol. kernelbench) |") == 2, "each table names the tolerance"
    assert "The judge evaluated 4 kernels from 2 ideas on a processor; 2 were correct." in text
    fence = text.rstrip().splitlines()[-1]
    assert fence == "````", "a fence longer than any in the kernel"
    assert text.count(fence) == 2 and SECOND.strip() in text


def command(paths: SessionPaths, *arguments: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "tui.cli.main", "export", *arguments]
    root = Path(__file__).parents[3]
    return subprocess.run(call, cwd=root, capture_output=True, text=True, timeout=PATIENCE_S)


def test_the_command_writes_the_best_kernel_of_a_problem(session: SessionPaths, tmp_path: Path) -> None:
    target = tmp_path / "relu.py"
    done = command(session, str(session.directory), "--best", "relu", "-o", str(target))
    assert done.returncode == 0, done.stderr
    text = target.read_text()
    assert "class ModelNew" in text and SECOND.strip() in text
    about = "speedup 2.5x over eager PyTorch on a processor (95%: 2.48 to 2.52; tol. kernelbench)."
    assert f"# Kernel v2 of session night: {about}" in text
    assert command(session, str(session.directory), "v1").stdout.count("// a first kernel") == 1


def test_the_suffix_of_the_output_asks_for_the_source(session: SessionPaths, tmp_path: Path) -> None:
    source, other = tmp_path / "relu.cpp", tmp_path / "relu.cu"
    assert command(session, str(session.directory), "--best", "relu", "-o", str(source)).returncode == 0
    assert source.read_text().startswith(SECOND) and "ModelNew" not in source.read_text()
    refused = command(session, str(session.directory), "--best", "relu", "-o", str(other))
    assert refused.returncode == 2 and "the kernel's source is a .cpp file" in refused.stderr
    assert not other.exists()
    script = tmp_path / "relu.py"
    refused = command(session, str(session.directory), "--best", "relu", "--standalone", "-o", str(script))
    assert refused.returncode == 2 and "the program is a .cpp file" in refused.stderr
    assert not script.exists()


def test_an_uncertain_speedup_is_marked_in_what_a_person_reads(session: SessionPaths) -> None:
    assert UNCERTAIN not in command(session, str(session.directory), "--report", "-").stdout
    with SessionReader(session) as reader:
        known = fold(reader.read()).variants["v2"].verdict
    assert known is not None
    writer = EventWriter(session)
    writer.append(VerdictGiven(variant="v2", verdict=replace(known, speedup_low=1.5, speedup_high=3.5)))
    writer.flush(5)
    writer.close()
    solution = " ".join(command(session, str(session.directory), "--best", "relu").stdout.split())
    assert "speedup ~2.5x over eager PyTorch on a processor (95%: 1.5 to 3.5; tol. kernelbench)." in solution
    report = command(session, str(session.directory), "--report", "-").stdout
    assert report.count("| ~2.5 [1.5, 3.5] |") == 2 and report.endswith(f"{UNCERTAIN}.\n")
    assert "1.25 [1.24, 1.26]" in report
    data = command(session, str(session.directory), "--training", "-").stdout
    assert "~" not in json.dumps([json.loads(line)["kernel"]["outcome"] for line in data.splitlines()])


def test_the_command_writes_training_data_and_a_report(session: SessionPaths, tmp_path: Path) -> None:
    data, words = tmp_path / "data.jsonl", tmp_path / "report.md"
    assert command(session, str(session.directory), "--training", str(data)).returncode == 0
    assert command(session, str(session.directory), "--report", str(words)).returncode == 0
    assert len(data.read_text().splitlines()) == 3
    assert words.read_text().startswith("# night\n")


@pytest.mark.parametrize(
    ("file", "arguments"),
    [
        ("relu.py", ("--best", "relu", "-o", "relu.py")),
        ("relu.cpp", ("--best", "relu", "--standalone", "-o", "relu.cpp")),
        ("data.jsonl", ("--training", "data.jsonl")),
        ("report.md", ("--report", "report.md")),
        ("best/relu.cpp", ("--sources", "best")),
    ],
)
def test_an_existing_file_is_replaced_only_by_force(
    session: SessionPaths, kernel_tui: KernelTui, tmp_path: Path, file: str, arguments: tuple[str, ...]
) -> None:
    target = tmp_path / file
    target.parent.mkdir(exist_ok=True)
    target.write_text("my own")
    refused = kernel_tui("export", session.directory, *arguments)
    assert refused.returncode == ExitCode.USAGE, refused.stderr
    assert file in refused.stderr and "--force" in refused.stderr
    assert target.read_text() == "my own"
    forced = kernel_tui("export", session.directory, *arguments, "--force")
    assert forced.returncode == ExitCode.OK, forced.stderr
    assert target.read_text() != "my own"


def test_a_device_is_no_file_to_replace(session: SessionPaths, kernel_tui: KernelTui) -> None:
    done = kernel_tui("export", session.directory, "--best", "relu", "-o", "/dev/null")
    assert done.returncode == ExitCode.OK, done.stderr


def test_what_is_not_there_is_said(session: SessionPaths) -> None:
    for arguments, code, words in [
        ((), 2, "VARIANT, --best"),
        (("v99",), 2, "no kernel v99"),
        (("--best", "gelu"), 2, "no problem gelu; did you mean relu? Problems: relu"),
        (("--training", "/nonexistent/file"), 6, "cannot write"),
    ]:
        done = command(session, str(session.directory), *arguments)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--report", "r.md", "--output", "o.md"), "omit --output: the export goes to r.md"),
        (("--training", "t.jsonl", "--package", "p"), "omit --package: the export goes to t.jsonl"),
        (("--best", "relu", "--package", "p", "--backward", "relu=relu"), "relu would compute its own gradients"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    session: SessionPaths, kernel_tui: KernelTui, arguments: tuple[str, ...], said: str
) -> None:
    refused = kernel_tui("export", session.directory, *arguments)
    assert refused.returncode == ExitCode.USAGE and said in refused.stderr, refused.stderr
    assert not [*kernel_tui.directory.glob("*.md"), *kernel_tui.directory.glob("*.jsonl")]


def test_exports_and_reports_name_the_session_by_its_directory(opened: Opened, kernel_tui: KernelTui) -> None:
    state, reader = opened
    other = reader.paths.directory.rename(reader.paths.directory.with_name("another-2"))
    assert state.name != other.name
    assert kernel_tui("export", other, "--report", "-").stdout.startswith(f"# {other.name}\n")
    records = kernel_tui("export", other, "--training", "-").stdout.splitlines()
    assert {json.loads(line)["session"] for line in records} == {other.name}
    assert f"of session {other.name}" in kernel_tui("export", other, "--best", "relu", "-o", "-").stdout
    assert f"{other.name}: no kernel v99" in kernel_tui("export", other, "v99").stderr
    page = kernel_tui("report", other, "-o", "-").stdout
    assert f"<title>{other.name}" in page and f"<h1>{other.name}" in page
