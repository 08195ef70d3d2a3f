"""Start a judge. While Python imports PyTorch, do slow work that does not need PyTorch.

``python -m engine.system.fast_start engine.evaluation.judge.start SETTINGS CACHE``: see ``server.py``.
"""

from __future__ import annotations

import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec

from engine.devices.nvml import driver
from engine.evaluation.judge.messages import JudgeSettings
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.inside import cuda
from engine.evaluation.sandbox.warm_process import warm_process
from engine.system.fast_start import uncollected
from engine.system.memory import host_memory, keep_freed_memory, touched_heap


def main() -> int:
    settings = msgspec.json.decode(sys.argv[1], type=JudgeSettings)
    context = ThreadPoolExecutor(1).submit(_has_context, settings)
    if settings.kind == "cuda" and settings.modules:  # On a CPU, starting the warm process would slow timed work.
        warm_process(settings.kind).begin()
    with uncollected(), _touched_heap(settings):
        from engine.evaluation.judge import server
    return server.main(has_context=context.result)


def _touched_heap(settings: JudgeSettings) -> contextlib.AbstractContextManager[None]:
    """Use a core that the import of PyTorch leaves idle to touch the memory that the first problem will use."""
    if settings.kind == "cuda":
        return contextlib.nullcontext()
    keep_freed_memory()
    share = POLICY.device.touched_share * host_memory().free_bytes
    return touched_heap(min(int(POLICY.device.touched_bytes[settings.kind]), int(share)))


def _has_context(settings: JudgeSettings) -> bool:
    """Create the CUDA context that PyTorch will use, if enough memory is free now."""
    if settings.kind != "cuda":
        return False
    memory = driver().memory(settings.device_id)
    if memory is not None and memory.free_bytes < POLICY.admission.context_bytes:
        return False
    with contextlib.suppress(Exception):  # PyTorch retries later and reports the error.
        cuda.Driver()
        return True
    return False
