"""The second verdict: what KernelBench's evaluator would say of a kernel (:mod:`engine.evaluation.kernelbench_rules`).

It is asked for in the kernel's own runner, when every check of the strict verdict has passed or one has failed, so it
can neither change that verdict nor tell the kernel anything that is of use for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from msgspec.structs import replace

from engine.evaluation import kernelbench_rules as rules
from engine.evaluation.rejected import Rejected
from engine.evaluation.sandbox import Runner, RunnerEnded
from engine.evaluation.timing import Pairs
from engine.evaluation.trials import JudgedProblem
from engine.problem.reference import Reference
from engine.verdict import KernelBenchVerdict

MOST_REFERENCE_S = 0.5
"""Of a slow model no more runs are asked for than fit into this, though one at least."""
MOST_KERNEL_S = 0.3
"""No other trial is begun after so many seconds of loading, calling and comparing."""
_FAILS_THEIRS = ("crashed", "launch_failed")
"""Ends of a runner that are exceptions to their evaluator, or its own end."""


class _Trial:
    """``weights``: as the reference left them, where it writes to them."""

    def __init__(self, inputs: list[torch.Tensor], expected: torch.Tensor, weights: list[torch.Tensor]) -> None:
        self.inputs, self.expected, self.weights = inputs, expected, weights


class KernelBenchTrials:
    """The trials of one problem, each drawn when it is first asked for and kept where there is room."""

    def __init__(self, problem: JudgedProblem, eager_ms: float | None) -> None:
        self.problem = problem
        self._seeds = [problem.fresh_seed() for _ in range(rules.TRIALS)]
        if eager_ms:
            del self._seeds[max(1, int(1e3 * MOST_REFERENCE_S / eager_ms)) :]
        sizes = sum(tensor.nbytes for tensor in problem.spec.tensors)
        self._keeps = 2 * len(self._seeds) * sizes < problem.device.spare_bytes()
        self._kept: list[_Trial] = []

    @cached_property
    def precision(self) -> torch.dtype:
        """Only where the rules apply."""
        return rules.precision_of(self.problem.spec) or torch.float32

    def __iter__(self) -> Iterator[_Trial]:
        """In their order, each drawn when it is asked for. Raises what the model raises."""
        last: _Trial | None = None
        for index, seed in enumerate(self._seeds):
            if index < len(self._kept):
                last = self._kept[index]
            else:
                last = self._draw(seed, last)
                if self._keeps:
                    self._kept.append(last)
            yield last

    def prepare(self) -> None:
        """Draw now what is kept, where the rules apply. Raises what the model raises."""
        spec = self.problem.spec
        # On a GPU, a model that looks something up with integers cast to floating point may end the process.
        if not self._keeps or rules.not_applicable(spec, module=False) or rules.casts_integers(spec):
            return
        for _ in self:
            pass

    def load_weights(self) -> None:
        """Put the weights that the model was built with into the buffers of the first slot."""
        for here, built in zip(self.problem.arena.slots[0].weights, self.problem.as_built(), strict=True):
            here.copy_(built)

    def _draw(self, seed: int, before: _Trial | None) -> _Trial:
        reference, weights = self.problem.reference, self.problem.as_built()
        if before is not None and before.weights:
            for here, left in zip(weights, before.weights, strict=True):
                here.copy_(left)
        leaves = reference.draw(seed)
        cast = [leaf.to(self.precision) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        expected = reference.run(cast)[0].clone(memory_format=torch.contiguous_format)
        # An exported kernel is given what was cast, and casts it back.
        pairs = zip(Reference.tensors(leaves), Reference.tensors(cast), strict=True)
        given = [used.to(own.dtype).contiguous() for own, used in pairs]
        written = any(tensor.mutated for tensor in self.problem.spec.weights)
        return _Trial(given, expected, [tensor.clone() for tensor in weights] if written else [])


class SecondOpinion:
    """KernelBench's verdict on one kernel. ``module``: it is a ``ModelNew``.

    ``seconds``: what the verdict took; ``runs_s``: those of them in which the kernel ran.
    """

    def __init__(self, trials: KernelBenchTrials, module: bool, cancelled: Callable[[], bool]) -> None:
        self._trials, self._module, self._cancelled = trials, module, cancelled
        self._verdict: KernelBenchVerdict | None = None
        self.seconds = self.runs_s = 0.0

    @contextmanager
    def before_the_end_of(self, runner: Runner, calls: Callable[[], int]) -> Iterator[None]:
        """Ask when the block is done with the runner, or has refused its kernel.

        ``calls``: how many the kernel has had. The first is one that KernelBench would make as well.
        """
        try:
            yield
        except Rejected:
            self._ask(runner)
            raise
        except RunnerEnded as ended:
            if ended.end == "launch_failed":  # it lives
                self._ask(runner)
            elif ended.end == "crashed" and calls() <= 1:
                self._verdict = KernelBenchVerdict(status="wrong", reason=str(ended))
            elif ended.end in ("crashed", "timeout", "memory", "forbidden"):
                self._verdict = _not_judged(f"its process came to an end before: {ended}")
            raise
        self._ask(runner)

    def verdict(self, pairs: Pairs | None) -> KernelBenchVerdict | None:
        """None where the kernel could not be loaded. With their speedup, if the kernel was timed in ``pairs``."""
        return with_speedup(self._verdict, pairs) if pairs is not None else self._verdict

    def _ask(self, runner: Runner) -> None:
        started = time.perf_counter()
        try:
            self._verdict = self._judge(runner)
        except torch.OutOfMemoryError:
            self._verdict = _not_judged("the device has no room for its trials")
        except Exception as error:  # the strict verdict must not be lost with the second one
            self._verdict = _not_judged(f"{type(error).__name__}: {error}"[:300])
        self.seconds = time.perf_counter() - started

    def _judge(self, runner: Runner) -> KernelBenchVerdict:
        problem = self._trials.problem
        if why := rules.not_applicable(problem.spec, self._module):
            return KernelBenchVerdict(status="not applicable", reason=why)
        slot, trials = problem.arena.slots[0], iter(self._trials)
        tolerance, tried, spent_s = rules.tolerance_of(self._trials.precision), 0, 0.0
        while spent_s < MOST_KERNEL_S:
            try:
                trial = next(trials, None)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                if not rules.casts_integers(problem.spec):
                    raise
                words = f"it casts integers to floating point, which the model does not take: {error}"
                return KernelBenchVerdict(status="not applicable", reason=" ".join(words.split())[:200])
            if trial is None:
                break
            if trial.expected.dtype != slot.outputs[0].dtype:
                words = f"it casts integers to floating point, for which the model returns {trial.expected.dtype}"
                return KernelBenchVerdict(status="not applicable", reason=words)
            if self._cancelled():
                return _not_judged("cancelled")
            started = time.perf_counter()
            if tried == 0:  # both go on from one trial to the next, as theirs do
                self._trials.load_weights()
                slot.poison(0)
            for here, drawn in zip(slot.inputs, trial.inputs, strict=True):
                here.copy_(drawn)
            problem.device.synchronize()
            try:
                own_ms, _ = runner.call([0])
            except RunnerEnded as ended:
                if ended.end in _FAILS_THEIRS:
                    return KernelBenchVerdict(status="wrong", reason=f"trial {tried}: {ended}")
                return _not_judged(f"trial {tried}: {ended}")
            self.runs_s += own_ms[0] / 1e3
            if found := rules.mismatch(trial.expected, slot.outputs[0], tolerance):
                return KernelBenchVerdict(status="wrong", reason=f"trial {tried}: {found}")
            tried += 1
            spent_s += time.perf_counter() - started
        short = f" of {rules.TRIALS}, no time for more" if tried < rules.TRIALS else ""
        return KernelBenchVerdict(status="correct", reason=f"{tried} trials{short}, atol = rtol = {tolerance:g}")


def with_speedup(verdict: KernelBenchVerdict | None, pairs: Pairs) -> KernelBenchVerdict | None:
    """``verdict`` with their speedup, by the times of ``pairs``."""
    return replace(verdict, speedup=rules.speedup(pairs.reference_ms, pairs.kernel_ms)) if verdict is not None else None


def _not_judged(why: str) -> KernelBenchVerdict:
    return KernelBenchVerdict(status="not judged", reason=why)
