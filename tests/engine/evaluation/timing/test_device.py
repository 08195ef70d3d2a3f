"""The reference is timed with memory that is already allocated, however large its outputs are."""

from __future__ import annotations

import subprocess
import sys

from tests.patience import PATIENCE_S

FAULTS = """
import resource, torch
from engine.evaluation.judge_device import JudgeDevice
from engine.system.memory import give_back_freed_memory

device, x = JudgeDevice("cpu", 1), torch.ones(48 << 18)

def faults(calls):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        device.time_ms(lambda: torch.relu(x))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(20)  # blocks grow together first
print(faults(5))
give_back_freed_memory()
print(faults(1))
"""


def test_a_reference_with_large_outputs_waits_for_no_pages() -> None:
    """48 MiB are 12,288 pages. Runs in its own process, because it permanently changes the process's allocator."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    recycled, given_back = map(int, done.stdout.split())
    assert recycled < 100 < 10_000 < given_back


HEAP = """
import resource, time
from engine.system.memory import keep_freed_memory, touched_heap

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

keep_freed_memory()
before = faults()
with touched_heap(64 << 20):
    while faults() - before < 15 << 10:
        time.sleep(0.01)
before = faults()
block = bytearray(48 << 20)
print(faults() - before)
"""


def test_the_first_large_allocations_wait_for_no_pages() -> None:
    done = subprocess.run([sys.executable, "-c", HEAP], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert int(done.stdout) < 1_000
