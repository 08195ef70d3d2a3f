"""Import what is large while all else goes on."""

from __future__ import annotations

import asyncio
from importlib import import_module
from types import ModuleType

from engine.quickly import uncollected


async def imported(name: str) -> ModuleType:
    """A model's SDK, or what else takes long to import and stays. Its hundreds of thousands of objects are never looked
    through again: that was a tenth of what calls cost, and stops of a tenth of a second."""

    def import_it() -> ModuleType:
        with uncollected():
            return import_module(name)

    return await asyncio.to_thread(import_it)
