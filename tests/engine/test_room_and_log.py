"""What a problem may ask of the machine that judges it: memory that is there, and a bounded share of the log."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from engine.events import DeviceFact
from engine.problem.spec import ProblemSpec, TensorSpec
from engine.workers.log_tap import BURST_BYTES, LogTap
from engine.workers.room import lack_of_room

CPU = DeviceFact(id="cpu", kind="cpu", name="a CPU", arch="", memory_bytes=1 << 35, cores=2)


def problem(*shape: int) -> ProblemSpec:
    tensors = (TensorSpec("x", "input", "float32", shape), TensorSpec("out", "output", "float32", shape))
    return ProblemSpec(id="p", name="p", path="p.py", source="", tensors=tensors)


def test_a_problem_that_cannot_fit_is_refused_with_what_it_needs() -> None:
    assert lack_of_room(problem(1000, 1000), CPU) is None
    refused = lack_of_room(problem(2_000_000, 3_000_000), CPU) or ""
    assert "need at least 96 TB" in refused and "this machine has" in refused and "choose smaller sizes" in refused
    gpu = DeviceFact(id="g", kind="cuda", name="a GPU", arch="sm_90", memory_bytes=80 * 10**9, cores=132)
    assert lack_of_room(problem(10**9), gpu) is None
    assert "a GPU has 80 GB;" in (lack_of_room(problem(6 * 10**9), gpu) or "")


def test_a_problem_of_more_tensors_than_a_kernel_can_be_told_of_is_refused() -> None:
    outputs = tuple(TensorSpec(f"out{index}", "output", "float32", (16,)) for index in range(4200))
    many = ProblemSpec(id="p", name="p", path="p.py", source="", tensors=outputs)
    refused = lack_of_room(many, CPU) or ""
    assert "too many tensors: 4,200" in refused and "2,048 at most" in refused
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
    assert written.endswith(b"bytes that a problem printed are left out]\n")
