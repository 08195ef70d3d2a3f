"""A problem's model in fp64: what its outputs would be if rounding were no matter."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence

import torch

from engine.problem.model import named_weights
from engine.problem.reference import Reference


def run_in_double(
    reference: Reference, inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """All outputs of a copy of the model in fp64, for these inputs and weights, which stay as they are.

    Raises what the model raises: not all take fp64, and what it casts itself comes in its own dtype.
    """
    twin = copy.copy(reference)
    twin.model = copy.deepcopy(twin.model).double()
    with torch.no_grad():
        for (_, tensor, _), value in zip(named_weights(twin.model), weights, strict=True):
            tensor.copy_(value)
    doubled = [
        tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone() for tensor in inputs
    ]
    with _default_double():
        return list(twin.run(twin.with_tensors(doubled)))


@contextlib.contextmanager
def _default_double() -> Iterator[None]:
    """Tensors that the model makes without naming a dtype are fp64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
