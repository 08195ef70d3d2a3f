"""The C++ kernel file of a grid convolution."""

from __future__ import annotations

from itertools import product
from typing import Literal

from msgspec import Struct

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.codegen.cpp_math import needs_no_errno
from engine.proposers.playbook.codegen.cpp_options import Arithmetic
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import fixed_sizes
from engine.proposers.playbook.patterns.gemm.tiles.cpp_finish import finish, ops_of, pointers, preamble, tensors_struct
from engine.proposers.playbook.patterns.grid_conv.grid import Grid, Tap, grid_of
from engine.proposers.playbook.patterns.grid_conv.program import GridConvProgram, Triple


class GridConvOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The choices for a grid-convolution kernel.

    Attributes:
        rows: Filters per tile in registers.
        vecs: Vectors of ``lanes`` positions per tile.
        blocks: Number of adjacent tiles of positions that one task computes.
    """

    rows: int = 6
    vecs: int = 2
    lanes: int = 16
    blocks: int = 4
    parallel: bool = False
    schedule: Literal["static", "dynamic"] = "static"
    math: Arithmetic = "libm"


def grid_kernel(conv: GridConvProgram, options: GridConvOptions, spec: ProblemSpec) -> str:
    """Return the kernel source."""
    grid = grid_of(conv)
    before, after = grid.reach
    taps = [_taps(grid, conv.kernel, phase) for phase in product(*(axis.phases for axis in grid.axes))]
    first_taps = [sum(map(len, taps[:phase])) for phase in range(len(taps) + 1)]
    names = pointers([conv.chain], conv.x, conv.w)
    ops = ops_of(conv.chain)
    kind = "transposed convolution" if conv.transposed else "convolution"
    kernel = " x ".join(map(str, conv.kernel))
    return render(
        "grid_conv.cpp.j2",
        title=f"A {kind} for {spec.name}: {conv.channels} channels, {conv.filters} filters of {kernel}.",
        no_errno=needs_no_errno(ops),
        conv=conv,
        grid=grid,
        options=options,
        before=before,
        after=after,
        taps=[tap for phase in taps for tap in phase] or [(0, 0, 0)],
        first_taps=first_taps,
        size_assertions=fixed_sizes(tensor for tensor in spec.tensors if tensor.name in names),
        preamble="\n".join(preamble([conv.chain], options.lanes, options.math)),
        tensors="\n".join(tensors_struct(names, [tensor.name for tensor in spec.outputs])),
        finish="\n".join(finish(conv.chain, conv.plane, options.lanes)),
        arguments=", ".join(names),
        launch=launch_signature(spec, "cpp", {*names, "workspace"}),
    )


def _taps(grid: Grid, kernel: Triple, phase: tuple[tuple[Tap, ...], ...]) -> list[tuple[int, int, int]]:
    """Return the taps of a phase: the weight's position, the residue, and the distance."""
    _, height, width = (len(axis.residues) for axis in grid.axes)
    return [
        (
            (a.at * kernel[1] + b.at) * kernel[2] + c.at,
            (a.residue * height + b.residue) * width + c.residue,
            grid.distance((a.shift, b.shift, c.shift)),
        )
        for a, b, c in product(*phase)
    ]
