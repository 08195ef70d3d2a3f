"""The grid on which a convolution is a sum of products of shifted rows.

Along each dimension, the outputs split into **phases**. Output ``step * q + phase`` is a sum over taps, which read the
input at grid positions ``q + shift``. A forward convolution has one phase, and splits the input into residues. Grid
position ``a`` of residue ``r`` is input element ``step * a + r``. A transposed convolution has one residue, and a phase
for each remainder of the output position.

All images lie on one line of positions. After a row's elements, the row's ``pitch`` includes enough zeros that no
tap reads an element of another row. Each tap therefore reads at a constant distance from the output's
position.
"""

from __future__ import annotations

from math import gcd, prod

from msgspec import Struct

from engine.proposers.playbook.patterns.grid_conv.program import GridConvProgram


class Tap(Struct, frozen=True):
    """A tap: weight ``at`` of a filter's row, which reads grid position ``q + shift`` of ``residue``."""

    at: int
    residue: int
    shift: int


class Axis(Struct, frozen=True):
    """One dimension of the grid.

    Attributes:
        phases: The taps of each phase, by ascending shift if there is one residue.
        outputs: Number of outputs of each phase.
        output_step: The distance between the outputs of a phase, in output elements.
        residues: The residues of the input that taps read.
        input_step: The distance between the inputs of a residue, in input elements.
        extent: Maximum number of grid positions that hold elements.
        pitch: Number of grid positions per row, including the zeros.
        spacing: The distance between the taps of a phase, in grid positions, if there is one residue.
    """

    phases: tuple[tuple[Tap, ...], ...]
    outputs: tuple[int, ...]
    output_step: int
    residues: tuple[int, ...]
    input_step: int
    extent: int
    pitch: int
    spacing: int


class Grid(Struct, frozen=True):
    """The line of positions that all images form, and its three axes in the order depth, height, width."""

    axes: tuple[Axis, Axis, Axis]
    images: int

    @property
    def volume(self) -> int:
        """Number of positions per image."""
        return prod(axis.pitch for axis in self.axes)

    @property
    def positions(self) -> int:
        return self.images * self.volume

    @property
    def phases(self) -> int:
        return prod(len(axis.phases) for axis in self.axes)

    @property
    def residues(self) -> int:
        return prod(len(axis.residues) for axis in self.axes)

    def distance(self, shifts: tuple[int, int, int]) -> int:
        """Return the sum of one shift per axis, as a distance in positions."""
        return (shifts[0] * self.axes[1].pitch + shifts[1]) * self.axes[2].pitch + shifts[2]

    @property
    def reach(self) -> tuple[int, int]:
        """The largest distances, before and after a position, at which a tap reads."""
        ends = [([tap.shift for taps in axis.phases for tap in taps] or [0]) for axis in self.axes]
        before = self.distance((min(ends[0]), min(ends[1]), min(ends[2])))
        after = self.distance((max(ends[0]), max(ends[1]), max(ends[2])))
        return max(0, -before), max(0, after)


def grid_of(conv: GridConvProgram) -> Grid:
    """Return the grid of a convolution."""
    first, second, third = (_axis(conv, dim) for dim in range(3))
    return Grid((first, second, third), conv.images)


def _axis(conv: GridConvProgram, dim: int) -> Axis:
    many, stride, padding = conv.kernel[dim], conv.stride[dim], conv.padding[dim]
    dilation, size, image = conv.dilation[dim], conv.size[dim], conv.image[dim]
    residues: tuple[int, ...] = (0,)
    if conv.transposed:
        found: list[list[Tap]] = [[] for _ in range(min(stride, size))]
        for at in range(many):
            for phase, taps in enumerate(found):
                if (phase + padding - at * dilation) % stride == 0:
                    taps.append(Tap(at, 0, (phase + padding - at * dilation) // stride))
        phases = tuple(tuple(sorted(taps, key=lambda tap: tap.shift)) for taps in found)
        outputs = tuple(-(-(size - phase) // stride) for phase in range(len(phases)))
        extent, steps = image, (stride, 1)
    else:
        places = [at * dilation - padding for at in range(many)]
        residues = tuple(sorted({place % stride for place in places}))
        phases = (tuple(Tap(at, residues.index(p % stride), p // stride) for at, p in enumerate(places)),)
        outputs, extent, steps = (size,), -(-image // stride), (1, stride)
    shifts = [tap.shift for taps in phases for tap in taps] or [0]
    before, after = max(0, -min(shifts)), max(0, max(shifts))
    return Axis(
        phases=phases,
        outputs=outputs,
        output_step=steps[0],
        residues=residues,
        input_step=steps[1],
        extent=extent,
        pitch=max(extent + before, max(outputs) + after),
        spacing=dilation // gcd(stride, dilation),
    )
