"""Texts on the screen: the first seconds, the end, runoffs, key hints, wrapped lines."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from benchmarks.synthetic_session import CPU, GPU, Shape, write_session
from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.session.records import events as ev
from engine.session.records.verdict import Baseline, Standing, Timing, Verdict
from engine.session.state.comparable import comparable_speedup, figures_of
from engine.session.state.session_state import fold
from engine.session.store import EngineLock, EventWriter, SessionPaths, SessionReader, create_session
from tests.tui.conftest import NOW, Engine, monitor_of
from tui.compare.change import change_against_parent, change_words
from tui.monitor.app import MonitorApp
from tui.monitor.panes.key_bar import Where, hints_of, used_most
from tui.monitor.panes.leaders import leader_lines
from tui.monitor.panes.scoreboard import scoreboard
from tui.monitor.panes.status.second_line import bests_line, news_of
from tui.monitor.panes.status.status_line import status_line
from tui.monitor.replay import ReplayApp, ReplaySource
from tui.monitor.settings import Settings
from tui.monitor.snapshot import screen_text
from tui.monitor.terminal.farewell import parting_words
from tui.monitor.theme.palette import monochrome
from tui.text.runoff_text import why_no_star
from tui.view.activity import now_of, reopening_of
from tui.view.model import Link, Model
from tui.view.results import results_of
from tui.view.source import SessionSource, Update, limits_of


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Engine]:
    """Create a session whose engine has just started, without other events."""
    paths = create_session(tmp_path, "fresh", "# nothing\n", "fresh.toml", 1)
    lock, writer = EngineLock(paths), EventWriter(paths)
    yield Engine(paths, lock, writer)
    writer.close()
    lock.release()


def started(device: DeviceFact = CPU) -> ev.EngineStarted:
    return ev.EngineStarted(pid=os.getpid(), host="h", version="0", resumed=False, devices=(device,), sandbox="none")


def added(name: str) -> ev.ProblemAdded:
    spec = ProblemSpec(id=name, name=name, path=f"{name}.py", source="", tensors=())
    return ev.ProblemAdded(problem=spec, language="cpp", header="")


async def test_the_first_seconds_say_what_happens(fresh: Engine) -> None:
    async with monitor_of(fresh.paths) as monitor:
        await monitor.until_shown("The engine is starting")
        fresh.record(started())
        await monitor.until_shown("Inspecting the problems and measuring the device")
        assert "There is no kernel yet." in monitor.text()
        fresh.record(added("softmax"), ev.RoundStarted(problem="softmax", round=0, parents=()))
        await monitor.until_shown("Timing eager PyTorch on softmax")
        fresh.record(ev.BaselineMeasured(problem="softmax", baseline=Baseline("eager", Timing(2.0, 2.0, 2.0, 9))))
        await monitor.until(lambda: "Timing eager" not in monitor.text(), "that is done")


async def test_a_device_that_another_process_holds_is_named_with_it_and_stops_the_clock(fresh: Engine) -> None:
    async with monitor_of(fresh.paths) as monitor:
        fresh.record(started(), ev.DeviceAwaited(device=CPU.id, pid=4711, command="kernel-tui eval a.cpp"))
        await monitor.until_shown("Waiting for the device: in use by pid 4711 (kernel-tui eval a.cpp)")
        spent = monitor.app.model.search_seconds()
        await asyncio.sleep(0.2)
        assert monitor.app.model.search_seconds() == pytest.approx(spent, abs=0.01)
        fresh.record(ev.DeviceFree(device=CPU.id, seconds=1.0))
        await monitor.until(lambda: "Waiting for the device" not in monitor.text(), "it is told")


async def test_the_device_pane_names_a_host_with_another_compiler(fresh: Engine) -> None:
    versions = {"gpu1": "12.2.0", "gpu2": "12.2.0", "gpu3": "13.9.0"}
    hosts = tuple(
        structs.replace(CPU, id=f"{host}/cpu", host=host, software=(f"g++ {version}",))
        for host, version in versions.items()
    )
    async with monitor_of(fresh.paths) as monitor:
        fresh.record(structs.replace(started(), devices=hosts))
        await monitor.until_shown("g++ 13.9.0")
        (row,) = [row for row in monitor.text().splitlines() if "g++" in row]
        assert "gpu3" in row


async def test_an_idea_whose_kernels_were_all_tried_says_so_in_its_row(engine: Any) -> None:
    idea = ev.IdeaProposed(
        idea="i900", problem="softmax", round=2, parent="v30", category="memory", text="tiles", proposer="playbook"
    )
    engine.record(idea, ev.IdeaWaiting(idea="i900", reason="playbook has no kernel for it that had not been tried"))
    async with monitor_of(engine.paths) as monitor:
        assert monitor.app.monitor_screen.tree_view.select("i900")
        await monitor.until_shown("◇ i900  nothing left to try  tiles")
        await monitor.until_shown("no kernel: playbook has no kernel for it")


async def test_a_search_over_its_budget_says_what_it_still_does(engine: Any) -> None:
    async with monitor_of(engine.paths) as monitor:
        model = monitor.app.model
        spent = model.search_seconds() / 60
        engine.record(ev.BudgetChanged(minutes=spent - 0.1))
        await monitor.until_shown("Over budget by 6s: finishing the last verdicts")
        assert "finishing" in monitor.text().splitlines()[0] and "live" not in monitor.text().splitlines()[0]


async def test_the_second_line_is_always_there_so_that_nothing_moves(engine: Any) -> None:
    for size in ((120, 40), (80, 24)):
        async with monitor_of(engine.paths, size) as monitor:
            model = monitor.app.model
            before = monitor.text().splitlines()
            assert before[2].startswith(" 1 Tree")
            said = "Checking v57 of layernorm, building v59 of layernorm   Newest best: v48 of softmax, 1.13x, 38s ago"
            assert said in before[1] or "softmax" in before[1]
            model.trouble = "Something is wrong."
            monitor.app.monitor_screen.take([])
            after = monitor.text().splitlines()
            assert "Something is wrong." in after[1] and after[2:] == before[2:]


async def test_a_resumed_search_says_that_it_opens_its_problems_again(fresh: Engine) -> None:
    eager = Baseline("eager", Timing(2.0, 2.0, 2.0, 9))
    for name in ("softmax", "gelu"):
        opened = ev.BaselineMeasured(problem=name, baseline=eager)
        fresh.record(added(name), opened, ev.RoundStarted(problem=name, round=0, parents=()))
    idea = ev.IdeaProposed(
        idea="i1", problem="softmax", round=0, parent=None, category="memory", text="rows", proposer="playbook"
    )
    kernel = ev.VariantWritten(
        variant="v1",
        idea="i1",
        problem="softmax",
        round=0,
        parent=None,
        language="cpp",
        source="0",
        proposer="playbook",
    )
    fresh.record(started(), idea, kernel, ev.EngineStopped(reason="stopped", message=""), started())
    async with monitor_of(fresh.paths) as monitor:
        await monitor.until_shown("Reopening softmax: loading its reference …")
        fresh.record(ev.VariantStage(variant="v1", stage="building"))
        await monitor.until_shown("Building v1 of softmax")
        fresh.record(ev.VariantStage(variant="v1", stage="waiting"))
        await monitor.until_shown("Reopening gelu")
        fresh.record(ev.RoundStarted(problem="gelu", round=1, parents=()))
        await monitor.until(lambda: "again" not in monitor.text().splitlines()[1], "all are open")


@pytest.mark.parametrize("size", [(120, 40), (200, 60)])
async def test_a_session_that_is_loading_says_so_in_every_pane(engine: Any, size: tuple[int, int]) -> None:
    may_open = threading.Event()

    class SlowSource(SessionSource):
        def open(self) -> Update:
            may_open.wait()
            return super().open()

    app = MonitorApp(SlowSource(engine.paths, read_only=True), settings=Settings(notify="off"), ascii_only=False)
    try:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            shown = screen_text(app)
            assert shown.count("Opening the session …") >= 3
            for wrong in (
                "There is no kernel yet",
                "No problem is open",
                "no reading",
                "none yet",
                "no correct kernel yet",
            ):
                assert wrong not in shown
            screen, source = app.monitor_screen, SessionSource(engine.paths, read_only=True)
            app.model.take(source.open())
            app.model.take(Update(link=Link("ended")))
            screen.replace_state()
            screen.take([], told=True)
            assert [strip.text for strip in screen.detail.view.lines] == ["Opening the session …"], "no filter hides it"
            source.close()
    finally:
        may_open.set()


async def test_a_runoff_is_told_while_it_runs(fresh: Engine) -> None:
    fresh.record(started(), added("softmax"), ev.RoundStarted(problem="softmax", round=0, parents=()))
    fresh.record(ev.BaselineMeasured(problem="softmax", baseline=Baseline("eager", Timing(2.0, 2.0, 2.0, 9))))
    fresh.record(
        ev.IdeaProposed(idea="i1", problem="softmax", round=0, parent=None, category="memory", text="", proposer="p")
    )
    for number in (1, 2):
        name, ms = f"v{number}", 1.0 / number
        fresh.record(
            ev.VariantWritten(
                variant=name,
                idea="i1",
                problem="softmax",
                round=0,
                parent=None,
                language="cpp",
                source="0",
                proposer="p",
            ),
            ev.VerdictGiven(
                variant=name, verdict=Verdict(status="correct", speedup=2 / ms, kernel=Timing(ms, ms, ms, 9))
            ),
        )
    standings = (Standing("v2", 0.5, 1, 1, 1, False), Standing("v1", 1, 2, 2, 2, False))
    model_call = {"round": 0, "parent": None, "language": "cpp", "source": "0", "problem": "softmax"}
    async with monitor_of(fresh.paths) as monitor:
        await monitor.until_shown("Timing the leaders of softmax side by side")
        fresh.record(ev.VariantWritten(variant="v3", idea="i1", proposer=ev.BY_HAND, **model_call))
        fresh.record(ev.VariantStage(variant="v3", stage="waiting"))
        await monitor.until_shown("1 waiting")
        assert "Timing the leaders of softmax side by side" in monitor.text(), "a seeded kernel waits for its end"
        fresh.record(ev.VariantWritten(variant="v4", idea="i1", proposer="p", **model_call))
        await monitor.until_shown("1 waiting, 1 queued")
        assert "torch.compile on softmax" not in monitor.text(), "no event says whether it is the runoff"
        fresh.record(ev.RunoffFinished(problem="softmax", round=0, standings=standings))
        await monitor.until(lambda: "Timing the leaders" not in monitor.text(), "it is over")


async def test_torch_compile_is_said_to_be_timed_while_kernels_are_queued(fresh: Engine) -> None:
    eager = ev.BaselineMeasured(problem="softmax", baseline=Baseline("eager", Timing(2.0, 2.0, 2.0, 9)))
    fresh.record(started(), added("softmax"), eager, ev.RoundStarted(problem="softmax", round=0, parents=()))
    written = {"problem": "softmax", "round": 0, "parent": None, "proposer": "p"}
    fresh.record(
        ev.IdeaProposed(idea="i1", category="memory", text="", **written),
        *(ev.VariantWritten(variant=name, idea="i1", language="cpp", source="0", **written) for name in ("v1", "v2")),
        ev.VerdictGiven(variant="v1", verdict=Verdict(status="correct", speedup=2.0, kernel=Timing(1.0, 1.0, 1.0, 9))),
        ev.VariantStage(variant="v2", stage="queued"),
    )
    async with monitor_of(fresh.paths) as monitor:
        await monitor.until_shown("Timing torch.compile on softmax, 1 queued")
        fresh.record(ev.VariantStage(variant="v2", stage="building"))
        await monitor.until(lambda: "iming torch.compile" not in monitor.text(), "a kernel is built again")


async def test_a_kernel_that_waits_for_a_builder_or_the_device_is_not_said_to_run(engine: Any) -> None:
    async with monitor_of(engine.paths) as monitor:
        await monitor.until_shown("2 running 1 waiting 1 queued")
        verdicts = monitor.app.model.state.verdicts
        verdict = monitor.app.model.state.variants["v56"].verdict
        engine.record(ev.VariantStage(variant="v56", stage="timing"), ev.VerdictGiven(variant="v56", verdict=verdict))
        engine.record(ev.VariantStage(variant="v57", stage="waiting"))
        await monitor.until_shown("1 running 2 waiting 1 queued")
        assert monitor.app.model.state.verdicts == verdicts, "one that is judged again is no other verdict"


async def test_the_clock_stands_still_while_the_search_is_paused(engine: Any) -> None:
    async with monitor_of(engine.paths) as monitor:
        model = monitor.app.model
        before = model.search_seconds()
        model.state.apply(ev.Recorded(model.state.seq + 1, NOW - 30, ev.SearchPaused()))
        assert model.search_seconds() == pytest.approx(before - 30)
        assert "is paused; its engine is still running" in parting_words(model)


async def test_when_the_rounds_are_over_the_screen_says_what_is_measured(fresh: Engine) -> None:
    eager = ev.BaselineMeasured(problem="softmax", baseline=Baseline("eager", Timing(2.0, 2.0, 2.0, 9)))
    fresh.record(started(), added("softmax"), eager, ev.ProblemFinished(problem="softmax", reason="all rounds done"))
    async with monitor_of(fresh.paths) as monitor:
        await monitor.until_shown("Timing torch.compile on softmax")
        assert "no kernels in progress" not in monitor.text()
        assert " pending " in monitor.text()
        fresh.record(ev.BaselineMeasured(problem="softmax", baseline=Baseline("compile", Timing(1.0, 1.0, 1.0, 9))))
        await monitor.until(lambda: "iming torch.compile" not in monitor.text(), "that is done")


async def test_with_turns_the_screen_says_which_problem_runs_and_which_wait(fresh: Engine) -> None:
    eager = Baseline("eager", Timing(2.0, 2.0, 2.0, 9))
    fresh.record(started(), *(added(name) for name in ("first", "second", "third")))
    fresh.record(ev.TurnStarted(problem="first", minutes=1.0), ev.BaselineMeasured(problem="first", baseline=eager))
    fresh.record(ev.TurnEnded(problem="first", reason="no_gain"), ev.TurnStarted(problem="second", minutes=1.0))
    async with monitor_of(fresh.paths) as monitor:
        await monitor.until_shown("Timing eager PyTorch on second")
        assert "1/3 done" in monitor.text() and "> second" in monitor.text()
        for width in range(45, 70):
            rows = scoreboard(monitor.app.model, monochrome(), width, ascii_only=True)
            (third,) = (row.text.split() for row in rows if row.text.startswith("third"))
            assert third[-1] in ("-", "waits", "waiting"), "no cut word"
        assert "problem 2/3 0:00/1:00" in monitor.text() and "33% of problems" in monitor.text()
        fresh.record(ev.BaselineMeasured(problem="second", baseline=eager))
        await monitor.until(lambda: "Timing eager" not in monitor.text(), "third only waits for its turn")


def test_the_clock_of_a_turn_stands_still_until_a_new_engine_continues_it(session: SessionPaths) -> None:
    turn = ev.TurnStarted(problem="softmax", minutes=5.0)
    timed = [
        (0.0, started()),
        (0.0, added("softmax")),
        (0.0, turn),
        (60.0, ev.EngineStopped(reason="signal", message="")),
    ]
    timed += [(500.0, started())]
    state = fold(ev.Recorded(seq, NOW + at, event) for seq, (at, event) in enumerate(timed, 1))
    model = Model(SessionSource(session, read_only=True, clock=lambda: NOW + 520), state=state, opened=True)
    model.link = Link("live")
    palette = monochrome()
    assert "problem 1/1 1:00/5:00" in status_line(model, palette, 200, ascii_only=True).text
    assert reopening_of(state) is state.problems["softmax"]
    state.apply(ev.Recorded(state.seq + 1, NOW + 510, turn))
    assert "problem 1/1 1:10/5:00" in status_line(model, palette, 200, ascii_only=True).text
    assert reopening_of(state) is None, "the engine continues a turn after it has opened the problem"
    assert model.turn_seconds() == state.problem_seconds("softmax", NOW + 520)


def test_one_wording_for_why_there_is_no_time_of_torch_compile(session: SessionPaths) -> None:
    state = fold([ev.Recorded(1, NOW, added("softmax"))])
    (row,) = results_of(state, session.directory, 0.0, torch_compile=False).problems
    assert row.compile_note == "off"
    assert results_of(state, session.directory, 0.0, pending=True).problems[0].compile_note == "pending"
    assert results_of(state, session.directory, 0.0).problems[0].compile_note == "not measured"
    session.config.write_text("[evaluation]\ntorch_compile = false\n")
    assert not limits_of(session).torch_compile


def test_torch_compile_is_what_runs_while_every_kernel_waits_for_the_device(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        state = fold(reader.read())
    done = ev.RoundFinished(problem="softmax", round=2, selected=(), dropped=())
    state.apply(ev.Recorded(state.seq + 1, NOW, done))
    first, *others = state.in_flight()
    for one in others:
        state.apply(ev.Recorded(state.seq + 1, NOW, ev.VariantStage(variant=one.id, stage="waiting")))
    model = Model(SessionSource(session, read_only=True, clock=lambda: NOW + 5), state=state, opened=True)
    model.link = Link("live")
    assert "torch.compile" not in now_of(model), f"{first.id} is on the device"
    state.apply(ev.Recorded(state.seq + 1, NOW, ev.VariantStage(variant=first.id, stage="queued")))
    assert now_of(model).startswith("Timing torch.compile on layernorm, 3 waiting, 1 queued")
    screen_line = news_of(model)
    assert screen_line is not None and "torch.compile on layernorm" in screen_line, "also on a narrow screen"


async def test_a_runoff_that_moves_the_star_is_told_and_orders_the_leaders(engine: Any) -> None:
    async with monitor_of(engine.paths, (200, 60)) as monitor:
        state = monitor.app.model.state
        first, second, third = (leader.id for leader in state.leaders("softmax", 3))
        standings = (
            Standing(third, 3.0, 1.0, 1.0, 1.0, False),
            Standing(first, 3.0, 1.001, 0.99, 1.01, True),
            Standing(second, 3.0, 1.002, 0.99, 1.02, True),
        )
        engine.record(ev.RunoffFinished(problem="softmax", round=2, standings=standings))
        await monitor.until_shown(f"new best {third}, 0.1% faster than {first} side by side; verdict ")
        (line,) = (text for text in monitor.text().splitlines() if "side by side" in text)
        assert f"({first}'s verdict: {state.variants[first].speedup:.2f}x; the runoff decides)" in line
        board = [line[70:] for line in monitor.text().splitlines() if f"★ {third}" in line or " tied " in line]
        assert any("first" in text for text in board) and any(f"{second} " in text for text in board)
        assert [leader.id for leader in state.standing_order("softmax", 3)] == [third, first, second]
        assert any(f"★ {third}" in text and " first " in text for text in monitor.text().splitlines())
        assert (figures := figures_of(state, state.variants[first])) is not None
        assert figures.speedup == pytest.approx((state.variants[third].speedup or 0.0) / 1.001)
        row = next(text for text in monitor.text().splitlines() if f" {first} " in text and " tied " in text)
        assert f"{figures.speedup:.2f}x" in row and f"{figures.ms:.3f}" in row
        engine.record(ev.RoundFinished(problem="softmax", round=2, selected=(), dropped=()))
        leader = state.leader_of_round("softmax", 2)
        assert leader is not None
        await monitor.until_shown(f"round 2 done, its best {leader.id}, {leader.speedup:.2f}x")


async def test_the_monitor_says_why_the_first_of_a_runoff_is_not_the_best(engine: Any) -> None:
    async with monitor_of(engine.paths, (200, 60)) as monitor:
        state = monitor.app.model.state
        best, first = (leader.id for leader in state.leaders("softmax", 2))
        verdict = state.variants[first].verdict
        assert state.problems["softmax"].best == best and verdict is not None and verdict.speedup is not None
        wide = structs.replace(verdict, speedup_low=verdict.speedup * 0.6, speedup_high=verdict.speedup * 1.4)
        standings = (Standing(first, 3.0, 1.0, 1.0, 1.0, True), Standing(best, 3.1, 1.02, 0.99, 1.05, True))
        engine.record(
            ev.VerdictGiven(variant=first, verdict=wide),
            ev.RunoffFinished(problem="softmax", round=2, standings=standings),
        )
        rule = f"runoff of 2 kernels, fastest: {first}; best remains: {best} ({first}: tied, wide interval)"
        await monitor.until_shown(rule)
        assert state.problems["softmax"].best == best
        for name in (first, best):
            monitor.app.monitor_screen.tree_view.select(name)
            monitor.app.monitor_screen.detail.turn("Why")
            await monitor.until_shown(f"{first} was first in the runoff, but is tied with {best}")


async def test_leaders_and_why_speak_of_the_same_comparisons(engine: Any) -> None:
    async with monitor_of(engine.paths, (200, 60)) as monitor:
        state = monitor.app.model.state
        first, second = (leader.id for leader in state.leaders("softmax", 2))
        standings = (Standing(first, 3.0, 1.0, 1.0, 1.0, True), Standing(second, 3.4, 1.19, 0.9, 1.4, True))
        why = ev.Selected(second, f"tied with {first} in the runoff; only 1 is selected")
        engine.record(
            ev.RunoffFinished(problem="softmax", round=1, standings=standings),
            ev.RoundFinished(problem="softmax", round=1, selected=(), dropped=(why,)),
        )
        await monitor.until_shown("round 1 done")
        monitor.app.monitor_screen.tree_view.select(second)
        monitor.app.monitor_screen.detail.turn("Why")
        await monitor.until_shown(f"{second}  dropped after round 1")
        shown = monitor.text()
        assert why.why in shown and f"last runoff  tied with {first} in the runoff of round 1" in shown
        assert "own verdict" in shown and "6 Leaders  speedup over eager, tol. kernelbench" in shown
        assert any(f" {second} " in text and " tied " in text for text in shown.splitlines())


def test_kernels_stand_in_the_order_of_the_figures_that_the_runoff_made_comparable(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        state = fold(reader.read())
    one, two, three, _, five = (leader.id for leader in state.leaders("softmax", 5))
    # Suppose the slowest by its own verdict beats two others with slow references; the fourth did not run.
    standings = (
        Standing(five, 3, 1, 1, 1, False),
        Standing(one, 4, 1.1, 1, 1, False),
        Standing(two, 4, 1.2, 1, 1, False),
    )
    state.apply(ev.Recorded(state.seq + 1, NOW, ev.RunoffFinished(problem="softmax", round=2, standings=standings)))
    assert state.problems["softmax"].best == five
    order = [leader.id for leader in state.standing_order("softmax")]
    shown = [comparable_speedup(state, state.variants[name]) for name in order[1:]]
    words = [why_no_star(state, state.variants[name]) for name in (one, two, three, five)]
    assert words == ["", "", f"no runoff with {five}", ""], "the runoff's figures need no remark"
    assert why_no_star(state, state.leaders("softmax")[-1]) == "", "it has less of everything"
    assert order[0] == five and order.index(three) < order.index(one) < order.index(two)
    assert shown == sorted(shown, reverse=True), "all other kernels stand in the order of the figures beside them"


def test_the_change_against_the_parent_agrees_with_the_runoff(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        state = fold(reader.read())
    child = next(one for one in state.leaders("softmax") if one.parent is not None)
    parent = state.variants[child.parent or ""]
    own = (child.speedup or 0.0) / (parent.speedup or 0.0) - 1
    change = change_against_parent(state, child)
    assert change is not None and change.value == pytest.approx(own) and "r" not in change_words(change)
    standings = (Standing(child.id, 3, 1.0, 1.0, 1.0, False), Standing(parent.id, 3.3, 1.1, 1.1, 1.1, False))
    state.apply(ev.Recorded(state.seq + 1, NOW, ev.RunoffFinished(problem="softmax", round=2, standings=standings)))
    change = change_against_parent(state, child)
    assert change is not None and change.value == pytest.approx(0.1) != own and change_words(change) == "r+10%"
    # A later runoff without them does not bring the verdicts' change back.
    others = tuple(Standing(one.id, 3, 1.0, 1.0, 1.0, False) for one in state.leaders("softmax")[-2:])
    for event in (
        ev.RoundStarted(problem="softmax", round=3, parents=()),
        ev.RunoffFinished(problem="softmax", round=3, standings=others),
    ):
        state.apply(ev.Recorded(state.seq + 1, NOW, event))
    assert change_against_parent(state, child) == change


def test_words_of_leaders_have_the_lines_that_are_left(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        model = Model(SessionSource(session, read_only=True), state=fold(reader.read()))
    leaders = model.state.leaders("softmax")
    words = "lanes 16, schedule guided, chunk 4096, prefetch 512, unroll 4, accumulators 2"
    for leader in leaders:
        leader.note = words
    softmax, palette = model.state.problems["softmax"], monochrome()

    def shown(room: int, width: int = 58) -> list[str]:
        lines = leader_lines(model, softmax, palette, ascii_only=False, width=width, room=room)
        return [strip.text.rstrip() for strip in lines]

    assert len(shown(5)) == 6 and shown(5)[1].endswith(words), (
        "cut at the edge of the pane, where there is one line each"
    )
    assert len(shown(8)) == 1 + 5 + 2, "the first has the two lines that it needs"
    assert " ".join(" ".join(shown(8)[2:4]).split()) == words
    assert sum(words in text for text in shown(5, width=200)) == 5


def test_the_best_kernel_is_among_the_leaders_also_behind_many_uncertain_kernels(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        model = Model(SessionSource(session, read_only=True), state=fold(reader.read()))
    state, softmax = model.state, model.state.problems["softmax"]
    leaders = state.leaders("softmax")[:6]
    for one in leaders[:-1]:
        assert one.verdict is not None and one.speedup is not None
        uncertain = structs.replace(one.verdict, speedup_low=one.speedup / 2, speedup_high=one.speedup * 2)
        state.apply(ev.Recorded(state.seq + 1, NOW, ev.VerdictGiven(variant=one.id, verdict=uncertain)))
    standings = tuple(Standing(one.id, 3, 1.0, 0.9, 1.1, True) for one in leaders)
    state.apply(ev.Recorded(state.seq + 1, NOW, ev.RunoffFinished(problem="softmax", round=2, standings=standings)))
    assert softmax.best == leaders[-1].id
    lines = leader_lines(model, softmax, monochrome(), ascii_only=False, width=58, room=3)
    (star,) = [strip.text for strip in lines if "★" in strip.text]
    assert star.split()[:3] == ["6", "★", leaders[-1].id] and len(lines) == 1 + 3


@pytest.mark.parametrize("size", [(80, 24), (50, 24), (120, 40)])
async def test_the_title_of_the_leaders_shows_the_glyph_and_name_of_the_kernel(
    engine: Any, size: tuple[int, int]
) -> None:
    async with monitor_of(engine.paths, size) as monitor:
        best = monitor.app.model.state.problems["softmax"].best
        await monitor.press("enter")
        monitor.app.monitor_screen.detail.turn("Leaders")
        await monitor.until_shown(f"★ {best}")
        await monitor.until(lambda: any("Kernel" in one and f"★ {best}" in one for one in monitor.text().splitlines()))


async def test_enter_shows_the_source_whatever_the_tab_was(engine: Any) -> None:
    async with monitor_of(engine.paths) as monitor:
        await monitor.press("B", "right_square_bracket", "right_square_bracket")
        assert monitor.app.monitor_screen.detail.tab == "Evidence"
        await monitor.press("enter")
        assert monitor.app.monitor_screen.detail.tab == "Kernel"
        keys = monitor.text().splitlines()[-1]
        assert "[ ] tabs" in keys and "D diff" in keys and "esc back" in keys, "hints for the pane with the focus"


@pytest.mark.parametrize("status", ["build_error", "crashed", "wrong", "cheating"])
async def test_enter_on_a_kernel_that_failed_shows_why(engine: Any, status: str) -> None:
    with SessionReader(engine.paths) as reader:
        flying = next(iter(fold(reader.read()).in_flight()))
    verdict = Verdict(
        status=status,
        reason='use of undeclared identifier "tile"',
        device="NVIDIA H200",
        sandbox="" if status == "build_error" else "landlock",
    )
    engine.record(ev.VerdictGiven(variant=flying.id, verdict=verdict))
    async with monitor_of(engine.paths) as monitor:
        monitor.app.monitor_screen.tree_view.select(flying.id)
        await monitor.press("enter")
        assert monitor.app.monitor_screen.detail.tab == "Evidence"
        shown = monitor.text()
        assert 'use of undeclared identifier "tile"' in shown
        assert ("on NVIDIA H200  not run" if status == "build_error" else "sandbox: landlock") in shown


async def test_hints_follow_the_filter(engine: Any) -> None:
    async with monitor_of(engine.paths) as monitor:
        await monitor.press("slash")
        await monitor.until_shown("!word not")
        await monitor.type("softmax")
        await monitor.press("enter")
        keys = monitor.text().splitlines()[-1]
        assert "n next" in keys and "N previous" in keys and "esc back" in keys
        await monitor.press("escape")
        assert "i seed idea" in monitor.text().splitlines()[-1]
        await monitor.press("slash")
        await monitor.type("zzz")
        await monitor.until_shown("nothing matches the filter")


async def test_long_lines_of_evidence_and_reasons_wrap(engine: Any) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    verdict = Verdict(status="correct", speedup=9.0, kernel=Timing(0.4, 0.4, 0.4, 9), flags=(words, "日本" * 60))
    engine.record(ev.VerdictGiven(variant="v57", verdict=verdict))
    async with monitor_of(engine.paths, (80, 24)) as monitor:
        await monitor.until(lambda: monitor.app.model.state.variants["v57"].correct, "the verdict")
        screen = monitor.app.monitor_screen
        screen.tree_view.select("v57")
        await monitor.press("enter", "right_square_bracket", "right_square_bracket")
        lines = screen.detail.view.lines
        assert max(line.cell_length for line in lines) <= 80
        whole = " ".join(line.text.strip() for line in lines)
        assert words.split()[0] in whole and words.split()[-1] in whole


async def test_the_log_breaks_long_lines_where_it_has_room(engine: Any) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    engine.record(ev.LogLine(level="info", text=words))
    async with monitor_of(engine.paths) as monitor:
        await monitor.until_shown("word3 ")
        assert "word59" not in monitor.text()
        await monitor.press("5", *["l"] * 9)
        await monitor.until(lambda: monitor.app.monitor_screen.log_view.scroll_offset.x > 0, "it scrolls sideways")
        await monitor.press("plus")
        await monitor.until_shown("word59")
        assert " ".join(monitor.text().split()).count("word") == 60, "all of it, once"
        await monitor.press("plus")
        await monitor.until(lambda: "word59" not in monitor.text(), "as before")


async def test_messages_take_the_line_of_the_keys_and_nothing_else(engine: Any) -> None:
    async with monitor_of(engine.paths, (80, 24)) as monitor:
        before = monitor.text().splitlines()
        monitor.app.say("short")
        await monitor.until_shown("short")
        after = monitor.text().splitlines()
        assert after[-1].split() == ["short", "?", "help"] and after[3:-1] == before[3:-1]


async def test_a_long_message_leaves_a_short_terminal_its_tree(engine: Any) -> None:
    for size, most in (((80, 24), 2), ((80, 40), 4)):
        async with monitor_of(engine.paths, size) as monitor:
            monitor.app.say("word " * 80)
            await monitor.until_shown("word …")
            assert len([text for text in monitor.text().splitlines() if text.startswith(" word")]) == most


async def test_a_round_counts_what_was_judged(engine: Any) -> None:
    async with monitor_of(engine.paths, (200, 60)) as monitor:
        state = monitor.app.model.state
        (problem,) = {one.problem for one in state.in_flight()}
        variants = [state.variants[name] for name in state.problems[problem].rounds[-1].variants]
        judged = [one for one in variants if one.was_judged and one.stage is None]
        waiting = [one for one in variants if one.stage is not None]
        assert judged and waiting
        correct = sum(one.correct for one in judged)
        await monitor.until_shown(f"{correct}/{len(judged)} correct · {len(waiting)} to go")
        engine.record(
            ev.RoundStarted(problem=problem, round=3, parents=()),
            ev.IdeaProposed(
                idea="i90", problem=problem, round=3, parent=None, category="other", text="t", proposer="m"
            ),
            ev.VariantWritten(
                variant="v90", idea="i90", problem=problem, round=3, parent=None, language="cu", source="", proposer="m"
            ),
        )
        await monitor.until_shown("round 3  1 to go")


async def test_a_later_runoff_scales_a_rounds_figure_and_a_second_verdict_is_in_the_log(engine: Any) -> None:
    async with monitor_of(engine.paths, (200, 60)) as monitor:
        state = monitor.app.model.state
        best = state.problems["softmax"].best
        early = state.leader_of_round("softmax", 0)
        assert best is not None and early is not None and early.id != best and early.speedup is not None
        standings = (
            Standing(best, 1.0, 1.0, 1.0, 1.0, False),
            Standing(early.id, 4.0, 4.0, 3.9, 4.1, False),
        )
        engine.record(
            ev.RunoffFinished(problem="softmax", round=2, standings=standings),
            ev.RoundFinished(problem="softmax", round=2, selected=(), dropped=()),
        )
        await monitor.until_shown("round 2 done")
        assert "best of round 0 is now" not in monitor.text()
        row = next(line for line in monitor.text().splitlines() if "round 0" in line)
        shown = f"{(state.variants[best].speedup or 0.0) / 4:.2f}x"
        assert f" {shown} " in row
        verdict = Verdict(status="correct", speedup=0.01, kernel=Timing(9.0, 9.0, 9.0, 9))
        engine.record(ev.VerdictGiven(variant=early.id, verdict=verdict))
        await monitor.until_shown(f"at {shown} (was {early.id} at {early.speedup:.2f}x), after a verdict on {early.id}")


async def test_a_line_of_the_log_that_is_cut_says_so(engine: Any) -> None:
    engine.record(ev.LogLine(level="info", text="word " * 40))
    async with monitor_of(engine.paths, (80, 24)) as monitor:
        await monitor.until(lambda: "word word" in monitor.text(), "the line")
        assert next(text for text in monitor.text().splitlines() if "word word" in text).endswith("…")


async def test_ascii_mode_draws_nothing_but_ascii(engine: Any) -> None:
    async with monitor_of(engine.paths, (80, 24), ascii_only=True) as monitor:
        assert monitor.text().isascii() and "~" in monitor.text()
        await monitor.press("M")
        await monitor.until_shown("Rounds per problem")
        assert monitor.text().isascii()


async def test_many_problems_on_a_narrow_screen_have_whole_figures(tmp_path: Path) -> None:
    paths = write_session(tmp_path, "many", Shape(variants=40, problems=8, rounds=1, flying=0, device=GPU), end=NOW)
    async with monitor_of(paths, (80, 24)) as monitor:
        model = monitor.app.model
        shown = bests_line(model, monitor.app.monitor_screen.tree_view.palette, 80).text
        left = int(shown.rpartition("+")[2])
        assert 0 < left < 8 and len(re.findall(r"\dx ", shown)) == 8 - left, shown
        names = shown.split()[:-1:2]
        assert len(names) == len(set(names)) == 8 - left, shown


async def test_the_clock_is_there_at_80_columns(engine: Any) -> None:
    engine.record(ev.BudgetChanged(minutes=60.0))
    async with monitor_of(engine.paths, (80, 24)) as monitor:
        await monitor.until_shown("/1:00:00")


def test_the_key_bar_hints_only_at_keys_that_work_on_the_row() -> None:
    shown = {kind: {action.name for action in used_most(Where(row=kind))} for kind in ("problem", "round", "variant")}
    assert {"prune", "pin"} <= shown["variant"]
    assert "prune" in shown["problem"] and "pin" not in shown["problem"]
    assert not {"prune", "pin"} & shown["round"]
    assert not {"prune", "seed_idea"} & {action.name for action in used_most(Where(row=None))}


def test_a_pane_that_covers_the_others_says_first_how_to_get_back() -> None:
    for focus in ("pane", "text", "detail", "problems"):
        hints, _ = hints_of(Where(focus=focus, zoomed=True))
        assert (hints[0].key, hints[0].label) == ("esc", "back to the tree"), focus
    assert hints_of(Where(focus="text", zoomed=True, searched=True))[0][0].key == "n", "esc first ends the text search"


async def test_help_begins_with_what_is_used_most_and_fits(engine: Any) -> None:
    async with monitor_of(engine.paths, (80, 24)) as monitor:
        await monitor.press("question_mark")
        await monitor.until_shown("Most used keys")
        view = monitor.app.screen.query_one("#help")
        assert max(line.cell_length for line in view.lines) <= view.scrollable_content_region.width
        texts = [line.text for line in view.lines]
        assert texts.index("Most used keys") < texts.index("Glyphs") < texts.index("Moving in this pane")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_help_says_how_to_leave_it_and_that_there_is_more(engine: Any, size: tuple[int, int]) -> None:
    async with monitor_of(engine.paths, size) as monitor:
        await monitor.press("question_mark")
        await monitor.until(lambda: monitor.text().splitlines()[-1].strip() == "esc close  ↓ more", "the last line")
        await monitor.press("j")
        await monitor.until(lambda: monitor.text().splitlines()[-1].strip() == "esc close  ↓ more  ↑ back", "both")
        await monitor.press("G")
        await monitor.until(lambda: monitor.text().splitlines()[-1].strip() == "esc close  ↑ back", "the end")


async def test_a_replay_shows_its_own_keys_and_none_that_steer(session: SessionPaths) -> None:
    app = ReplayApp(ReplaySource(session, 20.0), settings=Settings(notify="off"), ascii_only=False)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(0.5)
        from tui.monitor.snapshot import screen_text

        keys = screen_text(app).splitlines()[-1]
        assert keys.startswith(" space pause/play  , back  . forward  < slower  > faster  0 restart")
        assert "seed" not in keys and "prune" not in keys and "q detach" in keys
        assert " at 20x" in screen_text(app).splitlines()[0]
        await pilot.press("question_mark")
        await pilot.pause(0.3)
        shown = screen_text(app)
        assert "Pause or play the replay" in shown and "Prune" not in shown
        await pilot.press("escape", "slash", "less_than_sign", "2")
        await pilot.pause(0.3)
        assert app.monitor_screen.tree_rows.view.filter == "<2", "a filter is typed, not a speed"
        assert app.clock.speed == 20.0


def test_a_change_compares_two_verdicts_or_two_scaled_figures(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        state = fold(reader.read())
    child = next(one for one in state.leaders("softmax") if one.parent is not None)
    parent = state.variants[child.parent or ""]
    winner = next(one for one in state.leaders("softmax") if one.id not in (child.id, parent.id))
    own = (child.speedup or 0.0) / (parent.speedup or 0.0) - 1

    def runoff(number: int, *timed: tuple[str, float]) -> None:
        standings = tuple(Standing(name, 3, ratio, ratio, ratio, False) for name, ratio in timed)
        for event in (
            ev.RoundStarted(problem="softmax", round=number, parents=()),
            ev.RunoffFinished(problem="softmax", round=number, standings=standings),
        ):
            state.apply(ev.Recorded(state.seq + 1, NOW, event))

    runoff(3, (winner.id, 1.0), (parent.id, 1.7))
    figures = figures_of(state, parent)
    assert figures is not None and figures.scaled == winner.id and figures.speedup != parent.speedup
    change = change_against_parent(state, child)
    assert change is not None and change.value == pytest.approx(own), "only the parent was in the runoff"
    runoff(4, (winner.id, 1.0), (child.id, 1.36))
    change = change_against_parent(state, child)
    assert change is not None and change.value == pytest.approx(0.25), "both were compared with the same kernel"
