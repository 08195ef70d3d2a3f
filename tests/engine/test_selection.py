"""Strategies select parents from tables of kernels, with reasons."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config.schema import SearchConfig
from engine.search.strategies import STRATEGIES, Candidate, Selection, beam, greedy, random, serial
from tests.engine.strategy_laws import CANDIDATES, LAWS


def kernel(variant: str, ms: float, idea: str = "", **more: object) -> Candidate:
    """Return a correct kernel. Eager takes 10 ms. By default, the kernel has its own idea of category memory."""
    values: dict[str, object] = {
        "variant": variant,
        "idea": idea or f"i{variant[1:]}",
        "round": 1,
        "ms": ms,
        "speedup": 10.0 / ms,
        "category": "memory",
    }
    return Candidate(**{**values, **more})  # type: ignore[arg-type]


def selected_because(selection: Selection) -> list[str]:
    return [one.variant for one in selection.selected]


def why(selection: Selection, variant: str) -> str:
    return next(one.why for one in (*selection.selected, *selection.dropped) if one.variant == variant)


CASES = [
    ("nothing correct, nothing selected", [], 2, []),
    ("one kernel is selected whatever the width", [kernel("v1", 5.0)], 3, ["v1"]),
    ("the fastest are selected", [kernel("v1", 5.0), kernel("v2", 3.0), kernel("v3", 4.0)], 2, ["v2", "v3"]),
    (
        "not all from one idea",
        [kernel("v1", 3.0, "i1"), kernel("v2", 3.1, "i1"), kernel("v3", 3.2, "i1"), kernel("v4", 4.0, "i2")],
        3,
        ["v1", "v2", "v4"],
    ),
    (
        "one idea fills the beam where there is no other",
        [kernel("v1", 3.0, "i1"), kernel("v2", 3.1, "i1"), kernel("v3", 3.2, "i1")],
        2,
        ["v1", "v2"],
    ),
    (
        "a newcomer of an unseen category is selected beside the fastest",
        [kernel("v1", 3.0), kernel("v2", 3.1), kernel("v3", 4.0, category="latency")],
        2,
        ["v1", "v2", "v3"],
    ),
    (
        "but not the round after",
        [kernel("v1", 3.0), kernel("v2", 3.1), kernel("v3", 4.0, category="latency", round=0)],
        2,
        ["v1", "v2"],
    ),
    (
        "nor when it is much slower than the best",
        [kernel("v1", 3.0), kernel("v2", 3.1), kernel("v3", 9.0, category="latency")],
        2,
        ["v1", "v2"],
    ),
    (
        "nor when a selected kernel has that category in its lineage",
        [
            kernel("v1", 3.0, lineage_categories=frozenset({"memory", "latency"})),
            kernel("v2", 3.1),
            kernel("v3", 4.0, category="latency"),
        ],
        2,
        ["v1", "v2"],
    ),
    (
        "pinned kernels are always selected, in order of speed",
        [kernel("v1", 3.0), kernel("v2", 3.1), kernel("v3", 99.0, pinned=True)],
        2,
        ["v1", "v2", "v3"],
    ),
    (
        "exhausted kernels give way, even the best",
        [kernel("v1", 3.0, exhausted=True), kernel("v2", 3.1), kernel("v3", 3.2)],
        2,
        ["v2", "v3"],
    ),
    (
        "unless they are pinned",
        [kernel("v1", 3.0, exhausted=True, pinned=True), kernel("v2", 3.1)],
        1,
        ["v1", "v2"],
    ),
    (
        "a runoff side by side outweighs speedups measured at different times",
        [kernel("v1", 3.0, runoff_ratio=1.2), kernel("v2", 3.1, runoff_ratio=1.0), kernel("v3", 3.2)],
        1,
        ["v2"],
    ),
    (
        "but a kernel judged since then, and faster than the runoff's winner was, comes before it",
        [kernel("v1", 3.0, runoff_ratio=1.2), kernel("v2", 3.1, runoff_ratio=1.0), kernel("v3", 2.5)],
        1,
        ["v3"],
    ),
]


@pytest.mark.parametrize(("candidates", "width", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_beam_carries(candidates: list[Candidate], width: int, expected: list[str]) -> None:
    assert selected_because(beam(candidates, round_number=1, width=width, seed=0)) == expected


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=60, deadline=None)
@given(kernels=CANDIDATES, width=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_every_strategy_keeps_to_the_laws(name: str, kernels: tuple[Candidate, ...], width: int, seed: int) -> None:
    for law in LAWS:
        law(STRATEGIES[name], kernels, width, seed)


def test_greedy_carries_the_fastest_even_if_they_are_all_of_one_idea() -> None:
    kernels = [kernel("v1", 2.0, "i1"), kernel("v2", 2.1, "i1"), kernel("v3", 2.2, "i2", category="latency")]
    selection = greedy(kernels, round_number=1, width=2, seed=0)
    assert selected_because(selection) == ["v1", "v2"]
    assert (
        why(selection, "v2")
        == "number 2 by speed: 5% slower than v1 by separate verdicts (4.76x against 5.00x over eager)"
    )
    assert (
        why(selection, "v3")
        == "10% slower than v1 by separate verdicts (4.55x against 5.00x over eager); only the 2 fastest are selected"
    )


def test_serial_goes_on_with_the_newest_round_even_if_it_is_slower() -> None:
    kernels = [kernel("v1", 2.0), kernel("v2", 3.0, round=2), kernel("v3", 4.0, round=2)]
    selection = serial(kernels, round_number=2, width=3, seed=0)
    assert selected_because(selection) == ["v2"]
    assert why(selection, "v2") == (
        "next in the chain: fastest in round 2, 3 ms, 50% slower than v1 by separate verdicts (3.33x against 5.00x "
        "over eager)"
    )
    assert why(selection, "v1") == "of round 1, 2 ms: the chain continues with v2 of round 2"
    assert (
        why(selection, "v3")
        == "33% slower than v2 by separate verdicts (2.50x against 3.33x over eager); a chain has one kernel per round"
    )


def test_serial_stays_where_it_was_when_a_round_gives_nothing() -> None:
    kernels = [kernel("v1", 2.0), kernel("v2", 3.0, round=2)]
    assert why(serial(kernels, round_number=3, width=1, seed=0), "v2").endswith("has no kernel to continue with")
    dead_end = [kernel("v1", 2.0), kernel("v2", 3.0, round=2, exhausted=True)]
    assert selected_because(serial(dead_end, round_number=3, width=1, seed=0)) == ["v1"]


def test_random_gives_every_kernel_the_same_chance() -> None:
    kernels = [kernel(f"v{number}", float(number)) for number in range(1, 6)]
    drawn = Counter(
        name for seed in range(2000) for name in selected_because(random(kernels, round_number=1, width=2, seed=seed))
    )
    # 2000 draws of 2 in 5: 800 each, with a standard deviation of 22.
    assert all(abs(drawn[one.variant] - 800) < 110 for one in kernels), drawn


def test_random_draws_the_others_in_the_same_order_when_one_is_pruned_meanwhile() -> None:
    kernels = [kernel(f"v{number}", float(number)) for number in range(1, 6)]
    before = selected_because(random(kernels, round_number=1, width=3, seed=7))
    without = [one for one in kernels if one.variant != before[0]]
    assert set(before[1:]) < set(selected_because(random(without, round_number=1, width=3, seed=7)))


def test_reasons_have_figures() -> None:
    candidates = [
        kernel("v1", 2.0, "i1"),
        kernel("v2", 2.1, "i1"),
        kernel("v3", 2.2, "i1"),
        kernel("v4", 2.5, "i2"),
        kernel("v5", 2.6, "i3", category="control"),
        kernel("v6", 4.0, "i4"),
        kernel("v7", 5.0, "i5", exhausted=True),
        kernel("v8", 6.0, "i6", pinned=True),
    ]
    selection = beam(candidates, round_number=1, width=3, seed=0)
    assert why(selection, "v1") == "fastest by its own verdict: 2 ms, 5.00x over eager"
    assert (
        why(selection, "v2")
        == "number 2 by speed: 5% slower than v1 by separate verdicts (4.76x against 5.00x over eager)"
    )
    assert why(selection, "v3") == "2.2 ms, but v1 and v2 of the same idea i1 are already selected"
    assert why(selection, "v5") == (
        "promising: the first to try control flow and loops, "
        "30% slower than v1 by separate verdicts (3.85x against 5.00x "
        "over eager); selected for one round"
    )
    assert (
        why(selection, "v6")
        == "2 times as slow as v1 by separate verdicts (2.50x against 5.00x over eager); only 3 are selected for speed"
    )
    assert why(selection, "v7") == "no proposer has a new idea for this kernel (5 ms, 2.00x over eager)"
    assert why(selection, "v8") == "pinned by hand, 6 ms"


def test_the_loser_of_a_runoff_is_never_called_faster_than_a_selected_kernel() -> None:
    # A noisy reference inflated v11's speedup. Side by side it was no faster than v9, which v8 beats.
    candidates = [
        kernel("v8", 1.34, speedup=21.41),
        kernel("v9", 1.17, speedup=13.55, runoff_ratio=1.0),
        kernel("v11", 1.45, speedup=31.69, runoff_ratio=1.017),
    ]
    selection = beam(candidates, round_number=1, width=1, seed=0)
    assert selected_because(selection) == ["v8"]
    assert (
        why(selection, "v9")
        == "58% slower than v8 by separate verdicts (13.55x against 21.41x over eager); only 1 is selected for speed"
    )
    assert why(selection, "v11") == (
        "2% slower than v9 in the runoff; v9 was 58% slower than v8 by separate verdicts (13.55x against 21.41x "
        "over eager); by its own verdict, v11 was 48% faster than v8 (31.69x); only 1 is selected for speed"
    )


@pytest.mark.parametrize(
    ("ms", "words"), [(3.98, "99% slower than"), (5.0, "2.5 times as slow as"), (1000.0, "500 times as slow as")]
)
def test_a_much_slower_kernel_is_so_many_times_as_slow(ms: float, words: str) -> None:
    selection = beam([kernel("v1", 2.0), kernel("v2", ms)], round_number=1, width=2, seed=0)
    assert why(selection, "v2").startswith(f"number 2 by speed: {words} v1 by separate verdicts")


def test_a_tie_is_never_called_slower_whichever_comparison_says_so() -> None:
    runoff = [
        kernel("v1", 2.0, runoff_ratio=1.0),
        kernel("v2", 2.1, runoff_ratio=1.19, runoff_tied=True),
        kernel("v3", 2.2, runoff_ratio=1.2, runoff_tied=True),
        kernel("v4", 2.3, runoff_ratio=1.25),
    ]
    selection = greedy(runoff, round_number=1, width=2, seed=0)
    assert why(selection, "v1") == "fastest in the runoff; its verdict: 2 ms, 5.00x over eager"
    assert why(selection, "v2") == "number 2 by speed: tied with v1 in the runoff"
    assert why(selection, "v3") == "tied with v1 in the runoff; only the 2 fastest are selected"
    assert why(selection, "v4") == "25% slower than v1 in the runoff; only the 2 fastest are selected"
    own = [
        kernel("v1", 2.0, speedup_low=4.0, speedup_high=6.0),
        kernel("v2", 2.4, speedup_low=3.5, speedup_high=4.1),
        kernel("v3", 2.5, speedup_low=3.5, speedup_high=3.9),
    ]
    selection = greedy(own, round_number=1, width=1, seed=0)
    assert why(selection, "v2").startswith(
        "indistinguishable from v1 by separate verdicts (4.17x against ~5.00x over eager)"
    )
    assert why(selection, "v3").startswith(
        "about 25% slower than v1 by uncertain verdicts (4.00x against ~5.00x over eager)"
    )


def test_a_reason_from_a_busy_machine_is_not_stated_as_fact() -> None:
    busy = [kernel("v86", 5.4), kernel("v90", 18.9, uncertain=True, busy=True)]
    selection = greedy(busy, round_number=1, width=1, seed=0)
    assert why(selection, "v90").startswith(
        "about 3.5 times as slow as v86 by uncertain verdicts, judged on a busy machine (~0.53x against 1.85x "
        "over eager)"
    )


def test_the_best_kernel_comes_first_among_tied_kernels() -> None:
    runoff = [
        kernel("v1", 2.0, runoff_ratio=1.0, runoff_tied=True),
        kernel("v2", 2.1, runoff_ratio=1.02, runoff_tied=True),
        kernel("v3", 2.2, runoff_ratio=1.03, runoff_tied=True, best=True),
        kernel("v4", 2.3, runoff_ratio=1.1),
    ]
    for strategy in (beam, greedy, serial):
        assert selected_because(strategy(runoff, round_number=1, width=1, seed=0)) == ["v3"]
    selection = greedy(runoff, round_number=1, width=1, seed=0)
    assert why(selection, "v3") == "the best kernel, tied in the runoff; its verdict: 2.2 ms, 4.55x over eager"
    assert why(selection, "v1") == "tied with v3 in the runoff; only the fastest is selected"
    assert why(selection, "v4").startswith("7% slower than v3 in the runoff")


def test_who_was_not_in_the_runoff_does_not_come_before_its_winner_by_a_luckier_reference() -> None:
    # v82 beat three kernels with better speedups from other minutes. v45, in between, had not run in that runoff.
    candidates = [
        kernel("v82", 0.68, speedup=7.55, runoff_ratio=1.0, runoff_tied=True),
        kernel("v84", 0.69, speedup=8.11, runoff_ratio=1.01, runoff_tied=True),
        kernel("v46", 0.70, speedup=8.53, runoff_ratio=1.02, runoff_tied=True),
        kernel("v23", 1.24, speedup=9.36, runoff_ratio=1.08, runoff_tied=True),
        kernel("v45", 0.70, speedup=7.85),
    ]
    selection = greedy(candidates, round_number=3, width=1, seed=0)
    assert selected_because(selection) == ["v82"]
    assert why(selection, "v84") == "tied with v82 in the runoff; only the fastest is selected"
    assert why(selection, "v45") == (
        "behind v82, which leads because of the runoff; 4% faster than v82 by separate verdicts "
        "(7.85x against 7.55x over eager); only the fastest is selected"
    )


def test_every_strategy_can_be_configured() -> None:
    assert set(get_args(SearchConfig.model_fields["strategy"].annotation)) == set(STRATEGIES)
