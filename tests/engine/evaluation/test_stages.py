"""What a search says of a kernel that is not judged yet: whether it is built, or waits for its turn."""

from __future__ import annotations

import asyncio
import os

from engine.events import Stage
from tests.engine.evaluation.conftest import Bench

NO_KERNEL = "#include <regex>\nint number = {number} + nothing;\n"


def test_a_kernel_that_waits_for_a_builder_is_not_said_to_be_built(bench: Bench) -> None:
    stages: list[Stage] = []

    async def built() -> None:
        first = [NO_KERNEL.format(number=number) for number in range(len(os.sched_getaffinity(0)))]
        for source in first:  # as many as there are builders
            bench.evaluator.begin_build(bench.problem, bench.header, bench.form, source)
        await asyncio.sleep(0)  # they take the builders
        last = bench.evaluator.evaluate(bench.problem, bench.form, NO_KERNEL.format(number="last"), stages.append)
        # All of them: a build that is left when the loop stands still would keep the device from everybody.
        others = [bench.evaluator.evaluate(bench.problem, bench.form, source, lambda stage: None) for source in first]
        assert [verdict.status for verdict in await asyncio.gather(last, *others)] == (1 + len(first)) * ["build_error"]

    bench.run(built())
    assert stages == ["waiting", "building"]
