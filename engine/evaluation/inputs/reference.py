"""The judge's reference: model, weights and inputs, drawn as KernelBench draws them. Imports torch."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from engine.evaluation.correctness.comparison import all_finite
from engine.evaluation.inputs.captured_layers import has_captured_layers
from engine.evaluation.inputs.distributions import KINDS, Kind, applies, transform
from engine.evaluation.inputs.structure import Structure, structure_of
from engine.problem.model import SEED, OnDevice, build_model, flatten, named_weights, output_leaves
from engine.problem.source import ProblemFileError, ProblemModule

_TENSOR = object()
"""Marker for the place of a tensor among the leaves. Other leaves keep their value, which may be None."""


class Reference:
    """A problem's model on one device, in training mode and without gradients.

    ``leaves`` are the flattened arguments of ``forward``: tensors in the order of ``ProblemSpec.inputs``, mixed with
    scalars. Scalars keep their values from the first draw, because kernels use them as compile-time constants.
    """

    def __init__(
        self, module: ProblemModule, model: nn.Module, init_arguments: list[Any], device: str, seed: int
    ) -> None:
        """Store the parts of a loaded reference. Only :meth:`load` calls the constructor."""
        self.model = model
        self.device = torch.device(device)
        self._module = module
        self._weights = named_weights(model)
        self._pristine = [tensor.detach().clone() for _, tensor, _ in self._weights]
        self.init_arguments = init_arguments
        """The model's init arguments, with tensors on the CPU."""
        self._scalars: list[Any] | None = None
        self._structures: list[Structure | None] | None = None
        self._structure: pytree.TreeSpec | None = None
        self._draw_on_device = self.device.type != "cpu"
        self._first: list[Any] | None = self.draw(seed)
        """The first draw, kept until :meth:`structures` has used it."""

    @classmethod
    def load(cls, source: str, path: str, device: str, seed: int = SEED) -> Reference:
        """Execute ``source`` in its own namespace and build the model from KernelBench's seed.

        The method builds the model on the CPU, so that the weights equal KernelBench's weights, and then moves the
        model to ``device``. Raises whatever the file raises, and ``ProblemFileError`` for an invalid problem file.
        """
        module = ProblemModule(source, path)
        with OnDevice("cpu"):
            model, arguments = build_model(module, seed)
        model.to(device)
        for _, tensor, _ in named_weights(model):
            tensor.data = tensor.data.contiguous()
        return cls(module, model, arguments, device, seed)

    def twin(self) -> Reference:
        """Return a copy with a separate model and separate weights. The copy keeps the original's scalars."""
        made = copy.copy(self)
        made._first = None
        made.model = self._copy_of_model()
        made._weights = named_weights(made.model)
        return made

    def _copy_of_model(self) -> nn.Module:
        """Copy the model, or build it again if a copy fails or would call the original's layers."""
        if not has_captured_layers(self.model):
            with contextlib.suppress(Exception):
                return copy.deepcopy(self.model)
        with OnDevice("cpu"):
            model, _ = build_model(self._module)
        model.to(self.device)
        for _, tensor, _ in named_weights(model):
            tensor.data = tensor.data.contiguous()
        return model

    def weights(self) -> list[tuple[str, torch.Tensor]]:
        """Parameters and buffers with their PyTorch names, in the order of ``ProblemSpec.weights``."""
        return [(name, tensor) for name, tensor, _ in self._weights]

    def draw(self, seed: int) -> list[Any]:
        """Draw fresh leaves from ``get_inputs()`` after seeding. Tensors are contiguous and on the device.

        If the device is a GPU, PyTorch creates tensors on the GPU unless ``get_inputs()`` names another device. Drawing
        on the GPU is faster, but its values differ from those drawn on a CPU.
        """
        values = self._call_get_inputs(seed)
        leaves, structure = flatten(values)
        if self._structure is not None and structure != self._structure:
            raise ProblemFileError(
                "get_inputs() returned a different number or nesting of inputs than on its first call",
                "return the same number and nesting of inputs every time",
            )
        moved = [leaf.to(self.device).contiguous() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        if self._scalars is None:
            self._scalars = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in moved]
            self._structure = structure
        return [
            leaf if isinstance(leaf, torch.Tensor) else scalar
            for leaf, scalar in zip(moved, self._scalars, strict=True)
        ]

    def _call_get_inputs(self, seed: int) -> Any:
        if self._draw_on_device:
            try:
                with _seeded(seed), OnDevice(str(self.device)), torch.device(self.device), torch.no_grad():
                    return self._module.get_inputs()
            except (RuntimeError, TypeError):
                # The file also creates CPU tensors (with NumPy, or at module level), so later draws run on the CPU.
                self._draw_on_device = False
        with _seeded(seed), OnDevice("cpu"), torch.no_grad():
            return self._module.get_inputs()

    @staticmethod
    def tensors(leaves: Sequence[Any]) -> list[torch.Tensor]:
        """Return the tensors among ``leaves``, in the order of ``ProblemSpec.inputs``."""
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def with_tensors(self, tensors: Sequence[Any]) -> list[Any]:
        """Combine ``tensors`` (for example the judge's buffers) and the problem's scalars into leaves."""
        given = iter(tensors)
        assert self._scalars is not None
        return [next(given) if scalar is _TENSOR else scalar for scalar in self._scalars]

    def arguments(self, leaves: Sequence[Any]) -> list[Any]:
        """Arrange leaves into the lists, tuples and dicts that ``forward`` expects."""
        assert self._structure is not None
        return list(pytree.tree_unflatten(list(leaves), self._structure))

    def structures(self) -> list[Structure | None]:
        """Return the structure that each leaf keeps in every draw, or None."""
        if self._structures is None:
            draws = self._first or self.draw(SEED), self.draw(SEED + 1)
            self._structures, self._first = (
                [
                    structure_of(*pair) if isinstance(pair[0], torch.Tensor) else None
                    for pair in zip(*draws, strict=True)
                ],
                None,
            )
        return self._structures

    def run(self, leaves: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Run one forward pass. Return the output tensors in the order of ``ProblemSpec.outputs``.

        Outputs may be non-contiguous or share memory with inputs, and the model may write its buffers. Raises whatever
        ``forward`` raises, and ``ProblemFileError`` if no output is a tensor.
        """
        return self.output_tensors(self.forward_on(leaves)())

    def forward_on(self, leaves: Sequence[Any]) -> Callable[[], Any]:
        """Return a function that runs one forward pass and returns its result. Call the function only once, because the
        model may change lists and dicts among its arguments. The function's time excludes arranging the arguments.
        """
        model, arguments = self.model, self.arguments(leaves)

        def forward() -> Any:
            with torch.no_grad(), self._redirected():
                return model(*arguments)

        return forward

    @staticmethod
    def output_tensors(result: Any) -> tuple[torch.Tensor, ...]:
        """Return the tensors in the result of a forward pass. Raises ``ProblemFileError`` if there are none."""
        tensors = tuple(leaf for leaf in output_leaves(result) if isinstance(leaf, torch.Tensor))
        if not tensors:
            raise ProblemFileError("forward returned no tensor", "return at least one tensor")
        return tensors

    @contextlib.contextmanager
    def _redirected(self) -> Iterator[None]:
        # Redirection takes microseconds per operator, so it is active only for files that may name another device.
        if self._module.names_cuda and self.device.type != "cuda":
            with OnDevice(str(self.device)):
                yield
        else:
            yield

    def variants(self, leaves: Sequence[Any]) -> tuple[Kind, ...]:
        """Return the distributions that are valid for this problem, ``drawn`` first.

        The result omits a kind that does not change any input, makes the model raise, or makes finite outputs
        non-finite. For example, the logarithm of negated inputs is not finite. The method runs the model once per kind
        and then resets weights and buffers.
        """
        kinds = [kind for kind in KINDS[1:] if applies(leaves, kind)]
        finite = [_finite_share(output) for output in self.run(_copies(leaves))]
        kept: list[Kind] = ["drawn"]
        for kind in kinds:
            changed = transform(leaves, kind, self.structures())
            if all(new is old for new, old in zip(changed, leaves, strict=True)):
                continue
            try:
                outputs = self.run(_copies(changed))
            except torch.OutOfMemoryError:  # This error is not the model's fault.
                raise
            except (RuntimeError, ValueError, IndexError, AssertionError):
                continue
            if all(_finite_share(out) >= share for out, share in zip(outputs, finite, strict=True)):
                kept.append(kind)
        self.reset_weights()
        return tuple(kept)

    def reset_weights(self) -> None:
        """Restore the initial values of parameters and buffers in place."""
        with torch.no_grad():
            for (_, tensor, _), original in zip(self._weights, self._pristine, strict=True):
                tensor.copy_(original)

    def perturb_weights(self, seed: int) -> None:
        """Change every floating-point parameter in place, starting from its initial values.

        The method multiplies each element by a factor between 0.8 and 1.2. It then adds uniform noise whose range is a
        tenth of the parameter's root mean square. For an all-zero parameter, the range is 0.1, so that a kernel cannot
        skip a bias that is initially zero. The method also resets the buffers.
        """
        self.reset_weights()
        generator = torch.Generator(self.device).manual_seed(seed)
        with torch.no_grad():
            for (_, tensor, is_parameter), original in zip(self._weights, self._pristine, strict=True):
                if not is_parameter or not tensor.is_floating_point() or tensor.numel() == 0:
                    continue
                factor = torch.rand(tensor.shape, generator=generator, device=self.device) * 0.4 + 0.8
                noise = torch.rand(tensor.shape, generator=generator, device=self.device) - 0.5
                rms = original.float().square().mean().sqrt()
                scale = torch.where(rms > 0, rms, torch.ones_like(rms))
                tensor.copy_(original * factor + 0.1 * scale * noise)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the random number generators that a problem file may use.

    Afterward, restore the states of Python's and NumPy's generators, because the judge uses these generators, too.
    """
    torch.manual_seed(seed)
    python, numpy = random.getstate(), sys.modules.get("numpy")
    before = numpy.random.get_state() if numpy is not None else None
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))
    try:
        yield
    finally:
        random.setstate(python)
        if numpy is not None and before is not None:
            numpy.random.set_state(before)


def _copies(leaves: Sequence[Any]) -> list[Any]:
    """Return copies of ``leaves`` that the model may modify."""
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _finite_share(output: torch.Tensor) -> float:
    return 1.0 if all_finite(output) else int(torch.isfinite(output).count_nonzero()) / output.numel()
