"""CUDA kernels for convolutions whose filters read one channel each, such as depthwise convolutions.

The matrix product for one channel is too small for tiles or tensor cores, and memory bandwidth limits the kernel.
"""

from __future__ import annotations

from engine.problem.c_header import ctype
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Recipe, Start, Transformation
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import fixed_sizes
from engine.proposers.playbook.patterns.conv.program import ConvProgram
from engine.proposers.playbook.patterns.gemm.tiles.cuda_finish import (
    conversions,
    dtypes_of,
    finish,
    helpers,
    pointers,
    tensors_struct,
)

STRUCTURE = "channels"
"""The value of the choice ``structure`` for filters that read one channel."""
_MOST_TAPS = 49
"""Maximum number of taps of a filter, because a thread keeps the filter in registers."""
_MOST_SUMS = 600
"""Maximum number of multiply-adds per thread, because the kernel unrolls its loops."""
_CHOICES: Choices = {"structure": STRUCTURE, "rows": 8, "threads": 128}
_OPENED = ("rows", "threads")
_TEXT = (
    "A filter reads only one channel, so memory bandwidth limits the kernel. Give adjacent threads adjacent results of "
    "a row. Let a thread compute several vertically adjacent results with its filter in registers. The thread then "
    "loads each image row once for all its results."
)


def reads_one_channel(conv: ConvProgram) -> bool:
    """Return whether the convolution is depthwise, does not pool, and has filters that fit in a thread's registers. For
    an image with one channel, tensor cores are faster.
    """
    return conv.groups == conv.channels > 1 and conv.pool is None and conv.kernel[0] * conv.kernel[1] <= _MOST_TAPS


def start(plain: Recipe) -> Start:
    """Return the first kernel."""
    return Start("channels", _TEXT, plain.with_(_CHOICES, _OPENED))


def rows_per_thread() -> Transformation:
    """Return the transformation that gives each thread several results to compute."""
    return Transformation("rows_per_thread", "memory", _TEXT, _CHOICES, _OPENED, gain=4.0, helps="memory")


def knobs(conv: ConvProgram) -> dict[str, tuple[Choice, ...]]:
    """Return the legal values of the knobs."""
    taps = conv.kernel[0] * conv.kernel[1]
    return {
        "rows": tuple(rows for rows in (1, 2, 4, 8, 12, 16) if rows == 1 or rows * taps <= _MOST_SUMS),
        "threads": (64, 128, 256, 512),
    }


def channels_kernel(conv: ConvProgram, choices: Choices, spec: ProblemSpec) -> str:
    """Return the source of a kernel for filters that read one channel."""
    names, dtypes = pointers([conv.chain], conv.x, conv.w), dtypes_of(spec)
    return render(
        "conv_channels.cu.j2",
        conv=conv,
        element=ctype(conv.dtype, "cu"),
        index="int" if conv.chain.numel < 2**30 else "long long",
        rows=max(rows for rows in knobs(conv)["rows"] if int(rows) <= int(choices["rows"])),
        threads=choices["threads"],
        size_assertions=fixed_sizes(tensor for tensor in spec.tensors if tensor.name in names),
        conversions=conversions({conv.dtype, *(dtypes[name] for name in names)}),
        helpers=helpers([conv.chain]),
        tensors=tensors_struct(spec, names),
        finish=finish(conv.chain, conv.columns, choices["math"] == "fast"),
        arguments=", ".join(names),
        launch=launch_signature(spec, "cu", {*names, "stream"}),
    )
