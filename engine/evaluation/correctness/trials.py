"""An open problem in the judge: its reference, its shared buffers and the inputs of its trials."""

from __future__ import annotations

import contextlib
import copy
import random
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import cycle
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from engine.evaluation.correctness.comparison import KERNELBENCH, Tolerances, all_finite
from engine.evaluation.correctness.conditioning import Conditioning, has_fp32_products, nearby, result_of
from engine.evaluation.correctness.fp64_reference import ExactOutputs, run_in
from engine.evaluation.correctness.ties import choices_of
from engine.evaluation.inputs.distributions import Kind, transform
from engine.evaluation.inputs.mixing import Mixing, blend_into, copy_into, mix_into
from engine.evaluation.inputs.outliers import inject_outliers, sizes
from engine.evaluation.inputs.reference import Reference
from engine.evaluation.judge_device import JudgeDevice
from engine.evaluation.judge_policy import POLICY, JudgePolicy
from engine.evaluation.sandbox.arena import Arena, Slot
from engine.evaluation.sandbox.inside.wire import MOST_BUFFERS
from engine.problem.source import ProblemFileError
from engine.problem.spec import ProblemSpec
from engine.system.memory import give_back_freed_memory

_ASSERTING = re.compile(
    r"binary_cross_entropy\(|BCELoss\(|\.(long|int)\(\)|\.(to|type)\((dtype=)?torch\.(long|int64|int32|int)\)"
)
"""Code in a model whose CUDA kernels may fail an assertion if input values are out of bounds. Conversions to integers
turn values into indices.
"""
_HALVES = ("float16", "bfloat16")


class Trial:
    """One set of inputs and weights with the reference's outputs, in memory that kernels cannot access.

    ``seed``: the random seed for the call if the model draws random numbers, otherwise None.
    """

    def __init__(self, kind: Kind, inputs: list[torch.Tensor], weights: list[torch.Tensor], seed: int | None) -> None:
        self.kind, self.inputs, self.weights, self.seed = kind, inputs, weights, seed
        self.expected: list[torch.Tensor] = []
        self.exact: ExactOutputs | None = None
        """The fp64 outputs, or None before the first request (``asked``) or if the model does not run in fp64."""
        self.asked = False

    @property
    def nbytes(self) -> int:
        kept: int = sum(tensor.nbytes for tensor in (*self.inputs, *self.weights, *self.expected))
        return kept + (self.exact.nbytes if self.exact is not None else 0)

    def load(self, slot: Slot) -> None:
        slot.filled = True
        copy_into([*slot.inputs, *slot.weights], [*self.inputs, *self.weights])

    def changed(self, slot: Slot) -> str | None:
        """Return the name of the first input or weight that the kernel changed, or None if all are unchanged."""
        inputs = [spec for spec in slot.specs if spec.role == "input"]
        weights = [spec for spec in slot.specs if spec.role in ("parameter", "buffer")]
        now, before = (*slot.inputs, *slot.weights), (*self.inputs, *self.weights)
        for spec, here, source in zip((*inputs, *weights), now, before, strict=True):
            if not spec.mutated and not torch.equal(_bits(here), _bits(source)):
                return spec.name
        return None


class TrialSource:
    """Draw one problem's trials, with a separate copy of the model and its weights.

    Drawing a trial therefore changes neither the timed model's weights nor the state of the random number generators.
    """

    def __init__(self, spec: ProblemSpec, device: JudgeDevice, reference: Reference) -> None:
        self.reference = reference
        self.weights = [tensor.data for _, tensor in reference.weights()]
        """Tensors in the model's memory, valid until the next method call."""
        self._spec, self._device = spec, device
        self._random = random.Random(secrets.randbits(48))
        self._seed = secrets.randbits(48)

    def as_built(self) -> list[torch.Tensor]:
        """Reset the model's weights to their initial values, and return them."""
        self.reference.reset_weights()
        return self.weights

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the model's outputs for ``inputs`` and the initial weights. The inputs stay unchanged."""
        self.reference.reset_weights()
        specs = zip(inputs, self._spec.inputs, strict=True)
        given = [tensor.clone() if spec.mutated else tensor for tensor, spec in specs]
        memory = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        outputs = self._as_inspected(self.reference.run(self.reference.with_tensors(given)))
        return [out.clone() if out.untyped_storage().data_ptr() in memory else out for out in outputs]

    def draw_inputs(self, seed: int) -> list[torch.Tensor]:
        """Return inputs as the problem draws them."""
        with self._generators_kept():
            return self.reference.tensors(self.reference.draw(seed))

    def make(self, index: int, kind: Kind, perturbed: bool) -> Trial:
        """Create trial ``index``.

        ``perturbed``: whether to change the initial weights, to test whether the kernel reads the weights.
        """
        reference = self.reference
        if perturbed:
            reference.perturb_weights(self._seed + index)
        else:
            reference.reset_weights()
        with self._generators_kept():
            leaves = transform(reference.draw(self._seed + index), kind, reference.structures())
            inputs = [tensor.contiguous().clone() for tensor in reference.tensors(leaves)]
            seed = self._random.getrandbits(48) if self._spec.random else None
            trial = Trial(kind, inputs, [tensor.clone() for tensor in self.weights], seed)
            if seed is not None:
                torch.manual_seed(seed)
            outputs = self._as_inspected(reference.run(leaves))
            trial.expected = [tensor.clone(memory_format=torch.contiguous_format) for tensor in outputs]
        written = (*reference.tensors(leaves), *self.weights)
        specs = (*self._spec.inputs, *self._spec.weights)
        trial.expected += [tensor.clone() for tensor, spec in zip(written, specs, strict=True) if spec.mutated]
        self._device.synchronize()
        return trial

    def _as_inspected(self, outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return ``outputs``. Raises ``ProblemFileError`` if the inspection found a different number, dtype or shape.

        The inspection does not use a GPU, and these properties may depend on the device or on the inputs' values.
        """
        if len(outputs) != len(self._spec.outputs):
            raise ProblemFileError(
                f"forward returned {len(outputs)} tensors, but the inspection found {len(self._spec.outputs)}",
                "return the same number of tensors on every device and for all inputs",
            )
        for spec, output in zip(self._spec.outputs, outputs, strict=True):
            if (dtype := str(output.dtype).removeprefix("torch.")) != spec.dtype:
                raise ProblemFileError(
                    f"on this device, forward returned {dtype} for `{spec.name}`, "
                    f"but the inspection found {spec.dtype}",
                    f"cast the result in forward, for example `return y.to(torch.{spec.dtype})`",
                )
            if tuple(output.shape) != spec.shape:
                raise ProblemFileError(
                    f"forward returned the shape {tuple(output.shape)} for `{spec.name}`, but the inspection found "
                    f"{spec.shape}",
                    "return the same shape on every device and for all inputs",
                )
        return outputs

    @contextlib.contextmanager
    def _generators_kept(self) -> Iterator[None]:
        """Restore PyTorch's random number generators after a run of a model that draws random numbers."""
        if not self._spec.random:
            yield
            return
        with torch.random.fork_rng(devices=[0] if self._device.cuda else []):
            yield


class TimedReference:
    """The timed model, which runs on the inputs and weights of any slot."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._bound: Slot | None = None
        self.binds_ms = deque[float](maxlen=POLICY.clock.binds)
        """Recent times for binding a slot's weights, in milliseconds, excluding the first, which is slow."""
        self._has_bound = False

    @property
    def model(self) -> nn.Module:
        return self._reference.model

    def bind(self, slot: Slot) -> None:
        """Bind the slot's weights to the model in advance, outside the timed run."""
        if self._bound is not slot:
            weights, started = self._reference.weights(), time.perf_counter()
            for (_, tensor), values in zip(weights, slot.weights, strict=True):
                tensor.data = values
            if self._has_bound:
                self.binds_ms.append(1e3 * (time.perf_counter() - started))
            self._has_bound = True
            self._bound = slot

    def run(self, slot: Slot) -> list[torch.Tensor]:
        """Return the model's outputs without copying them."""
        return list(self._reference.output_tensors(self.forward_on(slot)()))

    def forward_on(self, slot: Slot) -> Callable[[], Any]:
        """Bind the slot's weights, and return a function that runs the forward pass on the slot once."""
        self.bind(slot)
        return self._reference.forward_on(self._reference.with_tensors(slot.inputs))

    def release(self) -> None:
        """Release the references to a slot's memory."""
        self._bound = None
        for _, tensor in self._reference.weights():
            tensor.data = tensor.data.new_empty(0)


class JudgedProblem:
    """One problem's reference, arena and trials. ``trials``: the number of trials.

    The trials' seeds come from the operating system's random source, so that kernels cannot predict the inputs.

    ``tolerances``: the allowed errors, used to select inputs that distinguish correct kernels from wrong kernels.
    Raises whatever the model raises.
    """

    def __init__(
        self,
        spec: ProblemSpec,
        device: JudgeDevice,
        trials: int,
        tolerances: Tolerances = KERNELBENCH,
        policy: JudgePolicy = POLICY,
    ) -> None:
        self.spec, self.device, self.policy = spec, device, policy
        drawing = Reference.load(spec.source, spec.path, device.kind)
        self.timed = TimedReference(drawing.twin())
        self.keeps_weights = False
        self._random = random.Random(secrets.randbits(48))
        leaves = drawing.draw(secrets.randbits(48))
        self.source = TrialSource(spec, device, drawing)
        may_assert = device.cuda and _ASSERTING.search(spec.source.partition("def get_inputs")[0]) is not None
        self.kinds: tuple[Kind, ...] = ("drawn",) if may_assert else drawing.variants(leaves)
        """Input distributions that are valid for the problem and distinguish correct kernels from wrong kernels."""
        self.exact_dtype = self._choose_exact_dtype(drawing.tensors(leaves))
        """Dtype for exact runs of the model: fp64, or fp32 if fp64 takes too much time or memory."""
        self._conditioning: Conditioning | None = None
        if not spec.random and not may_assert:
            self._keep_discriminating_kinds(leaves, tolerances)
        others = cycle([kind for kind in self.kinds if kind != "drawn"] or self.kinds)
        # Two of the first three trials use drawn inputs; the other trials rotate through the input kinds.
        self._kinds = [self.kinds[0] if index in (0, 2) else next(others) for index in range(trials)]
        self._mutated = [tensor.mutated for tensor in (*spec.inputs, *spec.weights)]
        pairs = zip(drawing.structures(), leaves, strict=True)
        self._structures = [structure for structure, leaf in pairs if isinstance(leaf, torch.Tensor)]
        self._mixing = self._choose_mixing(
            drawing.tensors(leaves), ("convex",) if may_assert else ("rotated", "convex")
        )
        footprint = sum(tensor.nbytes for tensor in spec.tensors)
        most = max(min(int(policy.device.most_slots[device.kind]), MOST_BUFFERS // len(spec.tensors)), 2)
        slots = min(max(int(policy.device.slots_bytes[device.kind]) // max(footprint, 1), 2), most)
        fitting = device.spare_bytes() // max(footprint, 1) - 1
        self.arena = Arena(spec.tensors, device.kind, max(min(slots, fitting), 1))
        self.timed.bind(self.arena.slots[0])
        self._kept: OrderedDict[tuple[int, bool], Trial] = OrderedDict()
        self._sizes: list[float] = []
        """Outlier magnitude for each input, used by ``inject_outliers``; 0 if the input gets no outliers."""

    # Inputs

    def _choose_exact_dtype(self, inputs: list[torch.Tensor]) -> torch.dtype:
        if any(tensor.dtype == "float64" for tensor in self.spec.tensors):
            return torch.float64
        policy = self.policy.correctness
        eager_ms = min(self.device.time_ms(lambda: self.source.run(inputs)) for _ in range(2))
        needed_bytes = policy.fp64_footprint * sum(tensor.nbytes for tensor in self.spec.tensors)
        is_affordable = eager_ms <= policy.fp64_eager_ms and needed_bytes <= self.device.free_bytes() // 2
        return torch.float64 if is_affordable else torch.float32

    def _keep_discriminating_kinds(self, leaves: list[Any], tolerances: Tolerances) -> None:
        """Drop input kinds on which eager is less accurate, or the model worse conditioned, than on drawn inputs."""
        has_more_digits = self.exact_dtype == torch.float64 or any(one.dtype in _HALVES for one in self.spec.tensors)
        exactly, drawn = self.run_exactly if has_more_digits else None, Reference.tensors(leaves)
        policy, products = self.policy.correctness, has_fp32_products(self.spec)
        found = result_of(lambda: Conditioning(self.source.run, exactly, drawn, policy, has_products=products))
        if found is None:
            return
        self._conditioning, structures = found, self.source.reference.structures()

        def discriminates(kind: Kind) -> bool:
            return found.is_as_on_drawn(Reference.tensors(transform(leaves, kind, structures)), tolerances)

        self.kinds = tuple(kind for kind in self.kinds if kind == "drawn" or discriminates(kind))

    def _choose_mixing(self, own: list[torch.Tensor], ways: Sequence[Mixing]) -> Mixing:
        """Return the first kind of mixing for which the model neither raises nor returns non-finite values. Discrete
        inputs that differ between draws permit only fresh draws.
        """
        if any(one is not None and one.discrete and not one.constant for one in self._structures):
            return self._fresh_if_reproducible()
        if not any(tensor.is_floating_point() for tensor in own):
            return "none"
        other = self.source.draw_inputs(secrets.randbits(48))

        def is_finite(inputs: list[torch.Tensor]) -> bool:
            return all(all_finite(out) for out in self.source.run(inputs))

        finite = is_finite(own)
        for mixing in ways:
            mixed = [torch.empty_like(tensor) for tensor in own]
            mix_into(mixed, own, other, self._structures, mixing, random.Random(0), self.policy.correctness)
            if (taken := result_of(lambda: is_finite(mixed))) or (taken is not None and not finite):  # noqa: B023
                return mixing
        return self._fresh_if_reproducible()

    def _fresh_if_reproducible(self) -> Mixing:
        """Return "fresh" if equal seeds give equal inputs, otherwise "none".

        The inputs must be reproducible because the judge loads some inputs twice.
        """
        seed = secrets.randbits(48)
        draws = [self.source.draw_inputs(seed) for _ in range(2)]
        return "fresh" if all(torch.equal(*pair) for pair in zip(*draws, strict=True)) else "none"

    def find_outlier_sizes(self, tolerances: Tolerances) -> None:
        """Determine the outlier magnitudes for ``inject_outliers``. Until this method runs, inputs do not get
        outliers.
        """
        if self._conditioning is None:
            return
        is_accurate = partial(self._conditioning.is_as_on_drawn, tolerances=tolerances)
        found = sizes(self.source.run, is_accurate, self.trial(0).inputs, tolerances, self.policy.correctness)
        self._sizes = [
            size if structure is None else 0.0 for structure, size in zip(self._structures, found, strict=True)
        ]

    # Properties of the problem

    @property
    def trials(self) -> int:
        """Number of trials."""
        return len(self._kinds)

    @property
    def mutates(self) -> bool:
        """Whether the model writes inputs or buffers, so that the judge must reload them before each call."""
        return any(tensor.mutated for tensor in self.spec.tensors)

    @property
    def result_count(self) -> int:
        """Number of results to compare per slot. A kernel with its own weights also has its own buffers, which the
        judge does not compare.
        """
        mutated = [tensor for tensor in self.spec.tensors if tensor.mutated]
        return len(self.spec.outputs) + sum(tensor.role == "input" or not self.keeps_weights for tensor in mutated)

    @property
    def takes_outliers(self) -> bool:
        """Whether single large elements in an input would visibly change the outputs."""
        return any(self._sizes)

    @property
    def takes_mean_zero(self) -> bool:
        """Whether inputs with mean zero distinguish correct kernels from wrong kernels."""
        return "centred" in self.kinds

    def discriminating_trials(self) -> list[int]:
        """Return the indices of up to two trials with transformed inputs of different kinds.

        Inputs with mean zero, which discriminate best, come first. The order of the other kinds is random.
        """
        others = [kind for kind in dict.fromkeys(self._kinds) if kind != "drawn"]
        random.shuffle(others)
        others.sort(key=lambda kind: kind != "centred")
        return [self._kinds.index(kind) for kind in others[:2]]

    def with_own_weights(self) -> JudgedProblem:
        """Return a copy of this problem for kernels that keep their initial weights. All trials of the copy use these
        weights.
        """
        made = copy.copy(self)
        made.keeps_weights = True
        return made

    # Runs of the model

    def bind(self, slot: Slot) -> None:
        """Bind the slot's weights to the timed reference."""
        self.timed.bind(slot)

    def forward_on(self, slot: Slot) -> Callable[[], Any]:
        """Return a function that runs the timed reference's forward pass on the slot's inputs and weights, once."""
        return self.timed.forward_on(slot)

    def output_tensors(self, result: Any) -> list[torch.Tensor]:
        """Return the output tensors in the result of a forward pass."""
        return list(self.source.reference.output_tensors(result))

    @property
    def binds_ms(self) -> Sequence[float]:
        """Recent times for binding a slot's weights to the timed reference, in milliseconds."""
        return self.timed.binds_ms

    def run(self, slot: Slot) -> list[torch.Tensor]:
        """Run the timed reference on the slot's inputs and weights."""
        return self.timed.run(slot)

    def run_exactly(
        self, inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor] | None = None
    ) -> list[torch.Tensor]:
        """Return the model's outputs in ``exact_dtype``, for its initial weights or for ``weights``.

        Raises whatever the model raises.
        """
        weights = self.source.as_built() if weights is None else weights
        return run_in(self.exact_dtype, self.source.reference, inputs, weights)

    def in_double(self, slot: Slot, load: Callable[[], object]) -> ExactOutputs | None:
        """Return the model's fp64 outputs. ``load`` restores the inputs first, because a kernel may have changed them.

        The outputs include all inputs and buffers that the model writes. Returns None if the model draws random numbers
        or does not run in fp64.
        """
        return self._beside_nearby(self._in_double(slot, load), slot, load)

    def trial_in_double(self, trial: Trial, slot: Slot) -> ExactOutputs | None:
        """Return the fp64 outputs of a trial, and store them in the trial."""
        load = partial(trial.load, slot)
        if not trial.asked:
            trial.exact, trial.asked = self._in_double(slot, load), True
        return self._beside_nearby(trial.exact, slot, load)

    def _in_double(self, slot: Slot, load: Callable[[], object]) -> ExactOutputs | None:
        if self.spec.random:
            return None
        load()
        exactly = partial(run_in, self.exact_dtype, self.source.reference, slot.inputs, slot.weights, self._mutated)
        found = result_of(lambda: choices_of(lambda: [*self.run(slot), *slot.results[len(slot.outputs) :]], exactly))
        return ExactOutputs(*found, self.policy.correctness) if found is not None else None

    def _beside_nearby(self, exact: ExactOutputs | None, slot: Slot, load: Callable[[], object]) -> ExactOutputs | None:
        """Return ``exact`` with a function that runs eager on nearby inputs."""

        def run_nearby() -> list[torch.Tensor] | None:
            load()
            inputs = nearby(slot.inputs, self._structures, self.policy.correctness)
            return result_of(lambda: run_in(None, self.source.reference, inputs, slot.weights, self._mutated))

        return replace(exact, nearby=run_nearby) if exact is not None else None

    # Inputs of trials and timed calls

    def trial(self, index: int) -> Trial:
        """Return trial ``index``. The judge draws each trial on first use, and keeps it while memory allows."""
        key = (index, self.keeps_weights and index > 0)
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept
        made = self.source.make(index, self._kinds[index], perturbed=index > 0 and not self.keeps_weights)
        self._kept[key] = made
        spare = self.device.spare_bytes()
        while len(self._kept) > 1 and sum(trial.nbytes for trial in self._kept.values()) > spare:
            self._kept.popitem(last=False)
        return made

    def prepare(self) -> None:
        """Draw the trials in advance, so that the first kernel does not wait for them."""
        for index in range(self.trials):
            self.trial(index)

    def drawn(self, index: int) -> Trial:
        """Return a trial with drawn inputs, for timing."""
        plain = [i for i, kind in enumerate(self._kinds) if kind == "drawn"]
        return self.trial(plain[index % len(plain)])

    def load_mixed(self, index: int, slot: Slot, seed: int) -> None:
        """Load inputs and weights that no call has seen: a mixture of two trials.

        The same ``seed`` always produces the same mixture.
        """
        trial, other, policy = self.drawn(index), self.drawn(index + 1), self.policy.correctness
        slot.filled = True
        if self._mixing == "fresh":
            for target, source in zip(slot.inputs, self.source.draw_inputs(seed), strict=True):
                target.copy_(source)
        else:
            draw = random.Random(seed)
            mix_into(slot.inputs, trial.inputs, other.inputs, self._structures, self._mixing, draw, policy)
        # Buffers are equal in every trial.
        changes = [spec.role == "parameter" and not self.keeps_weights for spec in self.spec.weights]
        blend_into(slot.weights, trial.weights, other.weights, changes, random.Random(seed), policy)

    def centre(self, slot: Slot) -> None:
        """Shift the slot's inputs to mean zero, so that large sums do not hide the errors in single terms."""
        for target, centred in zip(slot.inputs, transform(slot.inputs, "centred", self._structures), strict=True):
            target.copy_(centred)

    def inject_outliers(self, slot: Slot, seed: int) -> None:
        """Make a few elements of one input so large that each visibly changes the outputs.

        The same ``seed`` always produces the same outliers.
        """
        draw = random.Random(seed)
        place = draw.choice([place for place, size in enumerate(self._sizes) if size])
        inject_outliers(slot.inputs[place], self._sizes[place], draw, self.policy.correctness)

    def fresh_seed(self) -> int:
        """Return a seed for a mixture, or for the random number generator before a call."""
        return self._random.getrandbits(48)

    def call_seed(self) -> int | None:
        """Return a seed for both the reference and the kernel if the model draws random numbers, else None."""
        return self.fresh_seed() if self.spec.random else None

    # Properties of the outputs

    @cached_property
    def output_strides(self) -> list[tuple[int, ...] | None]:
        """Strides of each output that is a permuted view of memory without gaps; None for other outputs."""
        outputs = self.source.run(self.trial(0).inputs)
        # A copy keeps the strides only if the memory has no gaps.
        is_view = [not one.is_contiguous() and torch.empty_like(one).stride() == one.stride() for one in outputs]
        return [one.stride() if view else None for one, view in zip(outputs, is_view, strict=True)]

    @cached_property
    def copy_ms(self) -> float:
        """Time to copy the outputs once from the reference's layout to a slot, in milliseconds. A ``.py`` kernel's
        runner copies the outputs after the runner's clock has stopped.
        """
        targets = self.arena.slots[0].outputs
        layouts = [one or target.stride() for target, one in zip(targets, self.output_strides, strict=True)]
        sources = [
            torch.empty_strided(target.shape, layout, dtype=target.dtype, device=target.device).zero_()
            for target, layout in zip(targets, layouts, strict=True)
        ]

        def copy_all() -> None:
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)

        copy_all()
        return min(self.device.time_ms(copy_all) for _ in range(3))

    def evict(self) -> None:
        """Release the trials' memory. Later requests draw the trials again."""
        self._kept.clear()

    def close(self) -> None:
        self._kept.clear()
        self.timed.release()
        self.arena.close()
        if not self.device.cuda:
            give_back_freed_memory()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor``'s memory as integers, so that a comparison finds NaN equal to itself."""
    flat = tensor.reshape(-1)
    return flat.view(torch.int32) if flat.nbytes % 4 == 0 and flat.element_size() <= 4 else flat.view(torch.uint8)
