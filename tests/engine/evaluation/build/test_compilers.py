"""Compiler output is bounded, since a source can cause gigabytes of output."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

from engine.evaluation.build.compilers import build

ENDLESS = """\
asm(".macro say\\n.print \\"{word}\\"\\n.endm\\n.rept 2000000\\nsay\\n.endr\\n");
extern "C" int launch(void) {{ return 0; }}
"""


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
    library, report = asyncio.run(build('extern "C" int launch(void) { return 0; }', "cpp", "", "", tmp_path))
    assert report.ok, "the next one is unaffected"
