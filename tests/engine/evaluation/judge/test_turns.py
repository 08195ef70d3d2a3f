"""A judge takes turns on a GPU whose memory other processes also use. The GPU is simulated; locks are real."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from engine.evaluation.build.kernel_source import KernelSource
from engine.evaluation.judge import device_turns, messages
from engine.evaluation.judge.admission import Need
from engine.evaluation.judge.device_lock import is_awaited, lock_path
from engine.evaluation.judge.device_turns import Turns
from engine.evaluation.judge.messages import AnyAnswer, AnyRequest, Judged, JudgeSettings
from engine.evaluation.judge_policy import POLICY
from engine.problem.spec import ProblemSpec
from engine.session.records.verdict import Verdict
from engine.system.memory import Memory

GB = 10**9
DEVICE = f"test-{os.getpid()}"
SETTINGS = JudgeSettings("cuda", DEVICE, "a GPU", 1, 8, 20, 30.0, 0, 1e-2, 1e-2, isolate=True)
REQUEST = messages.JudgeKernel("p", KernelSource("cu", "", "cuda", "sm_90a"))
PROBLEM = ProblemSpec("p", "p", "p.py", "", ())
RAN_OUT = Judged(Verdict(status="crashed", reason="launch returned 2"))
CORRECT = Judged(Verdict(status="correct"))
WANTS = """
import sys
from engine.evaluation.judge.device_lock import alone
with alone(sys.argv[1], lambda: False):
    pass
"""


class Gpu:
    """80 GB: ``others`` hold a part, and this judge's opened problem another. ``gives`` is what others hold after each
    check."""

    def __init__(self, others: int, problem: int = 0, gives: tuple[int, ...] = ()) -> None:
        self.others, self.problem, self._gives = others, problem, list(gives)
        self.least = self.to_open = 20 * GB
        self.evictions = 0
        self.others_open = False
        self.told: list[AnyAnswer] = []
        self.tries: list[int] = []
        self.evictable_bytes = 10 * GB

    def memory(self) -> Memory:
        self.others = self._gives.pop(0) if self._gives else self.others
        return Memory(80 * GB - self.others - self.problem, 80 * GB)

    def need(self, request: AnyRequest) -> Need:
        return Need(*3 * [self.least if self.problem else self.to_open])

    def held_bytes(self, request: AnyRequest) -> int:
        return self.problem

    def has_other_problems(self, request: AnyRequest) -> bool:
        return self.others_open

    def evict(self) -> None:
        self.evictions += 1

    def close_problems(self) -> bool:
        found, self.problem, self.others_open = self.problem > 0, 0, False
        return found

    def carry_out(self, request: AnyRequest) -> AnyAnswer:
        """Run a kernel that needs 30 GB."""
        self.tries.append(80 * GB - self.others - self.problem)
        return CORRECT if 80 * GB - self.others >= 30 * GB else RAN_OUT

    def turns(self) -> Turns:
        return Turns(SETTINGS, self, self.memory, self.told.append, lambda: False)

    @property
    def lacks(self) -> list[messages.AwaitsMemory]:
        return [one for one in self.told if isinstance(one, messages.AwaitsMemory)]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    short = replace(POLICY.admission, ask_s=0.3, retry_s=0.05, look_s=0.02, kernel_s=0.5, open_s=1.0)
    monkeypatch.setattr(device_turns, "_ADMISSION", short)
    yield
    for suffix in (".lock", ".queue", ".memory"):
        lock_path(DEVICE).with_suffix(suffix).unlink(missing_ok=True)


def test_a_request_for_which_there_is_memory_begins_at_once() -> None:
    gpu = Gpu(others=10 * GB)
    assert gpu.turns().take(REQUEST, gpu.carry_out) == CORRECT
    assert gpu.told == [messages.AtStage("waiting")] and gpu.evictions == 0


def test_what_the_judge_holds_for_the_problem_counts_as_there() -> None:
    gpu = Gpu(others=10 * GB, problem=60 * GB)
    assert gpu.turns().take(REQUEST, gpu.carry_out) == CORRECT
    assert gpu.problem == 60 * GB and not gpu.lacks


def test_it_waits_until_others_have_given_back_enough_and_holds_nothing_meanwhile() -> None:
    gpu = Gpu(others=75 * GB, problem=3 * GB, gives=(*8 * (75 * GB,), 40 * GB))
    assert gpu.turns().take(REQUEST, gpu.carry_out) == CORRECT
    assert gpu.lacks[0] == messages.AwaitsMemory(20 * GB, 5 * GB) and gpu.told[-1] == messages.MemoryFound()
    assert gpu.tries == [40 * GB], "it is tried once, when there is room"


def test_a_kernel_that_ran_out_beside_others_is_tried_again_with_more() -> None:
    gpu = Gpu(others=55 * GB, gives=(*12 * (55 * GB,), 45 * GB))
    assert gpu.turns().take(REQUEST, gpu.carry_out) == CORRECT
    assert gpu.tries == [25 * GB, 35 * GB] and gpu.lacks[-1].needed_bytes == int(1.25 * 25 * GB)


def test_one_that_goes_on_running_out_beside_others_gets_no_verdict() -> None:
    gpu = Gpu(others=55 * GB)
    answer = gpu.turns().take(REQUEST, gpu.carry_out)
    assert isinstance(answer, Judged) and answer.verdict.status == "error"
    assert "ran out of memory while other processes occupied 55 GB of its 80 GB" in answer.verdict.reason
    assert gpu.tries == [25 * GB]


@pytest.mark.parametrize("request_", [messages.Measure(), messages.OpenProblem(PROBLEM)])
def test_a_problem_that_goes_on_running_out_beside_others_fails_at_last(request_: AnyRequest) -> None:
    gpu = Gpu(others=55 * GB)
    answer = gpu.turns().take(
        request_, lambda request: messages.Failed("the problem needs more memory than the device has")
    )
    assert isinstance(answer, messages.Failed) and "while other processes occupied 55 GB" in answer.reason


def test_a_problem_that_was_closed_meanwhile_needs_all_that_opening_it_takes() -> None:
    gpu = Gpu(others=65 * GB, problem=1 * GB, gives=(*6 * (65 * GB,), *4 * (55 * GB,), 35 * GB))
    gpu.to_open = 40 * GB
    assert gpu.turns().take(REQUEST, gpu.carry_out) == CORRECT
    assert gpu.lacks[-1].needed_bytes == 40 * GB and gpu.tries == [45 * GB]


def test_one_that_had_the_device_to_itself_asked_for_too_much() -> None:
    gpu = Gpu(others=2 * GB, problem=10 * GB)
    answer = gpu.turns().take(REQUEST, lambda request: RAN_OUT)
    assert isinstance(answer, Judged) and answer.verdict.status == "memory" and not gpu.lacks


def test_a_kernel_that_ran_out_beside_other_problems_of_the_judge_is_tried_again_without_them() -> None:
    gpu = Gpu(others=2 * GB, problem=70 * GB)
    gpu.others_open = True
    needed = 60 * GB

    def carry_out(request: AnyRequest) -> AnyAnswer:
        return CORRECT if gpu.memory().free_bytes >= needed else RAN_OUT

    assert gpu.turns().take(REQUEST, carry_out) == CORRECT
    assert not gpu.lacks


def test_an_idle_judge_holds_little_while_another_process_has_the_device() -> None:
    gpu, started = Gpu(others=0), []

    def carry_out(request: AnyRequest) -> AnyAnswer:
        started.append(subprocess.Popen([sys.executable, "-c", WANTS, DEVICE]))
        while not is_awaited(DEVICE):
            assert started[0].poll() is None
        return CORRECT

    assert gpu.turns().take(REQUEST, carry_out) == CORRECT
    assert gpu.evictions == 1 and started[0].wait(10) == 0
