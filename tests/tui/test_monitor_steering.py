"""Steering keys: the dialogs, the requests in the session file, and the pending rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.widgets import TextArea

from benchmarks.synthetic_session import write_session
from engine.proposers.llm.model_protocol import Prompt
from engine.proposers.mailbox import Mailbox
from engine.session.records import events as ev
from engine.session.records import requests as requests
from engine.session.state.session_state import fold
from engine.session.store import EngineLock, EventWriter, SessionPaths, SessionReader
from tests.tui.conftest import NOW, SMALL
from tui.monitor.screens.confirm import NoticeScreen
from tui.monitor.screens.reply import ReplyScreen
from tui.monitor.steering.plans import plan_prune, plan_stop, plan_stop_after_round
from tui.monitor.terminal.farewell import parting_words
from tui.text.program import program


def test_a_kernel_that_waits_for_the_device_is_not_running(session: SessionPaths) -> None:
    with SessionReader(session) as reader:
        state = fold(reader.read())
    flight = state.in_flight()
    for number, variant in enumerate(flight):
        variant.stage = ("timing", "waiting", "queued")[min(number, 2)]
    unstarted = len(flight) - 1
    assert unstarted >= 1
    question = plan_stop(state).question
    assert "This cancels 1 running evaluation. A resume repeats it." in question
    kept = "kernel is" if unstarted == 1 else "kernels are"
    assert f"{unstarted} waiting or queued {kept} kept for a resume." in question
    of_one = plan_prune(state, flight[1].id).question
    assert "This drops 1 waiting or queued evaluation." in of_one


@pytest.mark.keys("MonitorScreen", "d", "z", "Z")
@pytest.mark.keys("ConfirmScreen", "y", "Y")
async def test_prune_says_what_it_kills_shows_pending_and_can_be_undone(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("B")
        best = monitor.row()
        await monitor.press("d")
        await monitor.until_shown(f"Prune {best}?")
        assert "The branch contains the best kernel of softmax" in monitor.text()
        question = plan_prune(monitor.app.model.state, str(best)).question
        assert not any(" 0 " in f" {text} " for text in question), "nothing of which there is none"
        assert "y: yes    n, enter: no" in monitor.text()
        await monitor.press("y")
        await monitor.until_shown("pruning …")
        assert engine.commands() == [requests.Prune(node=best)]

        engine.answer(ev.NodePruned(node=best), message=f"pruned {best}", node=best)
        await monitor.until(lambda: not monitor.app.model.pending, "the answer")
        await monitor.until_shown("⊘")
        assert monitor.app.model.state.is_pruned(best)

        await monitor.press("z")
        await monitor.until(lambda: len(engine.commands()) == 2, "the undo")
        assert engine.commands()[-1] == requests.Restore(node=best)
        engine.answer(ev.NodeRestored(node=best))
        await monitor.until(lambda: not monitor.app.model.state.is_pruned(best), "restored")

        await monitor.press("Z")
        await monitor.until(lambda: len(engine.commands()) == 3, "the redo")
        assert engine.commands()[-1] == requests.Prune(node=best)
        engine.answer(ev.NodePruned(node=best))
        await monitor.until(lambda: monitor.app.model.state.is_pruned(best), "pruned again")

        await monitor.press("Q")
        await monitor.until_shown("Stop the search now?")
        await monitor.press("Y")
        await monitor.until(lambda: engine.commands()[-1] == requests.Stop(), "the stop")


async def test_the_counts_of_an_open_dialog_follow_the_search(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        waiting = next(one for one in monitor.app.model.state.in_flight() if one.stage == "queued")
        monitor.app.monitor_screen.tree_view.select(waiting.problem)
        await monitor.press("d")
        await monitor.until_shown(f"Prune {waiting.problem}?")
        before = monitor.app.screen.lines()
        engine.record(ev.VariantStage(variant=waiting.id, stage="building"))
        await monitor.until(lambda: monitor.app.screen.lines() != before, "other counts")
        await monitor.until_shown(monitor.app.screen.lines()[2])


async def test_a_pause_shows_that_it_is_not_answered_yet(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths, (80, 24)) as monitor:
        await monitor.press("P")
        await monitor.until_shown("pausing the search …")
        engine.answer(ev.SearchPaused())
        await monitor.until_shown("search paused (P)")
        assert "pausing" not in monitor.text()


async def test_a_pause_from_before_an_interruption_is_shown(open_monitor: Any, engine: Any) -> None:
    engine.record(ev.SearchPaused(kept=True))
    async with open_monitor(engine.paths, (80, 24)) as monitor:
        await monitor.until_shown("search paused (P)")
        second = monitor.text().splitlines()[1]
        assert "paused before its engine was interrupted. Press P to unpause." in second
        engine.record(ev.SearchResumed())
        await monitor.until(lambda: "interrupted" not in monitor.text().splitlines()[1], "no notice")


async def test_a_planned_stop_stays_on_the_screen(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths, (80, 24)) as monitor:
        await monitor.press("S", "y")
        await monitor.until(lambda: bool(engine.commands()), "the command")
        engine.answer(ev.StopPlanned())
        await monitor.until_shown("stops after round")
        assert "stopping after" not in monitor.text() and "ends ~" not in monitor.text()
        commands = parting_words(monitor.app.model).splitlines()[1:]
        assert commands[-1].startswith("  cancel the stop: ") and commands[-1].endswith(" --cancel")
        assert len({line.index(program()) for line in commands}) == 1, "they are aligned"
        engine.record(ev.SearchPaused())
        await monitor.until_shown("search paused (P), then stops")
        await monitor.press("S")
        await monitor.until(lambda: len(engine.commands()) == 2, "the second request")
        assert engine.commands()[-1] == requests.CancelStop()
        engine.answer(ev.StopCanceled(), ev.SearchResumed())
        await monitor.until(lambda: "stops" not in monitor.text() and "canceling" not in monitor.text(), "no stop")
        await monitor.press("z")
        await monitor.until(lambda: len(engine.commands()) == 3, "the undo")
        assert engine.commands()[-1] == requests.Stop(after_round=True)


async def test_a_planned_stop_says_what_it_leaves_undone(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        model = monitor.app.model
        problems = list(model.state.problems.values())
        for problem in problems:
            problem.baselines.pop("compile", None)
        assert "The torch.compile time of 2 of 2 problems is still missing." in " ".join(
            plan_stop_after_round(model).question
        )
        engine.record(*(ev.NodePruned(node=problem.id) for problem in problems))
        await monitor.until(lambda: len(model.state.pruned) == 2, "the prunes")
        now = plan_stop_after_round(model)
        assert "No round is running" in " ".join(now.question) and now.command == requests.Stop()


async def test_saying_no_sends_nothing(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("B", "d")
        await monitor.until_shown("Prune ")
        await monitor.press("n")
        await monitor.pilot.pause(0.2)
        assert engine.commands() == []


async def test_a_refusal_of_the_engine_is_shown(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("B", "b")
        await monitor.until_shown("pinning …")
        engine.answer(ok=False, message="[bold]no such node[/bold]")
        await monitor.until_shown("[bold]no such node[/bold]")
        assert not monitor.app.model.pending


@pytest.mark.parametrize(
    ("keys", "command"),
    [
        pytest.param(("P",), requests.Pause(), marks=pytest.mark.keys("MonitorScreen", "P")),
        pytest.param(("S", "y"), requests.Stop(after_round=True), marks=pytest.mark.keys("MonitorScreen", "S")),
        pytest.param(("Q", "y"), requests.Stop(), marks=pytest.mark.keys("MonitorScreen", "Q")),
        pytest.param(("B", "b"), requests.Pin(node="{best}"), marks=pytest.mark.keys("MonitorScreen", "b")),
        pytest.param(("B", "r"), requests.Retry(variant="{best}"), marks=pytest.mark.keys("MonitorScreen", "r")),
    ],
)
async def test_each_key_sends_its_command(
    open_monitor: Any, engine: Any, keys: tuple[str, ...], command: requests.Command
) -> None:
    async with open_monitor(engine.paths) as monitor:
        for key in keys:
            await monitor.press(key)
        await monitor.until(lambda: bool(engine.commands()), "the command")
        best = monitor.app.model.state.problems["softmax"].best
        expected = type(command)(
            **{
                name: best if (value := getattr(command, name)) == "{best}" else value
                for name in command.__struct_fields__
            }
        )
        assert engine.commands() == [expected]


@pytest.mark.keys("MonitorScreen", "M")
async def test_the_budget_is_changed(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("M")
        minutes = monitor.app.model.search_seconds() / 60
        await monitor.until_shown(f"Minutes of all engine runs ({minutes:.1f} used)")
        await monitor.type("abc")
        monitor.app.model.state.search_seconds += 60
        await monitor.until_shown(f"Minutes of all engine runs ({minutes + 1:.1f} used)")
        assert "abc" in monitor.text(), "what the user typed stays"
        await monitor.press("enter")
        await monitor.until_shown("Minutes must be a number")
        await monitor.press("backspace", "backspace", "backspace")
        await monitor.type("30")
        await monitor.press("tab", "tab")
        await monitor.type("2.5")
        await monitor.press("tab")
        await monitor.type("1_000_000")
        await monitor.press("enter")
        await monitor.until(lambda: bool(engine.commands()), "the command")
        assert engine.commands() == [requests.ChangeBudget(minutes=30.0, dollars=2.5, tokens=1_000_000)]


async def test_only_the_limits_that_the_user_changed_are_sent(open_monitor: Any, engine: Any) -> None:
    engine.record(ev.BudgetChanged(minutes=10 / 3, dollars=12345.67))
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("M", "tab")
        await monitor.press(*["backspace"] * 4, "9", "enter")
        await monitor.until(lambda: bool(engine.commands()), "the command")
        assert engine.commands() == [requests.ChangeBudget(rounds=9)]


@pytest.mark.keys("BudgetScreen", "ctrl+n")
async def test_the_limits_of_one_model_and_of_each_problem_are_changed_and_taken_back(
    open_monitor: Any, engine: Any
) -> None:
    engine.paths.config.write_text(
        '[budget]\nper_problem = { tokens = 9000 }\n[[models]]\nprovider = "playbook"\n'
        '[[models]]\nprovider = "openai"\nmodel = "m-one"\nbudget = { dollars = 2, calls = 9 }\n'
    )
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("M")
        await monitor.until_shown("Limits of the whole search")
        await monitor.press("ctrl+n")
        await monitor.until_shown("Limits of m-one")
        assert "Minutes" not in monitor.text() and "playbook" not in monitor.text()
        await monitor.type("3.5")  # the previous content is selected
        await monitor.press("enter")
        await monitor.until(lambda: bool(engine.commands()), "the command")
        assert engine.commands() == [requests.ChangeShare(model="m-one", dollars=3.5)]
        engine.answer(ev.ShareChanged(model="m-one", dollars=3.5))
        await monitor.until(lambda: not monitor.app.model.pending, "the answer")
        await monitor.press("M", "ctrl+n")
        await monitor.until_shown("3.5")
        await monitor.press("ctrl+n")
        await monitor.until_shown("Limits of each problem")
        assert "9000" in monitor.text()
        await monitor.press("escape", "z")
        await monitor.until(lambda: len(engine.commands()) == 2, "the undo")
        assert engine.commands()[-1] == requests.ChangeShare(model="m-one", dollars=2.0)


async def test_where_no_model_is_asked_turning_to_its_limits_says_so_and_fields_are_typed_over(
    open_monitor: Any, engine: Any
) -> None:
    engine.record(ev.BudgetChanged(minutes=60.0))
    async with open_monitor(engine.paths) as monitor:
        await monitor.until(lambda: monitor.app.model.minutes == 60.0, "the limit")
        await monitor.press("M", "ctrl+n")
        await monitor.until_shown("This session does not call any models")
        await monitor.type("75")
        await monitor.press("enter")
        await monitor.until(lambda: bool(engine.commands()), "the command")
        assert engine.commands() == [requests.ChangeBudget(minutes=75.0)]
        engine.answer(ev.BudgetChanged(minutes=75.0))
        await monitor.until(lambda: monitor.app.model.minutes == 75.0, "the new limit")
        await monitor.press("M", "backspace", "enter")
        await monitor.until_shown("Minutes: a limit cannot be removed. Type a larger number.")


async def test_a_limit_where_there_was_none_has_no_undo(open_monitor: Any, engine: Any) -> None:
    engine.record(ev.BudgetChanged(minutes=60.0))
    async with open_monitor(engine.paths) as monitor:
        await monitor.until(lambda: monitor.app.model.minutes == 60.0, "the limit")
        await monitor.press("M")
        await monitor.type("75")
        await monitor.press("tab", "tab")
        await monitor.type("2.5")
        await monitor.press("enter")
        await monitor.until(lambda: bool(engine.commands()), "the command")
        engine.answer(ev.BudgetChanged(minutes=75.0, dollars=2.5))
        await monitor.until(lambda: not monitor.app.model.pending, "the answer")
        await monitor.press("z")
        await monitor.until_shown("A new limit cannot be removed. To change it, press M.")
        assert len(engine.commands()) == 1


@pytest.mark.keys("MonitorScreen", "M")
async def test_a_limit_below_what_is_spent_is_asked_about(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("M", "tab")
        await monitor.type("1")
        await monitor.press("enter")
        await monitor.until_shown("1 round allowed")
        assert engine.commands() == [] and "Changing a limit resumes it" not in monitor.text()
        for key in ("n", "escape"):  # Both return to the form, which keeps what you typed.
            await monitor.press(key)
            await monitor.until_shown("Limits of the whole search")
            assert "1 round allowed" not in monitor.text() and engine.commands() == []
            await monitor.press("enter")
            await monitor.until_shown("1 round allowed")
        await monitor.press("y")
        await monitor.until(lambda: bool(engine.commands()), "the command")
        assert engine.commands() == [requests.ChangeBudget(rounds=1)]


@pytest.mark.keys("MonitorScreen", "e")
async def test_an_edited_copy_becomes_a_child_and_its_diff_is_shown(
    open_monitor: Any, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/kThreads = .*;/kThreads = 96;/" "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("B")
        best = monitor.row()
        await monitor.press("e")
        await monitor.until(lambda: bool(engine.commands()), "the command")
        (command,) = engine.commands()
        assert isinstance(command, requests.SeedKernel)
        assert (command.problem, command.language, command.parent) == ("softmax", "cu", best)
        assert "kThreads = 96;" in command.source

        digest = engine.writer.put_blob(command.source)
        engine.answer(
            ev.IdeaProposed(
                idea="i900",
                problem="softmax",
                round=2,
                parent=best,
                category="other",
                text=command.text,
                proposer="hand",
            ),
            ev.VariantWritten(
                variant="v900",
                idea="i900",
                problem="softmax",
                round=2,
                parent=best,
                language="cu",
                source=digest,
                proposer="hand",
            ),
            node="v900",
        )
        await monitor.until(lambda: monitor.row() == "v900", "the child is selected")
        await monitor.until_shown(f"parent {best} -> v900")
        assert "+constexpr int kThreads = 96;" in monitor.text()

        await monitor.press("z")
        await monitor.until(lambda: len(engine.commands()) == 2, "the undo")
        assert engine.commands()[-1] == requests.Prune(node="v900")


async def test_an_unchanged_copy_is_not_submitted(
    open_monitor: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", "true")
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("B", "e")
        await monitor.until_shown("nothing was submitted")
        assert engine.commands() == []


async def test_a_seed_with_a_known_source_stays_in_its_dialog(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        model = monitor.app.model
        known = next(model.state.variants_of("softmax"))
        source = model.source.text(known.source)
        await monitor.press("a", "tab")
        monitor.app.screen.post_message(events.Paste(source))
        await monitor.press("ctrl+s")
        await monitor.until_shown(f"{known.id} already has this source.")
        assert monitor.app.screen.query_one("#pasted", TextArea).text == source and engine.commands() == []


@pytest.mark.keys("MonitorScreen", "a")
async def test_a_kernel_is_seeded_from_a_file(
    open_monitor: Any, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "k.cu").write_text("// mine\n")
    monkeypatch.chdir(tmp_path)
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("a")
        await monitor.type("missing.cu")
        await monitor.press("enter")
        await monitor.until_shown("Cannot read the file")
        for _ in "missing.cu":
            await monitor.pilot.press("backspace")
        await monitor.type("k.cu")
        await monitor.press("enter")
        await monitor.until(lambda: bool(engine.commands()), "the command")
        assert engine.commands() == [
            requests.SeedKernel(
                problem="softmax",
                language="cu",
                source="// mine\n",
                text="seeded from k.cu",
                file=str((tmp_path / "k.cu").resolve()),
            )
        ]
        same = next(name for name in monitor.app.model.state.variants if name != monitor.row())
        engine.answer(ok=False, message=f"{same} already has this source", node=same)
        await monitor.until(lambda: monitor.row() == same, "the kernel with the same source is selected")


@pytest.mark.keys("SeedKernelScreen", "ctrl+s")
async def test_a_kernel_is_pasted(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("a")
        await monitor.until_shown("or paste its source here")
        await monitor.press("tab")
        await monitor.type("//x")
        await monitor.press("ctrl+s")
        await monitor.until(lambda: bool(engine.commands()), "the command")
        assert engine.commands() == [
            requests.SeedKernel(problem="softmax", language="cu", source="//x", text="seeded by pasting")
        ]


async def test_a_kernel_is_seeded_for_the_selected_idea_that_waits_for_one(open_monitor: Any, engine: Any) -> None:
    about: dict[str, Any] = {"problem": "softmax", "round": 2, "category": "other", "text": "use tma"}
    engine.record(
        ev.IdeaProposed(idea="i900", parent="v1", proposer="hand", **about),
        ev.IdeaWaiting(idea="i900", reason="no proposer of this session reads prose"),
    )
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("a")
        await monitor.until_shown("Ideas without a kernel: i900")
        await monitor.press("escape")
        assert monitor.app.monitor_screen.tree_view.select("i900")
        await monitor.press("a")
        await monitor.until_shown("For idea i900: use tma")
        await monitor.press("tab")
        await monitor.type("//x")
        await monitor.press("ctrl+s")
        await monitor.until(lambda: bool(engine.commands()), "the command")
        assert engine.commands() == [
            requests.SeedKernel(
                problem="softmax", language="cu", source="//x", text="use tma", parent="v1", idea="i900"
            )
        ]


@pytest.mark.keys("MonitorScreen", "i")
async def test_an_idea_in_words_is_seeded_under_the_selected_kernel(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("B")
        best = monitor.row()
        await monitor.press("i")
        await monitor.type("use tma")
        await monitor.press("enter")
        await monitor.until(lambda: bool(engine.commands()), "the command")
        assert engine.commands() == [requests.SeedIdea(problem="softmax", text="use tma", parent=best)]
        engine.answer(
            ev.IdeaProposed(
                idea="i900", problem="softmax", round=2, parent=best, category="other", text="use tma", proposer="hand"
            ),
            ev.IdeaWaiting(idea="i900", reason="no proposer of this session reads prose"),
            node="i900",
        )
        await monitor.until(lambda: monitor.row() == "i900", "the idea is selected")
        await monitor.until_shown("waiting for a kernel: no proposer")
        await monitor.until_shown("i900 still needs a kernel")
        assert len(engine.commands()) == 1, "the editor saved nothing"


@pytest.mark.parametrize("key", ["e", "i", "a"])
async def test_nothing_is_written_for_what_is_pruned(
    open_monitor: Any, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    editor = tmp_path / "editor"
    editor.write_text(f"#!/bin/sh\ntouch {tmp_path}/opened\n")
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("B")
        node = "softmax" if key == "a" else monitor.row()
        engine.record(ev.NodePruned(node=node))
        await monitor.until(lambda: monitor.app.model.state.is_pruned(node), "pruned")
        assert monitor.app.monitor_screen.tree_view.select(node)
        await monitor.press(key)
        await monitor.until_shown(f"{node} is pruned. Restore it first")
        assert monitor.app.screen is monitor.app.monitor_screen
        assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("parent", [None, "v30"])
async def test_an_idea_that_nobody_reads_opens_the_editor_with_its_parent_or_a_template(
    open_monitor: Any, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str | None
) -> None:
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/template\necho "// my kernel" >> "$1"\n')
    editor.chmod(0o755)
    idea = ev.IdeaProposed(
        idea="i900", problem="softmax", round=2, parent=parent, category="other", text="use tma", proposer="hand"
    )
    engine.record(idea, ev.IdeaWaiting(idea="i900", reason="no proposer of this session reads prose"))
    async with open_monitor(engine.paths) as monitor:
        assert monitor.app.monitor_screen.tree_view.select("i900")
        monkeypatch.setenv("EDITOR", str(editor))
        await monitor.press("e")
        await monitor.until(lambda: bool(engine.commands()), "the command")
        (command,) = engine.commands()
        assert isinstance(command, requests.SeedKernel)
        assert (command.idea, command.parent, command.problem) == ("i900", parent, "softmax")
        assert command.source.endswith("// my kernel\n")
        template = (tmp_path / "template").read_text()
        assert template.startswith("// i900 for softmax:\n// use tma\n")
        if parent is None:
            assert "// constexpr long long x_dim0 = 4096;" in template
            launch = 'extern "C" int launch(const float* x, float* out, void* workspace, cudaStream_t stream) {'
            assert launch in template
        else:
            digest = monitor.app.model.state.variants[parent].source
            assert template == f"// i900 for softmax:\n// use tma\n{monitor.app.model.source.text(digest)}"
        await monitor.until_shown("submitting a kernel …")


async def test_what_is_pending_when_the_engine_ends_is_said_to_be_undone(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("B", "b")
        await monitor.until_shown("pinning …")
        engine.record(ev.EngineStopped(reason="finished", message="done"))
        engine.lock.release()
        await monitor.until_shown("the engine ended before handling")
        assert not monitor.app.model.pending
        assert "the engine ended" in monitor.app.model.story.lines[-1].text
        assert "the engine is not running" in monitor.text() and "on the device" not in monitor.text()


async def test_a_read_only_monitor_steers_nothing(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths, read_only=True) as monitor:
        for key in ("d", "b", "P", "M", "Q", "r"):
            await monitor.press(key)
            await monitor.until_shown("This monitor is read-only")
            assert len(monitor.app.screen_stack) == 1
        for key in ("e", "a", "i"):
            await monitor.press(key)
            assert isinstance(monitor.app.screen, NoticeScreen)
            await monitor.until_shown("This monitor is read-only")
            await monitor.press("escape")
        assert "read-only" in monitor.text().splitlines()[0]
    with SessionReader(engine.paths) as reader:
        assert reader.commands() == []


@pytest.mark.parametrize(
    ("limit", "flag"), [("minutes", "--minutes "), ("calls", "--calls N")], ids=["minutes", "calls"]
)
async def test_a_read_only_monitor_says_what_a_shell_goes_on_with(
    open_monitor: Any, engine: Any, limit: str, flag: str
) -> None:
    engine.record(
        ev.EngineStopped(reason="budget", message="the budget is spent"),
        ev.BudgetChanged(**{limit: 5 if limit == "calls" else 5.0}),
    )
    engine.lock.release()
    async with open_monitor(engine.paths, (200, 60), read_only=True) as monitor:
        await monitor.until_shown("Budget used up")
        second = monitor.text().splitlines()[1]
        assert f"Resume: kernel-tui resume {monitor.app.model.source.argument} {flag}" in second
        assert "Press M" not in second


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("budget", "Budget used up. Resume: kernel-tui resume quickstart --minutes "),
        ("stopped", "Stopped on request. Resume: kernel-tui resume quickstart"),
        (None, "Resume: kernel-tui resume quickstart"),
    ],
)
async def test_what_goes_on_with_it_fits_a_narrow_screen(
    open_monitor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: Any, shown: str
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = write_session(tmp_path / "sessions", "quickstart", SMALL, end=NOW)
    if reason is not None:
        writer = EventWriter(paths)
        writer.append(ev.EngineStopped(reason=reason, message="it has ended"))
        if reason == "budget":
            writer.append(ev.BudgetChanged(minutes=5.0))
        writer.close()
    async with open_monitor(paths, (80, 24), read_only=True) as monitor:
        await monitor.until_shown(shown)


@pytest.mark.parametrize(("width", "has_room"), [(80, False), (120, True)])
async def test_a_search_that_ends_before_its_last_minute_says_why(
    open_monitor: Any, engine: Any, width: int, has_room: bool
) -> None:
    async with open_monitor(engine.paths, (width, 40)) as monitor:
        engine.record(ev.EngineStopped(reason="budget", message="the budget is spent"))
        engine.lock.release()
        await monitor.until_shown("Budget used up")
        engine.record(ev.BudgetChanged(minutes=(monitor.app.model.search_seconds() + 19) / 60))
        await monitor.until(lambda: monitor.app.model.minutes is not None, "the limit")
        await monitor.press("down")
        assert "Press M to raise the limit and resume." in monitor.text()
        assert ("The last 19 s were too short for another kernel." in monitor.text()) == has_room


async def test_without_an_engine_keys_say_so_and_the_screen_says_how_to_resume(
    open_monitor: Any, session: SessionPaths
) -> None:
    async with open_monitor(session) as monitor:
        second = monitor.text().splitlines()[1]
        assert "ENGINE DIED" in second and "Press R to resume (or: kernel-tui resume" in second
        assert "interrupted" in monitor.text() and "building 0:" not in monitor.text()
        await monitor.press("P")
        await monitor.until_shown("No engine is running on this session")


@pytest.mark.keys("NoticeScreen", "escape", "enter")
@pytest.mark.parametrize(
    ("reason", "press", "option"),
    [
        ("finished", "Press M to allow more rounds", " --rounds N"),
        ("budget", "Press M to raise the limit and resume", " --minutes "),
        ("stopped", "Press R to start one", ""),
    ],
)
async def test_text_typed_for_a_search_that_has_ended_runs_no_command(
    open_monitor: Any, engine: Any, reason: Any, press: str, option: str
) -> None:
    engine.record(ev.EngineStopped(reason=reason, message="it has ended"))
    if reason == "budget":
        engine.record(ev.BudgetChanged(minutes=5.0))
    engine.lock.release()
    async with open_monitor(engine.paths, (200, 60)) as monitor:
        app = monitor.app
        theme, screen = app.theme, app.monitor_screen
        for key in ("i", "a", "e"):
            await monitor.press("B", key)
            await monitor.type("Tiled pQz quick ndb")
            assert isinstance(app.screen, NoticeScreen), key
            await monitor.until_shown(press)
            await monitor.until_shown("What you type here is discarded.")
            await monitor.until_shown(f"In a shell: kernel-tui resume {app.model.source.argument}{option}")
            await monitor.press("enter" if key == "a" else "escape")
            assert app.screen is screen
        assert (app.theme, screen.held, screen.tree_rows.view.mode) == (theme, False, "round")
        assert app.is_running and not engine.commands()


async def test_a_search_that_ended_before_its_last_round_says_why(open_monitor: Any, engine: Any) -> None:
    engine.record(
        *(ev.ProblemFinished(problem=name, reason="no proposer has a new idea") for name in ("softmax", "layernorm")),
        ev.BudgetChanged(rounds=50),
        ev.EngineStopped(reason="finished", message="it has ended"),
    )
    engine.lock.release()
    async with open_monitor(engine.paths, (200, 60)) as monitor:
        await monitor.press("i")
        await monitor.until_shown("(softmax: no proposer has a new idea). More rounds might not help.")
        assert "--rounds" not in monitor.text()


async def test_a_stalled_engine_is_loud(open_monitor: Any, engine: Any) -> None:
    engine.writer.heartbeat("at work")
    engine.writer.flush(5)
    import sqlite3

    with sqlite3.connect(engine.paths.database) as db:  # an engine without a recent heartbeat
        db.execute("UPDATE heartbeat SET time = time - 60")
    db.close()
    async with open_monitor(engine.paths) as monitor:
        await monitor.until_shown("ENGINE STALLED: no heartbeat for 6")
        assert str(os.getpid()) in monitor.text().splitlines()[1]


@pytest.mark.keys("MonitorScreen", "P", "z", "Z")
async def test_an_undo_that_fails_changes_nothing_that_can_be_undone(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:

        async def sends(key: str, request: object) -> None:
            before = len(engine.commands())
            await monitor.press(key)
            await monitor.until(lambda: len(engine.commands()) == before + 1, f"the request of {key}")
            assert engine.commands()[-1] == request

        async def answered(*events: object, ok: bool = True) -> None:
            engine.answer(*events, ok=ok)
            await monitor.until(lambda: not monitor.app.model.pending, "the answer")

        await sends("P", requests.Pause())
        await answered(ev.SearchPaused())

        await sends("z", requests.Resume())
        await answered(ok=False)  # the engine refuses
        await sends("z", requests.Resume())
        await answered(ev.SearchResumed())
        await sends("Z", requests.Pause())
        await answered(ok=False)
        await sends("Z", requests.Pause())
        await answered(ev.SearchPaused())

        engine.paths.database.rename(engine.paths.directory / "away.db")  # the request cannot be written
        await monitor.press("z")
        await monitor.pilot.pause(0.5)
        assert not monitor.app.model.pending
        (engine.paths.directory / "away.db").rename(engine.paths.database)
        await monitor.until(lambda: monitor.app.why_not_steer() is None, "the session is back")
        await sends("z", requests.Resume())


async def test_undo_waits_for_the_answer_to_the_last_request(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths, (200, 60)) as monitor:
        await monitor.press("B")
        best = monitor.row()
        await monitor.press("b")
        await monitor.until(lambda: len(engine.commands()) == 1, "the pin")
        engine.answer(ev.NodePinned(node=best))
        await monitor.until(lambda: not monitor.app.model.pending, "the answer")
        await monitor.press("P", "z")
        await monitor.until_shown("The engine has not answered your last request yet: pausing the search.")
        await monitor.until(lambda: bool(monitor.app.model.pending), "the pause")
        assert len(engine.commands()) == 2, "the pin stays"
        engine.answer(ev.SearchPaused())
        await monitor.until(lambda: not monitor.app.model.pending, "the answer")
        await monitor.press("z")
        await monitor.until(lambda: len(engine.commands()) == 3, "the undo")
        assert engine.commands()[-1] == requests.Resume()


async def test_redo_waits_for_the_answer_to_the_last_request(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths, (200, 60)) as monitor:
        await monitor.press("B")
        best = monitor.row()
        for key, event in (("b", ev.NodePinned(node=best)), ("z", ev.NodeUnpinned(node=best))):
            before = len(engine.commands())
            await monitor.press(key)
            await monitor.until(lambda before=before: len(engine.commands()) > before, f"the request of {key}")
            engine.answer(event)
            await monitor.until(lambda: not monitor.app.model.pending, "the answer")
        await monitor.press("P", "Z")
        await monitor.until_shown(
            "The engine has not answered your last request yet: pausing the search. Press Z again"
        )
        await monitor.until(lambda: bool(monitor.app.model.pending), "the pause")
        assert len(engine.commands()) == 3, "the pin is not redone"
        engine.answer(ev.SearchPaused())
        await monitor.until(lambda: not monitor.app.model.pending, "the answer")
        await monitor.press("Z")
        await monitor.until_shown("Nothing to redo.")


async def test_a_second_undo_takes_the_step_before_while_the_first_is_in_flight(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("B")
        best = monitor.row()
        for key, event in (("P", ev.SearchPaused()), ("b", ev.NodePinned(node=best))):
            before = len(engine.commands())
            await monitor.press(key)
            await monitor.until(lambda before=before: len(engine.commands()) > before, f"the request of {key}")
            engine.answer(event)
            await monitor.until(lambda: not monitor.app.model.pending, "the answer")

        await monitor.press("z", "z", "z")
        await monitor.until_shown("Nothing to undo.")
        await monitor.until(lambda: len(engine.commands()) == 4, "two undos")
        assert set(map(type, engine.commands()[2:])) == {requests.Unpin, requests.Resume}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (("Q", "y"), "A stop cannot be undone, but R resumes a stopped search."),
        (("r",), "Judging {best} again cannot be undone."),
    ],
)
async def test_undo_takes_no_older_request_before_it_says_that_the_last_one_is_final(
    open_monitor: Any, engine: Any, keys: tuple[str, ...], why: str
) -> None:
    async with open_monitor(engine.paths, (200, 60)) as monitor:
        await monitor.press("B")
        best = monitor.row()
        for pressed in (("b",), keys):
            before = len(engine.commands())
            await monitor.press(*pressed)
            await monitor.until(lambda before=before: len(engine.commands()) > before, "the request")
            engine.answer(*([ev.NodePinned(node=best)] if pressed == ("b",) else []))
            await monitor.until(lambda: not monitor.app.model.pending, "the answer")

        await monitor.press("z")
        await monitor.until_shown(f"{why.format(best=best)} To undo an earlier request, press z again.")
        assert len(engine.commands()) == 2
        await monitor.press("z")
        await monitor.until(lambda: len(engine.commands()) == 3, "the undo")
        assert engine.commands()[-1] == requests.Unpin(node=best)


async def test_an_undo_that_the_next_engine_carries_out_counts(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("P")
        await monitor.until(lambda: bool(engine.commands()), "the pause")
        engine.answer(ev.SearchPaused())
        await monitor.until(lambda: not monitor.app.model.pending, "the answer")
        await monitor.press("z")
        await monitor.until(lambda: len(engine.commands()) == 2, "the undo")
        engine.record(ev.EngineStopped(reason="stopped", message="stopped"))
        engine.lock.release()
        await monitor.until_shown("the engine ended before handling this request")
        assert monitor.app.history.undoes

        lock = EngineLock(engine.paths)
        engine.answer(ev.SearchResumed())
        await monitor.until(lambda: not monitor.app.history.undoes, "the next engine's answer")
        lock.release()


async def test_an_idea_typed_while_the_engine_ends_waits_for_the_next_engine(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("i")
        await monitor.until_shown("Seed an idea for softmax")
        await monitor.type("Tile it")
        engine.record(ev.EngineStopped(reason="finished", message="the search is complete"))
        engine.lock.release()
        await monitor.until(lambda: monitor.app.model.link.kind == "ended", "the end")
        await monitor.press("enter")
        await monitor.until_shown("the engine will handle it after a resume")
        assert "seeding an idea: the engine ended" in monitor.app.model.story.lines[-1].text
        (command,) = engine.commands()
        assert isinstance(command, requests.SeedIdea) and command.text == "Tile it"


@pytest.mark.keys("Scoreboard", "up", "k", "down", "j")
async def test_the_problem_highlighted_in_the_scoreboard_is_seeded(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        first, second = monitor.app.model.state.problems
        await monitor.press("B", "2")
        assert "i seed idea  a seed kernel" in monitor.text().splitlines()[-1]
        for key, problem in (("down", second), ("k", first), ("j", second), ("down", second), ("up", first)):
            await monitor.press(key)
            assert monitor.app.monitor_screen.problem_here() == problem, key
        await monitor.press("j", "i")
        await monitor.until_shown(f"Seed an idea for {second}, starting from")
        await monitor.press("escape", "a")
        await monitor.until_shown(f"kernel for {second}")


async def test_a_typed_reply_stays_with_its_prompt(open_monitor: Any, engine: Any) -> None:
    mailbox = Mailbox(engine.paths.directory)
    for call in ("softmax.r1.ideas.v1.0", "softmax.r1.ideas.v2.0"):
        mailbox.post(call, Prompt("ideas", "You write kernels.", "Propose ideas."))
    first, second = mailbox.waiting()
    async with open_monitor(engine.paths) as monitor:
        monitor.app.push_screen(dialog := ReplyScreen(monitor.app.model, engine.paths.directory, monitor.app))
        await monitor.until(lambda: dialog.is_mounted and dialog.call == first, "the dialog")
        await monitor.press("enter")
        await monitor.type("mine")
        mailbox.deliver(first, "from elsewhere")
        await monitor.until(lambda: "answered, not read yet" in monitor.text(), "the other reply")
        assert dialog.call == first
        await monitor.press("ctrl+s")
        await monitor.until_shown("already has a reply from elsewhere")
        mailbox.withdraw(first)
        await monitor.until_shown("no longer waiting for a reply. Select the prompt that this text answers.")
        await monitor.press("ctrl+s")
        assert not mailbox.has_reply(second)
        await monitor.press("shift+tab", "shift+tab", "home", "ctrl+s")
        await monitor.until_shown(f"{second}: reply submitted")


async def test_keys_pressed_faster_than_the_monitor_handles_them_act_in_order(open_monitor: Any, engine: Any) -> None:
    async with open_monitor(engine.paths) as monitor:
        _, second = monitor.app.model.state.problems
        await monitor.press("B", "up", "up", "up", "up", "up")
        await monitor.press_ahead(events.Key("2", "2"), events.Key("j", "j"), events.Key("i", "i"))
        await monitor.until_shown(f"Seed an idea for {second}, starting from")
        await monitor.press("escape", "1")
        await monitor.press_ahead(events.Key("slash", "/"), *(events.Key(letter, letter) for letter in "gelu"))
        await monitor.until(lambda: monitor.app.monitor_screen.tree_rows.view.filter == "gelu", "the filter")
        await monitor.press("enter")
        keys = ("M", "tab", *["backspace"] * 4, "1", "2", "enter", "1", "j")
        await monitor.press_ahead(*(events.Key(key, key if len(key) == 1 else None) for key in keys))
        await monitor.until(lambda: bool(engine.commands()), "the command")
        assert engine.commands() == [requests.ChangeBudget(rounds=12)]
        await monitor.press_ahead(
            *(events.Key(key, key) for key in "itile "), events.Paste("rows"), events.Key("s", "s")
        )
        await monitor.until_shown("tile rowss")
