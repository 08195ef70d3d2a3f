"""Select inputs on which a comparison with eager is meaningful.

On selected inputs, eager must be as accurate, and the model as well conditioned, as on the problem's own inputs.
Otherwise, the comparison would reject an accurate kernel that merely rounds differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch

from engine.evaluation.correctness.comparison import Tolerances, compare, is_half
from engine.evaluation.correctness.fp64_reference import without_tf32
from engine.evaluation.inputs.structure import Structure
from engine.evaluation.judge_policy import CorrectnessPolicy
from engine.evaluation.memory_errors import tells_of_no_memory
from engine.problem.source import ProblemFileError
from engine.problem.spec import ProblemSpec

Run = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
"""A function that returns the model's outputs for the given inputs, and leaves the inputs unchanged."""
T = TypeVar("T")
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "matmul", "einsum", "bilinear"}
"""Names of PyTorch's operators that multiply matrices."""
_PRODUCT_PARTS = ("conv", "scaled_dot_product", "attention", "trilinear", "lstm", "gru", "rnn")
"""Parts of the names of all other operators that multiply matrices."""


def result_of(run: Callable[[], T]) -> T | None:
    """Return the result of ``run``, or None if the model rejects the inputs, does not support fp64, or returns outputs
    of an unexpected shape.

    Out-of-memory errors propagate, because the model did not cause them.
    """
    try:
        return run()
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError, ProblemFileError) as error:
        if isinstance(error, torch.OutOfMemoryError) or tells_of_no_memory(str(error)):
            raise
        return None


def has_fp32_products(spec: ProblemSpec) -> bool:
    """Return whether the model has matrix products, convolutions or attention in fp32, and no 16-bit operands.

    Return True for a model that cannot be traced, because it may have such products.
    """
    dtypes = {tensor.dtype for tensor in (*spec.inputs, *spec.weights)}
    if "float32" not in dtypes or dtypes & {"float16", "bfloat16"}:
        return False
    if spec.graph is None:
        return True
    names = [node.target.split(".")[1] for node in spec.graph if node.op == "call" and "." in node.target]
    return any(name in _PRODUCTS or any(part in name for part in _PRODUCT_PARTS) for name in names)


class Conditioning:
    """Eager's errors on ``drawn`` inputs: the standard for its errors on other inputs.

    ``run``: runs the model in eager mode. ``run_exactly``: runs the model in higher precision, or is None.
    ``has_products``: see :func:`has_fp32_products`. For a model with fp32 products, the conditions are stricter,
    because kernels may compute these products from bf16 parts of the operands. Raises whatever the model raises.
    """

    def __init__(
        self,
        run: Run,
        run_exactly: Run | None,
        drawn: list[torch.Tensor],
        policy: CorrectnessPolicy,
        *,
        has_products: bool = False,
    ) -> None:
        self._run, self._run_exactly, self._policy = run, run_exactly, policy
        self._has_products = has_products
        on_drawn = result_of(partial(self._errors, drawn))
        if on_drawn is None:
            self._run_exactly = None
            on_drawn = self._errors(drawn)
        self._on_drawn = on_drawn

    def is_as_on_drawn(self, inputs: list[torch.Tensor], tolerances: Tolerances) -> bool:
        """Return whether ``inputs`` are as suitable for a comparison as drawn inputs."""
        if (errors := result_of(partial(self._errors, inputs))) is None:
            return False
        return all(
            error <= max(ratio * usual, share * tolerances.of(dtype) if dtype.is_floating_point else 0.0)
            for (error, ratio, share, dtype), (usual, _, _, _) in zip(errors, self._on_drawn, strict=True)
        )

    def _errors(self, inputs: list[torch.Tensor]) -> list[tuple[float, float, float, torch.dtype]]:
        """Return each error with its allowed ratio to the error on drawn inputs, the harmless share of the tolerance,
        and the dtype.

        One kind of error is the effect of changing the inputs by a few machine epsilons. The other is eager's own
        error. The runs do not use TF32, because TF32's errors are not a property of the inputs.
        """
        is_coarse = any(tensor.dtype == torch.bfloat16 for tensor in inputs)
        steps = self._policy.steps_bf16 if is_coarse else self._policy.steps
        with without_tf32():
            eager = self._run(inputs)
            moved = self._run([_moved(tensor, steps, self._policy.period) for tensor in inputs])
        policy = self._policy
        limits = policy.conditioned, policy.absorbed
        if self._has_products:
            limits = policy.conditioned_products, 1 / policy.product_steps
        found = [
            (_largest_error(out, want) / steps, *limits, out.dtype)
            for out, want in zip(moved, eager, strict=True)
            if out.is_floating_point()
        ]
        if self._run_exactly is not None:
            pairs = zip(eager, self._run_exactly(inputs), strict=True)
            found += [
                (_largest_error(out, want), policy.conditioned, policy.accurate, out.dtype) for out, want in pairs
            ]
        return found


def nearby(
    inputs: Sequence[torch.Tensor], structures: Sequence[Structure | None], policy: CorrectnessPolicy
) -> list[torch.Tensor]:
    """Return copies of ``inputs`` with random changes of a few machine epsilons. Integers and discrete inputs stay
    unchanged.
    """

    def near(tensor: torch.Tensor, structure: Structure | None) -> torch.Tensor:
        if structure is not None and structure.discrete:
            return tensor
        return _moved(tensor, policy.nearby_steps_half if is_half(tensor) else policy.nearby_steps, policy.period)

    return [near(tensor, structure) for tensor, structure in zip(inputs, structures, strict=True)]


def _moved(tensor: torch.Tensor, steps: int, period: int) -> torch.Tensor:
    """Return a copy of ``tensor`` with a random half of the elements reduced by ``steps`` machine epsilons of
    the dtype.
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    drawn = torch.randint(2, (min(period, tensor.numel()),), device=tensor.device)
    factors = (1 - steps * torch.finfo(tensor.dtype).eps * drawn.double()).to(tensor.dtype)
    copied = tensor.clone(memory_format=torch.contiguous_format)
    flat, whole = copied.view(-1), tensor.numel() // len(factors) * len(factors)
    flat[:whole].view(-1, len(factors)).mul_(factors)
    flat[whole:].mul_(factors[: len(flat) - whole])
    return copied


def _largest_error(out: torch.Tensor, want: torch.Tensor) -> float:
    """Return the largest error on the scale of the tolerance or, for integers, the share of elements that differ."""
    if not out.is_floating_point():
        return int(torch.count_nonzero(out != want)) / max(int(out.numel()), 1)
    wide = torch.promote_types(out.dtype, torch.float32)
    return compare([out.to(wide).contiguous()], [want.to(wide).contiguous()], math.inf).max_rel_error
