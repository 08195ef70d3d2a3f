"""A session's conversations and costs, tested on a session file with fixed events."""

from __future__ import annotations

import os
import re
import time
from math import log
from pathlib import Path
from typing import Any

import pytest

from engine.proposers.llm.model_protocol import Prompt
from engine.proposers.mailbox import RULER, Mailbox
from engine.proposers.partial_replies import WRITE_EVERY_S, Partials
from engine.session.records import events as ev
from engine.session.records.events import AnyEvent
from engine.session.records.model_calls import CallSite, FailureKind, Finish, Purpose, Usage, call_name
from engine.session.records.verdict import Timing, Verdict
from engine.session.state.session_state import fold
from engine.session.store import SessionPaths, SessionReader
from tests.tui.conftest import Engine, monitor_of
from tui.view.prompts import PromptLines

HOSTILE = "\x1b]52;c;b3duZWQ=\x07[red]\u202e \x9b31m"
REPLY = "Here it is.\n\n```cuda\n" + "".join(f"// line {number}\n" for number in range(90)) + "```\nGood luck.\n"
NO_CONTROL = re.compile(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]*\Z")


class Asked:
    """Record calls as the engine does."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._calls = 0

    def start(self, site: CallSite, *, model: str = "m-one", provider: str = "openai", attempt: int = 1) -> str:
        prompt = Prompt(site.purpose, "You write kernels.", f"The reference of {site.problem}.{HOSTILE}\n" * 30)
        self._calls += attempt == 1
        call = f"c{self._calls}"
        self._engine.record(
            ev.ModelCallStarted(
                call=call, attempt=attempt, provider=provider, model=model, site=site,
                prompt=self._engine.writer.put_blob(prompt.encode()), tokens=5_000, dollars=0.5,
            )
        )  # fmt: skip
        return call

    def reply(self, site: CallSite, text: str, *, finish: Finish = "stop", dollars: float | None = 0.0321) -> None:
        call = self.start(site)
        put = self._engine.writer.put_blob
        usage = Usage(input=1_200, output=800, cached=512, reasoning=300)
        self._engine.record(
            ev.ModelReplied(
                call=call, attempt=1, answered="m-one-2026-11", prompt=put("prompt"), reply=put(text), finish=finish,
                seconds=2.0, usage=usage, dollars=dollars,
            )
        )  # fmt: skip

    def fail(self, call: str, wait_s: float | None, attempt: int = 1, why: FailureKind = "rate_limit") -> None:
        self._engine.record(
            ev.ModelCallFailed(
                call=call, attempt=attempt, failure=why, message=f"slow down {HOSTILE}", wait_s=wait_s,
                seconds=0.1, usage=Usage(), dollars=0.0,
            )
        )  # fmt: skip


def site(purpose: Purpose, subject: str, number: int = 0) -> CallSite:
    return CallSite("softmax", 2, purpose, subject, number)


def written(variant: str, idea: str, call: CallSite, engine: Engine) -> list[AnyEvent]:
    return [
        ev.VariantWritten(
            variant=variant, idea=idea, problem="softmax", round=2, parent=None, language="cu",
            source=engine.writer.put_blob(f"// {variant}\n"), proposer="m-one", data={"call": call_name(call)},
        )
    ]  # fmt: skip


@pytest.fixture
def talk(engine: Engine) -> Engine:
    """Record a model's idea, a failed kernel, a repair that becomes the best, and a streaming call."""
    asked = Asked(engine)
    asked.reply(site("ideas", "v1"), '{"ideas": [{"text": "Walk each row once."}]}')
    engine.record(
        ev.IdeaProposed(
            idea="i100", problem="softmax", round=2, parent="v1", category="memory", text="Walk each row once.",
            proposer="m-one", data={"call": call_name(site("ideas", "v1"))},
        )
    )  # fmt: skip
    asked.reply(site("kernel", "i100"), "I would rather not.", finish="refusal")
    engine.record(*written("v100", "i100", site("kernel", "i100"), engine))
    engine.record(ev.VerdictGiven(variant="v100", verdict=Verdict(status="build_error", reason="no fenced block")))
    asked.reply(site("fix", "v100"), REPLY)
    engine.record(*written("v101", "i100", site("fix", "v100"), engine))
    best = Verdict(status="correct", speedup=9.0, kernel=Timing(0.4, 0.4, 0.4, 9))
    engine.record(ev.VerdictGiven(variant="v101", verdict=best))
    asked.start(site("kernel", "i100", 1))
    return engine


@pytest.mark.keys("MonitorScreen", "v")
async def test_the_conversation_is_short_until_somebody_asks_for_the_whole(talk: Engine) -> None:
    async with monitor_of(talk.paths) as monitor:
        read: list[str] = []
        source = monitor.app.model.source
        text_of = source.text
        source.text = lambda digest: (read.append(digest), text_of(digest))[1]  # type: ignore[method-assign]
        await monitor.press("B", "v")
        await monitor.until_shown("v101, repair of v100")
        grid = Path(__file__).parent / "grids" / "conversation-120x40.txt"
        text = re.sub(r"\d\d:\d\d:\d\d (?=softmax: new best v101)", "--:--:-- ", monitor.text()) + "\n"
        text = re.sub(r"\b\d\.\ds;", "0.0s;", text)
        if os.environ.get("UPDATE_GRIDS"):
            grid.write_text(text, encoding="utf-8")
        assert text == grid.read_text(encoding="utf-8")
        assert len(set(read)) == 3, "replies, and no prompt"
        await monitor.press("4", "plus", "G")
        await monitor.until_shown("… more (v)")
        assert "line 70" not in monitor.text()
        await monitor.press("v", "G")
        await monitor.until_shown("Good luck.")
        for key in ("g", *["pagedown"] * 3):
            await monitor.press(key)
            assert all(NO_CONTROL.match(one) for one in monitor.text().splitlines())
        await monitor.press("v", "g")
        assert "The reference of softmax" not in monitor.text()


async def test_what_streams_is_shown_where_it_belongs_and_only_while_the_engine_lives(talk: Engine) -> None:
    partials = Partials(talk.paths.directory)
    async with monitor_of(talk.paths) as monitor:
        with partials.of(site("kernel", "i100", 1)) as on_text:
            on_text("first words")
            await monitor.pilot.pause(WRITE_EVERY_S)
            on_text(f"{HOSTILE}\n__global__ void grows(" + "x" * 9_000 + "\nthe last line")
            screen = monitor.app.monitor_screen
            assert screen.tree_view.select("i100")
            await monitor.press("v")
            await monitor.until_shown("kernel 2 for i100")
            await monitor.until_shown("the last line")
            assert all(NO_CONTROL.match(one) for one in monitor.text().splitlines())
            await monitor.pilot.pause(0.3)
            on_text("and some more\n" * 20 + "the very last line")
            await monitor.until_shown("the very last line")
            assert screen.tree_view.select("v101")
            await monitor.until(lambda: "the very last line" not in monitor.text(), "another kernel's conversation")
            screen.tree_view.select("softmax")
            await monitor.until_shown("the very last line")
            talk.lock.release()
            await monitor.until_shown("in flight when the engine ended")
            assert "the very last line" not in monitor.text()


async def test_a_failing_call_says_why_and_when_it_is_made_again(talk: Engine) -> None:
    asked = Asked(talk)
    asked._calls = 10
    async with monitor_of(talk.paths) as monitor:
        monitor.app.monitor_screen.tree_view.select("v101")
        await monitor.press("v")
        asked.fail(asked.start(site("fix", "v101")), None, why="cancelled")
        await monitor.press("4", "plus", "G")
        await monitor.until_shown("call canceled: slow down")
        assert "given up" not in monitor.text()
        call = asked.start(site("fix", "v101"))
        await monitor.press("plus", "g")
        await monitor.until_shown("repair of v101")
        await monitor.until_shown("no text yet")
        asked.fail(call, 30.0)
        await monitor.until_shown("m-one: too many requests, attempt 2 in 30 s: slow down")
        assert all(NO_CONTROL.match(one) for one in monitor.text().splitlines())
        await monitor.press("4", "plus", "G")
        await monitor.until_shown("too many requests: slow down")
        assert "retry in" in monitor.text()
        asked.start(site("fix", "v101"), attempt=2)
        await monitor.press("g")
        await monitor.until_shown("attempt 2")
        asked.fail(call, None, attempt=2)
        await monitor.press("G")
        await monitor.until_shown("given up")


async def test_what_no_model_wrote_says_so(open_monitor: Any, session: SessionPaths) -> None:
    async with open_monitor(session) as monitor:
        await monitor.press("B", "v")
        await monitor.until_shown("Written by the playbook")
        assert "tokens" not in monitor.text().splitlines()[0]
        await monitor.press("dollar_sign")
        await monitor.until_shown("This session has made no model calls")
        await monitor.press("I")
        await monitor.until_shown("No prompt is waiting")


@pytest.mark.keys("MonitorScreen", "dollar_sign")
@pytest.mark.keys("SpendScreen", "escape", "q", "enter", "dollar_sign", "M")
async def test_spending_is_live_by_model_round_and_idea(talk: Engine) -> None:
    asked = Asked(talk)
    asked._calls = 20
    talk.record(ev.BudgetChanged(dollars=0.5, tokens=1_000_000))
    own = '[[models]]\nprovider = "openai"\nmodel = "m-one"\nbudget = { dollars = 2, calls = 9 }\n'
    talk.paths.config.write_text(own)
    async with monitor_of(talk.paths, (120, 50)) as monitor:
        await monitor.until_shown("$0.0963/0.5")
        await monitor.press("dollar_sign")
        await monitor.until_shown("Cost of model calls")
        text = monitor.text()
        assert "6,000 of 1,000,000" in text
        assert "$0.0963 of $0.50" in text
        assert "Reserved for 1 call in flight: 5,000 tokens and $0.50." in text
        (model,) = (one for one in text.splitlines() if "m-one" in one)
        assert re.search(r"m-one  of \$2\.00 +4/9 +3,600 +1,536 +2,400 +\$0\.0963", model)
        assert re.search(r"softmax/r2 +4 +3,600", text)
        variants = monitor.app.model.state.variants.values()
        others = [one.speedup or 0.0 for one in variants if one.problem == "softmax" and one.id != "v101"]
        each = 0.0642 / (log(9.0 / max(1.0, *others)) / log(1.01))
        assert re.search(rf"i100 +3 +2,400 +1,024 +1,600 +\$0\.0642 +\S+ +\${each:.4f}", text), text
        asked.reply(site("kernel", "i100", 2), REPLY, dollars=None)
        await monitor.until_shown("1 reply whose price is unknown")
        asked.fail(asked.start(site("kernel", "i100", 3)), 30.0)
        await monitor.until_shown("1 call waiting for a retry: too many requests.")
        asked.fail(asked.start(site("kernel", "i100", 4), model="m-two"), None, why="key")
        await monitor.until_shown("No more calls to m-two: key rejected: slow down")
        for key in ("escape", "q", "enter", "dollar_sign"):
            await monitor.press(key)
            await monitor.until(lambda: len(monitor.app.screen_stack) == 1)
            await monitor.press("dollar_sign")
            await monitor.until_shown("Cost of model calls")
        await monitor.press("M")
        await monitor.until_shown("Model cost in dollars ($0.0963 used)")
        assert "Model calls (7 used)" in monitor.text()


async def test_prompts_that_wait_are_news_and_a_read_only_monitor_answers_none(engine: Engine) -> None:
    asked = Asked(engine)
    async with monitor_of(engine.paths, read_only=True) as monitor:
        told: list[str] = []
        monitor.app.alert = told.append  # type: ignore[method-assign,assignment]
        asked.start(site("kernel", "i1"), model="manual", provider="manual")
        await monitor.until_shown("1 prompt to answer (I)")
        asked.start(site("kernel", "i1", 1), model="manual", provider="manual")
        await monitor.until_shown("2 prompts to answer (I)")
        assert told == ["small: a prompt is waiting for a reply (press I)"]
        outbox = engine.paths.directory / "outbox"
        outbox.mkdir()
        (outbox / "softmax.r2.kernel.i1.0.md").write_text(f"Call: {HOSTILE}\n{RULER}\nWrite. {HOSTILE}\n")
        await monitor.press("I")
        await monitor.until_shown("1 prompt is waiting for a reply")
        assert all(NO_CONTROL.match(one) for one in monitor.text().splitlines())
        await monitor.press("enter", *"words", "ctrl+s")
        await monitor.until_shown("This monitor is read-only.")
        assert not (engine.paths.directory / "inbox").exists()
        Mailbox(engine.paths.directory).deliver(call_name(site("kernel", "i1")), "words")
        await monitor.until_shown("0 prompts are waiting for a reply")
        await monitor.press("escape")
        await monitor.until_shown("1 prompt to answer (I)")


def test_a_search_without_a_monitor_says_once_that_prompts_wait(engine: Engine) -> None:
    asked, lines = Asked(engine), PromptLines(engine.paths)

    def said(after_s: float) -> str | None:
        with SessionReader(engine.paths) as reader:
            return lines.lasting(fold(reader.read()), time.time() + after_s)

    asked.start(site("kernel", "i1"), model="manual", provider="manual")
    asked.start(site("kernel", "i1", 1))
    assert said(0) is None, "--until-idle may be about to list it"
    assert said(6) == f"1 prompt is waiting for a reply by hand; see: kernel-tui reply {engine.paths.directory}"
    assert said(60) is None
    for number in (2, 3):
        asked.start(site("kernel", "i1", number), model="manual", provider="manual")
    Mailbox(engine.paths.directory).deliver(call_name(site("kernel", "i1", 3)), "words")
    assert said(6) == f"2 prompts are waiting for a reply by hand; see: kernel-tui reply {engine.paths.directory}"
    asked.start(site("kernel", "i1", 4), model="manual", provider="manual")
    Mailbox(engine.paths.directory).deliver(call_name(site("kernel", "i1", 4)), "words")
    assert said(6) is None, "who waits was said, and who is new is answered"
