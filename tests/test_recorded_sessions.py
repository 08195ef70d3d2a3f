"""Sessions of every past format can be opened, shown, replayed and resumed."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from engine.devices.hardware import discover
from engine.exit_codes import ExitCode
from engine.session.records.events import EngineStarted, EngineStopped, ProblemAdded, Recorded, VerdictGiven
from engine.session.state.session_state import fold
from engine.session.store import SessionPaths, SessionReader
from engine.session.store.database import MIGRATIONS
from tests.commandline import KernelTui
from tests.patience import PATIENCE_S
from tui.bench.report import read_report
from tui.monitor.replay import ReplayApp, ReplaySource
from tui.monitor.settings import Settings
from tui.monitor.snapshot import screen_text

ROOT = Path(__file__).parents[1]
RECORDED = sorted(file.parent for file in (ROOT / "tests" / "recorded").glob("*/session.db"))
SESSIONS = [*RECORDED, ROOT / "sessions" / "by-hand"]
ROUNDS = {"format-6-steered": 4}
"""Rounds to resume with, where 2 are done already."""
RESUMED = {"format-1", "format-2", "format-6-steered", RECORDED[-1].name}
"""Sessions that every test run resumes: the oldest, the newest, and two that end otherwise."""
ENDS = {"format-2": ExitCode.NOTHING_CORRECT, "format-6-steered": ExitCode.WAITING}
"""How a resumed search ends that gets no further verdict: it has no correct kernel, or waits for a person's reply."""


@pytest.fixture
def copied(tmp_path: Path, request: pytest.FixtureRequest) -> SessionPaths:
    """Copy a recorded session to ``sessions/NAME``."""
    source: Path = request.param
    target = tmp_path / "sessions" / source.name
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.lock", "session.db-*"))
    return SessionPaths.at(target)


every_session = pytest.mark.parametrize("copied", SESSIONS, indirect=True, ids=[path.name for path in SESSIONS])


def format_of(session: Path) -> int:
    connection = sqlite3.connect(f"file:{session / 'session.db'}?mode=ro", uri=True)
    try:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        return version
    finally:
        connection.close()


def test_every_format_has_a_recorded_session(tmp_path: Path) -> None:
    copies = [shutil.copytree(session, tmp_path / session.name) for session in RECORDED]
    assert {format_of(copy) for copy in copies} == set(range(1, len(MIGRATIONS) + 1))


@every_session
def test_it_shows(copied: SessionPaths, kernel_tui: KernelTui) -> None:
    with SessionReader(copied) as reader:
        state = fold(reader.read())
    shown = kernel_tui("show", copied.name)
    screen = kernel_tui("attach", copied.name, "--once")
    assert shown.returncode == screen.returncode == 0, shown.stderr + screen.stderr
    for problem in state.problems.values():
        assert problem.id in shown.stdout and problem.id in screen.stdout


@every_session
async def test_it_replays_to_its_end(copied: SessionPaths) -> None:
    source = ReplaySource(copied, speed=1.0)
    app = ReplayApp(source, settings=Settings(notify="off"), ascii_only=False)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("space")
        source.clock.seek(source.clock.now() + 100_000)
        await pilot.pause(1.2)
        assert "The recording ends here" in screen_text(app)


@pytest.mark.parametrize("copied", [SESSIONS[-1]], indirect=True, ids=["by-hand"])
def test_the_sample_names_no_path_of_the_machine_that_recorded_it(copied: SessionPaths, kernel_tui: KernelTui) -> None:
    with SessionReader(copied) as reader:
        state = fold(reader.read())
        frozen = reader.text(state.config)
    assert {problem.spec.path for problem in state.problems.values()} == {
        f"problems/headline/{name}.py" for name in state.problems
    }
    assert frozen == copied.config.read_text() and '"/' not in frozen
    assert kernel_tui.json("show", copied.name)["config"] == "config.toml"
    assert "softmax: problems/headline/softmax.py" in kernel_tui("show", copied.name, "softmax").stdout


def test_the_headline_session_is_small_and_shown_without_a_gpu(kernel_tui: KernelTui) -> None:
    session = ROOT / "sessions" / "headline-h200"
    assert sum(file.stat().st_size for file in session.iterdir()) < 3_000_000
    assert '"/' not in (session / "config.toml").read_text()
    shown = kernel_tui.json("show", str(session))
    assert len(shown["problems"]) == 8
    notes = {row["problem"]: row["compile_note"] for row in shown["problems"] if row["compile_ms"] is None}
    assert len(notes) == 4 and notes["softmax"] == "it takes about 16 s; the budget has 5 s left for it"


def test_the_kernelbench_sessions_are_small_and_reported_without_a_gpu() -> None:
    sessions = sorted((ROOT / "sessions").glob("kernelbench-level*"))
    if not sessions:
        pytest.skip("no KernelBench session is recorded")
    size = sum(file.stat().st_size for session in sessions for file in session.rglob("*") if file.is_file())
    assert size < 5_000_000
    for session in sessions:
        assert '"/' not in (session / "config.toml").read_text()
        report = read_report(SessionPaths(session))
        assert report.count in (15, 25) and report.correct > 0
        assert not any(row.path.startswith("/") for row in report.problems)


@pytest.mark.parametrize(
    "copied",
    [path if path.name in RESUMED else pytest.param(path, marks=pytest.mark.gallery) for path in RECORDED],
    indirect=True,
    ids=[path.name for path in RECORDED],
)
def test_it_resumes(copied: SessionPaths, kernel_tui: KernelTui) -> None:
    expected = ENDS.get(copied.name, ExitCode.OK)
    with SessionReader(copied) as reader:
        before = list(reader.read())
    if is_benchmark_of_another_device(before):
        expected = ExitCode.NO_TOOLS
    resumed = kernel_tui(
        "resume", copied.name, "--rounds", str(ROUNDS.get(copied.name, 2)), "--headless", "--until-idle"
    )
    assert resumed.returncode == expected, resumed.stderr
    with SessionReader(copied) as reader:
        after = list(reader.read())
    assert after[: len(before)] == before
    new = [one.event for one in after[len(before) :]]
    if expected is ExitCode.NO_TOOLS:
        assert "start again with --new" in resumed.stderr
        assert not any(isinstance(event, ProblemAdded | VerdictGiven) for event in new)
        return
    assert isinstance(new[0], EngineStarted) and isinstance(new[-1], EngineStopped)
    assert any(isinstance(event, VerdictGiven) for event in new) == (expected is ExitCode.OK)


def is_benchmark_of_another_device(recorded: list[Recorded]) -> bool:
    """Return whether the session gives its problems turns, and its devices' models differ from this machine's."""
    state = fold(recorded)
    cpu = next(device.name for device in discover() if device.kind == "cpu")
    return state.takes_turns and cpu not in {device.name for device in state.devices.values()}


def test_a_recorded_session_is_one_database() -> None:
    """SQLite's own files beside it belong to a machine's readers; a checkpoint has moved their content into it."""
    tracked = subprocess.run(
        ["git", "ls-files", "tests/recorded"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    assert [line for line in tracked.stdout.splitlines() if line.endswith(("-wal", "-shm"))] == []
