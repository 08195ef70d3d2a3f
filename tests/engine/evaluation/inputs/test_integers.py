"""Derived integer inputs keep the draw's range and order, and never repeat its arrangement."""

from __future__ import annotations

import random

import pytest
import torch

from engine.evaluation.inputs.integers import Order, mirrored, order_of, shuffle_into

DRAWS: dict[Order, tuple[str, str]] = {
    "free": ("torch.randint(0, 1000, (50, 40))", "torch.randint(0, 1000, (50, 40))"),
    "ascending": ("torch.randint(0, 9, (50, 40)).sort().values", "torch.randint(0, 9, (50, 40)).sort().values"),
    "distinct": ("torch.randperm(500)", "torch.randperm(500)"),
    "constant": ("torch.ones(5, 5).tril().bool()", "torch.ones(5, 5).tril().bool()"),
}

BY_ROW: dict[Order, str] = {
    "descending": "torch.randint(9, (50, 40)).sort(descending=True).values",
    "distinct_rows": "torch.stack([torch.randperm(90)[:40] for _ in range(50)])",
    ("ascending", "free"): "torch.stack([torch.randint(9, (500,)).sort().values, torch.randint(50, (500,))])",
    ("constant", "distinct"): "torch.stack([torch.arange(500), torch.randperm(500)])",
    ("descending", "distinct"): "torch.stack([torch.randperm(900)[:500].sort().values.flip(0), torch.randperm(500)])",
}
DRAWS |= {order: (text, text) for order, text in BY_ROW.items()}


def drawn(order: Order) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    first, second = (eval(text, {"torch": torch}) for text in DRAWS[order])
    return first, second


@pytest.mark.parametrize("order", list(DRAWS))
def test_what_holds_in_every_draw_is_seen(order: Order) -> None:
    assert order_of(*drawn(order)) == order


@pytest.mark.parametrize("size", [0, 1, 7, 2000])
@pytest.mark.parametrize("order", ["free", "ascending", "distinct"])
def test_mixtures_stay_in_range_and_order(order: Order, size: int) -> None:
    first, second = (tensor.reshape(-1)[:size].contiguous() for tensor in drawn(order))
    target = torch.full_like(first, -1)

    shuffle_into(target, first, second, order, random.Random(1))

    known = set(first.tolist()) if order == "distinct" else {*first.tolist(), *second.tolist()}
    assert set(target.tolist()) <= known
    if order == "ascending":
        assert torch.equal(target, target.sort().values)
    if order == "distinct":
        assert target.unique().numel() == target.numel()
    if size > 100 and order == "free":
        assert not torch.equal(target, first) and not torch.equal(target, second)


@pytest.mark.parametrize("order", list(BY_ROW))
def test_each_row_keeps_its_order_and_its_values(order: Order) -> None:
    first, second = drawn(order)
    mixtures = [torch.empty_like(first) for _ in range(3)]
    for mixture, seed in zip(mixtures, (1, 2, 2), strict=True):
        shuffle_into(mixture, first, second, order, random.Random(seed))

    assert order_of(*mixtures[:2]) == order and torch.equal(*mixtures[1:])
    assert order_of(mirrored(first, order), mirrored(second, order)) == order
    for mixed, *draws in zip(mixtures[0], first, second, strict=True):
        assert set(mixed.tolist()) <= {value for draw in draws for value in draw.tolist()}
    assert not any(torch.equal(mixtures[0], draw) for draw in (first, second))


def test_places_with_ranges_of_their_own_keep_them() -> None:
    """As in a list of edges between two kinds of nodes, and in a list of coordinates."""
    torch.manual_seed(5)
    for dim, far in ((0, 10), (0, -900), (1, 10), (1, 0), (1, -900)):
        low, high = ([torch.randint(start, start + 890, (5000,)) for _ in range(2)] for start in (1000, 1000 + far))
        draws = [torch.stack(pair, dim) for pair in zip([one % 10 for one in low], high, strict=True)]
        order = order_of(*draws)
        target = torch.empty_like(draws[0])
        shuffle_into(target, *draws, order, random.Random(1))
        assert not any(torch.equal(target, draw) for draw in draws)
        for made in (target, mirrored(draws[0], order)):
            first, second = made.unbind(dim)
            assert int(first.max()) < 10 and int(second.min()) >= 1000 + far and int(second.max()) < 1890 + far


def test_many_permutations_stay_permutations() -> None:
    draws = [torch.rand(2000, 500).argsort(-1) for _ in range(2)]
    target = torch.empty_like(draws[0])

    shuffle_into(target, *draws, "distinct_rows", random.Random(1))

    assert torch.equal(target.sort(-1).values, torch.arange(500).expand(2000, 500))


def test_a_constant_mask_is_left_alone() -> None:
    first, second = drawn("constant")
    target = torch.zeros_like(first)

    shuffle_into(target, first, second, "constant", random.Random(1))

    assert torch.equal(target, first) and torch.equal(mirrored(first, "constant"), first)


def test_the_mirror_keeps_range_and_order() -> None:
    for order in ("free", "ascending", "distinct"):
        tensor, _ = drawn(order)
        image = mirrored(tensor, order)
        assert (image.min(), image.max()) == (tensor.min(), tensor.max())
        assert not torch.equal(image, tensor)
        if order == "ascending":
            assert torch.equal(image, image.sort(dim=-1).values)
    assert torch.equal(mirrored(torch.tensor([True, False]), "free"), torch.tensor([False, True]))


def test_the_same_seed_gives_the_same_mixture() -> None:
    first, second = drawn("free")
    targets = [torch.empty_like(first) for _ in range(2)]
    for target in targets:
        shuffle_into(target, first, second, "free", random.Random(8))

    assert torch.equal(*targets)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint16, torch.uint8, torch.bool])
def test_no_block_of_a_draw_is_left_whole(dtype: torch.dtype) -> None:
    """Otherwise a kernel with cached partial sums of the draws would know those of the mixture."""
    torch.manual_seed(4)
    first, second = (torch.randint(0, 2, (40_000,)).to(dtype) for _ in range(2))
    target = torch.empty_like(first)

    shuffle_into(target, first, second, "free", random.Random(5))
    start, end = sorted(random.Random(5).sample(range(40_001), 2))
    blocks = torch.cat([first[:start], second[start:end], first[end:]])
    differs = (target.to(torch.int64) != blocks.to(torch.int64)).view(-1, 400).sum(dim=1)

    assert bool((differs > 0).all()) and bool((differs < 60).all())
