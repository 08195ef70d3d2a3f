"""A problem opened in the judge: its reference, its shared buffers and the inputs that kernels are tried on."""

from __future__ import annotations

import copy
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from statistics import median
from typing import Any

import torch

from engine.evaluation.arena import Arena, Slot
from engine.evaluation.checks import Tolerances, checksum
from engine.evaluation.device import JudgeDevice, give_back_freed_memory
from engine.evaluation.double import run_in_double
from engine.evaluation.mixtures import Mixing, Shares, mix_into
from engine.evaluation.nearness import Doubled
from engine.evaluation.runner.operators import working_operators
from engine.evaluation.runner.wire import MOST_BUFFERS
from engine.evaluation.spikes import errors, raise_some, sizes
from engine.evaluation.ties import choices_of
from engine.problem.distributions import Kind, transform
from engine.problem.integers import Order
from engine.problem.reference import Reference
from engine.problem.spec import ProblemSpec
from engine.problem.structure import Structure

_ASSERTING = ("binary_cross_entropy(", "BCELoss(")
"""Operators whose CUDA kernels assert that their inputs lie within bounds."""
_SLOTS_BYTES, _MOST_SLOTS = {"cpu": 64 << 20, "cuda": 2 << 30}, {"cpu": 64, "cuda": 256}
"""Short kernels are called many times in a row, each time on other buffers: so much memory is there for that."""
_HALVES = ("float16", "bfloat16")
_WORSE, _OFF = 2.0, 1e-2
"""So much larger an error of eager's against fp64 than on inputs as drawn, and larger than this, is no rounding: values
have left the range of fp16, or nothing but rounding is left of them."""


class Trial:
    """One set of inputs and weights with the reference's outputs for them, in memory that kernels cannot reach.

    ``seed``: of the generator before a call, for a model that draws random numbers; else None.
    """

    def __init__(self, kind: Kind, inputs: list[torch.Tensor], weights: list[torch.Tensor], seed: int | None) -> None:
        self.kind, self.inputs, self.weights, self.seed = kind, inputs, weights, seed
        self.expected: list[torch.Tensor] = []
        self.exact: Doubled | None = None
        """The outputs in fp64, once they were asked for (``asked``); None where there are none."""
        self.asked = False

    @property
    def nbytes(self) -> int:
        kept: int = sum(tensor.nbytes for tensor in (*self.inputs, *self.weights, *self.expected))
        return kept + (self.exact.nbytes if self.exact is not None else 0)

    def load(self, slot: Slot) -> None:
        slot.filled = True
        for target, source in zip((*slot.inputs, *slot.weights), (*self.inputs, *self.weights), strict=True):
            target.copy_(source)

    def unchanged(self, slot: Slot, inputs: bool = True) -> str | None:
        """The name of a weight (or input) that differs from what was loaded, or None."""
        weights = [spec for spec in slot.specs if spec.role in ("parameter", "buffer")]
        specs = [*(spec for spec in slot.specs if spec.role == "input"), *weights] if inputs else weights
        loaded = (*slot.inputs, *slot.weights) if inputs else slot.weights
        sources = (*self.inputs, *self.weights) if inputs else self.weights
        for spec, here, source in zip(specs, loaded, sources, strict=True):
            if not spec.mutated and not torch.equal(_bits(here), _bits(source)):
                return spec.name
        return None


class JudgedProblem:
    """Reference, arena and ``trials`` trials of one problem. Values of the trials are secret: seeded by the system.

    Raises what the model raises.
    """

    def __init__(self, spec: ProblemSpec, device: JudgeDevice, trials: int) -> None:
        self.spec, self.device = spec, device
        self.reference = Reference.load(spec.source, spec.path, device.kind)
        self.keeps_weights = False
        self._home = [tensor.data for _, tensor in self.reference.weights()]
        self._seed = secrets.randbits(48)
        self._random = random.Random(self._seed)
        leaves = self.reference.draw(self._seed)
        self.kinds: tuple[Kind, ...] = ("drawn",) if self._may_assert() else self.reference.variants(leaves)
        """Distributions of inputs that mean something for the problem, and on which eager is as good as as drawn."""
        in_half = any(tensor.dtype in _HALVES for tensor in spec.tensors)
        if in_half and not spec.random and self._has_room_for_double():
            self.kinds = self._as_good_as_drawn(leaves)
        self._kinds = self._spread(self.kinds, trials)
        self._orders = [
            order for order, leaf in zip(self.reference.orders(), leaves, strict=True) if isinstance(leaf, torch.Tensor)
        ]
        self._mixing = self._choose_mixing(self.reference.tensors(leaves))
        footprint = sum(tensor.nbytes for tensor in spec.tensors)
        most = max(min(_MOST_SLOTS[device.kind], MOST_BUFFERS // len(spec.tensors)), 2)
        slots = min(max(_SLOTS_BYTES[device.kind] // max(footprint, 1), 2), most)
        self.arena = Arena(spec.tensors, device.kind, slots if (slots + 1) * footprint < device.spare_bytes() else 1)
        self._kept: OrderedDict[tuple[int, bool], Trial] = OrderedDict()
        self._sizes: list[float] = []
        """What the elements of each input that ``raise_some`` raises are made; 0 for none."""

    def _as_good_as_drawn(self, leaves: list[Any]) -> tuple[Kind, ...]:
        """Those of ``kinds`` on which eager agrees with fp64: elsewhere who rounds in another way would be wrong."""

        def error(kind: Kind) -> float:
            inputs = self.reference.tensors(transform(leaves, kind, self.reference.orders()))
            return max(errors(self._try(inputs), run_in_double(self.reference, inputs, self._home)), default=0.0)

        try:
            most = max(_WORSE * error("drawn"), _OFF)
            return tuple(kind for kind in self.kinds if kind == "drawn" or error(kind) <= most)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):  # it does not run in fp64
            return self.kinds

    def _has_room_for_double(self) -> bool:
        return 6 * sum(tensor.nbytes for tensor in self.spec.tensors) <= self.device.spare_bytes()

    @staticmethod
    def _spread(kinds: tuple[Kind, ...], trials: int) -> list[Kind]:
        """A kind for each trial: every other one as drawn, the others in turn."""
        others: list[Kind] = [kind for kind in kinds if kind != "drawn"] or ["drawn"]
        return ["drawn" if i % 2 == 0 else others[i // 2 % len(others)] for i in range(trials)]

    def _choose_mixing(self, own: list[torch.Tensor]) -> Mixing:
        """The first way of mixing that the model takes without raising and without values that are not finite."""
        if not any(tensor.is_floating_point() for tensor in own):
            return "none"
        if any(isinstance(one, Structure) and one.discrete and not one.constant for one in self._orders):
            return "fresh"
        other = self.reference.tensors(self.reference.draw(self._seed + 1))
        finite = all(bool(torch.isfinite(out).all()) for out in self._try(own))
        ways: tuple[Mixing, ...] = ("convex",) if self._may_assert() else ("rotated", "convex")
        for mixing in ways:
            mixed = [torch.empty_like(tensor) for tensor in own]
            mix_into(mixed, own, other, self._orders, mixing, 0)
            try:
                outputs = self._try(mixed)
            except (RuntimeError, ValueError, IndexError, AssertionError):
                continue
            if not finite or all(bool(torch.isfinite(out).all()) for out in outputs):
                return mixing
        return "fresh"

    def _may_assert(self) -> bool:
        """Whether values out of bounds end the process: on a GPU a failed assertion cannot be caught."""
        return self.device.cuda and any(name in self.spec.source for name in _ASSERTING)

    def _try(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        outputs = list(self.reference.run(self.reference.with_tensors([tensor.clone() for tensor in inputs])))
        self.reference.reset_weights()
        return outputs

    def run(self, slot: Slot) -> list[torch.Tensor]:
        """The reference on the slot's inputs and the weights bound last."""
        return list(self.reference.run(self.reference.with_tensors(slot.inputs)))

    def in_double(self, slot: Slot, load: Callable[[], object]) -> Doubled | None:
        """The model's outputs in fp64 for what ``load`` puts into the slot, whatever a kernel has left in its inputs.

        None where the model writes them, draws random numbers or does not run in fp64, or where there is no room.
        """
        if self.mutates or self.spec.random or not self._has_room_for_double():
            return None
        load()
        self.bind(slot)
        try:
            return Doubled(
                *choices_of(lambda: self.run(slot), lambda: run_in_double(self.reference, slot.inputs, slot.weights))
            )
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
            return None

    def trial_in_double(self, trial: Trial, slot: Slot) -> Doubled | None:
        """The same for a trial, kept with it."""
        if not trial.asked:
            trial.asked, trial.exact = True, self.in_double(slot, lambda: trial.load(slot))
        return trial.exact

    @property
    def trials(self) -> int:
        """How many there are."""
        return len(self._kinds)

    def telling_trials(self) -> list[int]:
        """Two trials whose inputs are not as drawn: with those of mean zero, which tell most, and one by lot."""
        others = [kind for kind in dict.fromkeys(self._kinds) if kind != "drawn"]
        random.shuffle(others)
        others.sort(key=lambda kind: kind != "centred")
        return [self._kinds.index(kind) for kind in others[:2]]

    @property
    def mutates(self) -> bool:
        """Whether the model writes inputs or buffers, so that they must be loaded anew before each call."""
        return any(tensor.mutated for tensor in self.spec.tensors)

    @property
    def result_count(self) -> int:
        """How many of a slot's results are compared: a kernel with weights of its own has buffers of its own."""
        outputs = len(self.spec.outputs)
        mutated = [tensor for tensor in self.spec.tensors if tensor.mutated]
        return outputs + sum(tensor.role == "input" or not self.keeps_weights for tensor in mutated)

    def with_own_weights(self) -> JudgedProblem:
        """The same problem for a kernel that keeps the weights it was built with: they are the same in all trials."""
        made = copy.copy(self)
        made.keeps_weights = True
        return made

    def time_reference(self, count: int) -> list[float]:
        """Milliseconds of ``count`` runs of the reference on the first trial."""
        slot = self.arena.slots[0]
        self.bind(slot)
        self.trial(0).load(slot)
        self.device.synchronize()
        return [self.device.time_ms(lambda: self.run(slot)) for _ in range(count)]

    def bind(self, slot: Slot) -> None:
        """Make the reference use the slot's weights."""
        self._bind(slot.weights)

    def as_built(self) -> list[torch.Tensor]:
        """Make the reference use memory of its own, with the weights that it was built with: the tensors."""
        self._bind(self._home)
        self.reference.reset_weights()
        return self._home

    def trial(self, index: int) -> Trial:
        """Trial ``index``: drawn once, kept while memory allows."""
        key = (index, self.keeps_weights and index > 0)
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept
        made = self._make(index)
        self._kept[key] = made
        spare = self.device.spare_bytes()
        while len(self._kept) > 1 and sum(trial.nbytes for trial in self._kept.values()) > spare:
            self._kept.popitem(last=False)
        return made

    def prepare(self) -> None:
        """Draw the trials now, so that the first kernel does not wait for them."""
        for index in range(len(self._kinds)):
            self.trial(index)

    def drawn(self, index: int) -> Trial:
        """One of the trials whose inputs are as the problem draws them, for timing."""
        plain = [i for i, kind in enumerate(self._kinds) if kind == "drawn"]
        return self.trial(plain[index % len(plain)])

    def load_mixed(self, index: int, slot: Slot, seed: int) -> Trial:
        """Load inputs and weights that no call has seen, between those of the trial that comes back and another.

        The same for the same ``seed``.
        """
        trial, other = self.drawn(index), self.drawn(index + 1)
        slot.filled = True
        if self._mixing == "fresh":
            fresh = self.reference.tensors(self.reference.draw(seed))
            for target, source in zip(slot.inputs, fresh, strict=True):
                target.copy_(source)
        else:
            mix_into(slot.inputs, trial.inputs, other.inputs, self._orders, self._mixing, seed)
        draw = random.Random(seed)
        weights = zip(self.spec.weights, slot.weights, trial.weights, other.weights, strict=True)
        for spec, target, source, theirs in weights:
            if spec.role == "parameter" and source.is_floating_point() and not self.keeps_weights:
                self._shares.mix_into(target, source, theirs, draw)
            else:  # buffers are the same in every trial
                target.copy_(source)
        return trial

    def centre(self, slot: Slot) -> None:
        """Give the slot's inputs mean zero, as those have on which precision is measured."""
        for target, centred in zip(slot.inputs, self.transformed(slot.inputs, "centred"), strict=True):
            target.copy_(centred)

    def transformed(self, inputs: Sequence[torch.Tensor], kind: Kind) -> list[torch.Tensor]:
        """Inputs of ``kind`` made of others (:func:`engine.problem.distributions.transform`)."""
        return transform(inputs, kind, self._orders)

    def scaled(self, inputs: Sequence[torch.Tensor], scale: float) -> list[torch.Tensor]:
        """Inputs times ``scale``, where that leaves them what they are."""
        return [
            tensor if not tensor.is_floating_point() or _has_scale(order) else tensor * scale
            for tensor, order in zip(inputs, self._orders, strict=True)
        ]

    def find_large(self, tolerances: Tolerances) -> None:
        """Find out how large single elements of the inputs may be for ``raise_some``; before, none are."""
        if self.spec.random or self._may_assert():
            return
        if not self._has_room_for_double():
            return
        home = self.as_built()
        found = sizes(
            self._try, lambda given: run_in_double(self.reference, given, home), self.trial(0).inputs, tolerances
        )
        self._sizes = [
            0.0 if isinstance(order, Structure) else size for order, size in zip(self._orders, found, strict=True)
        ]

    @property
    def may_be_large(self) -> bool:
        """Whether single elements of an input may be large enough to show in the outputs."""
        return any(self._sizes)

    def raise_some(self, slot: Slot, seed: int) -> None:
        """Make a few elements of one input so large that the outputs depend on each; the same for the same ``seed``."""
        draw = random.Random(seed)
        place = draw.choice([place for place, size in enumerate(self._sizes) if size])
        raise_some(slot.inputs[place], self._sizes[place], draw)

    @cached_property
    def _shares(self) -> Shares:
        return Shares(self.device.kind)

    def fresh_seed(self) -> int:
        """For a mixture, or for the generator before a call."""
        return self._random.getrandbits(48)

    def call_seed(self) -> int | None:
        """A seed that reference and kernel both get before a call, where the model draws random numbers."""
        return self.fresh_seed() if self.spec.random else None

    @cached_property
    def operators(self) -> frozenset[str] | None:
        """Those that do the reference's work; None where PyTorch's profiler does not start."""
        slot = self.arena.slots[0]
        self.trial(0).load(slot)
        self.bind(slot)
        found = working_operators(lambda: self.run(slot))
        return None if found is None else frozenset(found)

    @cached_property
    def output_strides(self) -> list[tuple[int, ...] | None]:
        """Of each output that the model leaves as a permuted view of memory without gaps; None for the others."""
        self.as_built()
        return [
            tensor.stride() if not tensor.is_contiguous() and _is_dense(tensor) else None
            for tensor in self._try(self.trial(0).inputs)
        ]

    @cached_property
    def copy_ms(self) -> float:
        """What copying the outputs once takes here: a ``.py`` kernel's are copied after its clock has stopped."""
        targets = self.arena.slots[0].outputs
        sources = [torch.zeros_like(target) for target in targets]

        def copy_all() -> None:
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)

        copy_all()
        return min(self.device.time_ms(copy_all) for _ in range(3))

    def cold_ms(self) -> float:
        """What touching all buffers of a slot takes longer just now when others were loaded since; 0 on a GPU, where
        the cache is evicted before each timed call."""
        if self.device.cuda:
            return 0.0

        def touch(slot: Slot) -> float:
            started = time.perf_counter()
            checksum(slot.unwritable)
            slot.poison(0)
            return 1e3 * (time.perf_counter() - started)

        warm_ms, cold_ms = [], []
        for index, slot in enumerate(self.arena.slots):
            self.load_mixed(index, slot, self.fresh_seed())
            slot.poison(1)
            warm_ms.append(touch(slot))
        for slot in self.arena.slots:
            cold_ms.append(touch(slot))
        return max(0.0, median(cold_ms) - median(warm_ms))

    def close(self) -> None:
        self._kept.clear()
        self._bind(self._home)
        self.arena.close()
        if not self.device.cuda:
            give_back_freed_memory()

    def _bind(self, weights: list[torch.Tensor]) -> None:
        for (_, tensor), values in zip(self.reference.weights(), weights, strict=True):
            tensor.data = values

    def _make(self, index: int) -> Trial:
        """The model's own weights in trial 0, changed ones after it: a kernel must follow them."""
        kind = self._kinds[index]
        leaves = transform(self.reference.draw(self._seed + index), kind, self.reference.orders())
        self.as_built()
        if index and not self.keeps_weights:
            self.reference.perturb_weights(self._seed + index)
        inputs = [tensor.contiguous().clone() for tensor in self.reference.tensors(leaves)]
        trial = Trial(kind, inputs, [tensor.clone() for tensor in self._home], self.call_seed())
        if trial.seed is not None:
            torch.manual_seed(trial.seed)
        trial.expected = [tensor.clone(memory_format=torch.contiguous_format) for tensor in self.reference.run(leaves)]
        written = (*self.reference.tensors(leaves), *self._home)
        specs = (*self.spec.inputs, *self.spec.weights)
        trial.expected += [tensor.clone() for tensor, spec in zip(written, specs, strict=True) if spec.mutated]
        self.device.synchronize()
        return trial


def _has_scale(order: Order | Structure | None) -> bool:
    return isinstance(order, Structure) and (order.discrete or order.sums_to_one)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a piece of memory, each in a place of its own."""
    covered = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != covered:
                return False
            covered *= size
    return True


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The raw bytes, so that NaN equals itself."""
    flat = tensor.reshape(-1)
    return flat.view(torch.int32) if flat.nbytes % 4 == 0 and flat.element_size() <= 4 else flat.view(torch.uint8)
