"""The evaluation queue: order, slots and removal."""

from __future__ import annotations

import asyncio

import pytest

from engine.search.queue import EvaluationQueue, Priority


class Bench:
    """Block each evaluation until ``go`` is set, and record their order."""

    def __init__(self, width: int = 1) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.go = asyncio.Event()
        self.changes = 0
        self.queue = EvaluationQueue(self.judge, width, self.note)

    async def judge(self, variant: str) -> None:
        self.began.append(variant)
        await self.go.wait()
        self.ended.append(variant)

    def note(self) -> None:
        self.changes += 1

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


async def test_no_more_are_judged_at_once_than_there_are_places() -> None:
    bench = Bench(width=2)
    for name in ("v1", "v2", "v3"):
        bench.queue.put(name, Priority.NORMAL)
    await bench.settle()
    assert bench.began == ["v1", "v2"]
    bench.go.set()
    await bench.settle()
    assert bench.ended == ["v1", "v2", "v3"]
    assert bench.queue.idle


async def test_the_end_of_the_search_starts_no_evaluation_in_place_of_a_cancelled_one() -> None:
    bench = Bench()
    bench.queue.put("running", Priority.NORMAL)
    bench.queue.put("queued", Priority.NORMAL)
    await bench.settle()
    await asyncio.wait(bench.queue.end())
    await bench.settle()
    assert bench.began == ["running"] and not bench.queue.running


async def test_fixes_come_before_new_kernels_and_earlier_rounds_before_later_ones() -> None:
    bench = Bench()
    bench.queue.put("running", Priority.NORMAL)
    bench.queue.put("round 2", Priority.NORMAL, 2)
    bench.queue.put("round 1", Priority.NORMAL, 1)
    bench.queue.put("fix", Priority.FIX, 2)
    bench.go.set()
    await bench.settle()
    assert bench.began == ["running", "fix", "round 1", "round 2"]


async def test_a_person_does_not_wait_for_a_place() -> None:
    bench = Bench()
    bench.queue.put("running", Priority.NORMAL)
    bench.queue.put("waiting", Priority.NORMAL)
    bench.queue.put("by hand", Priority.HAND)
    await bench.settle()
    assert bench.began == ["running", "by hand"]


async def test_while_it_is_held_nothing_starts_and_what_runs_finishes() -> None:
    bench = Bench()
    bench.queue.put("v1", Priority.NORMAL)
    bench.queue.put("v2", Priority.NORMAL)
    bench.queue.hold()
    bench.queue.put("v3", Priority.HAND)
    bench.go.set()
    await bench.settle()
    assert bench.ended == ["v1"]
    bench.queue.release()
    await bench.settle()
    assert bench.ended == ["v1", "v3", "v2"]


async def test_what_is_cancelled_never_starts_or_is_stopped() -> None:
    bench = Bench()
    bench.queue.put("running", Priority.NORMAL)
    bench.queue.put("queued", Priority.NORMAL)
    bench.queue.put("kept", Priority.NORMAL)
    await bench.settle()
    stopped = bench.queue.cancel(["running", "queued"])
    assert len(stopped) == 1
    await asyncio.wait(stopped)
    bench.go.set()
    await bench.settle()
    assert bench.began == ["running", "kept"]
    assert bench.ended == ["kept"]


async def test_a_cancelled_one_can_be_queued_again() -> None:
    bench = Bench()
    bench.queue.put("v1", Priority.NORMAL)
    await bench.settle()
    await asyncio.wait(bench.queue.cancel(["v1"]))
    bench.go.set()
    bench.queue.put("v1", Priority.NORMAL)
    await bench.settle()
    assert bench.ended == ["v1"]


async def test_draining_waits_for_a_while_and_then_stops_what_still_runs() -> None:
    bench = Bench()
    bench.queue.put("v1", Priority.NORMAL)
    bench.queue.put("v2", Priority.NORMAL)
    await bench.settle()
    await bench.queue.drain(0.01)
    await bench.settle()
    assert bench.began == ["v1"]
    assert bench.ended == []
    assert bench.queue.idle


async def test_an_error_is_kept_for_whoever_looks_after_the_queue() -> None:
    async def fails(variant: str) -> None:
        raise OSError("no space left")

    queue = EvaluationQueue(fails, 1, lambda: None)
    queue.put("v1", Priority.NORMAL)
    for _ in range(5):
        await asyncio.sleep(0)
    with pytest.raises(OSError, match="no space left"):
        raise queue.failure or AssertionError("no failure was kept")
