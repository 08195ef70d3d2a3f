"""Measure PyTorch's times for a problem: eager in the judge, ``torch.compile`` in a separate process.

``python -m engine.system.fast_start engine.evaluation.timing.baselines SETTINGS`` reads a problem specification from
standard input and writes a ``Baseline`` to standard output. The separate process protects the judge from a compiler
that hangs or crashes. When the process ends, it also releases the compiler's memory.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import torch

from engine.evaluation.correctness import comparison
from engine.evaluation.correctness.fp64_reference import compare_in_double
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.judge.device_lock import alone
from engine.evaluation.judge.messages import JudgeSettings
from engine.evaluation.judge_device import JudgeDevice
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.sandbox.inside.confinement.isolation import die_with_parent
from engine.evaluation.sandbox.runner_process import CORES_VARIABLE
from engine.evaluation.timing import statistics
from engine.evaluation.timing.cpu_contention import CpuContention
from engine.evaluation.timing.noise_rejection import undisturbed_times
from engine.problem.spec import ProblemSpec
from engine.session.records.verdict import Baseline, Timing
from engine.system.fast_start import uncollected

_DEVICE = POLICY.device
_REASON_CHARS = POLICY.sandbox.reason_chars


def time_repeatedly(device: JudgeDevice, prepare: Callable[[], Callable[[], object]], least_s: float = 0.0) -> Timing:
    """Time calls for at least ``least_s`` seconds, and continue up to ``eager_most`` calls or ``eager_s`` seconds.

    ``prepare`` returns the next call. On a GPU, untimed calls precede each short call, because launches become slower
    after a pause. When the judge times pairs of reference and kernel calls, it makes the same untimed calls. On a CPU,
    the result excludes disturbed times.
    """
    for _ in range(_DEVICE.warm_up):
        device.time_ms(prepare())
    times: list[float] = []
    started = time.perf_counter()
    while (
        len(times) < _DEVICE.eager_least
        or (spent_s := time.perf_counter() - started) < least_s
        or (len(times) < _DEVICE.eager_most and spent_s < _DEVICE.eager_s)
    ):
        if device.cuda and (not times or times[-1] <= _DEVICE.untimed_up_to_ms):
            for _ in range(_DEVICE.untimed_calls):
                prepare()()
            device.synchronize()
        times.append(device.time_ms(prepare()))
    return statistics.summarize(times if device.cuda else undisturbed_times(times))


def precision_note(problem: ProblemSpec, kind: str) -> tuple[str, str]:
    """Return eager's precision class and a remark on PyTorch's fp32 defaults for this device."""
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
    """Time eager PyTorch on the judge's buffers. Raises whatever the model raises."""
    precision, note = precision_note(judged.spec, judged.device.kind)
    return Baseline("eager", time_repeatedly(judged.device, _calls(judged, ())), precision, note)


def _calls(judged: JudgedProblem, buffers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Callable[[], Any]:
    """Load the first trial, and return a function that prepares the next call of the reference.

    Each call starts from the same state, even if the model writes its inputs or buffers, such as a counter.
    ``buffers``: the model's copy of each buffer, with the original in the judge's memory.
    """
    slot, trial = judged.arena.slots[0], judged.trial(0)
    trial.load(slot)

    def prepare() -> Callable[[], Any]:
        if judged.mutates:
            trial.load(slot)
            for own, stored in buffers:
                own.copy_(stored)
        return judged.forward_on(slot)

    return prepare


def time_compiled(judged: JudgedProblem, tolerance: float) -> Baseline:
    """Time the reference compiled with ``torch.compile``. ``failure`` says why the compilation failed or which outputs
    are wrong.
    """
    slot = judged.arena.slots[0]
    trial = judged.trial(0)
    trial.load(slot)
    precision, note = precision_note(judged.spec, judged.device.kind)
    try:
        buffers = _own_buffers(judged.timed.model)
        with uncollected():  # The first call imports the compiler.
            judged.timed.model.compile()
            outputs = judged.run(slot)
        expected, exact = trial.expected[: len(slot.outputs)], partial(judged.trial_in_double, trial, slot)
        found = comparison.compare(outputs, expected, tolerance)
        if found.problem is not None:
            found = compare_in_double(outputs, expected, exact, comparison.Tolerances(tolerance, tolerance))
        if found.problem is not None:
            return Baseline("compile", None, precision, note, f"torch.compile returns wrong outputs: {found.problem}")
        contention = CpuContention()
        forward = _calls(judged, buffers)
        timed = time_repeatedly(judged.device, forward, _DEVICE.compiled_s)
        if judged.device.cuda:
            return Baseline("compile", timed, precision, note)
        with torch.compiler.set_stance("force_eager"):
            eager = time_repeatedly(judged.device, forward, _DEVICE.compiled_s)
        others = contention.share()
        return Baseline("compile", timed, precision, note, others=others, eager_ms=eager.median_ms)
    except Exception as error:
        # Dynamo's first line only announces the compiler's error, which is on the next line.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
        return Baseline("compile", None, precision, note, f"{type(error).__name__}: {reason}"[:_REASON_CHARS])


def _own_buffers(model: torch.nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Copy the model's buffers out of the judge's memory. Modules that share a buffer share the copy. Return each copy
    with its original.

    The judge's tensors are views of bytes. The compiler refuses to write to views of another dtype, but batch
    normalization writes its buffers.
    """
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            if id(buffer) not in copies:
                copies[id(buffer)] = buffer.clone(), buffer
            setattr(module, name, copies[id(buffer)][0])
    return list(copies.values())


def main() -> int:
    die_with_parent()
    settings = msgspec.json.decode(sys.argv[1], type=JudgeSettings)
    problem = msgspec.json.decode(sys.stdin.buffer.read(), type=ProblemSpec)
    answers = os.dup(1)
    os.dup2(2, 1)
    device = JudgeDevice(settings.kind, settings.threads)
    # The compilers that this process starts need all cores, not only the core to which its first thread is bound.
    os.sched_setaffinity(0, map(int, os.environ[CORES_VARIABLE].split(",")))
    with alone(settings.device_id, lambda: False):
        signal.alarm(_DEVICE.compile_process_s)
        judged = JudgedProblem(problem, device, settings.trials)
        baseline = time_compiled(judged, settings.tolerance_other)
    os.write(answers, msgspec.json.encode(baseline) + b"\n")
    return 0
