"""PyTorch's own times for a problem: eager in the judge, ``torch.compile`` in a process of its own.

``python -m engine.quickly engine.evaluation.baseline SETTINGS`` reads a problem spec on standard input and answers with
a :class:`~engine.verdict.Baseline`. A process of its own, because a compiler that hangs or crashes must not take the
judge with it, and because what it allocates goes away with it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec
import torch

from engine.evaluation import checks, timing
from engine.evaluation.device import COLD_UP_TO_MS, JudgeDevice
from engine.evaluation.disturbance import undisturbed_times
from engine.evaluation.locks import alone
from engine.evaluation.messages import JudgeSettings
from engine.evaluation.nearness import compare_in_double
from engine.evaluation.neighbours import Neighbours
from engine.evaluation.runner.isolation import die_with_parent
from engine.evaluation.sandbox import CORES_VARIABLE
from engine.evaluation.trials import JudgedProblem
from engine.problem.spec import ProblemSpec
from engine.quickly import uncollected
from engine.verdict import Baseline, Timing

_LEAST, _MOST, _BUDGET_S, _WARM_UP = 7, 50, 0.5, 2
_MOST_S = 600
"""Longer than this the process does not live once it has the device, also where nobody waits for it any more."""
_COMPILED_S = 0.2
"""``torch.compile`` is timed for so long at least: what other programs use is counted in hundredths of a second."""


def _repeat(device: JudgeDevice, call: Callable[[int], object], least_s: float = 0.0) -> Timing:
    """Time ``call`` until half a second is spent or, after ``least_s``, 50 times; each call gets its number.

    On a GPU another call comes right before a short one, as in the pairs with a kernel: launches go cold. On a CPU
    disturbed times do not count.
    """
    for index in range(_WARM_UP):
        device.time_ms(lambda index=index: call(index))  # type: ignore[misc]
    times: list[float] = []
    started = time.perf_counter()
    while (
        len(times) < _LEAST
        or (spent_s := time.perf_counter() - started) < least_s
        or (len(times) < _MOST and spent_s < _BUDGET_S)
    ):
        index = len(times)
        if device.cuda and (not times or times[-1] <= COLD_UP_TO_MS):
            call(index)
        times.append(device.time_ms(lambda: call(index)))  # noqa: B023 - called at once
    return timing.summarize(times if device.cuda else undisturbed_times(times))


def precision_note(problem: ProblemSpec, kind: str) -> tuple[str, str]:
    """(precision class, remark) of what PyTorch's defaults do with fp32 on this device."""
    floats = {tensor.dtype for tensor in problem.tensors if "float" in tensor.dtype}
    if floats != {"float32"}:
        return "/".join(sorted(floats)) or "integer", ""
    convolves = any("conv" in node.target for node in problem.graph or ())
    if kind == "cuda" and convolves and torch.backends.cudnn.allow_tf32:
        return "tf32", "cuDNN uses TF32 by default"
    if kind == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        return "tf32", "torch.backends.cuda.matmul.allow_tf32 is set"
    return "fp32", ""


def time_eager(judged: JudgedProblem) -> Baseline:
    """The reference as PyTorch runs it, on the judge's buffers. Raises what the model raises."""
    slot = judged.arena.slots[0]
    judged.trial(0).load(slot)
    judged.bind(slot)
    precision, note = precision_note(judged.spec, judged.device.kind)
    return Baseline("eager", _repeat(judged.device, lambda _: judged.run(slot)), precision, note)


def time_compiled(judged: JudgedProblem, tolerance: float) -> Baseline:
    """``torch.compile`` of the reference; ``failure`` where it cannot or is wrong."""
    slot = judged.arena.slots[0]
    trial = judged.trial(0)
    trial.load(slot)
    judged.bind(slot)
    precision, note = precision_note(judged.spec, judged.device.kind)
    try:
        with uncollected():  # the first call imports the compiler
            judged.reference.model.compile()
            outputs = judged.run(slot)
        expected, exact = trial.expected[: len(slot.outputs)], partial(judged.trial_in_double, trial, slot)
        found = checks.compare(outputs, expected, tolerance)
        tolerances = checks.Tolerances(tolerance, tolerance)
        if found.problem is not None and compare_in_double(outputs, expected, exact, tolerances) is None:
            return Baseline("compile", None, precision, note, f"torch.compile computes something else: {found.problem}")
        neighbours = Neighbours()
        timed = _repeat(judged.device, lambda _: judged.run(slot), _COMPILED_S)
        others = 0.0 if judged.device.cuda else neighbours.share()
        return Baseline("compile", timed, precision, note, others=others)
    except Exception as error:
        first = str(error).strip().splitlines()
        return Baseline("compile", None, precision, note, f"{type(error).__name__}: {first[0] if first else ''}")


def main() -> int:
    die_with_parent()
    settings = msgspec.json.decode(sys.argv[1], type=JudgeSettings)
    problem = msgspec.json.decode(sys.stdin.buffer.read(), type=ProblemSpec)
    answers = os.dup(1)
    os.dup2(2, 1)
    device = JudgeDevice(settings.kind, settings.threads)
    # The compilers that this process starts are not to share the one core that its first thread is bound to.
    os.sched_setaffinity(0, map(int, os.environ[CORES_VARIABLE].split(",")))
    with alone(settings.device_id, lambda: False):
        signal.alarm(_MOST_S)
        judged = JudgedProblem(problem, device, settings.trials)
        baseline = time_compiled(judged, settings.tolerance_other)
    os.write(answers, msgspec.json.encode(baseline) + b"\n")
    return 0
