"""A problem is limited by the machine's available memory, and may fill only a bounded share of the log."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.evaluation.free_memory import lack_of_room
from engine.evaluation.log_tap import BURST_BYTES, LogTap
from engine.problem.spec import ProblemSpec, TensorSpec
from engine.system.memory import Memory, host_memory

CPU = DeviceFact(id="cpu", kind="cpu", name="a CPU", arch="", memory_bytes=1 << 35, cores=2)


def problem(*shape: int) -> ProblemSpec:
    tensors = (TensorSpec("x", "input", "float32", shape), TensorSpec("out", "output", "float32", shape))
    return ProblemSpec(id="p", name="p", path="p.py", source="", tensors=tensors)


def test_a_problem_that_cannot_fit_is_refused_with_what_it_needs() -> None:
    assert lack_of_room(problem(1000, 1000), CPU) is None
    refused = lack_of_room(problem(2_000_000, 3_000_000), CPU) or ""
    assert "at least 96 TB" in refused and "this machine has" in refused and "choose smaller sizes" in refused
    gpu = DeviceFact(id="g", kind="cuda", name="a GPU", arch="sm_90", memory_bytes=80 * 10**9, cores=132)
    assert lack_of_room(problem(10**9), gpu) is None
    assert "a GPU has 80 GB;" in (lack_of_room(problem(6 * 10**9), gpu) or "")


def test_what_others_hold_now_is_waited_for_and_no_reason_to_refuse() -> None:
    total = host_memory().total_bytes
    assert lack_of_room(problem(total // 16), CPU) is None, "twice two tensors of a quarter are all of it"
    assert "this machine has" in (lack_of_room(problem(total // 15), CPU) or "")


def test_memory_that_the_system_keeps_of_files_counts_as_free(tmp_path: Path) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "group"
    meminfo.write_text("MemTotal:       1000 kB\nMemFree:          10 kB\nMemAvailable:    400 kB\nHugePages_Free: 0\n")
    assert host_memory(meminfo, group) == Memory(400 << 10, 1000 << 10)
    group.mkdir()
    for name, text in (("max", "300000\n"), ("current", "250000\n"), ("stat", "anon 50000\ninactive_file 200000\n")):
        (group / f"memory.{name}").write_text(text)
    assert host_memory(meminfo, group) == Memory(250000, 300000)
    (group / "memory.max").write_text("max\n")
    assert host_memory(meminfo, group) == Memory(400 << 10, 1000 << 10)
    assert host_memory(tmp_path / "none", tmp_path / "neither") == Memory(0, 0)


def test_a_problem_of_more_tensors_than_a_kernel_can_be_told_of_is_refused() -> None:
    outputs = tuple(TensorSpec(f"out{index}", "output", "float32", (16,)) for index in range(4200))
    many = ProblemSpec(id="p", name="p", path="p.py", source="", tensors=outputs)
    refused = lack_of_room(many, CPU) or ""
    assert "too many tensors: 4,200" in refused and "2,048" in refused
    assert lack_of_room(replace(many, tensors=outputs[:2048]), CPU) is None


def test_a_problem_that_prints_without_end_fills_no_disk(tmp_path: Path) -> None:
    with (tmp_path / "engine.log").open("wb") as log:
        tap = LogTap(log.fileno())
        os.write(tap.descriptor, b"the first words\n")
        for _ in range(10):
            os.write(tap.descriptor, b"x" * BURST_BYTES)
        tap.close()
    written = (tmp_path / "engine.log").read_bytes()
    assert written.startswith(b"the first words\n") and len(written) < 1.1 * BURST_BYTES
    assert written.endswith(b"bytes of a problem's output]\n")
