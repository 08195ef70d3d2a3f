"""Import large modules in the background."""

from __future__ import annotations

import asyncio
from importlib import import_module
from types import ModuleType

from engine.system.fast_start import uncollected


async def imported(name: str) -> ModuleType:
    """Import a large module, such as a provider's SDK, in a thread.

    Afterwards, the garbage collector ignores the module's objects. Scans of these objects took 10% of the time of model
    calls and caused pauses of 0.1 s.
    """

    def import_it() -> ModuleType:
        with uncollected():
            return import_module(name)

    return await asyncio.to_thread(import_it)
