"""A user's folder may hold packages named ``engine`` and ``tui``. No process of ours imports them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from engine.config.schema import EvaluationConfig
from engine.evaluation.inspect import profiler
from engine.evaluation.local_evaluator import LocalEvaluator
from engine.problem.inspection import inspect_file
from engine.session.records.verdict import Baseline
from tests.commandline import environment
from tests.engine.proposers import canned
from tests.patience import PATIENCE_S
from tui.monitor.panes.detail import assembly
from tui.monitor.panes.detail.disassemble import Request

PACKAGE = """
from pathlib import Path
Path(__file__).parent.with_name("imported").touch()
raise ImportError("this is the user's package")
"""
NCU = """#!/bin/sh
while [ "$1" != "$PYTHON" ]; do shift; done
exec "$@" < /dev/null
"""
"""Runs the program that it would profile."""
TWO = 'extern "C" int launch(const float* x, float* out, void* workspace) { return 2; }'

NORM = """
import time

import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(32)

    def forward(self, x):
        if not torch.compiler.is_compiling():
            time.sleep(0.1)
        return self.norm(x)

def get_inputs():
    return [torch.randn(32000, 32)]

def get_init_inputs():
    return []
"""
"""The model writes to its buffers. The compiler refuses that where they share memory with large inputs. Only eager
sleeps.
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a problem that no cache knows and the two packages."""
    for name in ("engine", "tui"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(PACKAGE)
    (tmp_path / "softmax.py").write_text(f"{canned.PROBLEM}\n# {uuid.uuid4()}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def none_is_imported(folder: Path) -> object:
    yield
    assert not (folder / "imported").exists()


def test_a_kernel_is_judged(folder: Path) -> None:
    """The command inspects the problem in one process and starts the judge, which starts runners."""
    (folder / "two.cpp").write_text(TWO)
    command = [sys.executable, "-P", "-m", "tui.cli.main", "eval", "two.cpp", "--problem", "softmax.py", "--json"]
    ran = subprocess.run(
        [*command, "--quick"],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(),
        timeout=PATIENCE_S,
        check=False,
    )
    assert json.loads(ran.stdout)["status"] == "crashed", ran.stderr


def test_the_compiled_baseline_is_timed(folder: Path, tmp_path: Path) -> None:
    async def baseline() -> Baseline:
        (folder / "norm.py").write_text(f"{NORM}\n# {uuid.uuid4()}\n")
        problem = inspect_file(folder / "norm.py", "norm")
        evaluator = LocalEvaluator(EvaluationConfig(device="cpu"), tmp_path)
        await evaluator.start()
        try:
            await evaluator.open(problem, "")
            return await evaluator.compile_baseline(problem)
        finally:
            await evaluator.close()

    found = asyncio.run(baseline())
    assert found.failure is None and found.timing is not None and found.eager_ms is not None
    assert found.eager_ms >= 100.0 > found.timing.median_ms


def test_load_c_builds_beside_a_package_of_the_same_name(tmp_path: Path) -> None:
    """The user's package stays what ``import engine`` means, also in a running event loop, as in Jupyter."""
    (tmp_path / "engine" / "__init__.py").write_text('NAME = "the user"')
    source = f'extern "C" int two() {{ return 0; }} // {uuid.uuid4()}'
    script = f"""
import asyncio
from kernel_tui import load_c

async def main():
    load_c({source!r}, "cpp").two()

asyncio.run(main())
import engine
load_c({source + " again"!r}, "cpp").two()
import engine as again
print(engine.NAME, again is engine)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=environment(), check=False
    )
    assert ran.stdout == "the user True\n", ran.stderr


def test_a_kernel_is_disassembled(folder: Path) -> None:
    found = asyncio.run(assembly._run(Request(TWO, "cpp", "", assembly.DEFAULT_ARCH)))
    assert found.failure == ""
    assert found.code is not None and [one.name for one in found.code.functions] == ["launch"]


def test_a_profiled_process_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails only because nothing tells it the problem."""
    tool = folder / "bin" / "ncu"
    tool.parent.mkdir()
    tool.write_text(NCU)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHON", sys.executable)
    with pytest.raises(profiler.ProfileError) as failed:
        asyncio.run(profiler.profile(inspect_file(folder / "softmax.py", "softmax"), folder / "kernel.so"))
    assert "MsgspecError" in str(failed.value) or "DecodeError" in str(failed.value), failed.value
