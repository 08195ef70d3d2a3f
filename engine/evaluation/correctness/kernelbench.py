"""Judge a kernel by KernelBench's own rules (``kernelbench_rules.py``).

The judge evaluates these rules in the kernel's own runner, after the strict checks have passed or failed. This second
verdict therefore cannot change the first verdict, and the kernel cannot exploit the extra calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from msgspec.structs import replace

from engine.evaluation.correctness import kernelbench_rules as rules
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.inputs.reference import Reference
from engine.evaluation.rejection import Rejected
from engine.evaluation.sandbox.runner import Runner, RunnerEnded
from engine.evaluation.timing.statistics import Pairs
from engine.session.records.verdict import KernelBenchVerdict

_FAILS_THEIRS = ("crashed", "launch_failed", "wrong_output")
"""Failures that would raise an exception in KernelBench's evaluator, or crash the evaluator."""
_CASTS = "KernelBench casts integers to floating point,"
_wrong, _not_judged = partial(KernelBenchVerdict, "wrong"), partial(KernelBenchVerdict, "not judged")
_not_applicable = partial(KernelBenchVerdict, "not applicable")


class _Trial(NamedTuple):
    """One trial. ``weights``: a copy of the weights after the reference ran, if the reference changes them."""

    inputs: list[torch.Tensor]
    expected: torch.Tensor
    weights: list[torch.Tensor]


class KernelBenchTrials:
    """The KernelBench trials of one problem, drawn on first use and kept while memory allows."""

    def __init__(self, problem: JudgedProblem, eager_ms: float | None) -> None:
        self.problem = problem
        self.precision = rules.precision_of(problem.spec) or torch.float32
        """The precision to which the judge casts tensors; meaningful only if the rules apply."""
        self._seeds = [problem.fresh_seed() for _ in range(rules.TRIALS)]
        if eager_ms:
            del self._seeds[max(1, int(1e3 * problem.policy.correctness.kernelbench_reference_s / eager_ms)) :]
        sizes = sum(tensor.nbytes for tensor in problem.spec.tensors)
        self._keeps = 2 * len(self._seeds) * sizes < problem.device.spare_bytes()
        self._kept: list[_Trial] = []

    def __iter__(self) -> Iterator[_Trial]:
        """Yield the trials in order. Raises whatever the model raises."""
        last: _Trial | None = None
        for index, seed in enumerate(self._seeds):
            if index < len(self._kept):
                last = self._kept[index]
            else:
                last = self._draw(seed, last)
                if self._keeps:
                    self._kept.append(last)
            yield last

    def _draw(self, seed: int, before: _Trial | None) -> _Trial:
        reference, weights = self.problem.source.reference, self.problem.source.as_built()
        if before is not None and before.weights:
            for here, left in zip(weights, before.weights, strict=True):
                here.copy_(left)
        leaves = reference.draw(seed)
        cast = [leaf.to(self.precision) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        expected = reference.run(cast)[0].clone(memory_format=torch.contiguous_format)
        # An exported kernel receives the cast values, converted back to the original dtype.
        pairs = zip(Reference.tensors(leaves), Reference.tensors(cast), strict=True)
        given = [used.to(own.dtype).contiguous() for own, used in pairs]
        written = any(tensor.mutated for tensor in self.problem.spec.weights)
        return _Trial(given, expected, [tensor.clone() for tensor in weights] if written else [])


class SecondOpinion:
    """KernelBench's ``verdict`` on one kernel, or None if the kernel does not load.

    ``module``: whether the kernel is a ``ModelNew``. ``seconds``: the total time spent on the verdict. ``runs_s``: the
    time that the kernel's calls took, in seconds.
    """

    def __init__(self, trials: KernelBenchTrials, module: bool) -> None:
        self._trials, self._module = trials, module
        self.verdict: KernelBenchVerdict | None = None
        self.seconds = self.runs_s = 0.0

    @contextmanager
    def before_the_end_of(self, runner: Runner, calls: Callable[[], int]) -> Iterator[None]:
        """Judge by KernelBench's rules after the ``with`` block has finished with the runner or rejected the kernel.

        ``calls``: returns the number of calls so far. A crash at the first call would also occur in KernelBench.
        """
        try:
            yield
        except Rejected:
            self._ask(runner)
            raise
        except RunnerEnded as ended:
            if ended.end in ("launch_failed", "wrong_output"):  # The runner is still alive after these failures.
                self._ask(runner)
            elif ended.end in ("crashed", "timeout", "memory", "forbidden"):
                at_once = ended.end == "crashed" and calls() <= 1
                self.verdict = (
                    _wrong(str(ended)) if at_once else _not_judged(f"the kernel's process had already ended: {ended}")
                )
            raise
        self._ask(runner)

    def _ask(self, runner: Runner) -> None:
        started = time.perf_counter()
        spec = self._trials.problem.spec
        why = rules.not_applicable(spec, self._module)
        try:
            self.verdict = _not_applicable(why) if why else self._judge(runner)
        except Exception as error:  # An error here must not lose the strict verdict.
            words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            takes = isinstance(error, torch.OutOfMemoryError) or not rules.casts_integers(spec)
            why = f"{_CASTS} which the model rejects: {words}"
            self.verdict = _not_judged(words) if takes else _not_applicable(why)
        self.seconds = time.perf_counter() - started

    def _judge(self, runner: Runner) -> KernelBenchVerdict:
        problem = self._trials.problem
        slot, tolerance = problem.arena.slots[0], rules.tolerance_of(self._trials.precision)
        tried, spent_s = 0, 0.0
        for trial in self._trials:
            if trial.expected.dtype != slot.outputs[0].dtype:
                return _not_applicable(f"{_CASTS} for which the model returns {trial.expected.dtype}")
            started = time.perf_counter()
            if tried == 0:  # Kernel and weights persist across trials, as in KernelBench.
                for here, built in zip(slot.weights, problem.source.as_built(), strict=True):
                    here.copy_(built)
                slot.poison(0)
            for here, drawn in zip(slot.inputs, trial.inputs, strict=True):
                here.copy_(drawn)
            problem.device.synchronize()
            try:
                own_ms, _ = runner.call([0])
            except RunnerEnded as ended:
                # These failures would raise an exception in KernelBench's evaluator, or crash it.
                fails = ended.end in ("crashed", "launch_failed")
                return (_wrong if fails else _not_judged)(f"trial {tried}: {ended}")
            self.runs_s += own_ms[0] / 1e3
            if found := rules.mismatch(trial.expected, slot.outputs[0], tolerance):
                return _wrong(f"trial {tried}: {found}")
            tried += 1
            spent_s += time.perf_counter() - started
            if spent_s > problem.policy.correctness.kernelbench_s:
                break
        passed = f"the time limit allowed only {tried} of {rules.TRIALS} trials, and all of these passed"
        passed = passed if tried < rules.TRIALS else f"{tried} trials passed"
        return KernelBenchVerdict("correct", f"{passed}, atol = rtol = {tolerance:g}")


def with_speedup(verdict: KernelBenchVerdict | None, pairs: Pairs) -> KernelBenchVerdict | None:
    """Return ``verdict`` with KernelBench's speedup, computed from the times of ``pairs``."""
    return replace(verdict, speedup=rules.speedup(pairs.reference_ms, pairs.kernel_ms)) if verdict is not None else None
