"""Limit the share of a kernel's work that libraries may do. Profiled names and times show which code did the work.

Threat ``library``. A kernel must do heavy work itself: matrix products, reductions, sorts and convolutions. PyTorch may
do light work (a scalar multiplication, a cast or a copy) as long as the kernel's own code takes most of the time.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from engine.evaluation.judge_policy import POLICY

_LIBRARY = POLICY.library

_MEMORY = (
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided zeros zeros_like new_zeros zero ones "
    "ones_like new_ones full full_like new_full fill scalar_tensor arange set resize resize_as pin_memory"
)
_VIEWS = (
    "view _unsafe_view view_as reshape _reshape_alias as_strided transpose t numpy_T permute movedim expand expand_as "
    "select slice narrow unsqueeze squeeze flatten unflatten detach alias split split_with_sizes chunk unbind "
    "diagonal resolve_conj resolve_neg lift lift_fresh result_type"
)
_RANDOM = "bernoulli rand rand_like randn randn_like randint randperm random normal uniform exponential"
_QUESTIONS = (
    "_has_compatible_shallow_copy_type set_data data requires_grad is_leaf output_nr _version size stride numel dim "
    "sym_size sym_stride sym_numel sym_storage_offset storage_offset is_contiguous is_same_size is_floating_point "
    "is_complex is_signed is_pinned is_conj is_neg _is_zerotensor is_set_to can_cast promote_types record_stream"
)
_MOVES = (
    "contiguous clone copy to _to_copy type_as float half bfloat16 double int long bool item _local_scalar_dense "
    "is_nonzero cat stack pad constant_pad_nd flip roll repeat index_select index"
)
_POINTWISE = (
    "add sub rsub mul multiply div divide true_divide neg abs sign exp exp2 expm1 log log2 log10 log1p sqrt rsqrt "
    "square reciprocal pow sin cos tan tanh sigmoid relu relu6 leaky_relu elu selu celu gelu silu mish hardtanh "
    "hardswish hardsigmoid softplus softsign threshold clamp clamp_min clamp_max maximum minimum where "
    "masked_fill lerp addcmul addcdiv eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or "
    "bitwise_not floor ceil round trunc frac remainder fmod isnan isinf isfinite nan_to_num erf tril triu dropout "
    "native_dropout"
)
NO_WORK = frozenset(f"aten::{name}" for group in (_MEMORY, _VIEWS, _RANDOM, _QUESTIONS) for name in group.split())
"""Operators that the judge ignores: they allocate or fill memory, create views, query tensors, or draw random
numbers.
"""
LIGHT_WORK = frozenset(f"aten::{name}" for group in (_MOVES, _POINTWISE) for name in group.split())
"""Operators that move, cast or change each element separately, in one pass over the elements."""
_NONE_ON_GPU = re.compile(r"Memset|FillFunctor|distribution_")
_LIGHT_ON_GPU = re.compile(r"Memcpy|elementwise_kernel|CatArray|indexSelect|index_elementwise")

Weight = Literal["none", "light", "heavy"]


class Ran(Struct, frozen=True):
    """The runner's report on one call, with times in microseconds.

    ``operators``: PyTorch's operators that do work. The time of an operator includes its callees' time. ``kernels``:
    GPU kernels, each with the operator that launched it, or "". ``looked_up``: files and functions that the module
    requested from ``ctypes``. The file or the function may be "".
    """

    us: float
    operators: tuple[tuple[str, float], ...] = ()
    kernels: tuple[tuple[str, str, float], ...] = ()
    looked_up: tuple[tuple[str, str], ...] = ()

    def times(self) -> list[float]:
        """Return all times."""
        return [self.us, *(us for _, us in self.operators), *(us for *_, us in self.kernels)]


class Code(Struct, frozen=True):
    """Shares of the code samples in PyTorch's libraries and in each ``foreign`` library."""

    pytorch: float
    foreign: dict[str, float]


class LibraryWork(Struct, frozen=True):
    """The work that libraries do: ``names`` by decreasing share, the libraries' total share, and whether the work
    exceeds a limit.
    """

    names: tuple[str, ...]
    share: float
    too_much: bool


def on_cpu(ran: Ran, code: Code | None, compiled: bool) -> LibraryWork:
    """Return the library work in CPU calls. Samples determine PyTorch's share; the profiler names PyTorch's operators.

    Other programs may delay a call at any point, so the times of a single call prove little. ``code``: the samples, or
    None if the judge cannot inspect the process. ``compiled``: whether the module compiled anything; otherwise all work
    counts as library work.
    """
    operators_us = sum(us for _, us in ran.operators)
    reported = operators_us / ran.us if ran.us else 0.0
    code = code or Code(reported, {})
    pytorch = code.pytorch or reported
    others: list[tuple[str, Weight, float]] = [(name, "heavy", share) for name, share in code.foreign.items()]
    if pytorch > _LIBRARY.most and reported < _LIBRARY.least_reported * pytorch:
        others.append(("PyTorch's library directly, bypassing its operators", "heavy", pytorch))
    elif operators_us:
        others += [(_spoken(name), _weight(name), pytorch * us / operators_us) for name, us in ran.operators]
    own = 1.0 - sum(share for *_, share in others) if compiled else 0.0
    return _weighed(max(own, 0.0), others)


def on_gpu(ran: Ran, is_own: Callable[[str], bool]) -> LibraryWork:
    """Return the library work in one GPU call. ``is_own``: returns whether the module compiled the kernel with a given
    name.
    """
    own_us, others = 0.0, list[tuple[str, Weight, float]]()
    for name, operator, us in ran.kernels:
        if is_own(name) and not operator:  # PyTorch's operators launch only PyTorch's kernels.
            own_us += us
        else:
            others.append((_spoken(operator) if operator else short(name), _weight(operator or name), us))
    return _weighed(own_us, others)


def shares_of(
    samples: Counter[str], is_pytorch: Callable[[str], bool], library_of: Callable[[str], str | None]
) -> Code:
    """Return the libraries' shares of the code samples. ``samples``: a count per file; the key "" is for code outside
    any file.

    ``is_pytorch``: returns whether a file is a PyTorch library. Code outside any file also counts as PyTorch's, because
    PyTorch's oneDNN generates code at run time.
    ``library_of``: returns the name of another library to which a file belongs, or None.
    """
    total, foreign = max(samples.total(), 1), Counter[str]()
    for file, count in samples.items():
        if (name := library_of(file)) is not None:
            foreign[name] += count
    pytorch = sum(count for file, count in samples.items() if not file or is_pytorch(file))
    return Code(
        pytorch / total if pytorch >= _LIBRARY.least_samples else 0.0,
        {name: count / total for name, count in foreign.items() if count >= _LIBRARY.least_samples},
    )


def least(first: Ran, second: Ran) -> Ran:
    """Return each operator's shorter time from two calls, because other programs slow different operators in each call.

    The result omits operators that appear in only one call, because real work appears in every call.
    """
    seconds = dict(second.operators)
    operators = tuple((name, min(us, seconds[name])) for name, us in first.operators if name in seconds)
    return replace(first, us=min(first.us, second.us), operators=operators)


def does_nothing(operator: str) -> bool:
    """Return whether ``NO_WORK`` contains the operator or, for an in-place variant, the original operator."""
    return operator.removesuffix("_") in NO_WORK


def short(kernel: str) -> str:
    """Return a CUDA kernel's name without return type, template arguments and parameters."""
    plain = kernel.replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.split(r"[<(]", plain, maxsplit=1)[0].strip() or kernel


def _spoken(operator: str) -> str:
    return f"PyTorch's {operator.removeprefix('aten::')}()"


def _weight(name: str) -> Weight:
    if does_nothing(name) or _NONE_ON_GPU.search(name):
        return "none"
    return "light" if name.removesuffix("_") in LIGHT_WORK or _LIGHT_ON_GPU.search(name) else "heavy"


def _weighed(own: float, others: list[tuple[str, Weight, float]]) -> LibraryWork:
    times: defaultdict[str, float] = defaultdict(float)
    heavy = 0.0
    for name, weight, us in others:
        if weight != "none":
            times[name] += us
            heavy += us if weight == "heavy" else 0.0
    library = sum(times.values())
    if not library:
        return LibraryWork((), 0.0, False)
    names = sorted(
        (name for name in times if times[name] >= _LIBRARY.least_named * library), key=lambda name: -times[name]
    )
    too_much = library > _LIBRARY.most * (own + library) or heavy > _LIBRARY.most_heavy * (own + library)
    return LibraryWork(tuple(names[: _LIBRARY.named]), library / (own + library), too_much)
