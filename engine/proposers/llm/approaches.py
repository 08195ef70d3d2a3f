"""Instructions that make an idea's kernels differ. Without these instructions, a model might write the same kernel
several times.
"""

from __future__ import annotations

from engine.problem.spec import Language
from engine.proposers.protocol import IdeaDraft

_ANY = "Write the most direct version of the idea, with few moving parts."
_KEEPING = "Keep what the idea fixes, and vary what it leaves open, especially sizes and unrolling."

_CUDA = (
    _ANY,
    "Choose a non-obvious decomposition of the work: different tile and block shapes, a different loop order, or a "
    f"different mapping of threads to data. {_KEEPING}",
    "Aim for memory-level parallelism: more independent loads in flight per thread (unrolling, wider loads, "
    "asynchronous copies), even if occupancy falls.",
    "Aim for occupancy and balance: fewer registers and less shared memory per block, and a grid that fills every SM "
    "evenly in whole waves.",
    "Aim for few instructions: precomputed indices, no divisions in inner loops, fused multiply-adds, vector types.",
    "Be bold: combine the idea with one other change that it makes possible.",
)
_CPU = (
    _ANY,
    "Choose a non-obvious decomposition of the work: different block sizes, a different loop order, or a different "
    f"split across threads. {_KEEPING}",
    "Target the vector units: several independent accumulators, no branches, and contiguous loads that the compiler "
    "reliably turns into full-width instructions.",
    "Target the caches: do all work on a block while it is in L1 or L2, and write each output once.",
    "Aim for few instructions: precomputed indices, cheap approximations within the tolerance, no repeated work.",
    "Be bold: combine the idea with one other change that it makes possible.",
)
_PYTHON = (_ANY, f"Choose a non-obvious decomposition of the work. {_KEEPING}", _CUDA[-1])
_TRITON = (
    _ANY,
    "Choose a non-obvious decomposition of the work: different block shapes, a different loop order, or several rows "
    f"or tiles per program. {_KEEPING}",
    "Aim for memory-level parallelism: larger blocks, a larger `num_stages`, and loads well before their use.",
    "Aim for occupancy and balance: smaller blocks, different `num_warps`, and a grid that fills every SM in whole "
    "waves.",
    "Let `@triton.autotune` choose among at most eight configurations that differ in block shape, `num_warps` and "
    "`num_stages`.",
    "Be bold: combine the idea with one other change that it makes possible.",
)


VARIANTS = "variants"
"""Key in an idea's ``data``. The value lists the kernel variants that the model proposed for the idea."""


def approach(language: Language, number: int, idea: IdeaDraft | None = None) -> str:
    """Return the instruction for an idea's kernel ``number``, counted from 0. The variants that the idea proposes come
    first, then general instructions.
    """
    proposed = idea.data.get(VARIANTS) if idea is not None else None
    if isinstance(proposed, list) and number < len(proposed):
        return f"Write this variant of the idea: {proposed[number]}"
    known = {"cu": _CUDA, "cpp": _CPU, "py": _PYTHON, "triton": _TRITON}[language]
    return known[number % len(known)]
