"""The playbook chooses the knob settings to try next."""

from __future__ import annotations

from itertools import islice

from engine.proposers.playbook.base import Recipe
from engine.proposers.playbook.transformations.sampling import Measured, candidates

KNOBS = {"unroll": (1, 2, 4, 8), "block": (1024, 4096), "lanes": (8, 16)}
BASE = Recipe("t", {"unroll": 1, "block": 1024, "lanes": 16}, ("unroll", "block"))


def test_the_recipe_as_the_transformation_left_it_comes_first() -> None:
    assert next(candidates(BASE, KNOBS, [], seed=0)).choices == BASE.choices


def test_settings_near_the_measured_winner_come_next() -> None:
    winner = BASE.with_({"unroll": 4})
    measured = [Measured(BASE, 3.0), Measured(winner, 1.0), Measured(BASE.with_({"unroll": 8}), None)]
    found = [one.choices for one in islice(candidates(BASE, KNOBS, measured, seed=0), 2)]
    assert found == [{"unroll": 4, "block": 4096, "lanes": 16}, {"unroll": 2, "block": 1024, "lanes": 16}]


def test_nothing_is_tried_twice_and_knobs_that_are_not_opened_stay() -> None:
    measured = [Measured(BASE, 1.0)]
    found = [tuple(sorted(one.choices.items())) for one in candidates(BASE, KNOBS, measured, seed=1)]
    assert len(found) == len(set(found)) == 4 * 2 - 1
    assert all(dict(choices)["lanes"] == 16 for choices in found)


def test_the_same_seed_gives_the_same_settings_in_the_same_order() -> None:
    first, again, other = (list(candidates(BASE, KNOBS, [], seed)) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_a_recipe_without_opened_knobs_has_one_setting() -> None:
    closed = Recipe("t", BASE.choices)
    assert len(list(candidates(closed, KNOBS, [], seed=0))) == 1
    assert list(candidates(closed, KNOBS, [Measured(closed, 1.0)], seed=0)) == []
