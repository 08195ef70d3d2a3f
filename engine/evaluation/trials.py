"""A problem opened in the judge: its reference, its shared buffers and the inputs that kernels are tried on."""

from __future__ import annotations

import math
import random
import secrets
from collections import OrderedDict
from collections.abc import Callable

import torch

from engine.evaluation.arena import Arena, Slot
from engine.evaluation.device import JudgeDevice
from engine.problem.distributions import Kind, transform
from engine.problem.reference import Reference
from engine.problem.spec import ProblemSpec


class Trial:
    """One set of inputs and weights with the reference's outputs for them, in memory that kernels cannot reach."""

    def __init__(self, kind: Kind, inputs: list[torch.Tensor], weights: list[torch.Tensor]) -> None:
        self.kind, self.inputs, self.weights = kind, inputs, weights
        self.expected: list[torch.Tensor] = []

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self.inputs, *self.weights, *self.expected))

    def load(self, slot: Slot) -> None:
        for target, source in zip((*slot.inputs, *slot.weights), (*self.inputs, *self.weights), strict=True):
            target.copy_(source)

    def load_mixed(self, slot: Slot, other: Trial, angles: Callable[[], float]) -> None:
        """Load values that no earlier call has seen: ``cos(a) * own + sin(a) * other's`` for each floating input.

        The mixture keeps mean zero and variance of what is drawn so, and no earlier output can be scaled into its.
        """
        for target, source, second in zip(slot.inputs, self.inputs, other.inputs, strict=True):
            if source.is_floating_point():
                angle = angles()
                torch.mul(source, math.cos(angle), out=target).add_(second, alpha=math.sin(angle))
            else:
                target.copy_(source)
        for target, source in zip(slot.weights, self.weights, strict=True):
            target.copy_(source)

    def unchanged(self, slot: Slot, inputs: bool = True) -> str | None:
        """The name of a weight (or input) that differs from what was loaded, or None."""
        roles = ("input", "parameter", "buffer") if inputs else ("parameter", "buffer")
        specs = [spec for role in roles for spec in slot.specs if spec.role == role]
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
        self._home = [tensor.data for _, tensor in self.reference.weights()]
        self._seed = secrets.randbits(48)
        self._random = random.Random(self._seed)
        self._kinds = self._spread(self.reference.variants(self.reference.draw(self._seed)), trials)
        footprint = sum(tensor.nbytes for tensor in spec.tensors)
        self.arena = Arena(spec.tensors, device.kind, slots=2 if 3 * footprint < device.spare_bytes() else 1)
        self._kept: OrderedDict[int, Trial] = OrderedDict()

    @staticmethod
    def _spread(kinds: tuple[Kind, ...], trials: int) -> list[Kind]:
        """A kind for each trial: every other one as drawn, the others in turn."""
        others: list[Kind] = [kind for kind in kinds if kind != "drawn"] or ["drawn"]
        return ["drawn" if i % 2 == 0 else others[i // 2 % len(others)] for i in range(trials)]

    def run(self, slot: Slot) -> list[torch.Tensor]:
        """The reference on the slot's inputs and the weights bound last."""
        return list(self.reference.run(self.reference.with_tensors(slot.inputs)))

    @property
    def mutates(self) -> bool:
        """Whether the model writes its buffers, so that they must be loaded anew before each call."""
        return any(tensor.mutated for tensor in self.spec.tensors)

    def bind(self, slot: Slot) -> None:
        """Make the reference use the slot's weights."""
        self._bind(slot.weights)

    def trial(self, index: int) -> Trial:
        """Trial ``index``: drawn once, kept while memory allows."""
        if (kept := self._kept.get(index)) is not None:
            self._kept.move_to_end(index)
            return kept
        made = self._make(index)
        self._kept[index] = made
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

    def angle(self) -> float:
        """A fresh number for a mixture of two trials: never one of them alone."""
        return self._random.uniform(0.15, math.pi / 2 - 0.15)

    def close(self) -> None:
        self._kept.clear()
        self._bind(self._home)
        self.arena.close()

    def _bind(self, weights: list[torch.Tensor]) -> None:
        for (_, tensor), values in zip(self.reference.weights(), weights, strict=True):
            tensor.data = values

    def _make(self, index: int) -> Trial:
        """The model's own weights in trial 0, changed ones after it: a kernel must follow them."""
        kind = self._kinds[index]
        leaves = transform(self.reference.draw(self._seed + index), kind)
        self._bind(self._home)
        self.reference.reset_weights()
        if index:
            self.reference.perturb_weights(self._seed + index)
        trial = Trial(kind, self.reference.tensors(leaves), [tensor.clone() for tensor in self._home])
        trial.expected = [tensor.clone(memory_format=torch.contiguous_format) for tensor in self.reference.run(leaves)]
        trial.expected += [
            tensor.clone() for tensor, spec in zip(self._home, self.spec.weights, strict=True) if spec.mutated
        ]
        self.device.synchronize()
        return trial


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The raw bytes, so that NaN equals itself."""
    flat = tensor.reshape(-1)
    return flat.view(torch.int32) if flat.nbytes % 4 == 0 and flat.element_size() <= 4 else flat.view(torch.uint8)
