"""Detection of repeated ideas, and the choice of the next model."""

from __future__ import annotations

import pytest

from engine.problem.spec import ProblemSpec
from engine.proposers.idea_methods import gist_of
from engine.proposers.protocol import TriedIdea
from engine.search.proposing.model_choice import LEAST_SHARE, choose, earned_weights
from engine.search.proposing.novelty import repeated
from engine.session.records.events import (
    AnyEvent,
    IdeaProposed,
    ModelCallStarted,
    ModelReplied,
    ProblemAdded,
    Recorded,
    RoundStarted,
    VariantWritten,
    VerdictGiven,
)
from engine.session.records.model_calls import CallSite, Usage
from engine.session.records.verdict import Timing, Verdict
from engine.session.state.session_state import SessionState, fold

TEXT = "Stage a tile of 64 by 64 values in shared memory, padded against bank conflicts, and read it by columns."


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        (TEXT, True),
        (
            "Stage tiles of 64 by 64 values into shared memory, padded against bank conflicts; read by the columns.",
            True,
        ),
        ("Compute the exponential with a polynomial instead of expf, two lanes at a time.", False),
        ("Stage the weights in registers and stream rows past them with asynchronous copies.", False),
        ("", False),
    ],
)
def test_the_same_idea_in_other_words(text: str, repeats: bool) -> None:
    found = repeated(text, [TriedIdea("i1", "v1", "memory", TEXT, 1.2)])
    assert (found is not None and found.idea == "i1") is repeats


PIPELINE = (
    "The kernel waits for global memory. Stage tiles of A and B through shared memory with cp.async and double "
    "buffering, so that the loads of the next tile overlap the tensor cores' work on this one."
)
SAME_PIPELINE = (
    "Warps stall on long scoreboard. Double-buffer smem: asynchronous copies fetch the next tile of A and B while "
    "mma.sync consumes the present tile, which overlaps loads with the tensor cores."
)


@pytest.mark.parametrize(
    ("text", "data", "repeats"),
    [
        pytest.param(SAME_PIPELINE, {}, True, id="the same methods in other words"),
        pytest.param(SAME_PIPELINE.replace("next tile", "next tile of 128"), {}, True, id="only one names a size"),
        pytest.param(
            "Stage tiles of A and B in shared memory and swizzle them, so that the tensor cores' loads meet no bank "
            "conflicts.",
            {},
            False,
            id="another method",
        ),
        pytest.param(
            SAME_PIPELINE,
            {"bottleneck": "too few blocks fill the SMs: occupancy is 25%", "method": "split-k with atomics"},
            False,
            id="its model names another bottleneck and another method",
        ),
    ],
)
def test_an_idea_is_known_by_its_bottleneck_and_its_methods(text: str, data: dict[str, str], repeats: bool) -> None:
    found = repeated(text, [TriedIdea("i1", "v1", "latency", PIPELINE, 1.2)], data)
    assert (found is not None) is repeats, (found, gist_of(text, data), gist_of(PIPELINE, {}))
    if found is not None:
        assert found.share < 0.7 and "the same methods" in found.why


def test_traffic_in_shared_memory_is_not_a_bottleneck_of_global_memory() -> None:
    assert gist_of("Halve the shared memory traffic of the inner loop.", {}).bottleneck == "shared memory"
    assert gist_of("Halve the memory traffic of the inner loop.", {}).bottleneck == "memory"
    named = {"bottleneck": "memory bandwidth", "method": "padded shared memory tiles without bank conflicts"}
    assert gist_of("", named).bottleneck == "memory"


def test_other_tile_sizes_are_another_idea() -> None:
    of_64 = "Tile the product by 64 in shared memory, with 4 by 4 register tiles and wide loads of float4."
    of_128 = "In smem, keep blocks of 128; each thread's micro-tile in registers is 8 by 8, read with float4 loads."
    assert gist_of(of_64, {}) == gist_of(of_128, {})
    assert repeated(of_128, [TriedIdea("i1", "v1", "memory", of_64, 1.2)]) is None


def test_an_idea_that_came_to_nothing_may_be_tried_once_more() -> None:
    failed = TriedIdea("i1", "v1", "memory", TEXT, None, {}, None, "wrong: off")
    assert repeated(TEXT, [failed]) is None
    assert repeated(TEXT, [failed, TriedIdea("i2", "v1", "memory", TEXT, None, {}, None, "wrong: off")]) is not None


def test_over_time_each_is_asked_by_its_weight() -> None:
    asked = {"a": 0, "b": 0}
    for _ in range(40):
        asked[choose(["a", "b"], [3.0, 1.0], asked)] += 1
    assert asked == {"a": 30, "b": 10}


def session(*answers: tuple[str, float, float]) -> SessionState:
    """Return kernels by (model, speedup over eager, dollars), judged in this order."""
    spec = ProblemSpec(id="p", name="p", path="p.py", source="", tensors=())
    events: list[AnyEvent] = [
        ProblemAdded(problem=spec, language="cpp", header=""),
        RoundStarted(problem="p", round=0, parents=()),
        IdeaProposed(idea="i1", problem="p", round=0, parent=None, category="first", text="", proposer="a"),
    ]
    for number, (model, speedup, dollars) in enumerate(answers, start=1):
        call, name = f"c{number}", f"v{number}"
        site = CallSite("p", 0, "kernel", "i1", number)
        usage = Usage(100, 100)
        verdict = Verdict(status="correct", speedup=speedup, kernel=Timing(1, 1, 1, 1))
        started = ModelCallStarted(
            call=call, attempt=1, provider="openai", model=model, site=site, prompt="", tokens=9, dollars=dollars
        )
        replied = ModelReplied(
            call=call,
            attempt=1,
            answered=model,
            prompt="",
            reply="",
            finish="stop",
            seconds=1.0,
            usage=usage,
            dollars=dollars,
        )
        written = VariantWritten(
            variant=name, idea="i1", problem="p", round=0, parent=None, language="cpp", source=name, proposer=model
        )
        events += [started, replied, written, VerdictGiven(variant=name, verdict=verdict)]
    return fold(Recorded(seq, float(seq), event) for seq, event in enumerate(events, start=1))


def test_who_earns_more_per_dollar_is_asked_more() -> None:
    names, weights = ["a", "b"], [1.0, 1.0]
    assert earned_weights(session(), "code", names, weights) == weights
    better = session(("b", 1.0, 0.1), *(("a", 1.2**n, 0.1) for n in range(1, 7)), *(("b", 1.0, 0.1) for _ in range(5)))
    a, b = earned_weights(better, "code", names, weights)
    assert a > 2 * b >= 2 * LEAST_SHARE * 0.9
    dearer = session(*(one for n in range(6) for one in (("a", 1.2 ** (2 * n), 1.0), ("b", 1.2 ** (2 * n + 1), 0.05))))
    a, b = earned_weights(dearer, "code", names, weights)
    assert b > a, "as much speedup for a twentieth of the money"
    assert earned_weights(better, "fixes", names, weights) == weights, "repairs are counted by themselves"


def test_weights_still_count() -> None:
    state = session(("a", 1.0, 0.1), ("b", 1.0, 0.1))
    assert earned_weights(state, "code", ["a", "b"], [3.0, 1.0]) == [3.0, 1.0]
