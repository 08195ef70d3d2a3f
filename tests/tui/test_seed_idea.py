"""The dialog for ideas lists the transformations that the engine accepts, and says which ones it rejects."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.containers import Vertical

from benchmarks.synthetic_session import CPU
from engine.problem.catalog import inspect_files, resolve
from engine.problem.spec import ProblemSpec
from engine.proposers.llm.proposer import Language
from engine.proposers.playbook import Playbook
from engine.proposers.protocol import Board, Task
from engine.session.records import events as ev
from engine.session.records.requests import SeedIdea
from engine.session.records.verdict import Baseline, Timing, Verdict
from engine.session.state.session_state import fold
from engine.session.store import EngineLock, EventWriter, SessionReader, create_session
from tests.tui.conftest import Engine
from tui.monitor.screens.seed_idea import SeedIdeaScreen, spent_words
from tui.monitor.steering.seedable import Catalogue, catalogue_of, may_read_prose
from tui.text.format import transformation_label
from tui.view.model import Model
from tui.view.source import SessionSource

CONFIG = """problems = ["builtin:quickstart/softmax"]

[[models]]
provider = "{provider}"
"""


def events_of(spec: ProblemSpec) -> Iterator[tuple[ev.AnyEvent, str]]:
    """Yield the events of a one-round search whose only kernel is the playbook's first, each with its source."""
    task = Task(problem=spec, header="", language="cpp", device=CPU, sol_ms=None, eager_ms=2.0)
    playbook = Playbook()

    async def first() -> tuple[Any, Any]:
        (idea,) = await playbook.ideas(task, None, Board(), 1, 0)
        async for draft in playbook.variants(task, idea, None, Board(), range(1), 0):
            return idea, draft
        raise AssertionError("the playbook writes no softmax")

    idea, draft = asyncio.run(first())
    devices = (CPU,)
    yield ev.EngineStarted(pid=os.getpid(), host="h", version="0", resumed=False, devices=devices, sandbox="none"), ""
    yield ev.ProblemAdded(problem=spec, language="cpp", header=""), ""
    yield ev.BaselineMeasured(problem=spec.id, baseline=Baseline("eager", Timing(2.0, 2.0, 2.0, 9))), ""
    yield ev.RoundStarted(problem=spec.id, round=0, parents=()), ""
    yield (
        ev.IdeaProposed(
            idea="i1",
            problem=spec.id,
            round=0,
            parent=None,
            category=idea.category,
            text=idea.text,
            proposer="playbook",
            data=idea.data,
        ),
        "",
    )
    yield (
        ev.VariantWritten(
            variant="v1",
            idea="i1",
            problem=spec.id,
            round=0,
            parent=None,
            language="cpp",
            source=hashlib.sha256(draft.source.encode()).hexdigest(),
            proposer="playbook",
            data=draft.data,
        ),
        draft.source,
    )
    yield (
        ev.VerdictGiven(variant="v1", verdict=Verdict(status="correct", speedup=1.5, kernel=Timing(1.0, 1.0, 1.0, 9))),
        "",
    )


@pytest.mark.parametrize(
    ("models", "may"),
    [
        ('[[models]]\nprovider = "playbook"\n', False),
        ('[[models]]\nprovider = "playbook"\n[[models]]\nprovider = "manual"\n', True),
        ("", True),
        ("[[models", True),
    ],
)
def test_prose_is_for_sessions_with_a_model_that_may_read_it(tmp_path: Path, models: str, may: bool) -> None:
    paths = create_session(tmp_path, "demo", models, "c.toml", 0)
    with SessionReader(paths) as reader:
        model = Model(SessionSource(paths), state=fold(reader.read()))
    assert may_read_prose(model) is may


@pytest.fixture(params=["playbook"])
def searching(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Create a search with the provider that the test names."""
    (spec,) = asyncio.run(inspect_files(resolve(["builtin:quickstart/softmax"], tmp_path)))
    assert isinstance(spec, ProblemSpec)
    paths = create_session(tmp_path, "demo", CONFIG.format(provider=request.param), "c.toml", 0)
    lock, writer = EngineLock(paths), EventWriter(paths)
    engine = Engine(paths, lock, writer)
    for event, source in events_of(spec):
        if source:
            writer.put_blob(source)
        engine.record(event)
    yield engine
    writer.close()
    lock.release()


async def test_a_transformation_that_does_not_apply_is_not_offered(open_monitor: Any, searching: Engine) -> None:
    async with open_monitor(searching.paths) as monitor:
        await monitor.press("B", "i")
        await monitor.until_shown("Seed an idea for softmax, starting from v1")
        await monitor.until_shown("Playbook transformations")
        listed = monitor.app.screen.query_one("#transformations").get_option_at_index(0).prompt.plain
        offered = listed.partition("  ")[0]
        shown = " ".join(monitor.text().split())
        assert "Tried, or not applicable: " in shown
        refused = shown.partition("not applicable: ")[2].partition(" │")[0]
        assert "vectorize" in refused, "a tuned first kernel already has vectors"
        assert offered not in refused.split(", ")
        await monitor.press("enter")
        await monitor.until(lambda: bool(searching.commands()), "it is seeded")
        (command,) = searching.commands()
        assert isinstance(command, SeedIdea) and command.catalogue is not None
        assert (transformation_label(command.catalogue), command.parent) == (offered, "v1")


async def test_a_kernel_that_is_not_judged_yet_has_no_transformations(open_monitor: Any, searching: Engine) -> None:
    written = ev.VariantWritten(
        variant="v2", idea="i1", problem="softmax", round=0, parent="v1", language="cpp", source="", proposer="hand"
    )
    searching.record(written)
    async with open_monitor(searching.paths) as monitor:
        monitor.app.monitor_screen.tree_view.select("v2")
        await monitor.press("i")
        await monitor.until_shown("v2 has no verdict yet.")


@pytest.mark.parametrize("searching", ["manual"], indirect=True)
async def test_without_a_playbook_no_transformation_is_offered(open_monitor: Any, searching: Engine) -> None:
    async with open_monitor(searching.paths) as monitor:
        await monitor.press("B", "i")
        await monitor.until_shown("In your own words, for manual")
        assert "playbook" not in monitor.text() and not monitor.app.screen.query("#transformations")


@pytest.mark.parametrize("searching", ["manual"], indirect=True)
async def test_the_proposer_says_whether_it_reads_prose(
    open_monitor: Any, searching: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Language, "reads_prose", False)
    async with open_monitor(searching.paths) as monitor:
        await monitor.press("B", "i")
        await monitor.until_shown("No model writes the kernel")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_dialog_has_room_for_moves_and_none_to_spare(
    open_monitor: Any, searching: Engine, size: tuple[int, int]
) -> None:
    async with open_monitor(searching.paths, size) as monitor:
        await monitor.press("B", "i")
        await monitor.until_shown("Playbook transformations")
        dialog = monitor.app.screen
        box = dialog.query_one(Vertical)
        listed, about, hint = (dialog.query_one(name) for name in ("#transformations", "#about", "#hint"))
        assert box.region.bottom <= size[1] and hint.region.bottom == box.content_region.bottom
        assert hint.size.height == 1 and about.size.height >= 1
        assert listed.size.height >= 3
        assert listed.size.height == listed.option_count or box.region.height >= size[1] - 3


async def test_a_recipe_of_another_version_leaves_the_answer_to_the_engine(
    open_monitor: Any, searching: Engine
) -> None:
    async with open_monitor(searching.paths) as monitor:
        monitor.app.model.state.variants["v1"].data["recipe"]["choices"] = {"a knob of another version": 1}
        await monitor.press("B", "i")
        await monitor.until_shown("Playbook transformations")


async def test_the_dialog_does_not_wait_for_its_transformations(open_monitor: Any, searching: Engine) -> None:
    async with open_monitor(searching.paths) as monitor:
        model, known = monitor.app.model, asyncio.Event()
        problem = model.state.problems["softmax"]

        async def look() -> Catalogue:
            await known.wait()
            return await catalogue_of(model, problem, "v1")

        monitor.app.push_screen(SeedIdeaScreen(problem, "v1", look))
        await monitor.until_shown("Looking for untried playbook transformations")
        await monitor.type("fuse")
        known.set()
        await monitor.until_shown("Playbook transformations")
        assert "Looking for untried" not in monitor.text()
        await monitor.type(" it")
        assert monitor.app.screen.query_one("#prose").value == "fuse it", "what was begun stays, and goes on"


async def test_typing_over_the_list_writes_the_idea(open_monitor: Any, searching: Engine) -> None:
    async with open_monitor(searching.paths) as monitor:
        await monitor.press("B", "i")
        await monitor.until_shown("Playbook transformations")
        await monitor.press("down")
        await monitor.type("a lookup table")
        assert monitor.app.screen.query_one("#prose").value == "a lookup table"


async def test_the_down_key_moves_from_the_text_field_to_the_list(open_monitor: Any, searching: Engine) -> None:
    async with open_monitor(searching.paths) as monitor:
        await monitor.press("B", "i")
        await monitor.until_shown("Playbook transformations")
        await monitor.type("with a lookup table")
        await monitor.until_shown("up/down: transformations")
        await monitor.press("down")
        await monitor.until_shown("up/down: choose")
        assert monitor.app.screen.query_one("#transformations").has_focus


def test_the_dialog_says_how_many_tried_transformations_do_not_fit() -> None:
    catalogue = Catalogue(spent=("vectorize", "tile", "share_rows", "unroll"))
    start = "None left to try. Tried, or not applicable: "
    assert spent_words(catalogue, 100) == f"{start}vectorize, tile, share rows, unroll"
    assert spent_words(catalogue, 70) == f"{start}vectorize, tile and 2 more"
    assert spent_words(catalogue, 50) == f"{start}4"
