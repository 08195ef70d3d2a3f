"""The C++ kernel file of a grid convolution."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.codegen.cpp_math import needs_no_errno
from engine.proposers.playbook.codegen.cpp_options import Arithmetic
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import fixed_sizes
from engine.proposers.playbook.patterns.gemm.tiles.cpp_finish import finish, ops_of, pointers, preamble, tensors_struct
from engine.proposers.playbook.patterns.grid_conv.grid import Grid, grid_of
from engine.proposers.playbook.patterns.grid_conv.program import GridConvProgram, Triple


class GridConvOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The choices for a kernel.

    Attributes:
        rows: Filters of a tile in registers.
        vecs: Vectors of ``lanes`` positions of that tile.
        blocks: Tiles along the positions that one task computes.
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
    taps = [_taps(grid, conv.kernel, z, y, x) for z in range(len(grid.axes[0].phases)) for y in range(len(grid.axes[1].phases))
            for x in range(len(grid.axes[2].phases))]  # fmt: skip
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


def _taps(grid: Grid, kernel: Triple, z: int, y: int, x: int) -> list[tuple[int, int, int]]:
    """Return the taps of a phase: the place of the weight, the residue, and the distance."""
    depth, height, width = grid.axes
    _, high, wide = kernel
    return [
        (
            (a.at * high + b.at) * wide + c.at,
            (a.residue * len(height.residues) + b.residue) * len(width.residues) + c.residue,
            grid.distance((a.shift, b.shift, c.shift)),
        )
        for a in depth.phases[z]
        for b in height.phases[y]
        for c in width.phases[x]
    ]
