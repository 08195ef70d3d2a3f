"""The builder compiles a source, returns a report, and keeps the library in the host's cache."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from engine.devices.hardware import cpu_fact
from engine.evaluation.build.build_cache import BuildCache
from engine.evaluation.build.builder import Builder
from engine.evaluation.build.kernel_source import KernelSource, kernel_source
from engine.problem.spec import Language, ProblemSpec
from engine.session.records.verdict import Stage

PROBLEM = ProblemSpec(id="p", name="p", path="p.py", source="SIZE = 3\n", tensors=())
SLOW = "#include <regex>\n"


def kernel(source: str = "", language: Language = "cpp") -> KernelSource:
    text = source + ('extern "C" int launch(void) { return SIZE; }\n' if language == "cpp" else "")
    return kernel_source(PROBLEM, "constexpr int SIZE = 3;\n", language, text, cpu_fact())


class Turns:
    """Count concurrent builds, and delay them if necessary."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.free, self.begun = asyncio.Event(), asyncio.Event()

    @contextlib.asynccontextmanager
    async def beside(self, most_s: float) -> AsyncIterator[None]:
        await self.free.wait()
        self.begun.set()
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            yield
        finally:
            self.now -= 1


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path, isolate=True)


@pytest.fixture
def turns() -> Turns:
    return Turns()


async def test_what_was_built_is_found_by_its_source_alone(cache: BuildCache, turns: Turns) -> None:
    turns.free.set()
    assert cache.find(kernel()) is None
    report = await Builder(cache, 2, turns.beside).build(kernel())
    assert report.ok and report.code and not report.cached
    travelled = msgspec.json.decode(msgspec.json.encode(kernel()), type=KernelSource)
    found = BuildCache(cache.directory, isolate=True).find(travelled)
    assert found is not None and found.library is not None and found.library.is_file()
    assert found.report.cached and found.report.code == report.code
    for other in (kernel("// another text\n"), msgspec.structs.replace(kernel(), header="constexpr int SIZE = 4;\n")):
        assert cache.find(other) is None
    assert cache.find(msgspec.structs.replace(kernel(), flags=(*kernel().flags, "-g"))) is None


async def test_a_python_kernel_travels_with_its_problem(cache: BuildCache, turns: Turns) -> None:
    turns.free.set()
    module = kernel("class ModelNew: ...\n", "py")
    assert module.problem == PROBLEM.source and module.header == ""
    assert (await Builder(cache, 1, turns.beside).build(module)).ok
    found = cache.find(module)
    assert found is not None and found.library is not None and found.library.read_text() == module.source
    assert cache.find(msgspec.structs.replace(module, problem="SIZE = 4\n")) is None


async def test_flags_reach_the_compiler(cache: BuildCache) -> None:
    asks = kernel("#ifndef WANTED\n#error not asked for\n#endif\n")
    assert "not asked for" in (await cache.build(asks)).report.log
    assert (await cache.build(msgspec.structs.replace(asks, flags=(*asks.flags, "-DWANTED")))).report.ok


async def test_builds_run_in_parallel_and_no_more_than_there_are_builders(cache: BuildCache, turns: Turns) -> None:
    turns.free.set()
    builder = Builder(cache, 2, turns.beside)
    reports = await asyncio.gather(*(builder.build(kernel(f"{SLOW}// {number}\n")) for number in range(4)))
    assert all(report.ok for report in reports) and turns.most == 2


async def test_stages_are_told_and_a_kernel_that_is_there_waits_for_no_turn(cache: BuildCache, turns: Turns) -> None:
    stages: list[Stage] = []
    builder = Builder(cache, 1, turns.beside)
    building = asyncio.create_task(builder.build(kernel(), stages.append))
    while "waiting" not in stages:  # noqa: ASYNC110 - it is a callback that says so
        await asyncio.sleep(0.01)
    turns.free.set()
    assert (await building).ok and stages == ["waiting", "building"]
    turns.free.clear()
    assert (await asyncio.wait_for(builder.build(kernel()), 5)).cached


async def test_what_was_begun_is_built_once_and_cancelled_with_whoever_asks(cache: BuildCache, turns: Turns) -> None:
    turns.free.set()
    builder = Builder(cache, 2, turns.beside)
    builder.begin(kernel())
    builder.begin(kernel())
    await asyncio.sleep(0)
    assert (await builder.build(kernel())).ok and turns.most == 1
    turns.begun.clear()
    builder.begin(kernel(SLOW))
    asked = asyncio.create_task(builder.build(kernel(SLOW)))
    await turns.begun.wait()
    asked.cancel()
    await asyncio.wait([asked])
    assert asked.cancelled() and turns.now == 0 and cache.find(kernel(SLOW)) is None
    builder.begin(kernel(f"{SLOW}// nobody asks\n"))
    await asyncio.sleep(0.05)
    await builder.close()
    assert turns.now == 0 and not list(cache.directory.glob("build-*")), "no half-built kernel is left"
