"""Accept the index of any of several equal values, unless PyTorch defines which index to return.

Values may be equal only because eager rounds, for example if a sigmoid saturates at one. A different order of summation
may change which value is largest. When operators return indices, in eager mode or in fp64, this module records the
values to which the indices refer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.evaluation.judge_policy import CorrectnessPolicy

_aten = torch.ops.aten
_ALONE = {_aten.argmax, _aten.argmin}
"""Operators that return only indices. All other operators in ``_CHOOSE`` return values and indices, or only values."""
_CHOOSE = _ALONE | {_aten.topk, _aten.sort, _aten.max, _aten.min}
_CHOOSE |= {_aten.median, _aten.nanmedian, _aten.kthvalue, _aten.mode}
_PASS_ON = {_aten._to_copy, _aten.clone, _aten.detach, _aten.alias, _aten.view, _aten.unsqueeze, _aten.squeeze}
"""Operators that only copy or reshape values. A model that applies only these operators to indices does not compute
with the indices.
"""
_FIRST = {_aten.argmax, _aten.argmin, _aten.max, _aten.min}
"""Operators that return the index of the first of several equal values, according to PyTorch's documentation."""


@dataclass(frozen=True)
class _Chosen:
    indices: torch.Tensor
    values: torch.Tensor
    dim: int | None
    first: bool


@dataclass(frozen=True)
class Choice:
    """The values to which an output's indices refer, along ``dim`` (None: all elements).

    ``eager``: the values as eager rounded them. ``exact``: the values in fp64. ``first``: whether the operator must
    return the first of several equal values.
    """

    eager: torch.Tensor
    exact: torch.Tensor
    dim: int | None
    first: bool

    @property
    def nbytes(self) -> int:
        return int(self.eager.nbytes + self.exact.nbytes)

    def is_tied(self, out: torch.Tensor, chosen: torch.Tensor, tolerance: float, policy: CorrectnessPolicy) -> bool:
        """Return whether the values at indices ``out`` and at eager's indices ``chosen`` are equal, up to rounding."""
        dim = -1 if self.dim is None else self.dim
        out, chosen = out.long(), chosen.long()
        rounded, exact = (one.reshape(-1) if self.dim is None else one for one in (self.eager, self.exact))
        if out.dim() < rounded.dim():
            out, chosen = out.unsqueeze(dim), chosen.unsqueeze(dim)
        if self.dim is None:
            out, chosen = out.reshape(-1), chosen.reshape(-1)
        is_repeated = bool((out.sort(dim).values.diff(dim=dim) == 0).any())
        if is_repeated or not bool(((out >= 0) & (out < exact.shape[dim])).all()):
            return False
        off = (rounded.double() - exact).abs().nan_to_num(0.0, 0.0).amax(dim, keepdim=True)
        mine, theirs = exact.gather(dim, out), exact.gather(dim, chosen)
        near = (mine - theirs).abs() <= torch.minimum(policy.tied * off, tolerance * theirs.abs())
        near |= rounded.gather(dim, out) == rounded.gather(dim, chosen)
        if self.first:
            near &= off > 0
        return bool(((out == chosen) | near).all())


def choices_of(
    in_eager: Callable[[], Sequence[torch.Tensor]], in_double: Callable[[], Sequence[torch.Tensor]]
) -> tuple[Sequence[torch.Tensor], list[Choice | None], bool]:
    """Return the fp64 outputs, the values to which output indices refer, and whether the model computes with indices.

    The last result considers only indices that operators in ``_CHOOSE`` return, such as the indices of the largest
    values.
    """
    with _Choices() as exact:
        outputs = in_double()
    if all(output.is_floating_point() for output in outputs):
        return outputs, [None] * len(outputs), exact.are_used
    with _Choices() as eager:
        eagers = in_eager()
    choices = [_choice(eager.of(own), exact.of(output)) for own, output in zip(eagers, outputs, strict=True)]
    return outputs, choices, exact.are_used


def _choice(eager: _Chosen | None, exact: _Chosen | None) -> Choice | None:
    if eager is None or exact is None or eager.values.shape != exact.values.shape or eager.dim != exact.dim:
        return None
    return Choice(eager.values, exact.values.double(), exact.dim, exact.first)


class _Choices(TorchDispatchMode):
    """Record the values to which returned indices refer, for all operators that run while the mode is active.

    ``are_used``: whether an operator used recorded indices.
    """

    def __init__(self) -> None:
        super().__init__()
        self.are_used = False
        self._found: list[_Chosen] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.are_used and self._found and func.overloadpacket not in _PASS_ON:
            memory = {one.indices.untyped_storage().data_ptr() for one in self._found if one.indices.numel()}
            given_tensors = (one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor))
            self.are_used = any(one.untyped_storage().data_ptr() in memory for one in given_tensors)
        answer = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet in _CHOOSE and (packet in _ALONE or isinstance(answer, tuple)):
            indices = answer if packet in _ALONE else answer[-1]
            given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))
            given |= kwargs or {}
            dim = given.get("dim", None if packet in _ALONE else -1)
            first = packet in _FIRST or bool(given.get("stable"))
            self._found.append(_Chosen(indices, given["self"].clone(), dim, first))
        elif packet is _aten._to_copy and not answer.is_floating_point() and (cast := self.of(args[0])) is not None:
            self._found.append(replace(cast, indices=answer))
        return answer

    def of(self, output: torch.Tensor) -> _Chosen | None:
        """Return the values to which the indices ``output`` refer, or None if no recorded operator returned these
        indices. The indices may be a copy in another integer dtype.
        """
        is_it = [
            one.indices.data_ptr() == output.data_ptr() and one.indices.shape == output.shape for one in self._found
        ]
        return self._found[is_it.index(True)] if any(is_it) else None
