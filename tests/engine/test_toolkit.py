"""Compilers and CUDA tools are found on the path, in a toolkit, or in a Python environment's wheels."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.system import tool_paths


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Simulate a machine without CUDA. Returns a directory from which Python imports."""
    for variable in ("NVCC", "CUDA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(tool_paths, "SYSTEM_TOOLKIT", tmp_path / "usr-local-cuda")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    return tmp_path / "site-packages"


def put(file: Path) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return str(file)


def test_the_wheels_of_the_environment_will_do(bare: Path) -> None:
    nvcc = put(bare / "nvidia" / "cu13" / "bin" / "nvcc")
    cuobjdump = put(bare / "nvidia" / "cu13" / "bin" / "cuobjdump")
    assert tool_paths.find_nvcc() == nvcc
    assert tool_paths.find_cuda_tool("cuobjdump") == cuobjdump
    assert tool_paths.cuda_home() == bare / "nvidia" / "cu13"


def test_a_toolkit_of_the_machine_comes_before_them(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bare / "nvidia" / "cu13" / "bin" / "nvcc")
    system = put(tool_paths.SYSTEM_TOOLKIT / "bin" / "nvcc")
    assert tool_paths.find_nvcc() == system
    home = put(bare.parent / "cuda-12.8" / "bin" / "nvcc")
    monkeypatch.setenv("CUDA_HOME", str(bare.parent / "cuda-12.8"))
    assert tool_paths.find_nvcc() == home
    monkeypatch.setenv("NVCC", system)
    assert tool_paths.find_nvcc() == system


def test_without_any_the_message_says_what_to_install(bare: Path) -> None:
    with pytest.raises(tool_paths.NoCompiler, match=r"pip install 'kernel-tui\[cuda\]'"):
        tool_paths.find_nvcc()
    with pytest.raises(
        tool_paths.NoTool, match=r"ncu is neither in nvcc's directory nor on PATH.*pip install 'kernel-tui\[cuda\]'"
    ):
        tool_paths.find_cuda_tool("ncu")
