"""The runner of a compiled kernel: the files that it loads, when it runs, and the times that it measures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.evaluation.build.compilers import build
from engine.evaluation.sandbox.arena import Arena
from engine.evaluation.sandbox.resource_limits import Limits
from engine.evaluation.sandbox.runner import Runner, RunnerEnded
from engine.problem.spec import TensorSpec
from tests.patience import PATIENCE_S

KERNEL = """
#include <atomic>
#include <thread>
#include <unistd.h>
static std::atomic<long> ticks;
static void tick() { for (;;) { ticks++; usleep(100); } }
extern "C" size_t workspace_bytes(void) { return 1000; }
extern "C" int launch(const long* x, long* out, char* workspace) {
    if (x[0] == 7) return 7;
    if (x[0] == 1) std::thread(tick).detach();
    usleep(5000);
    workspace[999] = 1;
    out[0] = 2 * x[0];
    out[1] = ticks;
    return 0;
}
"""
SPECS = (TensorSpec("x", "input", "int64", (1,)), TensorSpec("out", "output", "int64", (2,)))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, report = asyncio.run(build(KERNEL, "cpp", "#include <cstddef>\n", "", tmp_path_factory.mktemp("builds")))
    assert path is not None, report.log
    return path


@pytest.fixture
def problem() -> Iterator[Any]:
    """The buffers of a problem, as a runner needs them."""
    arena = Arena(SPECS, "cpu", 3)
    yield SimpleNamespace(arena=arena)
    arena.close()


@pytest.fixture
def runner(library: Path, problem: Any) -> Iterator[Runner]:
    with Runner("cpu", Limits(), lambda: False) as one:
        assert one.load(library, problem).detail == "workspace 1,000 bytes"
        yield one


def test_its_process_loads_nothing_of_the_judge(runner: Runner) -> None:
    mapped = runner.mapped()
    assert mapped is not None and not [name for name in mapped if "torch" in name or "msgspec" in name]


def test_the_clock_encloses_each_call_and_nothing_else(runner: Runner, problem: Any) -> None:
    for number, slot in enumerate(problem.arena.slots):
        slot.inputs[0][0] = number + 10
    times_ms, wall_ms = runner.call([2, 0, 1, 0])
    assert len(times_ms) == 4 and all(5.0 <= one < wall_ms for one in times_ms)
    assert sum(times_ms) <= wall_ms
    assert [int(slot.outputs[0][0]) for slot in problem.arena.slots] == [20, 22, 24]


def test_a_launch_that_fails_ends_the_order_and_not_the_process(runner: Runner, problem: Any) -> None:
    for slot, value in zip(problem.arena.slots, (3, 7, 3), strict=True):
        slot.inputs[0][0] = value
    with pytest.raises(RunnerEnded, match=r"launch returned 7$") as ended:
        runner.call([0, 1, 2])
    assert ended.value.end == "launch_failed"
    assert int(problem.arena.slots[0].outputs[0][0]) == 6
    assert int(problem.arena.slots[2].outputs[0][0]) == 0, "nothing is called after the failure"
    runner.call([2])
    assert int(problem.arena.slots[2].outputs[0][0]) == 6


def test_its_threads_stand_still_between_calls(runner: Runner, problem: Any) -> None:
    slot = problem.arena.slots[0]
    slot.inputs[0][0] = 1
    runner.call([0])
    slot.inputs[0][0] = 2
    time.sleep(0.3)
    runner.call([0])
    assert 0 < int(slot.outputs[0][1]) < 1000, "some ticks of 0.1 ms in two calls of 5 ms, and none in the pause"


def test_nothing_of_it_is_left_when_it_is_closed(library: Path, problem: Any) -> None:
    runner = Runner("cpu", Limits(), lambda: False)
    runner.load(library, problem)
    pid = runner.pid
    runner.close()
    runner.close()
    until = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.01)  # its parent reaps it a moment after its death
    assert pid is not None and not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("isolate", [True, False])
def test_how_it_ended_is_known_with_and_without_isolation(problem: Any, tmp_path: Path, isolate: bool) -> None:
    source = '#include <cstdlib>\nextern "C" int launch() { exit(3); }'
    path, _ = asyncio.run(build(source, "cpp", "", "", tmp_path))
    assert path is not None
    with Runner("cpu", Limits(isolate=isolate), lambda: False) as runner:
        runner.load(path, problem)
        with pytest.raises(RunnerEnded, match="exited with code 3"):
            runner.call([0])
