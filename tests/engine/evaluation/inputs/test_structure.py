"""Derived inputs keep structure that every draw has, but not chance patterns."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from engine.evaluation.inputs.distributions import KINDS, transform
from engine.evaluation.inputs.mixing import mix_into
from engine.evaluation.inputs.structure import structure_of
from engine.evaluation.judge_policy import POLICY

Draw = Callable[[], torch.Tensor]
Holds = Callable[[torch.Tensor], bool]


def _mirrored(draw: torch.Tensor) -> torch.Tensor:
    return draw + draw.mT


CASES: dict[str, tuple[Draw, Holds]] = {
    "lower triangle": (lambda: torch.randn(3, 20, 20).tril(), lambda x: bool((x.triu(1) == 0).all())),
    "upper triangle": (lambda: torch.rand(70, 70).half().triu(), lambda x: bool((x.tril(-1) == 0).all())),
    "diagonal": (lambda: torch.randn(20).diag(), lambda x: torch.equal(x, x.diag().diag())),
    "symmetric": (lambda: _mirrored(torch.randn(20, 20)), lambda x: torch.equal(x, x.mT)),
    "causal": (
        lambda: torch.randn(20, 20) + torch.full((20, 20), -torch.inf).triu(1),
        lambda x: torch.equal(x.isinf(), torch.ones(20, 20).triu(1) > 0),
    ),
    "rows that sum to one": (
        lambda: torch.randn(20, 30).bfloat16().softmax(-1),
        lambda x: bool((x >= 0).all()) and bool(((x.float().sum(-1) - 1).abs() < 0.01).all()),
    ),
    "descending": (lambda: torch.randn(3, 40).sort(-1, descending=True).values, lambda x: bool((x.diff() <= 0).all())),
    "edges of bins": (lambda: torch.randn(9).sort().values, lambda x: bool((x.diff() >= 0).all())),
    "sorted": (lambda: torch.randn(3, 40).sort(-1).values, lambda x: bool((x.diff() >= 0).all())),
}
DISCRETE: dict[str, Draw] = {
    "one-hot": lambda: functional.one_hot(torch.randint(0, 9, (50,)), 9).float(),
    "permutation": lambda: torch.eye(30)[torch.randperm(30)],
    "signs": lambda: torch.randint(0, 2, (200,)) * 2.0 - 1.0,
    "sorted from zero": lambda: functional.pad(torch.rand(70).cumsum(0), (1, 0)),
    "integers": lambda: torch.randint(0, 1000, (200,)),
    "a mask": lambda: torch.full((20, 20), -torch.inf).triu(1),
}
CHANCE: dict[str, Draw] = {
    "normal": lambda: torch.randn(20, 20),
    "positive": lambda: torch.rand(3000),
    "half precision": lambda: torch.rand(200, 200).half(),
    "after a ReLU": lambda: torch.randn(500).relu(),
    "after dropout": lambda: functional.dropout(torch.randn(5000), 0.3),
    "ones": lambda: torch.ones(400),
    "zeros": lambda: torch.zeros(20, 20),
    "few": lambda: torch.randn(2, 2).tril(),
}


@pytest.mark.parametrize("name", list(CASES))
def test_it_holds_of_all_that_is_made_of_the_draws(name: str) -> None:
    torch.manual_seed(0)
    draw, holds = CASES[name]
    own, other = draw(), draw()
    structure = structure_of(own, other)
    assert structure is not None and not structure.discrete
    for kind in KINDS:
        (made,) = transform([own], kind, [structure])
        assert holds(made) and made.shape == own.shape and made.dtype == own.dtype, kind
    mixed = torch.empty_like(own)
    for mixing in ("rotated", "convex"):
        mix_into([mixed], [own], [other], [structure], mixing, random.Random(1), POLICY.correctness)
        assert holds(mixed) and not torch.equal(mixed, own)


@pytest.mark.parametrize("name", list(DISCRETE))
def test_few_values_are_left_as_they_are(name: str) -> None:
    torch.manual_seed(0)
    own, other = DISCRETE[name](), DISCRETE[name]()
    structure = structure_of(own, other)
    assert structure is not None and structure.discrete
    assert structure.constant == (name == "a mask")
    for kind in KINDS:
        assert transform([own], kind, [structure])[0] is own


@pytest.mark.parametrize("name", list(CHANCE))
def test_chance_is_none(name: str) -> None:
    torch.manual_seed(0)
    assert structure_of(CHANCE[name](), CHANCE[name]()) is None
