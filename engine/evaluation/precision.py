"""How exact a kernel computes: its error against fp64 in units of eager's own, and the precision that it amounts to.

Probes are inputs of mean zero at two scales, where sums do not hide the error of their terms. For each, the model is
run in fp64, in fp32 (TF32 off), and in fp32 on operands rounded as TF32 rounds them: between the last two lies what
still counts as fp32. A sequential sum in fp32 does, products in TF32, fp16 or bf16 do not. One more probe has inputs as
they are drawn: who is far less exact there than at mean zero has told the two apart. So has who rounds operands there,
where a long sum hides it: such errors are small, but element by element those of the model on rounded operands.

A probe is no timed call, and may not look like one. So a few timed calls are measured in the same way, afterwards, from
what they have left (:meth:`Gauge.below_probes`).
"""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from msgspec import Struct
from msgspec.structs import replace

from engine.evaluation.arena import Slot
from engine.evaluation.double import run_in_double
from engine.evaluation.trials import JudgedProblem, Trial
from engine.problem.distributions import Kind
from engine.verdict import precision_in_words

MOST_EAGER_MS, MOST_WHERE_ASKED_MS = 60.0, 2000.0
"""Of a model that takes longer no fp64 run is asked for; the second where kernels must be as exact as fp32."""
MOST_BESIDE_EAGER_MS = 500.0
"""Of one that takes up to this, what a kernel makes of inputs at mean zero and as drawn is held against eager's."""
_SAMPLED = 1 << 14
_SCALES = 1e-6
"""Outputs are those at another scale times a factor, up to this share of them: of a matrix product, not of an ELU."""
_TINY = 2.0**-20
"""The second scale: there, fp16 has a few bits left, and TF32 all of them."""
_STEP = 2.0**-25
"""What rounding to fp32 costs; no eager error counts as less."""
_TF32_ERROR = 2.0**-11 / math.sqrt(3)
"""What rounding a value to TF32 or fp16 costs it, root mean square."""
_SAME, _FAR, _BELOW_TF32, _TOLD_APART = 4.0, 256.0, 8.0, 32.0
_PLAINLY_WRONG = 0.1
"""What is so far off is compared with the reference's outputs elsewhere, and named by what it has written."""
_DODGES = 16.0
"""So many times the error at mean zero is what who tells the two apart is off on inputs as drawn; and so many times
eager's own, where that is fp16 or bf16."""
_LEAST_DODGED = 1e-4
_BLOCKS, _LEAST_ALIKE = 8, 256
"""Errors are compared with those that rounding makes in so many parts of an output, of so many elements at least."""
_ALIKE, _ONCE = 0.4, (0.5, 2.0)
"""Errors are alike that correlate so much, and in each part are so many times those that rounding makes."""
_SEQUENTIAL = 4e-6
"""What a sequential sum of some ten thousand positive values may be off by."""
_CLASSES = ("fp32", "tf32", "fp16", "bf16", "below bf16")
_FP32, _TF32, _FP16, _BF16, _LESS = range(len(_CLASSES))
_FP64_ITSELF = -1
_HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_FP64 = 2.0**-36
"""In fp64 any order of a sum stays below this, and nothing in fp32 comes near it."""
MOST_TIMED = 8
_TIMED = {True: (MOST_TIMED, 0.5), False: (1, 0.05)}
"""So many timed calls of a kernel are measured, in so many seconds, where fp32 is asked for, and else; all of them if
one is of a lower class than the probes."""
_AS_PROBE = 4.0
"""What is so many times less exact than the probe of its kind is no other draw of the same inputs."""
_LEAST_BELOW = 2
"""So many timed calls must be of a lower class than the probes: one may be chance, where a sum is nearly zero."""


class Precision(Struct, frozen=True):
    """What was measured of a kernel. ``name``: the class, "" where ``note`` says why there is none.

    ``error``, ``eager_error``: root mean square relative to that of the outputs, at the first scale. ``sufficient``:
    as exact as the reference's own dtype. ``dodges``: in words, how much less exact it is on inputs as they are drawn.
    ``as_timed``: for each output class (as a number) and error where inputs are as in timed calls, () if not known.
    """

    name: str
    error: float = 0.0
    eager_error: float = 0.0
    sufficient: bool = True
    note: str = ""
    dodges: str = ""
    as_timed: tuple[tuple[int, float], ...] = ()

    @property
    def words(self) -> str:
        if not self.name:
            return f"not measured: {self.note}"
        return precision_in_words(self.name, self.error, self.eager_error)


class _Goal:
    """One output of a probe: fp64 values at sampled places, and the errors that calibrate it."""

    def __init__(self, exact: torch.Tensor, dtype: torch.dtype) -> None:
        flat = exact.reshape(-1)
        count = flat.numel()
        drawn = torch.randint(count, (_SAMPLED,)) if count > _SAMPLED else torch.arange(count)
        places = drawn.sort().values.to(flat.device)
        self._places = places[torch.isfinite(flat[places])]
        self._exact = flat[self._places]
        self._rms = float(self._exact.square().mean().sqrt()) if self._exact.numel() else 0.0
        self.dtype = dtype
        self.eager = self.rounded = 0.0
        self._of_rounding: dict[str, torch.Tensor] = {}
        """By its name, what each way of rounding the operands adds at the places."""

    @property
    def usable(self) -> bool:
        return self._rms > 0.0 and math.isfinite(self._rms)

    def error(self, out: torch.Tensor) -> float:
        """Root mean square of the error, relative to that of the exact values; infinite where one is not finite."""
        off = self._off(out)
        error = float(off.square().mean().sqrt()) / self._rms
        return error if math.isfinite(error) else math.inf

    def allow_for_steps_near_one(self, unscaled: torch.Tensor) -> None:
        """Count what rounding one costs as eager's error, unless the outputs only scale with the inputs, whose exact
        outputs before that are ``unscaled``: ``exp(x) - 1`` and the like are near one in between, however small x is.
        """
        before = unscaled.reshape(-1)[self._places]
        factor = float(self._exact @ before) / max(float(before @ before), 1e-300)
        if float((self._exact - factor * before).norm()) > _SCALES * float(self._exact.norm()):
            self.eager = max(self.eager, _STEP / self._rms)

    def remember(self, rounding: str, out: torch.Tensor) -> None:
        """``out`` is the model's output on operands that are rounded in this way."""
        if self._exact.numel() >= _LEAST_ALIKE:
            self._of_rounding[rounding] = self._beside_scale(self._off(out))

    def rounding_of(self, out: torch.Tensor) -> str:
        """The way of rounding whose errors ``out`` has, "" if it has none of theirs."""
        mine = self._beside_scale(self._off(out))
        return next((name for name, theirs in self._of_rounding.items() if _are_alike(mine, theirs)), "")

    def _off(self, out: torch.Tensor) -> torch.Tensor:
        return out.reshape(-1)[self._places].double() - self._exact

    def _beside_scale(self, off: torch.Tensor) -> torch.Tensor:
        """Errors less what they have in common: a shift of all values and a factor of them."""
        common = torch.linalg.qr(torch.stack([torch.ones_like(self._exact), self._exact], dim=1)).Q
        return off - common @ (common.t() @ off)


def _are_alike(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether errors are those of rounding, and some of their own."""
    parts = list(zip(mine.chunk(_BLOCKS), theirs.chunk(_BLOCKS), strict=True))
    least, most = _ONCE
    shares = [float(own @ other) / max(float(other @ other), 1e-300) for own, other in parts]
    correlation = float(mine @ theirs) / max(float(mine.norm() * theirs.norm()), 1e-300)
    return correlation >= _ALIKE and all(least < share < most for share in shares)


class TimedCall(Struct, frozen=True):
    """Some elements of what a timed call answered; ``load`` puts its inputs and weights into ``slot`` again."""

    slot: Slot
    load: Callable[[], object]
    answered: list[torch.Tensor]


class Gauge:
    """The probes of one problem, made once. ``note``: why there are none. ``asked``: a class may decide the verdict."""

    def __init__(self, problem: JudgedProblem, eager_ms: float | None, asked: bool = False) -> None:
        self._problem, self._asked = problem, asked
        self._took_s = math.inf
        """What making the goals of one probe takes."""
        self._places = [
            torch.randint(tensor.numel(), (_SAMPLED,), device=tensor.device) if tensor.numel() > _SAMPLED else None
            for tensor in _floating(problem.arena.slots[0].outputs)
        ]
        self._probes: list[tuple[Trial, list[_Goal]]] = []
        self._drawn: tuple[Trial, list[_Goal]] | None = None
        self._beside_eager: list[tuple[Trial, list[_Goal]]] = []
        """At mean zero and as drawn, for a model that takes too long for fp64."""
        self.note = self._refusal(eager_ms, MOST_WHERE_ASKED_MS if asked else MOST_EAGER_MS)
        if not self.note:
            try:
                with _without_tf32():
                    self._make()
            except torch.OutOfMemoryError:
                self.note = "the device has no room for fp64"
            except (RuntimeError, ValueError, TypeError, AssertionError) as error:
                # An operator that has no fp64 (NotImplementedError is a RuntimeError), or a model that insists on fp32.
                self.note = f"the model does not run in fp64 ({type(error).__name__})"
            finally:
                problem.reference.reset_weights()
        elif eager_ms is not None and MOST_EAGER_MS < eager_ms <= MOST_BESIDE_EAGER_MS and not problem.spec.random:
            with contextlib.suppress(RuntimeError, ValueError, TypeError, AssertionError), _without_tf32():
                self._beside_eager = [(trial, self._eager_goals(trial)) for trial in self._two_trials()]
        if not self._probes and not self.note:
            self.note = "no output with values to compare"

    def measure(self, call: Callable[[int], object]) -> Precision:
        """Have the kernel run on each probe; ``call(index)`` calls it on slot ``index`` of the problem's arena."""
        if self.note:
            return Precision("", note=self.note, dodges=self._dodges_beside_eager(call))
        found = [self._errors(call, *probe) for probe in self._probes]
        roundings: list[str] = []
        drawn = self._errors(call, *self._drawn, roundings) if self._drawn is not None else None
        precision = judged(found, drawn, next(filter(None, roundings), ""))
        timed_as_drawn = not self._asked and "centred" in self._problem.kinds
        as_timed = drawn if timed_as_drawn else found[0]
        classes = [max(_class_of(*pair) for pair in pairs) for pairs in zip(*found, as_timed or (), strict=False)]
        return replace(precision, as_timed=tuple(zip(classes, (error for error, _ in as_timed or ()), strict=False)))

    @property
    def most_timed(self) -> int:
        """How many timed calls of a kernel may be measured; 0 where that takes too long."""
        most, seconds = _TIMED[self._asked]
        return min(most, int(seconds / self._took_s))

    def answered(self, slot: Slot, load: Callable[[], object]) -> TimedCall:
        """To be kept of the call that was made last on ``slot``."""
        return TimedCall(slot, load, self._taken(_floating(slot.outputs)))

    def below_probes(self, calls: Sequence[TimedCall], precision: Precision) -> Precision | None:
        """What timed ``calls`` amount to where that is less than ``precision``, which the probes have found; else None.

        The first ``most_timed`` are measured, and the others if one of those is of a lower class.
        """
        below: list[Precision] = []
        with contextlib.suppress(RuntimeError, MemoryError), _without_tf32():  # the kernel may hold the memory
            for number, call in enumerate(calls):
                if number >= self.most_timed and not below:
                    break
                if (one := self._below_probe(call, precision)) is not None:
                    below.append(one)
                if len(below) == _LEAST_BELOW:
                    return min(below, key=lambda one: one.error)
        return None

    def _below_probe(self, call: TimedCall, precision: Precision) -> Precision | None:
        call.load()
        inputs, weights = ([one.clone() for one in tensors] for tensors in (call.slot.inputs, call.slot.weights))
        goals = self._goals(Trial("drawn", inputs, weights, None), self._taken)
        if not goals or len(precision.as_timed) != len(goals):
            return None
        errors = [(goal.error(out), goal) for goal, out in zip(goals, call.answered, strict=True)]
        below = [
            found
            for found, (place, error) in zip(errors, precision.as_timed, strict=True)
            if _class_of(*found) > place and found[0] > _AS_PROBE * error
        ]
        return judged([below], None) if below else None

    def _taken(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The elements of outputs that are kept of timed calls."""
        return [
            tensor.reshape(-1)[places] if places is not None else tensor.clone()
            for tensor, places in zip(outputs, self._places, strict=True)
        ]

    def _dodges_beside_eager(self, call: Callable[[int], object]) -> str:
        found = [self._errors(call, *probe) for probe in self._beside_eager]
        if len(found) != 2 or not all(found):
            return ""
        at_zero, off = (max(error for error, _ in probe) for probe in found)
        if not max(_DODGES * at_zero, _LEAST_DODGED) < off < _PLAINLY_WRONG:
            return ""
        return f"off by {off:.2g} from eager on inputs as they are drawn, by {at_zero:.2g} at mean zero"

    def _two_trials(self) -> list[Trial]:
        """At mean zero, where that means something, and as drawn."""
        return [self._fresh("centred"), self._fresh("drawn")] if "centred" in self._problem.kinds else []

    def _fresh(self, kind: Kind) -> Trial:
        """Inputs and weights like those of a timed call, which no kernel has seen."""
        slot = self._problem.arena.slots[0]
        self._problem.load_mixed(0, slot, self._problem.fresh_seed())
        inputs = [one.clone() for one in slot.inputs]
        return Trial(kind, self._problem.transformed(inputs, kind), [one.clone() for one in slot.weights], None)

    def _eager_goals(self, trial: Trial) -> list[_Goal]:
        goals = [_Goal(own.double(), own.dtype) for own in self._run(trial)]
        return goals if all(goal.usable for goal in goals) else []

    def _errors(
        self,
        call: Callable[[int], object],
        trial: Trial,
        goals: list[_Goal],
        roundings: list[str] | None = None,
    ) -> list[tuple[float, _Goal]]:
        """The error of each output; ``roundings`` is given their ways of rounding."""
        index = secrets.randbelow(len(self._problem.arena.slots))
        slot = self._problem.arena.slots[index]
        self._load(trial, slot)
        call(index)
        outputs = list(zip(goals, _floating(slot.outputs), strict=True))
        if roundings is not None:
            roundings += [goal.rounding_of(out) for goal, out in outputs]
        return [(goal.error(out), goal) for goal, out in outputs]

    def _refusal(self, eager_ms: float | None, most_ms: float) -> str:
        spec = self._problem.spec
        if spec.random:
            return "the model draws random numbers"
        kinds = {getattr(torch, tensor.dtype) for tensor in spec.outputs}
        if not any(kind.is_floating_point for kind in kinds):
            return "no output in floating point"
        if eager_ms is None or eager_ms > most_ms:
            return f"fp64 takes too long for a model of more than {most_ms:g} ms"
        if 6 * sum(tensor.nbytes for tensor in spec.tensors) > self._problem.device.spare_bytes():
            return "no room for fp64"
        return ""

    def _make(self) -> None:
        problem = self._problem
        scales = (1.0, _TINY) if "small" in problem.kinds else (1.0,)
        for scale in scales:
            trial = self._fresh("centred" if "centred" in problem.kinds else "drawn")
            unscaled, trial.inputs = trial.inputs, problem.scaled(trial.inputs, scale)
            if (goals := self._goals(trial)) is None:
                return
            if goals:
                self._probes.append((trial, goals))
            if goals and scale != 1.0:
                at_one = _floating(run_in_double(problem.reference, unscaled, trial.weights))
                for goal, exact in zip(goals, at_one, strict=True):
                    goal.allow_for_steps_near_one(exact)
        if any(tensor.dtype == "float64" for tensor in problem.spec.outputs):
            return  # what a sum in fp32 costs there, no error of eager's tells
        trial = self._fresh("drawn")
        if self._probes and (goals := self._goals(trial)):
            self._drawn = trial, goals
            for name, rounded in _ROUNDINGS.items():
                for goal, own in zip(goals, self._run(_rounded(trial, rounded)), strict=True):
                    goal.remember(name, own)

    def _goals(
        self, trial: Trial, taken: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] = list
    ) -> list[_Goal] | None:
        """None where there is nothing to compare, and with a note where the model casts. ``taken``: of outputs."""
        started = time.perf_counter()
        exact, eager = taken(self._run_in_double(trial)), taken(self._run(trial))
        rounded = taken(self._run(_rounded(trial, _as_tf32)))
        goals = []
        for right, off, own in zip(exact, rounded, eager, strict=True):
            goal = _Goal(right, own.dtype)
            if right.dtype != torch.float64:
                self.note = "the model casts to another dtype itself"
                return None
            if goal.usable:
                goal.eager, goal.rounded = goal.error(own), goal.error(off)
            if not goal.usable or not math.isfinite(goal.eager + goal.rounded):
                return None
            goals.append(goal)
        self._took_s = min(self._took_s, time.perf_counter() - started)
        return goals

    def _run(self, trial: Trial) -> list[torch.Tensor]:
        """The floating-point outputs of the model as PyTorch runs it."""
        slot = self._problem.arena.slots[0]
        self._load(trial, slot)
        self._problem.bind(slot)
        return [tensor.clone() for tensor in _floating(self._problem.run(slot))]

    def _run_in_double(self, trial: Trial) -> list[torch.Tensor]:
        """The same of a copy of the model in fp64."""
        return _floating(run_in_double(self._problem.reference, trial.inputs, trial.weights))

    def _load(self, trial: Trial, slot: Slot) -> None:
        trial.load(slot)
        slot.poison(secrets.randbelow(2))
        self._problem.device.synchronize()


def judged(
    found: Sequence[Sequence[tuple[float, _Goal]]], drawn: Sequence[tuple[float, _Goal]] | None, rounding: str = ""
) -> Precision:
    """The class from the errors of each probe's outputs, the worst of them; ``drawn``: those of the inputs as drawn,
    ``rounding``: the way in which operands are rounded there. Pure."""
    error, goal = max(found[0], key=lambda pair: pair[0] / max(pair[1].eager, _STEP))
    native = _HALVES.get(goal.dtype)
    dodges = ""
    if drawn is not None:
        off, one = max(drawn, key=lambda pair: pair[0] / max(pair[1].eager, _STEP))
        if native is not None:
            apart = error <= _SAME * max(goal.eager, _STEP) and off > _DODGES * max(one.eager, _STEP)
        else:
            at_zero, as_drawn = (max(class_of(*_figures(pair)) for pair in probe) for probe in (found[0], drawn))
            plain = one.rounded > _FAR * max(one.eager, _STEP)  # no sum hides what rounding costs
            apart = as_drawn >= at_zero + (1 if plain else 2)
            if rounding and at_zero == _FP32:
                dodges = f"rounds its operands ({rounding}) on inputs as they are drawn, not at mean zero"
        if apart and _DODGES * error < off < _PLAINLY_WRONG:
            dodges = (
                f"off by {off:.2g} on inputs as they are drawn (eager {one.eager:.2g}), by {error:.2g} at mean zero"
            )
    if native is not None:
        enough = error <= _SAME * max(goal.eager, _STEP)
        return Precision(native if enough else f"below {native}", error, goal.eager, enough, dodges=dodges)
    if goal.dtype == torch.float64 and all(one <= _FP64 for probe in found for one, _ in probe):
        return Precision("fp64", error, goal.eager)
    classes = [max(class_of(*_figures(pair)) for pair in probe) for probe in found]
    # As exact as TF32, or more, but only near to one: the range of fp16.
    worst = _FP16 if classes[0] < _BF16 <= classes[-1] else max(classes)
    return Precision(_CLASSES[worst], error, goal.eager, worst == _FP32, dodges=dodges)


def _class_of(error: float, goal: _Goal) -> int:
    """As :func:`class_of`, but that fp64 is a class of its own, and fp16 and bf16 have those that they ask for."""
    if goal.dtype in _HALVES:
        return _FP32 if error <= _SAME * max(goal.eager, _STEP) else _LESS
    if goal.dtype == torch.float64 and error <= _FP64:
        return _FP64_ITSELF
    return class_of(*_figures((error, goal)))


def _figures(found: tuple[float, _Goal]) -> tuple[float, float, float]:
    """Error, eager's, and that on rounded operands."""
    error, goal = found
    return error, goal.eager, goal.rounded


def class_of(error: float, eager: float, rounded: float) -> int:
    """The place in ``_CLASSES`` of an error, by eager's own and that of the model on operands rounded to TF32. Pure."""
    own = max(eager, _STEP)
    # Where rounded operands hardly matter, as in a sum of nearly equal values, only the error itself can be judged.
    least = _SEQUENTIAL if rounded > _TOLD_APART * own else _TF32_ERROR / _BELOW_TF32
    if error <= max(_SAME * own, min(rounded / _BELOW_TF32, _FAR * own), least):
        return _FP32
    coarse = max(rounded, _TF32_ERROR)
    # TF32 by truncation has twice the error, bf16 has eight times it.
    return _TF32 if error <= 3 * coarse else _BF16 if error <= 24 * coarse else _LESS


def _floating(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]


def _rounded(trial: Trial, rounded: Callable[[torch.Tensor], torch.Tensor]) -> Trial:
    return Trial(trial.kind, [rounded(one) for one in trial.inputs], [rounded(one) for one in trial.weights], None)


def _keeping(bits: int, tensor: torch.Tensor, nearest: bool = True) -> torch.Tensor:
    """fp32 with so many bits of mantissa, to nearest or cut off, fp64 as fp32 has it; other dtypes have no more."""
    if tensor.dtype == torch.float64:
        return _keeping(bits, tensor.float(), nearest).double()
    if tensor.dtype != torch.float32:
        return tensor
    dropped = 1 << (23 - bits)
    return ((tensor.contiguous().view(torch.int32) + (dropped // 2 if nearest else 0)) & -dropped).view(torch.float32)


_as_tf32 = partial(_keeping, 10)
_ROUNDINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tf32 or fp16": _as_tf32,
    "tf32, cut off": partial(_keeping, 10, nearest=False),
    "bf16": partial(_keeping, 7),
    "bf16, cut off": partial(_keeping, 7, nearest=False),
}


@contextlib.contextmanager
def _without_tf32() -> Iterator[None]:
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = False
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before
