"""CUDA kernels for matrix-vector products. Memory bandwidth limits these products."""

from __future__ import annotations

from collections.abc import Sequence

from engine.devices.fact import DeviceFact
from engine.problem.c_header import ctype
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Recipe, Start
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import size_assertion
from engine.proposers.playbook.ir.sizes import Size, factor, stride, text
from engine.proposers.playbook.patterns.gemm.program import MatmulProgram
from engine.proposers.playbook.patterns.gemm.tiles.cuda_finish import (
    conversions,
    dtypes_of,
    finish,
    helpers,
    pointers,
    tensors_struct,
)

STRUCTURE = "vector"
"""The value of the choice ``structure`` for matrix-vector products."""
_THREADS = 256
"""Number of threads per block."""
_BLOCKS_PER_SM = 2
"""Minimum number of blocks per multiprocessor that hides the latency of loads. With fewer blocks, other kernels are
faster.
"""
TEAMS = (32, _THREADS)
LINES = (1, 2, 4, 8)
_LONG = 4096
"""Minimum number of terms for which a block computes a sum. A warp computes a shorter sum."""
_OPENED = ("lines", "team")
_TEXT = (
    "Memory bandwidth limits a matrix-vector product. Let a team of threads read several lines of the matrix at a "
    "time, in packs of 16 bytes. The team then loads each part of the vector once for all these lines."
)


def is_matrix_vector(program: MatmulProgram) -> bool:
    """Return whether the product has a vector as one operand, and sums along adjacent elements."""
    return 1 in (program.m, program.n) and program.a.col_stride == 1 and program.b.row_stride == 1


def start(program: MatmulProgram, plain: Recipe, device: DeviceFact) -> Start | None:
    """Return the first kernel. Return None for other products, and if the matrix has too few lines to keep the device
    busy.
    """
    lines = program.batch * program.m * program.n
    team = _THREADS if program.k >= _LONG else 32
    teams = device.cores * _BLOCKS_PER_SM * _THREADS // team
    found = next((count for count in (4, 2, 1) if lines >= count * teams), None)
    if found is None or not is_matrix_vector(program):
        return None
    choices: Choices = {"structure": STRUCTURE, "lines": found, "team": team}
    return Start("vector", _TEXT, plain.with_(choices, _OPENED))


def knobs() -> dict[str, tuple[Choice, ...]]:
    """Return the legal values of the knobs."""
    return {"lines": LINES, "team": TEAMS}


def vector_kernel(program: MatmulProgram, choices: Choices, spec: ProblemSpec) -> str:
    """Return the kernel source."""
    by_column = program.n == 1
    matrix, vector = (program.a, program.b) if by_column else (program.b, program.a)
    line_stride = matrix.row_stride if by_column else matrix.col_stride
    steps = [step for operand in (matrix, vector) for _, step in operand.batch]
    addresses = (program.k, matrix.offset, vector.offset, line_stride, *steps)
    width = 16 // program.a.element_bytes
    while any(number % width for number in addresses):
        width //= 2
    names, dtypes = pointers([program.chain], program.a.tensor, program.b.tensor), dtypes_of(spec)
    return render(
        "matvec.cu.j2",
        element=ctype(program.a.dtype, "cu"),
        matrices=text(program.batch),
        lines=text(program.m if by_column else program.n),
        depth=text(program.k),
        threads=_THREADS,
        team=choices["team"],
        lines_per_team=choices["lines"],
        width=width,
        matrix=matrix.pointer,
        vector=vector.pointer,
        line_stride=stride(line_stride),
        column="0" if by_column else "first + lane",
        size_assertions=[*program.size_assertions, *_aligned(addresses, width)],
        conversions=conversions({program.a.dtype, *(dtypes[name] for name in names)}),
        helpers=helpers([program.chain]),
        tensors=tensors_struct(spec, names),
        finish=finish(program.chain, program.n, choices["math"] == "fast"),
        arguments=", ".join(names),
        launch=launch_signature(spec, "cu", {*names, "stream"}),
    )


def _aligned(addresses: Sequence[int], width: int) -> list[str]:
    """Return assertions that packs are aligned, for sizes other than the searched sizes."""
    named = dict.fromkeys(number for number in addresses if isinstance(number, Size) and width > 1)
    return [size_assertion(f"{factor(n)} % {width} == 0", f"{text(n)} to be a multiple of {width}") for n in named]
