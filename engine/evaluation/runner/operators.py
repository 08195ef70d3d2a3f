"""Which of PyTorch's operators do the work of a call. Imports torch.

PyTorch's own profiler tells: it sees operators whichever way they are called, from Python or from C++. The kernels of
an extension, of Triton or behind ctypes are no operators.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from torch.autograd.profiler import profile

# What the profiler prints of itself would be taken for the kernel's output.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

_MEMORY = (
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided zeros zeros_like new_zeros zero_ ones "
    "ones_like new_ones full full_like new_full fill_ scalar_tensor arange set_ resize_ resize_as_ pin_memory"
)
_VIEWS = (
    "view _unsafe_view view_as reshape _reshape_alias as_strided transpose t numpy_T permute movedim expand expand_as "
    "select slice narrow unsqueeze squeeze flatten unflatten detach detach_ alias split split_with_sizes chunk unbind "
    "as_strided_ transpose_ t_ squeeze_ unsqueeze_ diagonal resolve_conj resolve_neg lift lift_fresh result_type"
)
_MOVES = (
    "contiguous clone copy_ to _to_copy type_as float half item _local_scalar_dense is_nonzero record_stream cat stack "
    "pad constant_pad_nd flip roll repeat index_select index"
)
_RANDOM = "bernoulli bernoulli_ rand rand_like randn randn_like randint randperm random_ normal_ uniform_ exponential_"
_QUESTIONS = (
    "_has_compatible_shallow_copy_type set_data data requires_grad_ is_leaf output_nr _version size stride numel dim "
    "sym_size sym_stride sym_numel sym_storage_offset storage_offset is_contiguous is_same_size is_floating_point "
    "is_complex is_signed is_pinned is_conj is_neg _is_zerotensor is_set_to can_cast promote_types"
)
_NO_WORK = frozenset(
    f"aten::{name}" for group in (_MEMORY, _VIEWS, _MOVES, _RANDOM, _QUESTIONS) for name in group.split()
)
"""Operators that hand out memory, look at it, move values or draw random numbers, but compute nothing of them."""


def working_operators(call: Callable[[], object]) -> list[str] | None:
    """Names ("aten::mm") of the operators that computed something during ``call``; only those that called no other.

    Runs ``call`` once, some ten milliseconds slower than else. None, without a call, where the profiler does not start,
    or is in use already.
    """
    profiled = profile()
    try:
        profiled.__enter__()
    except RuntimeError:
        return None
    try:
        call()
    finally:
        profiled.__exit__(None, None, None)
    found: dict[str, None] = {}
    _collect([event for event in profiled.function_events or () if event.cpu_parent is None], found)
    return list(found)


def _collect(events: Sequence[Any], found: dict[str, None]) -> bool:
    """Whether any of ``events``, or of those within them, computes; the innermost of them are put into ``found``."""
    works = False
    for event in events:
        inside = _collect(event.cpu_children, found)
        own = event.name.startswith("aten::") and event.name not in _NO_WORK
        if own and not inside:
            found[event.name] = None
        works = works or inside or own
    return works
