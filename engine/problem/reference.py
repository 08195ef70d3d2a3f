"""The reference for the judge: model, weights and inputs, drawn as KernelBench draws them. Imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from engine.problem.distributions import KINDS, Kind, applies, transform
from engine.problem.integers import Order, is_discrete, order_of
from engine.problem.model import SEED, OnDevice, build_model, flatten, named_weights, output_leaves
from engine.problem.source import ProblemFileError, ProblemModule
from engine.problem.structure import Structure, structure_of

_TENSOR = object()
"""Stands for a tensor among the leaves, where the others are kept as they are (None is one of those)."""


class Reference:
    """A problem's model on one device, in train mode, run without gradients.

    ``leaves`` are the flattened arguments of ``forward``: tensors in the order of ``ProblemSpec.inputs``, with
    scalars between them where the file has them. Scalars keep the value of the first draw, since a kernel sees
    them as constants.
    """

    def __init__(
        self, module: ProblemModule, model: nn.Module, init_arguments: list[Any], device: str, seed: int
    ) -> None:
        """Use :meth:`load`."""
        self.model = model
        self.device = torch.device(device)
        self._module = module
        self._weights = named_weights(model)
        self._pristine = [tensor.detach().clone() for _, tensor, _ in self._weights]
        self.init_arguments = init_arguments
        """What the model was built from, on the CPU."""
        self._scalars: list[Any] | None = None
        self._orders: list[Order | Structure | None] | None = None
        self._structure: pytree.TreeSpec | None = None
        self._draw_on_device = self.device.type != "cpu"
        self.draw(seed)

    @classmethod
    def load(cls, source: str, path: str, device: str, seed: int = SEED) -> Reference:
        """Execute ``source`` in its own namespace and build the model by generator replay.

        The model is built on the CPU, so that its weights are KernelBench's, then moved to ``device``. Raises
        what the file raises, and ``ProblemFileError`` if it is no problem file.
        """
        module = ProblemModule(source, path)
        with OnDevice("cpu"):
            model, arguments = build_model(module, seed)
        model.to(device)
        for _, tensor, _ in named_weights(model):
            tensor.data = tensor.data.contiguous()
        return cls(module, model, arguments, device, seed)

    def weights(self) -> list[tuple[str, torch.Tensor]]:
        """Parameters and buffers, under their PyTorch names, in the order of ``ProblemSpec.weights``."""
        return [(name, tensor) for name, tensor, _ in self._weights]

    def draw(self, seed: int) -> list[Any]:
        """Fresh leaves from ``get_inputs()`` after seeding; tensors are contiguous and on the device.

        On a GPU, tensors for which the file names no device are made there: faster, and other values than on the CPU.
        """
        values = self._call_get_inputs(seed)
        leaves, structure = flatten(values)
        if self._structure is not None and structure != self._structure:
            raise ProblemFileError(
                "get_inputs() returns another number of inputs when called again", "make it constant"
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
            torch.manual_seed(seed)
            try:
                with OnDevice(str(self.device)), torch.device(self.device), torch.no_grad():
                    return self._module.get_inputs()
            except (RuntimeError, TypeError):
                # The file mixes in tensors that live on the CPU (numpy, module level): draw there from now on.
                self._draw_on_device = False
        torch.manual_seed(seed)
        with OnDevice("cpu"), torch.no_grad():
            return self._module.get_inputs()

    @staticmethod
    def tensors(leaves: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors among ``leaves``, in the order of ``ProblemSpec.inputs``."""
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def with_tensors(self, tensors: Sequence[Any]) -> list[Any]:
        """Leaves that hold ``tensors`` (the judge's own buffers, say) and the problem's scalars."""
        given = iter(tensors)
        assert self._scalars is not None
        return [next(given) if scalar is _TENSOR else scalar for scalar in self._scalars]

    def arguments(self, leaves: Sequence[Any]) -> list[Any]:
        """``leaves`` as ``forward`` takes them: lists, tuples and dicts put together again."""
        assert self._structure is not None
        return list(pytree.tree_unflatten(list(leaves), self._structure))

    def orders(self) -> list[Order | Structure | None]:
        """For each leaf what holds of it in every draw: an order of integers and booleans, a structure of others or
        None."""
        if self._orders is None:
            draws = self.draw(SEED), self.draw(SEED + 1)
            self._orders = [_order_of(first, second) for first, second in zip(*draws, strict=True)]
        return self._orders

    def run(self, leaves: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """One forward pass: the tensors among its outputs in the order of ``ProblemSpec.outputs``, as they come.

        They may be non-contiguous, or share memory with inputs; what the model mutates is mutated. Raises what
        forward raises, and ``ProblemFileError`` where no output is a tensor.
        """
        arguments = self.arguments(leaves)
        with torch.no_grad(), self._redirected():
            outputs = output_leaves(self.model(*arguments))
        tensors = tuple(leaf for leaf in outputs if isinstance(leaf, torch.Tensor))
        if not tensors:
            raise ProblemFileError("forward returned no tensor", "return at least one tensor")
        return tensors

    @contextlib.contextmanager
    def _redirected(self) -> Iterator[None]:
        # The redirection costs microseconds per operator: only where a file could name the wrong device.
        if self._module.names_cuda and self.device.type != "cuda":
            with OnDevice(str(self.device)):
                yield
        else:
            yield

    def variants(self, leaves: Sequence[Any]) -> tuple[Kind, ...]:
        """The distributions that mean something for this problem, ``drawn`` first.

        A transform is left out where it changes no input, where the model raises on it, or where outputs become
        non-finite that were finite (a logarithm of negated inputs, an overflow). Runs the model once per kind;
        weights and buffers are reset afterwards.
        """
        kinds = [kind for kind in KINDS[1:] if applies(leaves, kind)]
        finite = [_finite_share(output) for output in self.run(_copies(leaves))]
        kept: list[Kind] = ["drawn"]
        for kind in kinds:
            changed = transform(leaves, kind, self.orders())
            if all(new is old for new, old in zip(changed, leaves, strict=True)):
                continue
            try:
                outputs = self.run(_copies(changed))
            except (RuntimeError, ValueError, IndexError, AssertionError):
                continue
            if all(_finite_share(out) >= share for out, share in zip(outputs, finite, strict=True)):
                kept.append(kind)
        self.reset_weights()
        return tuple(kept)

    def bind_weights(self, storages: Sequence[torch.Tensor]) -> None:
        """Let every weight live in the memory of ``storages`` (same order, shape and dtype), values copied over."""
        for (name, weight, _), storage in zip(self._weights, storages, strict=True):
            if storage.shape != weight.shape or storage.dtype != weight.dtype or not storage.is_contiguous():
                raise ValueError(f"storage for {name} must be contiguous {tuple(weight.shape)} {weight.dtype}")
            storage.copy_(weight.detach())
            weight.data = storage

    def reset_weights(self) -> None:
        """Give parameters and buffers the values they were built with, in place."""
        with torch.no_grad():
            for (_, tensor, _), original in zip(self._weights, self._pristine, strict=True):
                tensor.copy_(original)

    def perturb_weights(self, seed: int) -> None:
        """Change every floating-point parameter in place, starting from the values it was built with.

        Each element is multiplied by a factor between 0.8 and 1.2, and gets noise of a tenth of the parameter's
        root mean square (of 1, where it is all zeros: a bias that starts at zero must matter too). Buffers are reset.
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


def _order_of(first: Any, second: Any) -> Order | Structure | None:
    if not isinstance(first, torch.Tensor) or first.is_complex():
        return None
    return order_of(first, second) if is_discrete(first) else structure_of(first, second)


def _copies(leaves: Sequence[Any]) -> list[Any]:
    """Leaves that the model may write."""
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _finite_share(output: torch.Tensor) -> float:
    return int(torch.isfinite(output).count_nonzero()) / output.numel() if output.numel() else 1.0
