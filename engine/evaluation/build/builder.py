"""Build kernels in parallel on a judging host, without disturbing the cores and the device used for timing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from engine.evaluation.build.build_cache import BuildCache
from engine.evaluation.build.kernel_source import KernelSource
from engine.evaluation.judge_policy import POLICY
from engine.session.records.verdict import BuildReport, Stage

_BUILD = POLICY.build

Beside = Callable[[float], AbstractAsyncContextManager[object]]
"""A function that returns a context manager, which waits until no judge is timing a kernel on the compilers' cores.

The open context blocks timing on these cores for at most the given number of seconds.
"""


class Builder:
    """Build kernels into the host's cache, at most ``at_once`` at a time, each within a ``beside`` context.

    The builder receives sources and returns reports. Only the host's judge loads libraries from the cache.
    """

    def __init__(self, cache: BuildCache, at_once: int, beside: Beside) -> None:
        self._cache, self._beside = cache, beside
        self._builders = asyncio.Semaphore(at_once)
        self._begun: dict[KernelSource, asyncio.Task[BuildReport]] = {}

    def begin(self, kernel: KernelSource) -> None:
        """Start a build whose report :meth:`build` will return later."""
        if kernel not in self._begun:
            self._begun[kernel] = asyncio.create_task(self._build(kernel, lambda stage: None))

    async def build(self, kernel: KernelSource, on_stage: Callable[[Stage], None] = lambda stage: None) -> BuildReport:
        """Build a kernel, and return the compiler's report. Canceling kills the compiler.

        Raises ``NoCompiler`` if the compiler is missing, and ``OSError`` if the cache is not writable.
        """
        begun = self._begun.pop(kernel, None)
        if begun is None:
            return await self._build(kernel, on_stage)
        on_stage("building")
        return await begun

    async def built(self, kernel: KernelSource) -> Path | None:
        """Return the built kernel, usually from the cache, or None if the build fails. Raises as :meth:`build`."""
        found = self._cache.find(kernel) or await self._cache.build(kernel)
        return found.library

    async def close(self) -> None:
        """Cancel the builds that :meth:`begin` started and whose reports :meth:`build` has not returned."""
        for task in self._begun.values():
            task.cancel()
        await asyncio.gather(*self._begun.values(), return_exceptions=True)
        self._begun.clear()

    async def _build(self, kernel: KernelSource, on_stage: Callable[[Stage], None]) -> BuildReport:
        if (found := self._cache.find(kernel)) is not None:
            return found.report  # A cached build need not wait for timing to end.
        waits = asyncio.get_running_loop().call_later(_BUILD.noticed_s, on_stage, "waiting")
        try:
            async with self._builders, self._beside(_BUILD.module_turn_s if kernel.language == "py" else _BUILD.turn_s):
                waits.cancel()
                on_stage("building")
                return (await self._cache.build(kernel)).report
        finally:
            waits.cancel()
