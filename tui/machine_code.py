"""Machine code and what it needs of a multiprocessor, as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from engine.occupancy import Occupancy, block_sizes, limits_of, occupancy
from tui.sanitize import one_line

if TYPE_CHECKING:
    from engine.evaluation.machine_code import Function

USUAL_BLOCKS = (128, 256, 512, 1024)


class CodeLine(NamedTuple):
    """``is_source``: a line of the kernel's file, above the instructions that come from it."""

    text: str
    is_source: bool


def code_lines(function: Function) -> Iterator[CodeLine]:
    """Every instruction, under the source line that it comes from."""
    for block in function.blocks:
        if block.line:
            yield CodeLine(f"{block.line:>5}: {one_line(block.source)}", True)
        else:
            yield CodeLine("    -: (from a header)", True)
        for instruction in block.instructions:
            yield CodeLine(f"         {one_line(instruction)}", False)


def occupancy_lines(
    arch: str, function: Function, source: str, threads: int | None = None, dynamic_shared: int = 0
) -> Iterator[str]:
    """Registers, memory, and the occupancy for ``threads``, else for the block sizes that the source names."""
    if function.registers is None:
        return
    stack, static = function.stack_bytes or 0, function.shared_bytes or 0
    dynamic = f" and {dynamic_shared} dynamic" if dynamic_shared else ""
    per_thread = f"{function.registers} registers, {function.spill_bytes or 0} bytes spilled"
    yield f"  {per_thread}, {stack} bytes of stack, {static} of static{dynamic} shared memory"
    if limits_of(arch) is None:
        yield f"  occupancy: the limits of {arch} are not known here"
        return
    written = block_sizes(source)
    for size in (threads,) if threads is not None else (written or USUAL_BLOCKS):
        found = occupancy(arch, size, function.registers, static + dynamic_shared)
        if found is not None:
            guess = "" if threads is not None or written else ", if blocks are so large"
            yield f"  {occupancy_words(found)}{guess}"
    if not dynamic_shared and "extern __shared__" in source:
        yield "  the source asks for dynamic shared memory too: --dynamic-shared BYTES counts it"


def occupancy_words(found: Occupancy) -> str:
    """``blocks of 256 threads: occupancy 50 % (4 blocks, 32 warps), limited by registers``."""
    if found.blocks == 0:
        return f"blocks of {found.threads} threads: none fits, too much {' and '.join(found.limits)}"
    return (
        f"blocks of {found.threads} threads: occupancy {found.share * 100:.0f} % "
        f"({found.blocks} blocks, {found.warps} warps), limited by {' and '.join(found.limits)}"
    )
