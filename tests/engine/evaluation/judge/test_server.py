"""The judge, driven only by messages as from an engine on another host."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine.config.schema import EvaluationConfig
from engine.devices.hardware import cpu_fact
from engine.evaluation.build.kernel_source import KernelSource, kernel_source
from engine.evaluation.judge import messages
from engine.evaluation.judge.device_lock import lock_path
from engine.evaluation.judge.messages import AnyAnswer, AnyRequest, JudgeSettings
from engine.evaluation.judge_process import child_environment
from engine.problem.c_header import derive_header
from engine.problem.inspection import inspect_file
from engine.problem.spec import ProblemSpec
from tests.engine.evaluation.conftest import PROBLEM
from tests.engine.evaluation.kernels import softmax
from tests.patience import PATIENCE_S

CONFIG = EvaluationConfig(device="cpu")
SETTINGS = JudgeSettings(
    kind="cpu",
    device_id="cpu",
    device_name="a CPU",
    threads=cpu_fact().cores,
    trials=4,
    max_pairs=8,
    deadline_s=CONFIG.deadline_s,
    memory_bytes=0,
    tolerance_fp32=CONFIG.tolerance_for("float32"),
    tolerance_other=CONFIG.tolerance_for("float16"),
    isolate=True,
)


SCRIPT = """
import sys
from functools import partial
from pathlib import Path
from engine.evaluation.judge import server
from engine.system.memory import host_memory

raise SystemExit(server.main(partial(host_memory, Path(sys.argv.pop()), Path("/nonexistent"))))
"""
"""A judge that reads the machine's memory from a file in the format of proc(5)."""


class Conversation:
    """A judge with an empty build cache. ``free`` is the spare memory of its machine."""

    def __init__(self, directory: Path, device: str = "cpu") -> None:
        self.cache, self._meminfo = directory / "builds", directory / "meminfo"
        self.heard: list[bytes] = []
        self.free(8 << 30)
        settings = msgspec.structs.replace(SETTINGS, device_id=device)
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, msgspec.json.encode(settings).decode(), str(self.cache), str(self._meminfo)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(settings),
        )  # fmt: skip
        assert isinstance(self.hear(), messages.Ready)

    def free(self, nbytes: int) -> None:
        part = self._meminfo.with_suffix(".part")
        part.write_text(f"MemTotal: {16 << 20} kB\nMemAvailable: {nbytes >> 10} kB\n")
        part.rename(self._meminfo)

    def tell(self, request: AnyRequest) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(messages.line(request))
        self.process.stdin.flush()

    def hear(self) -> AnyAnswer:
        """Return the next message that is not a stage."""
        assert self.process.stdout is not None
        while True:
            self.heard.append(self.process.stdout.readline())
            answer = messages.decode_answer(self.heard[-1])
            if not isinstance(answer, messages.AtStage):
                return answer

    def ask(self, request: AnyRequest) -> AnyAnswer:
        self.tell(request)
        return self.hear()

    @property
    def holds_buffers(self) -> bool:
        """Return whether the judge has the buffers of a problem mapped."""
        return "memfd:arena" in Path(f"/proc/{self.process.pid}/maps").read_text()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[Conversation]:
    conversation = Conversation(tmp_path)
    yield conversation
    conversation.close()


@pytest.fixture
def two_judges(tmp_path: Path) -> Iterator[tuple[Conversation, Conversation]]:
    """Lock a device that no other process of this machine uses."""
    device, conversations = f"test-{os.getpid()}", []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        conversations.append(Conversation(tmp_path / name, device))
    yield conversations[0], conversations[1]
    for conversation in conversations:
        conversation.close()
    for suffix in (".lock", ".queue", ".memory"):
        lock_path(device).with_suffix(suffix).unlink(missing_ok=True)


@pytest.fixture
def problem(tmp_path: Path) -> ProblemSpec:
    (tmp_path / "softmax.py").write_text(PROBLEM)
    return inspect_file(tmp_path / "softmax.py", "softmax")


def test_a_judge_builds_what_it_is_sent_and_names_no_file_of_its_host(
    judge: Conversation, problem: ProblemSpec
) -> None:
    def kernel(**parts: str) -> KernelSource:
        return kernel_source(problem, derive_header(problem, "cpp"), "cpp", softmax("cpp", **parts), cpu_fact())

    Path(problem.path).unlink()  # a file of the engine, which the judging host need not have
    assert isinstance(judge.ask(messages.OpenProblem(problem)), messages.ProblemOpened)
    for cached in (False, True):
        judged = judge.ask(messages.JudgeKernel(problem.id, kernel()))
        assert isinstance(judged, messages.Judged) and judged.verdict.build is not None
        assert judged.verdict.correct or "machine was too busy" in judged.verdict.reason, judged.verdict.reason
        assert judged.verdict.build.ok and judged.verdict.build.cached is cached
    kernels = {"v1": kernel(), "v2": kernel(before="/* the same once more */")}
    timed = judge.ask(messages.TimeRunoff(problem.id, kernels))
    if isinstance(timed, messages.Failed):  # on a busy machine; it was built and run all the same
        assert timed.variant in kernels and "judge's clock" in timed.reason, timed.reason
    else:
        assert isinstance(timed, messages.RunoffTimed) and {one.variant for one in timed.standings} == {"v1", "v2"}
    failed = judge.ask(messages.JudgeKernel(problem.id, kernel(before="no such statement;")))
    assert isinstance(failed, messages.Failed)
    assert failed.reason.startswith("the kernel does not build on the judging host: kernel.cpp:")
    assert any(judge.cache.glob("*/kernel.so")) and not any(str(judge.cache).encode() in line for line in judge.heard)


def test_a_problem_with_other_outputs_than_the_inspection_found_is_refused_with_a_remedy(
    judge: Conversation, problem: ProblemSpec
) -> None:
    """With `torch.autocast("cuda")`, only the host with the GPU sees the outputs in fp16."""
    out = msgspec.structs.replace(problem.outputs[0], dtype="float16")

    failed = judge.ask(messages.OpenProblem(msgspec.structs.replace(problem, tensors=(*problem.inputs, out))))

    assert isinstance(failed, messages.Failed)
    assert "returned float32" in failed.reason and "found float16" in failed.reason
    assert "to(torch.float16)" in failed.reason


def test_a_judge_waits_for_memory_says_so_and_goes_on(
    two_judges: tuple[Conversation, Conversation], problem: ProblemSpec
) -> None:
    idle, waiting = two_judges
    kernel = kernel_source(problem, derive_header(problem, "cpp"), "cpp", softmax("cpp"), cpu_fact())
    assert isinstance(idle.ask(messages.OpenProblem(problem)), messages.ProblemOpened)
    assert idle.holds_buffers
    waiting.free(1 << 20)
    lack = waiting.ask(messages.OpenProblem(problem))
    needed = 2 * sum(tensor.nbytes for tensor in problem.tensors)
    assert lack == messages.AwaitsMemory(needed, 1 << 20) and not waiting.holds_buffers
    deadline = time.monotonic() + PATIENCE_S
    while idle.holds_buffers and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not idle.holds_buffers, "an idle judge gives back what another one asks for"
    waiting.free(1 << 30)
    while (found := waiting.hear()) == lack:
        pass
    assert found == messages.MemoryFound()
    assert isinstance(waiting.hear(), messages.ProblemOpened) and waiting.holds_buffers
    judged = idle.ask(messages.JudgeKernel(problem.id, kernel))
    assert isinstance(judged, messages.Judged) and judged.verdict.status in ("correct", "error")
    assert judged.verdict.status == "correct" or "machine was too busy" in judged.verdict.reason


def test_a_wait_for_memory_can_be_given_up_and_memory_be_asked_back(judge: Conversation, problem: ProblemSpec) -> None:
    judge.free(0)
    assert isinstance(judge.ask(messages.OpenProblem(problem)), messages.AwaitsMemory)
    judge.tell(messages.Cancel())
    while isinstance(given_up := judge.hear(), messages.AwaitsMemory):
        pass
    assert given_up == messages.Failed("cancelled")
    judge.free(1 << 30)
    assert isinstance(judge.ask(messages.OpenProblem(problem)), messages.ProblemOpened) and judge.holds_buffers
    assert judge.ask(messages.Evict()) == messages.Evicted() and not judge.holds_buffers
