"""Who is carried on: tables of kernels in, names and reasons out."""

from __future__ import annotations

import pytest

from engine.selection import STRATEGIES, Candidate, Selection, beam


def kernel(variant: str, ms: float, idea: str = "", **more: object) -> Candidate:
    """A correct kernel; eager takes 10 ms, and unless said otherwise its idea is its own and of category memory."""
    values: dict[str, object] = {
        "variant": variant,
        "idea": idea or f"i{variant[1:]}",
        "round": 1,
        "ms": ms,
        "speedup": 10.0 / ms,
        "category": "memory",
    }
    return Candidate(**{**values, **more})  # type: ignore[arg-type]


def carried(selection: Selection) -> list[str]:
    return [one.variant for one in selection.survivors]


def why(selection: Selection, variant: str) -> str:
    return next(one.why for one in (*selection.survivors, *selection.dropped) if one.variant == variant)


CASES = [
    ("nothing correct, nothing carried", [], 2, []),
    ("one kernel is carried whatever the width", [kernel("v1", 5.0)], 3, ["v1"]),
    ("the fastest are carried", [kernel("v1", 5.0), kernel("v2", 3.0), kernel("v3", 4.0)], 2, ["v2", "v3"]),
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
        "a newcomer of an unseen category is carried beside the fastest",
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
        "nor when a carried kernel has that category in its lineage",
        [
            kernel("v1", 3.0, lineage_categories=frozenset({"memory", "latency"})),
            kernel("v2", 3.1),
            kernel("v3", 4.0, category="latency"),
        ],
        2,
        ["v1", "v2"],
    ),
    (
        "pinned kernels are always carried, in order of speed",
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
        "a heat side by side outweighs factors measured at different times",
        [kernel("v1", 3.0, heat_ratio=1.2), kernel("v2", 3.1, heat_ratio=1.0), kernel("v3", 3.2)],
        1,
        ["v2"],
    ),
    (
        "but a kernel judged since then, and faster than the heat's winner was, comes before it",
        [kernel("v1", 3.0, heat_ratio=1.2), kernel("v2", 3.1, heat_ratio=1.0), kernel("v3", 2.5)],
        1,
        ["v3"],
    ),
]


@pytest.mark.parametrize(("candidates", "width", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_beam_carries(candidates: list[Candidate], width: int, expected: list[str]) -> None:
    assert carried(beam(candidates, round_number=1, width=width)) == expected


@pytest.mark.parametrize(("candidates", "width", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_every_kernel_is_carried_or_dropped_once_with_a_reason(
    candidates: list[Candidate], width: int, expected: list[str]
) -> None:
    selection = beam(candidates, round_number=1, width=width)
    named = [one.variant for one in (*selection.survivors, *selection.dropped)]
    assert sorted(named) == sorted(one.variant for one in candidates)
    assert all(one.why for one in (*selection.survivors, *selection.dropped))


def test_the_order_of_the_candidates_does_not_matter() -> None:
    candidates = [kernel("v1", 3.0, "i1"), kernel("v2", 3.1, "i1"), kernel("v3", 4.0, category="latency")]
    assert beam(candidates, round_number=1, width=2) == beam(candidates[::-1], round_number=1, width=2)


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
    selection = beam(candidates, round_number=1, width=3)
    assert why(selection, "v1") == "fastest: 2 ms, 5.00x eager"
    assert why(selection, "v2") == "number 2 of the fastest: 5 % slower than v1 (4.76x against 5.00x eager)"
    assert why(selection, "v3") == "2.2 ms, but v1 and v2 of the same idea i1 are carried already"
    assert why(selection, "v5") == (
        "promising: opens control flow and loops, 30 % slower than v1 (3.85x against 5.00x eager); "
        "carried for one round"
    )
    assert why(selection, "v6") == "100 % slower than v1 (2.50x against 5.00x eager); only 3 are carried"
    assert why(selection, "v7") == "nothing new left to try on it at 5 ms, 2.00x eager"
    assert why(selection, "v8") == "pinned by hand, 6 ms"


def test_strategies_are_found_by_the_name_that_a_config_gives() -> None:
    assert STRATEGIES["beam"] is beam
