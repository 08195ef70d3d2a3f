"""Hardware counters: the output of ncu, the meaning of its errors, and the process that it profiles."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.evaluation.build.compilers import build
from engine.evaluation.inspect.profiler import METRICS, ProfileError, parse, profile
from engine.problem.c_header import derive_header
from engine.problem.spec import ProblemSpec
from engine.system.tool_paths import NoTool
from tests.commandline import ROOT
from tests.engine.evaluation.conftest import Bench
from tests.engine.evaluation.kernels import softmax
from tests.patience import PATIENCE_S

PRINTED = """\
==PROF== Connected to process 4242 (/usr/bin/python3.11)
==PROF== Profiling "rows" - 0: 0%....50%....100% - 3 passes
==PROF== Disconnected from process 4242
"ID","Process ID","Kernel Name","dram__bytes_read.sum","gpu__time_duration.sum","lts__t_sector_hit_rate.pct"
"","","","byte","ns","%"
"0","4242","rows(const float *, float *)","2,007,040","11,424","n/a"
"""
PERMISSION = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
    "target device 0."
)


def test_counters_are_read_with_their_units_and_what_the_chip_lacks_is_left_out() -> None:
    (launch,) = parse(PRINTED)
    assert launch.kernel == "rows(const float *, float *)"
    assert {one.name: (one.value, one.unit) for one in launch.metrics} == {
        "gpu__time_duration.sum": (11424.0, "ns"),
        "dram__bytes_read.sum": (2007040.0, "byte"),
    }
    assert list(parse("==PROF== nothing was profiled")) == []
    assert 20 <= len(METRICS) <= 30


def ncu(directory: Path, script: str) -> None:
    """Simulates ncu with output recorded on another machine."""
    file = directory / "ncu"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def counters(directory: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("PATH", str(directory), prepend=os.pathsep)
    problem = ProblemSpec(id="p", name="p", path="p.py", source="", tensors=())
    return asyncio.run(profile(problem, Path("kernel.so")))


def test_a_machine_that_does_not_allow_it_says_how_to_allow_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ncu(tmp_path, f"echo '{PERMISSION}'; exit 9")
    with pytest.raises(ProfileError, match=r"ERR_NVGPUCTRPERM.*NVreg_RestrictProfilingToAdminUsers=0"):
        counters(tmp_path, monkeypatch)


def test_what_ncu_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ncu(tmp_path, "echo 'launch returned 700'; echo '==ERROR== The application returned an error code (1).'; exit 1")
    with pytest.raises(ProfileError, match=r"status 1 and reported no counters: launch returned 700"):
        counters(tmp_path, monkeypatch)


def test_without_ncu_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("NVCC", "CUDA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("engine.system.tool_paths.SYSTEM_TOOLKIT", tmp_path)
    monkeypatch.setattr("engine.evaluation.inspect.profiler._NSIGHT", tmp_path)
    with pytest.raises(NoTool, match="install Nsight Compute"):
        asyncio.run(profile(ProblemSpec(id="p", name="p", path="p.py", source="", tensors=()), Path("kernel.so")))


@pytest.mark.parametrize(("after", "code", "said"), [("", 0, ""), ("return 7;", 1, "launch returned 7")])
def test_the_process_that_is_profiled_calls_the_kernel(
    bench: Bench, tmp_path: Path, after: str, code: int, said: str
) -> None:
    header = derive_header(bench.problem, bench.language)
    library, report = asyncio.run(
        build(softmax(bench.language, after=after), bench.language, header, "sm_90a", tmp_path / "builds")
    )
    assert library is not None, report.log
    device = "cuda" if bench.language == "cu" else "cpu"
    ended = subprocess.run(
        [sys.executable, "-m", "engine.evaluation.inspect.profiled_process", str(library), device],
        input=msgspec.json.encode(bench.problem),
        capture_output=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
    )
    assert (ended.returncode, said in ended.stderr.decode()) == (code, True)
