"""A real search in a real engine process is stopped, resumed and finished, and leaves nothing behind.

``tests/test_resume.py`` tests killed engines.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from engine.daemon.launch import log_tail, start_engine
from engine.exit_codes import ExitCode
from engine.session.records.events import EngineStarted, EngineStopped, Recorded, VerdictGiven
from engine.session.state.session_state import fold
from engine.session.store import SessionPaths, SessionReader, create_session, engine_liveness, summarize
from engine.session.store.lock import read_holder
from engine.system.guard import left_behind, read_processes
from tests.engine.proposers import canned
from tests.patience import PATIENCE_S

CONFIG = """
problems = ["{problem}"]
[search]
rounds = 1
ideas = 1
variants = 2
runoff = 0
[budget]
minutes = 60
[evaluation]
device = "cpu"
max_pairs = 10
torch_compile = false
other_sizes = false
"""


@pytest.fixture
def paths(tmp_path: Path) -> SessionPaths:
    problem = tmp_path / "softmax.py"
    problem.write_text(canned.PROBLEM)
    return create_session(tmp_path, "demo", CONFIG.format(problem=problem), "config.toml", 0)


def follow(paths: SessionPaths, until: type, *, of_start: int) -> list[Recorded]:
    """Return all events once the engine's ``of_start``-th run has recorded one of a kind."""
    deadline = time.monotonic() + PATIENCE_S
    with SessionReader(paths) as reader:
        while time.monotonic() < deadline:
            events = list(reader.read())
            starts = [n for n, one in enumerate(events) if isinstance(one.event, EngineStarted)]
            if len(starts) == of_start and any(isinstance(one.event, until) for one in events[starts[-1] :]):
                return events
            if not engine_liveness(paths, reader).running:
                break
            time.sleep(0.05)
    raise AssertionError(f"no {until.__name__} came:\n{log_tail(paths, 50)}")


def wait_gone(pids: set[int]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while pids & {process.pid for process in read_processes() if process.state != "Z"}:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_search_that_was_ended_by_a_signal_is_resumed_and_finished(paths: SessionPaths) -> None:
    pid = start_engine(paths)
    os.kill(pid, signal.SIGHUP)  # the terminal closes; the search continues
    before = follow(paths, VerdictGiven, of_start=1)
    holder = read_holder(paths.lock)
    assert holder is not None
    family = left_behind(pid, holder.marker)
    os.kill(pid, signal.SIGTERM)
    assert wait_gone(family)
    living = engine_liveness(paths)
    assert (living.running, living.exit_code, summarize(paths).state) == (False, ExitCode.INTERRUPTED, "stopped")
    assert living.message == "stopped by SIGTERM; to continue, resume the session"
    with SessionReader(paths) as reader:
        given = [one.event.verdict for one in reader.read() if isinstance(one.event, VerdictGiven)]
    assert not [one.reason for one in given if one.status == "error"], "the end of the search is no fault of a kernel"

    start_engine(paths)
    events = follow(paths, EngineStopped, of_start=2)
    assert events[: len(before)] == before
    state = fold(events)
    assert state.engine is not None
    assert (state.starts, state.engine.stopped) == (2, "finished"), log_tail(paths, 50)
    assert [round_.finished_at is not None for round_ in state.problems["softmax"].rounds] == [True, True]
    assert all(variant.verdict is not None for variant in state.variants.values())
    with SessionReader(paths) as reader:
        assert reader.quick_check() is None
    assert wait_gone(left_behind(0, (read_holder(paths.lock) or holder).marker))
