"""How the variants of one idea are told to differ, so that several samples do not give the same kernel."""

from __future__ import annotations

from engine.problem.spec import Form

_ANY = "Write the most direct version of the idea: few moving parts, every index checked twice."
_KEEPING = "What the idea says must stay as it is stays: vary then what it leaves open, sizes and unrolling above all."

_CUDA = (
    _ANY,
    "Choose another decomposition of the work than the obvious one: other tile and block shapes, other loop order, or "
    f"another mapping of threads to data. {_KEEPING}",
    "Aim at memory-level parallelism: more independent loads in flight per thread (unrolling, wider loads, "
    "asynchronous copies), even if occupancy falls.",
    "Aim at occupancy and balance: fewer registers and less shared memory per block, a grid that fills every SM "
    "evenly in whole waves.",
    "Aim at few instructions: precomputed indices, no divisions in inner loops, fused multiply-adds, vector types.",
    "Be bold: combine the idea with the one other change that it makes possible.",
)
_CPU = (
    _ANY,
    "Choose another decomposition of the work than the obvious one: other block sizes, loop order, or split between "
    f"threads. {_KEEPING}",
    "Aim at the vector units: several independent accumulators, no branches, contiguous loads that the compiler surely "
    "turns into full-width instructions.",
    "Aim at the caches: do all work on a block while it is in L1 or L2, and write each output once.",
    "Aim at few instructions: precomputed indices, cheap approximations inside the tolerance, no repeated work.",
    "Be bold: combine the idea with the one other change that it makes possible.",
)
_PYTHON = (_ANY, f"Choose another decomposition of the work than the obvious one. {_KEEPING}", _CUDA[-1])


def approach(form: Form, number: int) -> str:
    """What variant ``number`` (from 0) of an idea is asked to do its own way."""
    known = {"cu": _CUDA, "cpp": _CPU, "py": _PYTHON}[form]
    return known[number % len(known)]
