"""The flat tree stays correct as the search grows: incremental rows equal rebuilt rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.synthetic_session import Search, Shape
from engine.session.records import events as ev
from engine.session.records.events import Recorded
from engine.session.records.verdict import Verdict
from engine.session.state.session_state import SessionState
from engine.session.store import SessionPaths
from tui.monitor.panes.tree.rows import Mode, SortKey, TreeRows, View
from tui.monitor.panes.tree.tree_lines import RowLines
from tui.monitor.theme.palette import monochrome
from tui.view.model import Model
from tui.view.source import SessionSource


def grown(mode: Mode = "round", sort: SortKey = "written", filter: str = "", every: int = 7) -> TreeRows:
    """Return the rows after a search of 120 kernels in which the rows were requested repeatedly."""
    search = Search(Shape(variants=120, problems=2, rounds=4, flying=3))
    state = SessionState()
    rows = TreeRows(state, View(mode=mode, sort=sort))
    rows.set_filter(filter)
    for seq, event in enumerate([*search.opening(), *search.rounds()], 1):
        state.apply(Recorded(seq, 1000.0 + seq, event))
        rows.note(event)
        if seq % every == 0:
            assert rows.rows is not None
    return rows


@pytest.mark.parametrize("mode", ["round", "lineage"])
@pytest.mark.parametrize("sort", ["written", "speedup", "time", "age"])
@pytest.mark.parametrize("filter", ["", "wrong", ">0.9", "!threads=64 softmax", "timing", "!queued"])
def test_incremental_rows_equal_rows_built_at_once(mode: Mode, sort: SortKey, filter: str) -> None:
    rows = grown(mode, sort, filter)
    fresh = TreeRows(rows.state, View(mode=mode, sort=sort))
    fresh.set_filter(filter)
    assert rows.rows == fresh.rows


def test_a_filter_follows_pins() -> None:
    rows = grown(filter="pinned")
    assert not any(row.match for row in rows.rows)
    for event, matching in ((ev.NodePinned(node="v7"), ["v7"]), (ev.NodeUnpinned(node="v7"), [])):
        rows.state.apply(Recorded(rows.state.seq + 1, 9000.0, event))
        rows.note(event)
        assert [row.id for row in rows.rows if row.kind == "variant" and row.match] == matching


@pytest.mark.parametrize("mode", ["round", "lineage"])
def test_all_is_folded_and_unfolded(mode: Mode) -> None:
    rows = grown(mode)
    rows.fold_all(False)
    whole = len(rows.rows)
    for folds in (True, False, True):
        rows.toggle_all()
        assert (len(rows.rows) < whole) is folds and (len(rows.rows) == whole) is not folds


@pytest.mark.parametrize("batch", [1, 5, 40])
@pytest.mark.parametrize("folded", [(), ("v3", "v5", "v24"), ("v9", "v24", "v60", "layernorm")])
@pytest.mark.parametrize("mode", ["round", "lineage"])
def test_rows_are_noted_after_a_whole_batch_is_folded(mode: Mode, folded: tuple[str, ...], batch: int) -> None:
    """As in a monitor, the state is ahead of the noted event, and rows may be requested between events."""
    search = Search(Shape(variants=90, problems=2, rounds=4, flying=3))
    written = [*search.opening(), *search.rounds()]
    # An idea without kernels, under a kernel and at the root; and a kernel from a repair, beside its idea.
    for place, parent in ((120, "v1"), (240, None), (250, "v3"), (400, "v7")):
        name = f"i9{place}"
        written.insert(place, proposed(name, parent))
        if place == 250:
            written.insert(330, kernel("v900", name, "v5"))
            written.insert(340, kernel("v901", name, "v900"))
    state = SessionState()
    rows = TreeRows(state, View(mode=mode, folds=dict.fromkeys(folded, True)))
    for start in range(0, len(written), batch):
        events = written[start : start + batch]
        for seq, event in enumerate(events, start + 1):
            state.apply(Recorded(seq, 1000.0 + seq, event))
        if start % 3 == 0:
            assert rows.rows is not None
        for event in events:
            rows.note(event)
        assert rows.rows == TreeRows(state, rows.view).rows


def test_a_node_that_has_moved_is_found() -> None:
    rows = grown("lineage")
    for place, row in enumerate(rows.rows):
        for near in (place, place - 3, 0, len(rows.rows) + 5):
            assert rows.find(row.id, max(0, near)) == place
    assert rows.find("v99999", 7) is None


def proposed(idea: str, parent: str | None) -> ev.IdeaProposed:
    return ev.IdeaProposed(
        idea=idea, problem="softmax", round=1, parent=parent, category="other", text="", proposer="hand"
    )


def kernel(variant: str, idea: str, parent: str) -> ev.VariantWritten:
    return ev.VariantWritten(
        variant=variant,
        idea=idea,
        problem="softmax",
        round=1,
        parent=parent,
        language="cpp",
        source="",
        proposer="hand",
    )


def test_finished_rounds_fold_by_themselves_and_stay_open_once_opened() -> None:
    rows = grown()
    folded = {row.id: row.folded for row in rows.rows if row.kind == "round"}
    assert folded["softmax/r0"] and folded["softmax/r2"] and not folded["softmax/r3"]
    rows.fold("softmax/r0", False)
    assert [row.id for row in rows.rows[:3]] == ["softmax", "softmax/r0", "i1"]


def test_reveal_unfolds_what_hides_a_node() -> None:
    rows = grown()
    assert rows.find("v1") is None
    place = rows.reveal("v1")
    assert place is not None and rows.rows[place].id == "v1"
    assert rows.rows[rows.parent_row(place) or 0].id == "i1"
    assert rows.reveal("v99999") is None


def test_a_filter_shows_matches_and_the_way_to_them() -> None:
    rows = grown(filter="v17")
    assert [row.id for row in rows.rows if row.match] == ["v17"]
    assert [row.kind for row in rows.rows] == ["problem", "round", "idea", "variant"]


def test_a_kernel_with_known_machine_code_has_the_other_kernels_figures() -> None:
    rows = grown(sort="speedup")
    state = rows.state
    best = state.variants[state.problems["softmax"].best or ""]
    other = next(one for one in state.variants.values() if one.idea == best.idea and one is not best)
    verdict = Verdict(status="correct", reason=f"same machine code as {best.id}", same_code_as=best.id)
    state.apply(Recorded(state.seq + 1, 5000.0, ev.VerdictGiven(variant=other.id, verdict=verdict)))

    sorts: tuple[SortKey, ...] = ("speedup", "time")
    for sort in sorts:
        view = TreeRows(state, View(sort=sort))
        view.set_filter(best.idea)
        of_idea = [row.id for row in view.rows if row.match and row.kind == "variant"]
        assert len(of_idea) > 2 and set(of_idea[:2]) == {best.id, other.id}, of_idea
    matching = TreeRows(state, View())
    matching.set_filter(f">{(best.speedup or 0.0) * 0.99}")
    assert {best.id, other.id} <= {row.id for row in matching.rows if row.match}


def test_a_filter_finds_the_kernels_of_a_host() -> None:
    state, search = SessionState(), Search(Shape(problems=1))
    hosts = {
        "v1": ev.VerdictGiven(variant="v1", verdict=Verdict(status="wrong", reason="0 of 3", host="gpu1")),
        "v2": ev.VerdictGiven(variant="v2", verdict=Verdict(status="wrong", reason="0 of 3", host="gpu2")),
    }
    idea = ev.IdeaProposed(
        idea="i1",
        problem="softmax",
        round=1,
        parent=None,
        category="other",
        text="a tile",
        proposer="playbook",
        data={},
    )
    written = [
        ev.VariantWritten(
            variant=name, idea="i1", problem="softmax", round=1, parent=None, language="cpp", source="", proposer="hand"
        )
        for name in hosts
    ]
    opened = [*search.opening(), ev.RoundStarted(problem="softmax", round=1, parents=())]
    for seq, event in enumerate([*opened, idea, *written, *hosts.values()], 1):
        state.apply(Recorded(seq, float(seq), event))
    for words, names in (("gpu1", ["v1"]), ("!gpu1", ["v2"])):
        rows = TreeRows(state)
        rows.set_filter(words)
        assert [row.id for row in rows.rows if row.match] == names


def test_a_filter_finds_words_anywhere_and_names_as_they_are() -> None:
    state, search = SessionState(), Search(Shape(problems=1))
    idea = ev.IdeaProposed(
        idea="i1", problem="softmax", round=1, parent=None, category="other", text="handle a tile", proposer="playbook",
        data={"move": "narrower_vectors"},
    )  # fmt: skip
    first = ev.VariantWritten(
        variant="v1", idea="i1", problem="softmax", round=1, parent=None, language="cpp", source="", proposer="playbook"
    )
    more = [replace(first, variant="v2", proposer="hand"), replace(first, variant="v10", note="bias_in lanes=16")]
    events = [*search.opening(), ev.RoundStarted(problem="softmax", round=1, parents=()), idea, first, *more]
    for seq, event in enumerate(events, 1):
        state.apply(Recorded(seq, float(seq), event))
    found = {
        "hand": ["v2"],
        "!hand": ["v1", "v10"],
        "andle": ["i1", "v1", "v2", "v10"],
        "v1": ["v1"],
        "r1 hand": ["v2"],
        "as_in": ["v10"],
        "=16": ["v10"],
        "narrower !hand": ["v1", "v10"],
        "narrower_vectors !hand": ["v1", "v10"],
        "narrower vectors !hand": ["v1", "v10"],
    }
    for text, names in found.items():
        rows = TreeRows(state)
        rows.set_filter(text)
        assert [row.id for row in rows.rows if row.match] == names, text
        assert "i1" in [row.id for row in rows.rows], "an idea stays above its kernels"


@pytest.mark.parametrize(
    ("words", "of_idea", "of_kernel"),
    [
        ("swizzle", ["…inputs before the swizzle of its operands…"], []),
        ("handle", [], []),
        ("playbook", ["proposer playbook"], ["proposer playbook"]),
        ("latency", ["category latency"], []),
        ("queued", [], ["status queued"]),
        ("v1 r1 softmax", [], []),
        ("per swizzle", ["handle a tile per block, and load…", "…inputs before the swizzle of its operands…"], []),
        ("swizzle unroll=2", ["…inputs before the swizzle of its operands…"], ["…prefetch=512 unroll=2"]),
    ],
)
def test_a_filtered_row_says_what_matches_if_it_shows_no_match(
    words: str, of_idea: list[str], of_kernel: list[str], tmp_path: Path
) -> None:
    text = "handle a tile per block, and load each block of both inputs before the swizzle of its operands begins again"
    state = SessionState()
    idea = ev.IdeaProposed(
        idea="i1", problem="softmax", round=1, parent=None, category="latency", text=text, proposer="playbook"
    )
    written = ev.VariantWritten(
        variant="v1", idea="i1", problem="softmax", round=1, parent=None, language="cpp", source="",
        proposer="playbook", note="lanes=16 prefetch=512 unroll=2",
    )  # fmt: skip
    opened = [*Search(Shape(problems=1)).opening(), ev.RoundStarted(problem="softmax", round=1, parents=())]
    for seq, event in enumerate([*opened, idea, written], 1):
        state.apply(Recorded(seq, float(seq), event))
    rows = TreeRows(state)
    rows.set_filter(words)
    idea_row, kernel_row = rows.rows[2:]
    assert rows.why(idea_row, "i1 handle a tile") == of_idea and rows.why(kernel_row, "v1 lanes=16") == of_kernel
    rows.set_mode("lineage")  # without a row for the idea
    (kernel_row,) = (row for row in rows.rows if row.kind == "variant")
    assert {*rows.why(kernel_row, "v1 lanes=16 handle a tile")} == {*of_kernel, *of_idea}
    artist = RowLines(Model(SessionSource(SessionPaths.at(tmp_path)), state), monochrome(), ascii_only=False)
    drawn = artist.draw(kernel_row, 88, why=rows.why).text
    assert all(word in drawn for word in words.split() if word not in ("r1", "softmax")), "an excerpt hides no match"


def test_a_lineage_longer_than_the_stack() -> None:
    state = SessionState()
    search = Search(Shape(problems=1))
    events = [*search.opening(), ev.RoundStarted(problem="softmax", round=0, parents=())]
    parent = None
    length = sys.getrecursionlimit() + 500
    for number in range(length):
        events.append(
            ev.VariantWritten(
                variant=f"v{number}",
                idea="i",
                problem="softmax",
                round=0,
                parent=parent,
                language="cpp",
                source="",
                proposer="",
            )
        )
        parent = f"v{number}"
    for seq, event in enumerate(events, 1):
        state.apply(Recorded(seq, float(seq), event))
    rows = TreeRows(state, View(mode="lineage"))
    assert [row.depth for row in rows.rows] == list(range(length + 1))
