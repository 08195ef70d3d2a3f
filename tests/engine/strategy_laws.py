"""Laws of every selection strategy. A new strategy is tested as soon as it is in ``STRATEGIES``.

Each law is a function of a strategy. ``CANDIDATES`` draws tables of kernels: ties, pinned and exhausted ones, kernels
with and without a runoff.
"""

from __future__ import annotations

from hypothesis import strategies as st

from engine.search.strategies import Candidate, Selection, Strategy, ranking

_CATEGORIES = ("memory", "latency", "compute", "parallelism", "control")


@st.composite
def _candidate(draw: st.DrawFn, number: int) -> Candidate:
    ms = draw(st.sampled_from([1.0, 1.5, 2.0, 2.0, 7.25, 40.0, 250.0]))
    category = draw(st.sampled_from(_CATEGORIES))
    return Candidate(
        variant=f"v{number}",
        idea=f"i{draw(st.integers(1, 4))}",
        round=draw(st.integers(0, 3)),
        ms=ms,
        speedup=10.0 / ms,
        category=category,
        lineage_categories=frozenset({category, draw(st.sampled_from(_CATEGORIES))}),
        runoff_ratio=draw(st.none() | st.floats(1.0, 1.5)),
        pinned=draw(st.sampled_from([False, False, False, True])),
        exhausted=draw(st.booleans()),
    )


CANDIDATES = st.integers(0, 9).flatmap(lambda count: st.tuples(*(_candidate(number) for number in range(count))))


def _select(strategy: Strategy, kernels: tuple[Candidate, ...], width: int, seed: int) -> Selection:
    return strategy(kernels, round_number=3, width=width, seed=seed)


def each_is_selected_or_dropped_once_with_a_reason(
    strategy: Strategy, kernels: tuple[Candidate, ...], width: int, seed: int
) -> None:
    selection = _select(strategy, kernels, width, seed)
    named = [one.variant for one in (*selection.selected, *selection.dropped)]
    assert sorted(named) == sorted(one.variant for one in kernels)
    for one in (*selection.selected, *selection.dropped):
        assert any(character.isdigit() for character in one.why), f"{one.variant}: a reason needs a figure: {one.why!r}"
        assert "\n" not in one.why and one.why == one.why.strip()


def the_pinned_are_selected_and_the_exhausted_are_not(
    strategy: Strategy, kernels: tuple[Candidate, ...], width: int, seed: int
) -> None:
    selected_because = {one.variant: one.why for one in _select(strategy, kernels, width, seed).selected}
    for one in kernels:
        if one.pinned:
            assert "pinned" in selected_because[one.variant]
        elif one.exhausted:
            assert one.variant not in selected_because


def a_kernel_is_selected_while_one_is_open(
    strategy: Strategy, kernels: tuple[Candidate, ...], width: int, seed: int
) -> None:
    selected = _select(strategy, kernels, width, seed).selected
    assert bool(selected) == any(one.pinned or not one.exhausted for one in kernels)


def a_round_is_not_flooded(strategy: Strategy, kernels: tuple[Candidate, ...], width: int, seed: int) -> None:
    selected = _select(strategy, kernels, width, seed).selected
    # one more than there are places: the beam's newcomer
    assert len(selected) <= width + 1 + sum(one.pinned for one in kernels)


def the_fastest_come_first(strategy: Strategy, kernels: tuple[Candidate, ...], width: int, seed: int) -> None:
    order = [one.variant for one in ranking(kernels)]
    selection = _select(strategy, kernels, width, seed)
    for answer in (selection.selected, selection.dropped):
        places = [order.index(one.variant) for one in answer]
        assert places == sorted(places)


def the_same_question_gets_the_same_answer_in_any_order(
    strategy: Strategy, kernels: tuple[Candidate, ...], width: int, seed: int
) -> None:
    assert _select(strategy, kernels, width, seed) == _select(strategy, kernels[::-1], width, seed)


LAWS = (
    each_is_selected_or_dropped_once_with_a_reason,
    the_pinned_are_selected_and_the_exhausted_are_not,
    a_kernel_is_selected_while_one_is_open,
    a_round_is_not_flooded,
    the_fastest_come_first,
    the_same_question_gets_the_same_answer_in_any_order,
)
