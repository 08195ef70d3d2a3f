"""Compiler output is bounded, since a source can cause gigabytes of output. The stack is aligned for vectors.
Incomplete entries of the cache are rebuilt. Compilers receive the settings that they need.
"""

from __future__ import annotations

import asyncio
import ctypes
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.evaluation.build.compilers import build, compiler_of, stack_flags

ENDLESS = """\
asm(".macro say\\n.print \\"{word}\\"\\n.endm\\n.rept 2000000\\nsay\\n.endr\\n");
extern "C" int launch(void) {{ return 0; }}
"""

TRIVIAL = 'extern "C" int launch(void) { return 0; }'


def test_a_compiler_that_prints_without_end_is_ended(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        library, report = asyncio.run(build(ENDLESS.format(word="A" * 4000), "cpp", "", "", tmp_path))
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert library is None and not report.ok
    assert report.log.startswith("the builder stopped the compiler, because it printed more than 8 MiB")
    assert most_bytes < 64 << 20
    library, report = asyncio.run(build(TRIVIAL, "cpp", "", "", tmp_path))
    assert report.ok, "the next one is unaffected"


ALIGNED = """\
#include <cstdint>
[[gnu::noipa]] int inner() {
  asm volatile("" ::: "memory");
  return int((reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) + 16) % 64);
}
extern "C" int launch(void) {
  const int past = inner();
  asm volatile("" ::: "memory");
  return past;
}
"""


def test_functions_call_each_other_with_a_stack_aligned_for_vectors(tmp_path: Path) -> None:
    if not stack_flags(compiler_of("cpp")):
        pytest.skip("this compiler does not know the flags")
    library, report = asyncio.run(build(ALIGNED, "cpp", "", "", tmp_path))
    assert library is not None, report.log
    assert ctypes.CDLL(str(library)).launch() == 0


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"")], ids=["deleted", "empty"])
def test_an_incomplete_entry_of_the_cache_is_rebuilt(damage: Callable[[Path], object], tmp_path: Path) -> None:
    first, _ = asyncio.run(build(TRIVIAL, "cpp", "", "", tmp_path))
    assert first is not None
    damage(first)
    library, report = asyncio.run(build(TRIVIAL, "cpp", "", "", tmp_path))
    assert library is not None and not report.cached
    assert ctypes.CDLL(str(library)).launch() == 0
    assert asyncio.run(build(TRIVIAL, "cpp", "", "", tmp_path))[1].cached


def script(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("named", ["bin/g++", "bin"])
def test_nvcc_gets_the_compiler_and_the_flags_that_the_environment_names(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "host" / "bin" / "g++", f'exec {compiler_of("cpp")} "$@"')
    called = "$NVCC_CCBIN" if named == "bin/g++" else "$NVCC_CCBIN/g++"
    nvcc = script(
        tmp_path / "cuda" / "bin" / "nvcc",
        f'exec "{called}" $NVCC_APPEND_FLAGS -shared -fPIC -x c++ kernel.cu -o kernel.so',
    )
    monkeypatch.setenv("NVCC", str(nvcc))
    monkeypatch.setenv("NVCC_CCBIN", str(tmp_path / "host" / named))
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DSTATUS=1")
    source = TRIVIAL.replace("0", "STATUS")
    one, report = asyncio.run(build(source, "cu", "", "sm_90a", tmp_path / "builds"))
    assert one is not None, report.log
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DSTATUS=2")
    two, report = asyncio.run(build(source, "cu", "", "sm_90a", tmp_path / "builds"))
    assert two is not None, report.log
    assert [ctypes.CDLL(str(library)).launch() for library in (one, two)] == [1, 2]


def test_a_compiler_behind_ccache_finds_a_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = 'test "$CCACHE_DISABLE" = 1 && test -w "$HOME"'
    ccache = script(tmp_path / "ccache" / "bin" / "g++", f'{needs} && exec {compiler_of("cpp")} "$@"')
    monkeypatch.setenv("CXX", str(ccache))
    library, report = asyncio.run(build(TRIVIAL, "cpp", "", "", tmp_path / "builds"))
    assert library is not None, report.log
