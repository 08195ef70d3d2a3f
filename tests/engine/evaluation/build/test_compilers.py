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
    assert report.log.startswith("the builder stopped the compiler: it printed more than 8 MiB")
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
