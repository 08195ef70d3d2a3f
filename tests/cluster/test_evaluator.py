"""The engine's side of a cluster, without a network."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from engine.cluster import messages as m
from engine.cluster.evaluator import ClusterEvaluator, _Attempt
from engine.cluster.roster import Device
from engine.config.schema import ClusterConfig, EvaluationConfig
from engine.devices.fact import DeviceFact
from engine.evaluation.device_waits import Wait

GPU = DeviceFact("a/GPU-1", "cuda", "NVIDIA H200", "sm_90a", 141 << 30, 132, host="a")


def evaluator(directory: Path) -> ClusterEvaluator:
    def ignore(*_: Any) -> None:
        pass

    cluster = ClusterConfig(scheduler="tls://hub:8786", certificates=directory / "certs", gpu="NVIDIA H200")
    told = (ignore, ignore, ignore, ignore, ignore, ignore)
    return ClusterEvaluator(cluster, EvaluationConfig(), (), *told, directory, {})


def hear(evaluator: ClusterEvaluator, *running: str) -> Device:
    values = {"version": m.version(), "torch": m.torch_version(), "running": running}
    evaluator._hear_beat(m.Beat(address="tls://a:1", start="1", device=GPU, builders=1, **values))
    return evaluator._roster.devices[GPU.id]


async def test_a_device_that_was_set_aside_still_releases_its_memory(tmp_path: Path) -> None:
    cluster = evaluator(tmp_path)
    device = hear(cluster)
    cluster._roster.blame(device, "the disk is full")
    cluster._roster.blame(device, "the disk is full")
    assert not cluster._roster.usable()
    async with cluster._any_device(wanted=device.id) as turn:
        assert turn.device is device


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
