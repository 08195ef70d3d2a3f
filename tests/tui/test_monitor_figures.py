"""Figures on the screen mean what their label says, also after a benchmark or a crash."""

from __future__ import annotations

import io
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from engine.problem.spec import ProblemSpec
from engine.session.records import events as ev
from engine.session.records.skipped_compile import skipped_compile
from engine.session.records.speedup_text import sol_percent
from engine.session.records.verdict import Standing, Timing, Verdict
from engine.session.state.session_state import SessionState, fold
from engine.session.store import EngineLock, EventWriter, SessionPaths, SessionReader, create_session, summarize
from engine.session.store.reader import STARTING
from engine.system import clock
from tests.commandline import KernelTui
from tests.patience import PATIENCE_S
from tests.tui.conftest import NOW, monitor_of
from tui.cli.saved.session_results import session_results
from tui.console.tables import print_results
from tui.headless.follow import _watch
from tui.headless.progress import LiveTable
from tui.monitor.notifications import News
from tui.monitor.panes.devices import device_lines
from tui.monitor.panes.status.second_line import news_of, notice_of
from tui.monitor.panes.status.status_line import status_line
from tui.monitor.screens.picker import entry
from tui.monitor.theme.palette import monochrome
from tui.text.certainty import comparable_words
from tui.text.glyphs import stage_words
from tui.text.narration import Reported, line_of
from tui.text.runoff_text import why_new_best
from tui.text.story import Story, fold_with_story
from tui.view.activity import activity_of, now_of
from tui.view.model import Link, Model
from tui.view.next_steps import words_to_time_compile
from tui.view.over_time.progress import shares_done
from tui.view.results import results_of
from tui.view.session_figures import read_figures
from tui.view.source import Limits, SessionSource, Update


def lines_with(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if word in line]


def test_a_new_best_with_a_smaller_speedup_says_why(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        state = fold(reader.read())
    story, problem = Story(), state.problems["softmax"]

    def told(event: ev.AnyEvent) -> str:
        recorded = ev.Recorded(state.seq + 1, NOW, event)
        state.apply(recorded)
        story.note(state, recorded)
        return next(line.text for line in reversed(story.lines) if "best" in line.text)

    before, other = state.variants[problem.best or ""], state.leaders("softmax")[-1]
    uncertain = Verdict(status="correct", speedup=9.0, speedup_low=4.0, speedup_high=12.0, kernel=Timing(1, 1, 1, 9))
    told(ev.VerdictGiven(variant=before.id, verdict=uncertain))
    assert problem.best == before.id
    sure = Verdict(status="correct", speedup=8.0, speedup_low=7.9, speedup_high=8.1, kernel=Timing(0.5, 0.5, 0.5, 9))
    assert told(ev.VerdictGiven(variant=other.id, verdict=sure)).endswith(
        f"{before.id}'s speedup ~9.00x [4.00, 12.00] is uncertain, so it ranks as 4.00x"
    )
    standings = (Standing(before.id, 1.0, 1.0, 1.0, 1.0, False), Standing(other.id, 1.5, 1.5, 1.4, 1.6, False))
    won = told(ev.RunoffFinished(problem="softmax", round=2, standings=standings))
    assert f"new best {before.id}, 50% faster than {other.id} side by side; verdict ~9.00x" in won


def test_a_runoff_that_changes_the_best_kernel_is_one_line_also_if_another_kernel_was_first(
    session: SessionPaths,
) -> None:
    with SessionReader(session) as reader:
        state, story = fold_with_story(reader.read())
    before, other, first = state.leaders("softmax", 3)
    assert first.verdict is not None and first.verdict.speedup is not None
    low, high = 0.6 * first.verdict.speedup, 1.4 * first.verdict.speedup
    wide = replace(first.verdict, speedup_low=low, speedup_high=high)
    standings = (
        Standing(first.id, 1.0, 1.0, 1.0, 1.0, True),
        Standing(other.id, 1.02, 1.02, 0.99, 1.05, True),
        Standing(before.id, 1.1016, 1.1016, 1.09, 1.12, False),
    )
    told = []
    for event in (
        ev.VerdictGiven(variant=first.id, verdict=wide),
        ev.RunoffFinished(problem="softmax", round=2, standings=standings),
    ):
        told = [*story.lines]
        state.apply(recorded := ev.Recorded(state.seq + 1, NOW, event))
        story.note(state, recorded)
    assert state.problems["softmax"].best == other.id
    (line,) = [one for one in list(story.lines)[len(told) :] if other.id in one.text and "was" not in one.text]
    assert f"new best {other.id}, 8.0% faster than {before.id} side by side; verdict " in line.text
    assert f"({before.id}'s verdict: " in line.text and line.text.endswith(
        f"; fastest: {first.id} (tied, wide interval)"
    )


@pytest.mark.parametrize(
    ("ratio", "why"),
    [
        (1.0004, "as fast as v2"),
        (1.0006, "0.1% faster than v2"),
        (0.9996, "as fast as v2"),
        (0.99, "1.0% slower than v2"),
    ],
)
def test_a_new_best_without_a_measurable_lead_is_as_fast_as_the_former(
    session: SessionPaths, ratio: float, why: str
) -> None:
    with SessionReader(session) as reader:
        state = fold(reader.read())
    problem = state.problems["softmax"]
    best, former = (leader.id for leader in state.leaders("softmax", 2))
    standings = (Standing(best, 1.0, 1.0, 1.0, 1.0, True), Standing(former, ratio, ratio, 0.99, 1.01, True))
    runoff = ev.RunoffFinished(problem="softmax", round=2, standings=standings)
    state.apply(ev.Recorded(state.seq + 1, NOW, runoff))
    assert why_new_best(state, problem, former).startswith(why.replace("v2", former))


def test_the_log_and_the_alerts_announce_a_new_best_only_if_it_has_a_measurable_lead(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        state, story = fold_with_story(reader.read())
    model = Model(SessionSource(session), state=state)
    news, best = News(model), dict[str, Reported]()
    first, second = (leader.id for leader in state.leaders("softmax", 2))
    news.catch_up()

    def record(event: ev.AnyEvent) -> tuple[str, str, list[str]]:
        state.apply(recorded := ev.Recorded(state.seq + 1, state.time + 1.0, event))
        story.note(state, recorded)
        return story.lines[-1].text, line_of(event, state, best) or "", news.look()

    def told(ahead: str, behind: str, *, tied: bool) -> tuple[str, str, list[str]]:
        standings = (Standing(ahead, 1.0, 1.0, 1.0, 1.0, True), Standing(behind, 1.02, 1.02, 0.99, 1.05, tied))
        return record(ev.RunoffFinished(problem="softmax", round=2, standings=standings))

    told(first, second, tied=True)
    for ahead, behind in ((second, first), (first, second), (second, first)):
        log, line, alerts = told(ahead, behind, tied=True)
        tie = f"{ahead} is now the best, tied with {behind}"
        assert tie in log and tie in line and "2.0% faster" in log and not alerts
        assert state.problems["softmax"].best == ahead
    status = now_of(model)
    assert f"of softmax, tied with {first}, " in status and " ago" not in status, "the tied kernel has no lead to date"
    log, line, (alert,) = told(second, first, tied=False)
    assert f"new best {second}, 2.0% faster than {first} side by side" in log
    assert line.startswith(f"softmax: runoff of 2 kernels, fastest: {second}; new best: {second}")
    assert alert.startswith(f"softmax: new best {second}, ")
    assert "tied" not in (status := now_of(model)) and status.endswith(" ago")
    assert status.startswith(now_of(model, with_age=False)) and not now_of(model, with_age=False).endswith(" ago")
    for event in (ev.NodePruned(node=second), ev.NodeRestored(node=second)):
        _, _, alerts = record(event)
        assert not alerts, "the user has caused this change"


async def test_the_log_says_that_a_repeated_verdict_replaced_the_earlier_one(engine: Any) -> None:
    def verdict(speedup: float) -> Verdict:
        return Verdict(status="correct", speedup=speedup, kernel=Timing(1 / speedup, 1 / speedup, 1 / speedup, 9))

    async with monitor_of(engine.paths, (200, 60)) as monitor:
        state, story = monitor.app.model.state, monitor.app.model.story
        best, other = (leader.id for leader in state.leaders("softmax", 2))
        engine.record(ev.VerdictGiven(variant=best, verdict=verdict(9.0)))
        engine.record(ev.VerdictGiven(variant=best, verdict=verdict(8.0)))
        await monitor.until_shown(f"softmax: {best} judged again: 8.00x, was 9.00x")
        engine.record(ev.VerdictGiven(variant=other, verdict=verdict(8.5)))
        await monitor.until_shown(f"{best} was judged again: 8.00x, was 9.00x")
        assert state.problems["softmax"].best == other
        told = [line.text for line in story.lines]
        assert any(text.startswith(f"softmax: the best is now {other}: 8.50x") for text in told)
        assert not any(f"new best {other}, 8.50x" in text for text in told), "9.00x was reached before"
        engine.record(ev.VerdictGiven(variant=best, verdict=verdict(9.5)))
        await monitor.until_shown(f"new best {best}, 9.50x")


def test_the_log_names_a_prune_before_its_consequences(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        state, story = fold_with_story(reader.read())
    best = state.problems["softmax"].best or ""
    for node, event, message in (
        (best, ev.NodePruned(node=best), f"pruned {best}"),
        (best, ev.NodeRestored(node=best), f"restored {best}"),
    ):
        before = len(story.lines)
        for one in (event, ev.CommandHandled(command=1, ok=True, message=message, node=node)):
            recorded = ev.Recorded(state.seq + 1, NOW, one)
            state.apply(recorded)
            story.note(state, recorded)
        told = [line.text for line in list(story.lines)[before:]]
        assert told[0] == f"request: {message}" and told[1].startswith("softmax: the best is now "), told


def test_the_log_gives_a_seeded_kernel_the_speedup_of_its_machine_code(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        state = fold(reader.read())
    story, best = Story(), state.variants[state.problems["softmax"].best or ""]
    verdict = Verdict(status="correct", reason=f"same machine code as {best.id}", same_code_as=best.id)
    for event in (
        ev.IdeaProposed(
            idea="i900", problem="softmax", round=2, parent=None, category="other", text="mine", proposer=ev.BY_HAND
        ),
        ev.VariantWritten(
            variant="v900", idea="i900", problem="softmax", round=2, parent=None, language="cu", source="0",
            proposer=ev.BY_HAND,
        ),
        ev.VerdictGiven(variant="v900", verdict=verdict),
    ):  # fmt: skip
        recorded = ev.Recorded(state.seq + 1, NOW, event)
        state.apply(recorded)
        story.note(state, recorded)
    told = f"softmax: seeded v900: correct, same machine code as {best.id} ({comparable_words(state, best)})"
    assert told in [line.text for line in story.lines] and "-" not in told


async def test_after_a_benchmark_leftover_kernels_are_not_judged(engine: Any) -> None:
    async with monitor_of(engine.paths, (120, 60)) as monitor:
        left = monitor.app.model.state.in_flight()[0]
        engine.record(ev.EngineStopped(reason="finished", message="the search is complete"))
        engine.writer.close()
        engine.lock.release()
        await monitor.until_shown("finished")
        assert monitor.app.monitor_screen.tree_view.select(left.id)
        await monitor.until_shown(f"{left.id}  not judged")
        monitor.app.monitor_screen.detail.turn("Evidence")
        await monitor.until_shown(f"{left.id} has no verdict: not judged")
        assert "unfinished" not in monitor.text() and "to go" not in monitor.text()


@pytest.mark.parametrize(
    ("reason", "why"), [("budget", "budget used up"), ("stopped", "search stopped"), ("signal", "search stopped")]
)
async def test_after_a_stop_queued_kernels_are_not_judged_and_a_resume_continues(
    engine: Any, kernel_tui: KernelTui, reason: ev.StopReason, why: str
) -> None:
    async with monitor_of(engine.paths, (140, 60)) as monitor:
        flight = monitor.app.model.state.in_flight()
        left = flight[-1].id
        engine.record(*(ev.VariantStage(variant=one.id, stage="queued") for one in flight if one.stage != "queued"))
        engine.record(ev.EngineStopped(reason=reason, message="the search ended"))
        engine.writer.close()
        engine.lock.release()
        await monitor.until_shown(f"A resume continues with the {len(flight)} kernels not judged.")
        assert monitor.app.monitor_screen.tree_view.select(left)
        await monitor.until_shown(f"{left}  not judged  ")
        assert re.search(rf"{left}  not judged  [^ (]", monitor.text()), "its note comes before the reason"
        shown = monitor.text()
        assert "queued" not in shown and "to go" not in shown
        header, problem = shown.splitlines()[0], next(line for line in shown.splitlines() if "layernorm  round" in line)
        assert f"{len(flight)} not judged" in header and f"{len(flight)} not judged" in problem
        assert f"correct · {len(flight)} not judged" in shown
        monitor.app.monitor_screen.detail.turn("Evidence")
        await monitor.until_shown(f"{left} has no verdict: not judged until a resume: {why}")
    printed = kernel_tui("show", str(engine.paths.directory)).stdout
    assert f"{len(flight)} kernels not judged" in printed.splitlines()[0]
    (titles,) = [line for line in printed.splitlines() if "not judged" in line and "selected" in line]
    ends = titles.index("not judged") + len("not judged")
    (row,) = lines_with(printed, "unfinished")[-1:]
    assert row[:ends].endswith(f" {len(flight)}")
    assert "not judged" in kernel_tui("show", str(engine.paths.directory), left).stdout


def test_clocks_stop_at_the_last_sign_of_life(session: SessionPaths) -> None:
    now = NOW
    with SessionReader(session) as reader:
        model = Model(SessionSource(session, read_only=True, clock=lambda: now), state=fold(reader.read()), opened=True)
    model.link = Link("live")
    now = NOW + 1000
    assert model.clock() == NOW + 1000
    model.link = Link("ended", heard_at=NOW + 7)
    assert model.clock() == NOW + 7
    seconds = model.search_seconds()
    now = NOW + 2000
    assert model.clock() == NOW + 7 and model.search_seconds() == seconds


def test_in_the_reserved_time_the_status_says_what_is_measured(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        state = fold(reader.read())
    model = Model(
        SessionSource(session, read_only=True, clock=lambda: NOW), state=state, link=Link("live"), opened=True
    )
    text = f"{ev.RESERVED}timing torch.compile on softmax"
    state.apply(ev.Recorded(state.seq + 1, NOW, ev.LogLine(level="info", text=text)))
    words = "The time left is reserved for final measurements: timing torch.compile on softmax"
    seconds = model.search_seconds()
    for minutes, is_reserved in ((2 * seconds / 60, False), (1.1 * seconds / 60, True)):
        state.apply(ev.Recorded(state.seq + 1, NOW, ev.BudgetChanged(minutes=minutes)))
        assert str(news_of(model)).startswith(words) == now_of(model).startswith(words) == is_reserved


def test_the_status_names_each_step_of_a_resumed_engine(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        state = fold(reader.read())
    model = Model(
        SessionSource(session, read_only=True, clock=lambda: NOW), state=state, link=Link("live"), opened=True
    )
    first, second = list(state.problems)[:2]
    queued = state.in_flight()

    def apply(event: ev.AnyEvent) -> str:
        state.apply(ev.Recorded(state.seq + 1, NOW, event))
        assert news_of(model) is None or now_of(model).startswith(str(news_of(model)).removesuffix(" …"))
        return now_of(model)

    apply(ev.EngineStarted(pid=5, host="", version="", resumed=True, devices=(), sandbox=""))
    assert apply(ev.StartupStep(step="judge")).startswith("Starting the judge")
    assert apply(ev.StartupStep(step="peaks")).startswith("Starting the judge and measuring the device's peaks")
    opening = ev.StartupStep(step="problem", problem=second, number=1, count=2)
    assert apply(opening).startswith(f"Opening problems 1/2: reopening {second}")
    assert "Opening" not in apply(ev.VariantStage(variant=queued[0].id, stage="timing")), "a kernel is on the device"
    apply(ev.VariantStage(variant=queued[0].id, stage="queued"))
    opening = ev.StartupStep(step="problem", problem=first, number=2, count=2)
    assert apply(opening).startswith(f"Opening problems 2/2: reopening {first}")
    assert "pening" not in apply(ev.StartupStep(step="done"))


def test_after_the_budget_the_table_says_how_to_time_torch_compile(
    session: SessionPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    with SessionReader(session) as reader:
        state = fold(reader.read())
    name = next(iter(state.problems))
    state.problems[name].baselines.pop("compile", None)

    def words() -> str:
        results = results_of(state, session.directory, 290.0)
        print_results(results, words_to_time_compile(state, session, results))
        return capsys.readouterr().out

    assert "To time torch.compile" not in words(), "the search is still running"
    state.apply(ev.Recorded(state.seq + 1, NOW, ev.BudgetChanged(minutes=5.0)))
    state.apply(ev.Recorded(state.seq + 2, NOW, ev.LogLine(level="info", text=skipped_compile(name, 40, "budget", 3))))
    state.apply(ev.Recorded(state.seq + 3, NOW, ev.EngineStopped(reason="budget", message="time budget used up")))
    said = words()
    assert "no torch.compile time: it takes about 40 s; the budget has 3 s left for it" in said
    assert f"--minutes {5 + 5}" in said.replace("\n", " "), "as many minutes as to continue the search"

    for number, problem in enumerate(state.problems, start=4):
        state.apply(ev.Recorded(state.seq + number, NOW, ev.NodePruned(node=problem)))
    assert "To time torch.compile" not in words(), "a resume times torch.compile for no pruned problem"


def test_the_search_time_stands_until_a_new_engine_has_recorded_its_start(session: SessionPaths) -> None:
    now = NOW + 1000
    with SessionReader(session) as reader:
        model = Model(SessionSource(session, read_only=True, clock=lambda: now), state=fold(reader.read()), opened=True)
    model.take(Update(link=Link("ended", heard_at=NOW + 7)))
    seconds = model.search_seconds()
    model.take(Update(link=Link("live", pid=5)))
    assert model.search_seconds() == seconds
    assert "the engine is starting" in str(activity_of(model))
    began = ev.EngineStarted(pid=5, host="", version="", resumed=True, devices=(), sandbox="", before=NOW + 7)
    model.state.apply(ev.Recorded(model.state.seq + 1, now, began))
    now += 3
    assert model.search_seconds() == pytest.approx(seconds + 3)


@pytest.mark.parametrize(
    "link", [Link("starting"), Link("live", pid=5), Link("stalled", pid=5)], ids=lambda one: one.kind
)
@pytest.mark.parametrize("host", ["", "node1"])
def test_kernels_stay_interrupted_until_a_new_engine_has_recorded_its_start(
    session: SessionPaths, link: Link, host: str
) -> None:
    with SessionReader(session) as reader:
        state = fold(reader.read())
    model = Model(SessionSource(session, read_only=True, clock=lambda: NOW), state=state, opened=True)
    state.devices = {name: replace(fact, host=host) for name, fact in state.devices.items()}
    busy = [one for one in state.in_flight() if one.stage != "queued"]
    for one in busy:
        one.stage, one.device = "timing", next(iter(state.devices))

    def shown() -> str:
        palette = monochrome()
        devices = device_lines(model, palette, 120, ascii_only=False)
        return "\n".join(one.text for one in (status_line(model, palette, 300, ascii_only=False), *devices))

    model.take(Update(link=Link("live", pid=4)))
    assert f"{len(busy)} running" in shown() and busy[0].id in shown()
    model.take(Update(link=Link("ended")))
    model.take(Update(link=link))
    assert all(state.is_interrupted(one) for one in busy)
    assert "running" not in shown() and busy[0].id not in shown()
    assert shown().count(f"{len(state.in_flight())} not judged") == 1
    assert f"{len(state.in_flight())} kernels not judged; a resume continues with them" in shown()
    began = ev.EngineStarted(pid=5, host="", version="", resumed=True, devices=(), sandbox="")
    state.apply(ev.Recorded(state.seq + 1, NOW, began))
    model.take(Update(link=Link("live", pid=5)))
    assert f"0 running 0 waiting {len(state.in_flight())} queued" in shown()


def test_a_resume_continues_with_kernels_that_are_not_pruned(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        state = fold(reader.read())
    model = Model(SessionSource(session, read_only=True, clock=lambda: NOW), state=state, opened=True)
    flight = state.in_flight()
    count = len(flight)
    stopped = ev.EngineStopped(reason="stopped", message="")

    def shown() -> tuple[str, str]:
        notice = notice_of(model)
        assert notice is not None
        lines = device_lines(model, monochrome(), 120, ascii_only=False)
        (last,) = [one.text.strip() for one in lines if "not judged" in one.text]
        return " ".join(notice.asides), last

    state.apply(ev.Recorded(state.seq + 1, NOW, stopped))
    model.take(Update(link=Link("ended")))
    assert shown() == (
        f"A resume continues with the {count} kernels not judged.",
        f"{count} kernels not judged; a resume continues with them",
    )
    state.apply(ev.Recorded(state.seq + 1, NOW, ev.NodePruned(node=flight[0].id)))
    assert shown() == (
        f"A resume continues with {count - 1} of the {count} kernels not judged.",
        f"{count} kernels not judged; a resume continues with {count - 1}",
    )
    assert stage_words(state, flight[0]) == "not judged" and not state.awaits_resume(flight[0])
    for problem in {one.problem for one in flight}:
        state.apply(ev.Recorded(state.seq + 1, NOW, ev.NodePruned(node=problem)))
    assert shown() == ("", f"{count} kernels not judged")


@pytest.mark.parametrize("same_pid", [False, True], ids=["other-pid", "same-pid"])
def test_a_monitor_opened_before_a_new_engine_has_recorded_its_start_shows_interrupted_kernels(
    session: SessionPaths, same_pid: bool
) -> None:
    began = ev.EngineStarted(pid=os.getpid(), host="", version="", resumed=True, devices=(), sandbox="")
    writer, died_at = EventWriter(session), NOW + 7
    if same_pid:  # In a container, a new engine often gets the pid of the killed engine.
        with SessionReader(session) as reader:
            flight = fold(reader.read()).in_flight()
        writer.append(began)
        for one in flight:
            writer.append(ev.VariantStage(variant=one.id, stage="timing"))
        writer.heartbeat("running")
        writer.flush(PATIENCE_S)
        died_at = clock.now()
    lock = EngineLock(session)
    try:
        with SessionReader(session) as reader:
            state = fold(reader.read())
            assert state.engine is not None and (state.engine.pid == os.getpid()) == same_pid
            busy = [one for one in state.in_flight() if one.stage != "queued"]
            assert busy
            if same_pid:
                session_results(reader, state)
                assert all(state.is_interrupted(one) for one in busy), "before the new engine's first heartbeat"
            writer.heartbeat(STARTING, died_at)
            writer.flush(PATIENCE_S)
            results = session_results(reader, state)
            assert all(state.is_interrupted(one) for one in busy)
            assert results.ended == f"starting, engine pid {os.getpid()}"
            assert results.results.seconds == pytest.approx(state.elapsed_s(died_at))
        source = SessionSource(session, read_only=True, clock=lambda: NOW + 1000)
        model = Model(source)
        model.take(source.open())
        model.take(source.poll())
        assert all(model.state.is_interrupted(model.state.variants[one.id]) for one in busy)
        assert "the engine is starting" in str(activity_of(model))
        assert model.search_seconds() == pytest.approx(state.elapsed_s(died_at))
        writer.append(began)
        writer.flush(PATIENCE_S)
        update = source.poll()
        for one in update.events:
            model.state.apply(one)
        model.take(update)
        assert not any(model.state.is_interrupted(one) for one in model.state.in_flight())
        source.close()
    finally:
        writer.close()
        lock.release()


def test_the_live_table_says_that_the_engine_starts_until_it_has_recorded_its_start(session: SessionPaths) -> None:
    lock, writer = EngineLock(session), EventWriter(session)
    table = LiveTable(None, 1, session)

    def shown(state: SessionState) -> str:
        assert _watch(session, reader, state, table, [signal.SIGINT], False), "the user detached"
        console = Console(width=160, record=True, file=io.StringIO())
        console.print(table._status(state))
        return console.export_text()

    try:
        with SessionReader(session) as reader:
            state = fold(reader.read())
            writer.heartbeat(STARTING, NOW + 7)
            writer.flush(PATIENCE_S)
            text = shown(state)
            assert "the engine is starting" in text and "timing" not in text and "building" not in text
            writer.append(ev.EngineStarted(pid=os.getpid(), host="", version="", resumed=True, devices=(), sandbox=""))
            writer.flush(PATIENCE_S)
            assert f"{len(state.in_flight())} queued" in shown(state)
    finally:
        table.close()
        writer.close()
        lock.release()


def test_the_time_in_which_the_machine_slept_is_no_search_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_OFFSET_S", clock._OFFSET_S - 8 * 3600)  # The machine slept for 8 hours.
    paths = create_session(tmp_path, "slept", "", "config.toml", 0)
    lock, writer = EngineLock(paths), EventWriter(paths)
    writer.append(ev.EngineStarted(pid=5, host="", version="", resumed=False, devices=(), sandbox=""))
    writer.heartbeat("running")
    writer.flush(PATIENCE_S)
    source = SessionSource(paths, read_only=True)
    model = Model(source)
    with SessionReader(paths) as reader:
        for update in (source.open(), source.poll()):
            model.take(update)
        assert model.link.kind == "live"
        assert model.search_seconds() < 3600 and source.system_now() - model.now() > 7 * 3600
        assert session_results(reader, model.state).results.seconds < 3600
        table = LiveTable(None, 1, paths, reader.engine_now)
        table.close()
        console = Console(width=80, record=True, file=io.StringIO())
        console.print(table._status(model.state))
    assert re.search(r" 0:\d\d  0 verdicts", console.export_text())
    assert read_figures(paths).seconds < 3600
    source.close()
    writer.close()
    lock.release()


def test_the_share_that_is_done_counts_every_limit() -> None:
    turns = SessionState()
    turns.apply(ev.Recorded(1, NOW, ev.TurnStarted(problem="softmax", minutes=1.0)))
    assert shares_done(turns, Limits(minutes=10.0, rounds=3), 300.0) == {"time": 0.5}, "no problem has been added"
    spec = ProblemSpec(id="softmax", name="softmax", path="softmax.py", source="", tensors=())
    for number, event in enumerate(
        (
            ev.ProblemAdded(problem=spec, language="cpp", header=""),
            ev.ProblemRefused(problem="gelu", path="gelu.py", reason="no"),
            ev.TurnStarted(problem="softmax", minutes=1.0),
        ),
        2,
    ):
        turns.apply(ev.Recorded(number, NOW, event))
    assert shares_done(turns, Limits(minutes=10.0), 15.0) == {"problems": 0.625, "time": 0.025}
    assert str(shares_done(turns, Limits(minutes=10.0), -0.001)["time"]) == "0.0", "a device was busy at the start"
    assert shares_done(turns, Limits(minutes=10.0), 900.0) == {"problems": 1.0, "time": 1.0}
    turns.apply(ev.Recorded(9, NOW, ev.TurnEnded(problem="softmax", reason="time")))
    turns.apply(ev.Recorded(10, NOW, ev.TurnStarted(problem="softmax", minutes=1.0)))
    assert shares_done(turns, Limits(), 15.0) == {"problems": 1.0}, "an extra turn takes nothing back"
    turns.takes_turns = False
    assert shares_done(turns, Limits(rounds=3, calls=0), 900.0) == {"rounds": 0.0}


async def test_an_idea_of_the_playbook_that_a_person_seeded_says_so(engine: Any) -> None:
    for number, data in ((900, {"move": "vectorise", "seeded": True}), (901, {"move": "vectorise"})):
        idea = ev.IdeaProposed(
            idea=f"i{number}", problem="softmax", round=2, parent=None, category="memory", text=f"idea {number}",
            proposer="playbook", data=data,
        )  # fmt: skip
        engine.record(idea)
    async with monitor_of(engine.paths, (120, 60)) as monitor:
        await monitor.until_shown("i901")
        seeded = lines_with(monitor.text(), "i900")
        assert seeded and all("seeded" in line for line in seeded)
        assert not any("seeded" in line for line in lines_with(monitor.text(), "i901"))
        await monitor.press("slash")
        await monitor.type("hand")
        await monitor.until(lambda: "i901" not in monitor.text(), "only what came by hand")
        assert "i900" in monitor.text()


@pytest.mark.keys("MonitorScreen", "f1")
async def test_the_key_bar_keeps_the_main_keys_at_80_columns(engine: Any) -> None:
    async with monitor_of(engine.paths, (80, 24)) as monitor:

        def bar() -> str:
            return monitor.text().rstrip().splitlines()[-1]

        for hint in ("enter open", "i idea", "e edit", "d prune", "a kernel", "/ filter", "? help"):
            assert hint in bar(), bar()
        await monitor.press("slash")
        assert "f1 help" in bar()
        await monitor.type("v")
        await monitor.press("enter")
        for hint in ("n next", "esc back", "i idea", "e edit", "? help"):
            assert hint in bar(), bar()
        monitor.app.say("Something happened")
        await monitor.until_shown("Something happened")
        assert "? help" in bar()
        await monitor.press("slash", "f1")
        await monitor.until_shown("Most used keys")


async def test_a_share_above_the_sol_is_marked(engine: Any) -> None:
    assert [sol_percent(share) for share in (None, 0.63, 1.004, 1.37)] == ["-", "63", "100", "~137"]
    verdict = Verdict(
        status="correct", speedup=99.0, kernel=Timing(0.01, 0.01, 0.01, 9), sol_ms=0.0137, sol_share=1.37
    )  # fmt: skip
    best = next(iter(fold_of(engine.paths).leaders("softmax")))
    engine.record(ev.VerdictGiven(variant=best.id, verdict=verdict))
    async with monitor_of(engine.paths, (120, 40)) as monitor:
        await monitor.until_shown(" ~137 ")


def fold_of(paths: SessionPaths) -> Any:
    with SessionReader(paths) as reader:
        return fold(reader.read())


@pytest.mark.parametrize("reason", ["budget", "stopped", "waiting", "signal", "error", "finished"])
def test_the_list_of_sessions_and_the_monitor_name_a_state_alike(engine: Any, reason: ev.StopReason) -> None:
    engine.record(ev.EngineStopped(reason=reason, message="the search ended"))
    engine.writer.close()
    engine.lock.release()
    with SessionReader(engine.paths) as reader:
        state = fold(reader.read())
    model = Model(SessionSource(engine.paths, read_only=True, clock=lambda: NOW), state=state, opened=True)
    model.take(Update(link=Link("ended")))
    words = summarize(engine.paths).state_words
    assert f"  {words}  " in status_line(model, monochrome(), 300, ascii_only=False).text
    assert entry(summarize(engine.paths), 115).plain.strip().startswith(f"{words} ")
