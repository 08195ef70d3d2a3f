"""A search reports whether a kernel without a verdict is being built or is waiting in the queue."""

from __future__ import annotations

import asyncio
import os

from engine.session.records.verdict import Stage
from tests.engine.evaluation.conftest import Bench

NO_KERNEL = "#include <regex>\nint number = {number} + nothing;\n"


def test_a_kernel_that_waits_for_a_builder_is_not_said_to_be_built(bench: Bench) -> None:
    stages: list[Stage] = []

    async def built() -> None:
        first = [NO_KERNEL.format(number=number) for number in range(len(os.sched_getaffinity(0)))]
        for source in first:  # as many as there are builders
            bench.evaluator.begin_build(bench.problem, bench.header, bench.language, source)
        await asyncio.sleep(0)  # they occupy the builders
        last = bench.evaluator.evaluate(bench.problem, bench.language, NO_KERNEL.format(number="last"), stages.append)
        # Await all builds: one left over when the loop stops would block the device for others.
        others = [
            bench.evaluator.evaluate(bench.problem, bench.language, source, lambda stage: None) for source in first
        ]
        assert [verdict.status for verdict in await asyncio.gather(last, *others)] == (1 + len(first)) * ["build_error"]

    bench.run(built())
    assert stages == ["waiting", "building"]
