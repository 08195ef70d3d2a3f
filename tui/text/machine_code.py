"""Format a kernel's machine code and occupancy as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from engine.devices.occupancy import Occupancy, asks_for_dynamic_shared, launch_shapes, limits_of, occupancy
from tui.text.sanitize import one_line

if TYPE_CHECKING:
    from engine.evaluation.inspect.machine_code import Function
    from engine.session.records.verdict import Launch

USUAL_BLOCKS = (128, 256, 512, 1024)


class CodeLine(NamedTuple):
    """A source line (``is_source``), or an instruction compiled from the line above."""

    text: str
    is_source: bool


def code_lines(function: Function) -> Iterator[CodeLine]:
    """Yield each source line, followed by its instructions."""
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
    """Yield registers, memory and the occupancy for ``threads``, or for the block sizes in the source."""
    if function.registers is None:
        return
    stack, static = function.stack_bytes or 0, function.shared_bytes or 0
    dynamic = f" and {dynamic_shared} dynamic" if dynamic_shared else ""
    per_thread = f"{function.registers} registers, {function.spill_bytes or 0} bytes spilled"
    yield f"  {per_thread}, {stack} bytes of stack, {static} of static{dynamic} shared memory"
    if limits_of(arch) is None:
        yield f"  occupancy: unknown; the hardware limits of {arch} are not known"
        return
    for words in occupancies(arch, function.registers, static, source, threads, dynamic_shared):
        yield f"  {words}"
    if not dynamic_shared and not_counted(source):
        yield "  to include dynamic shared memory: --dynamic-shared BYTES"


def occupancies(
    arch: str, registers: int, static_shared: int, source: str, threads: int | None = None, dynamic_shared: int = 0
) -> Iterator[str]:
    """Yield the occupancy of each launch whose block size is a literal, or of common block sizes.

    If the figures leave out dynamic shared memory, a last line says so. ``threads`` and ``dynamic_shared`` (bytes)
    override the source's values.
    """
    written = launch_shapes(source)
    shapes = [(one.threads, dynamic_shared or one.dynamic_shared_bytes or 0) for one in written]
    if threads is not None:
        largest = max((dynamic for size, dynamic in shapes if size == threads), default=dynamic_shared)
        shapes = [(threads, largest)]
    guess = "" if shapes else ", if launched with this block size"
    for size, dynamic in shapes or [(size, dynamic_shared) for size in USUAL_BLOCKS]:
        found = occupancy(arch, size, registers, static_shared + dynamic)
        if found is not None:
            yield f"{occupancy_words(found, dynamic)}{guess}"
    if not dynamic_shared and not_counted(source):
        yield "not counted: dynamic shared memory, whose size is not a literal; fewer blocks may fit"


def launch_words(launch: Launch) -> str:
    """Describe a recorded launch: its kernel, its shape, and the resources of a block."""
    shared = f"{launch.static_shared_bytes:,} B static, {launch.dynamic_shared_bytes:,} B dynamic shared memory"
    resident = f", {launch.blocks_per_sm} blocks per SM" if launch.blocks_per_sm else ""
    return (
        f"{one_line(launch.kernel, 60)}: {launch.blocks:,} blocks of {launch.threads} threads, "
        f"{launch.registers} registers per thread, {shared}{resident}"
    )


def not_counted(source: str) -> bool:
    """Return whether the source uses dynamic shared memory whose size is known only at run time."""
    sizes = [one.dynamic_shared_bytes for one in launch_shapes(source)]
    return asks_for_dynamic_shared(source) and (None in sizes or not any(sizes))


def occupancy_words(found: Occupancy, dynamic_shared: int = 0) -> str:
    """Describe an occupancy, such as ``blocks of 256 threads: occupancy 50% (4 blocks, 32 warps), limited by
    registers``.
    """
    with_memory = f" with {dynamic_shared:,} bytes of dynamic shared memory" if dynamic_shared else ""
    if found.blocks == 0:
        return f"blocks of {found.threads} threads{with_memory}: no block fits, limited by {' and '.join(found.limits)}"
    blocks = f"{found.blocks} block{'' if found.blocks == 1 else 's'}"
    return (
        f"blocks of {found.threads} threads{with_memory}: occupancy {found.share * 100:.0f}% "
        f"({blocks}, {found.warps} warps), limited by {' and '.join(found.limits)}"
    )
