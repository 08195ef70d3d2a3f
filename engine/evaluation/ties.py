"""Which of several equal values an index points to: who names another one is right, as far as no rule says which.

Where values are computed, equal ones are equal by eager's rounding (a sigmoid that has reached one), and the largest
may be another one after a rounding of other sums. What the models' operators chose from is looked up as they run,
by eager and in fp64. Imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_CHOOSE = {_aten.topk, _aten.sort, _aten.argmax, _aten.argmin, _aten.max, _aten.min}
_FIRST = {_aten.argmax, _aten.argmin, _aten.max, _aten.min}
"""Of several equal values these name the first, as PyTorch documents."""
_MARGIN = 4.0
"""So many times eager's own error a kernel may find two values equal, or in the other order."""


@dataclass(frozen=True)
class _Chosen:
    indices: torch.Tensor
    values: torch.Tensor
    dim: int | None
    first: bool


@dataclass(frozen=True)
class Choice:
    """What an output's indices were chosen from along ``dim`` (None: all elements): ``eager`` as it rounded the values,
    and ``exact`` in fp64. ``first``: the operator names the first of several equal ones."""

    eager: torch.Tensor
    exact: torch.Tensor
    dim: int | None
    first: bool

    @property
    def nbytes(self) -> int:
        return int(self.eager.nbytes + self.exact.nbytes)

    def is_tied(self, out: torch.Tensor, chosen: torch.Tensor, tolerance: float) -> bool:
        """Whether each index in ``out`` points to the value that eager's, ``chosen``, does, within its rounding."""
        dim = -1 if self.dim is None else self.dim
        rounded, exact = (one.reshape(-1) if self.dim is None else one for one in (self.eager, self.exact))
        if out.dim() < rounded.dim():
            out, chosen = out.unsqueeze(dim), chosen.unsqueeze(dim)
        if self.dim is None:
            out, chosen = out.reshape(-1), chosen.reshape(-1)
        if not bool(((out >= 0) & (out < exact.shape[dim])).all()):
            return False
        ordered = out.sort(dim).values
        if bool((ordered.diff(dim=dim) == 0).any()):
            return False
        off = (rounded.double() - exact).abs().nan_to_num(0.0, 0.0).amax(dim, keepdim=True)
        mine, theirs = exact.gather(dim, out), exact.gather(dim, chosen)
        near = (mine - theirs).abs() <= torch.minimum(_MARGIN * off, tolerance * theirs.abs())
        near |= rounded.gather(dim, out) == rounded.gather(dim, chosen)
        if self.first:
            near &= off > 0
        return bool(((out == chosen) | near).all())


def choices_of(
    in_eager: Callable[[], Sequence[torch.Tensor]], in_double: Callable[[], Sequence[torch.Tensor]]
) -> tuple[Sequence[torch.Tensor], list[Choice | None]]:
    """The outputs in fp64, and for each that holds the indices of such an operator what it chose from."""
    with _Choices() as exact:
        outputs = in_double()
    if all(output.is_floating_point() for output in outputs):
        return outputs, [None] * len(outputs)
    with _Choices() as eager:
        eagers = in_eager()
    return outputs, [_choice(eager.of(own), exact.of(output)) for own, output in zip(eagers, outputs, strict=True)]


def _choice(eager: _Chosen | None, exact: _Chosen | None) -> Choice | None:
    if eager is None or exact is None or eager.values.shape != exact.values.shape or eager.dim != exact.dim:
        return None
    return Choice(eager.values, exact.values.double(), exact.dim, exact.first)


class _Choices(TorchDispatchMode):
    """Remembers what operators that answer with indices chose from while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._found: list[_Chosen] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        indices = answer if isinstance(answer, torch.Tensor) else answer[-1] if isinstance(answer, tuple) else None
        if packet in (_aten.max, _aten.min) and not isinstance(answer, tuple):  # values alone
            return answer
        if packet in _CHOOSE and isinstance(indices, torch.Tensor) and indices.dtype == torch.int64:
            given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))
            given |= kwargs or {}
            dim = given.get("dim", None if packet in (_aten.argmax, _aten.argmin) else -1)
            first = packet in _FIRST or bool(given.get("stable"))
            self._found.append(_Chosen(indices, given["self"].clone(), dim, first))
        return answer

    def of(self, output: torch.Tensor) -> _Chosen | None:
        """What ``output`` was chosen from; None for others, also what was computed from indices."""
        return next(
            (
                one
                for one in self._found
                if one.indices.data_ptr() == output.data_ptr() and one.indices.shape == output.shape
            ),
            None,
        )
