"""The engine's side of a cluster, without a network."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine.cluster import messages as m
from engine.cluster.evaluator import ClusterEvaluator, _Attempt, _Job
from engine.cluster.roster import Device
from engine.config.schema import ClusterConfig, EvaluationConfig
from engine.devices.fact import DeviceFact
from engine.evaluation.device_waits import Wait
from engine.problem.spec import ProblemSpec
from engine.session.records.verdict import BuildReport

GPU = DeviceFact("a/GPU-1", "cuda", "NVIDIA H200", "sm_90a", 141 << 30, 132, host="a")


def evaluator(directory: Path) -> ClusterEvaluator:
    def ignore(*_: Any) -> None:
        pass

    cluster = ClusterConfig(scheduler="tls://hub:8786", certificates=directory / "certs", gpu="NVIDIA H200")
    told = (ignore, ignore, ignore, ignore, ignore, ignore)
    return ClusterEvaluator(cluster, EvaluationConfig(), (), *told, directory, {})


def hear(evaluator: ClusterEvaluator, *running: str, gpu: DeviceFact = GPU) -> Device:
    values = {"version": m.version(), "torch": m.torch_version(), "running": running}
    evaluator._hear_beat(m.Beat(address="tls://a:1", start="1", device=gpu, builders=1, **values))
    return evaluator._roster.devices[gpu.id]


async def test_kernels_go_where_their_problem_is_open_unless_that_device_has_more_to_do(tmp_path: Path) -> None:
    cluster = evaluator(tmp_path)
    first, second = hear(cluster), hear(cluster, gpu=replace(GPU, id="a/GPU-2"))
    second.kept.add("softmax")
    assert await cluster._assign("softmax") is second
    assert await cluster._assign("softmax") is second
    assert await cluster._assign("softmax") is first


async def test_a_free_device_gets_a_kernel_of_its_open_problem_and_an_idle_one_any_other(tmp_path: Path) -> None:
    cluster = evaluator(tmp_path)
    first, second = hear(cluster), hear(cluster, gpu=replace(GPU, id="a/GPU-2"))
    first.kept.add("softmax")
    first.sent, second.sent = [None], [None]
    waiting = {
        problem: asyncio.create_task(cluster._take(first, ticket, problem))
        for ticket, problem in enumerate(("conv2d", "matmul", "softmax"))
    }
    await asyncio.sleep(0)
    await cluster._release(first, None)
    assert await waiting["softmax"] is first
    await cluster._release(second, None)
    assert await waiting["conv2d"] is second
    await cluster._release(first, "")
    assert await waiting["matmul"] is first


async def test_one_kernel_follows_the_judged_one_to_its_host(tmp_path: Path) -> None:
    cluster = evaluator(tmp_path)
    device = hear(cluster)
    device.kept.add("softmax")
    line: list[asyncio.Task[Device]] = []

    async def sent(*waiting: tuple[str, str]) -> list[str | None]:
        """Put kernels in line, each with its problem and code, and return the codes of all kernels at the host."""
        for problem, code in waiting:
            line.append(asyncio.create_task(cluster._take(device, len(line), problem, code)))
        await asyncio.sleep(0.01)
        return device.sent

    assert await sent(("softmax", "a"), ("softmax", "b")) == ["a", "b"]
    assert await sent(("softmax", "a"), ("softmax", "c")) == ["a", "b"]
    await cluster._release(device, "b")
    assert await sent() == ["a"], "the verdict of the second kernel with this code will be known"
    await cluster._release(device, "a")
    assert await sent() == ["a", "c"]
    await cluster._release(device, "a")
    assert await sent(("conv2d", "d")) == ["c"], "its problem must be opened first"
    await cluster._release(device, "c")
    assert await sent() == ["d"]


async def test_no_kernel_follows_a_runoff_or_waits_at_a_host_while_another_device_may_become_idle(
    tmp_path: Path,
) -> None:
    cluster = evaluator(tmp_path)
    first = hear(cluster)
    first.kept.add("softmax")
    async with cluster._any_device("softmax"):
        kernel = asyncio.create_task(cluster._take(first, 1, "softmax", "a"))
        await asyncio.sleep(0.01)
        assert not kernel.done()
    assert await kernel is first
    second = hear(cluster, gpu=replace(GPU, id="a/GPU-2"))
    assert await cluster._take(first, 2, "softmax", "b") is second
    third = asyncio.create_task(cluster._take(first, 3, "softmax", "c"))
    await asyncio.sleep(0.01)
    assert not third.done()
    fourth = asyncio.create_task(cluster._take(first, 4, "softmax", "d"))
    assert await third is first and first.sent == ["a", "c"]
    fourth.cancel()


@pytest.mark.parametrize("follows", [False, True])
async def test_the_wait_at_the_host_counts_as_time_in_the_queue(follows: bool) -> None:
    spec = ProblemSpec(id="p", name="p", path="p.py", source="", tensors=())
    job = _Job(m.Place(spec, ""), m.Kernel("cpp", ""), 1, lambda stage: None, None, None, None)
    job.tell("waiting")
    job.follows, job.begun = follows, job.queued + 3.0
    job.queued -= 10.0
    job.tell_judging("checking")
    job.tell_judging("timing")
    assert job.queued_s(BuildReport(True, 1.0)) == pytest.approx(9.0 if follows else 12.0, abs=0.5)


async def test_a_device_that_was_set_aside_still_releases_its_memory(tmp_path: Path) -> None:
    cluster = evaluator(tmp_path)
    device = hear(cluster)
    cluster._roster.blame(device, "the disk is full")
    cluster._roster.blame(device, "the disk is full")
    assert not cluster._roster.usable()
    async with cluster._any_device(wanted=device.id) as turn:
        assert turn.device is device


async def test_a_free_device_opens_a_problem_before_it_judges_another_kernel(tmp_path: Path) -> None:
    cluster = evaluator(tmp_path)
    device = hear(cluster)
    device.sent = [None]
    done: list[str] = []

    async def judge() -> None:
        taken = await cluster._take(device, 1, "softmax")
        done.append("judged")
        await cluster._release(taken, "")

    async def open_problem() -> None:
        async with cluster._any_device("conv2d"):
            done.append("opened")

    tasks = []
    for work in (judge, open_problem):
        tasks.append(asyncio.create_task(work()))
        await asyncio.sleep(0)
    await cluster._release(device, None)
    await asyncio.gather(*tasks)
    assert done == ["opened", "judged"]


@pytest.mark.parametrize("kind, counts", [(m.Judge, False), (m.Build, True)])
async def test_a_wait_for_an_occupied_device_does_not_count_toward_the_deadline(
    tmp_path: Path, kind: type, counts: bool
) -> None:
    cluster = evaluator(tmp_path)
    attempt = _Attempt(hear(cluster, "1"), kind, lambda stage: None)

    def pass_time() -> float:
        attempt.looked_at = time.monotonic() - 10
        before = attempt.ran_s
        cluster._look("1", attempt)
        return attempt.ran_s - before

    assert pass_time() >= 10
    cluster._hear_report(m.Report("", m.Waits(Wait(GPU, 7, "other", None, 1.0))))
    assert (pass_time() >= 10) is counts
    cluster._hear_report(m.Report("", m.WaitEnded(10.0, GPU.id)))
    assert pass_time() >= 10
