"""Report which PyTorch operators and GPU kernels run in one call of a ``.py`` kernel. Imports torch.

Threat ``library``: instead of a kernel, a language model writes a library call in another thread, in TorchScript or
outside PyTorch. PyTorch's profiler sees operators in all threads, regardless of their caller. On a GPU, the profiler
uses CUPTI, which sees all kernels of the process. The interpreter reports library functions that ``ctypes`` looks up.

The kernel's process writes this report, so the judge does not trust any part of it that would favor the kernel. A
report is valid only if it contains the operator that the runner calls first.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler import profile
from torch.profiler import _ExperimentalConfig

from engine.evaluation.inspect.work import does_nothing
from engine.evaluation.judge_policy import POLICY

# The profiler's own messages would count as the kernel's output.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

_OPERATORS = frozenset(name for name, _, _ in (one.partition(".") for one in torch._C._dispatch_get_all_op_names()))
"""Names of PyTorch's operators, without operators that a module registers later."""
_CANARY = "aten::frac_"
"""The operator that the runner calls before the kernel. If the report lacks this operator, no profiler is active."""

# Save these functions before the module is loaded, because the module may replace anything.
_CLOCK, _SYNCHRONIZE, _FRAC = time.perf_counter, torch.cuda.synchronize, torch.Tensor.frac_


class LookedUp:
    """Shared libraries that the module opens through ``ctypes``, and the functions that it looks up in them."""

    def __init__(self) -> None:
        self.names: dict[tuple[str, str], None] = {}
        """The file and the function of each lookup.

        If the module only opens the file, the function is "". If it searches all loaded files, the file is "".
        """

    def watch(self) -> None:
        """Install an audit hook. The hook stays active until the process ends, because Python cannot remove audit
        hooks.
        """
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "ctypes.dlopen":
            self.names[str(arguments[0] or ""), ""] = None
        elif event == "ctypes.dlsym":
            self.names[str(getattr(arguments[0], "_name", None) or ""), str(arguments[1])] = None
        elif event == "ctypes.dlsym/handle":
            self.names["", str(arguments[1])] = None

    def report(self) -> list[list[str]]:
        """Return the first lookups, in the format of :class:`~engine.evaluation.inspect.work.Ran`."""
        return [[file[:200], function[:200]] for file, function in list(self.names)[: POLICY.sandbox.reported_names]]


def what_ran(call: Callable[[], object], cuda: bool) -> dict[str, Any] | None:
    """Return the fields of :class:`~engine.evaluation.inspect.work.Ran` for one call, with times in microseconds.

    The function runs ``call`` once, which takes a few milliseconds longer than usual. Returns None if no profiler is
    active. If the profiler does not start, ``call`` does not run.
    """
    fed, settle = torch.zeros(1, device="cuda" if cuda else "cpu"), _SYNCHRONIZE if cuda else lambda: None
    settle()
    try:
        every_thread = _ExperimentalConfig(profile_all_threads=True)
        profiled = profile(use_device="cuda" if cuda else None, use_kineto=True, experimental_config=every_thread)
        profiled.__enter__()
    except (RuntimeError, TypeError):
        return None
    try:
        _FRAC(fed)
        settle()
        started = _CLOCK()
        call()
        settle()
        us = 1e6 * (_CLOCK() - started)
    finally:
        profiled.__exit__(None, None, None)
    operators = list(_operators(event for event in profiled.function_events or () if event.cpu_parent is None))
    kernels = _kernels(profiled, {one.id: one.name for one in operators})
    canary = next((one for one in operators if one.name == _CANARY), None)
    if canary is None or (cuda and not kernels):
        return None
    operators.remove(canary)
    return {
        "us": us,
        "operators": _largest(((one.name,), one.us) for one in operators),
        "kernels": _largest(((name, operator), own_us) for name, operator, own_us in kernels[1:]),
    }


class _Operator(NamedTuple):
    """One operator. ``us``: the operator's time in microseconds, without its callees.

    ``name``: the name of the outermost enclosing operator that does work, or the operator's own name if there is none.
    An operator that does no work keeps its own name.
    """

    id: int
    name: str
    us: float


def _operators(events: Iterable[Any], within: str = "") -> Iterator[_Operator]:
    """Yield PyTorch's operators among ``events`` and below them, in all threads."""
    for event in events:
        known, idle = event.name in _OPERATORS, does_nothing(event.name)
        name = event.name if idle or not within else within
        if known:
            yield _Operator(event.id, name, event.self_cpu_time_total)
        yield from _operators(event.cpu_children, name if known and not idle else within)


def _kernels(profiled: profile, operators: Mapping[int, str]) -> list[tuple[str, str, float]]:
    """Return the GPU kernels, ordered by start time. Each entry has the kernel's name, the operator that launched it or
    "", and its time in microseconds.
    """
    results, longest = profiled.kineto_results, POLICY.sandbox.reported_chars
    events = results.events() if results is not None else []
    on_device = [one for one in events if one.device_type() == DeviceType.CUDA and not one.is_user_annotation()]
    return [
        (event.name()[:longest], operators.get(event.linked_correlation_id(), ""), event.duration_ns() / 1e3)
        for event in sorted(on_device, key=lambda event: event.start_ns())
    ]


def _largest(times: Iterable[tuple[tuple[str, ...], float]]) -> list[list[Any]]:
    """Sum the times per name, and sort by decreasing time."""
    sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for names, us in times:
        sums[names] += us
    return [
        [*names, us] for names, us in sorted(sums.items(), key=lambda one: -one[1])[: POLICY.sandbox.reported_names]
    ]
