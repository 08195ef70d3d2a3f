"""Single calls over each protocol: the server's behavior, the session's record, and the cost."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from engine.proposers.llm.calls.retrying_caller import prompt_digest
from engine.proposers.llm.clients.keys import KeyMissing
from engine.proposers.llm.model_protocol import CallFailed, Prompt
from engine.session.records.events import ModelCallFailed, ModelCallStarted, ModelReplied
from engine.session.records.model_calls import FailureKind, Usage
from engine.session.store import SessionReader
from tests.engine.models.conftest import KEY, PROMPT, SITE, WIRES, Engine, Wire, model_table, until
from tests.model_server import Do, ModelServer
from tests.model_server.server import Kind

pytestmark = pytest.mark.parametrize("wire", WIRES)
MODEL = 'model = "m"'


async def test_a_reply_streams_and_is_recorded_before_it_is_returned(
    wire: Wire, server: ModelServer, engine: Engine
) -> None:
    text = "Here it is.\n```cpp\n" + "// a line\n" * 40 + "```\n"
    server.script(Do(text=text, reasoning=70, cached=3, answered="m-2026-11-01", pause_s=0.02))
    seen: list[str] = []
    async with engine.life(model_table(wire, server, MODEL)) as desk:
        reply = await desk.caller.call(SITE, PROMPT, seen.append)
        started, replied = desk.events()
        assert reply.text == text
        assert len(seen) > 1 and all(text.startswith(part) for part in seen)
        assert isinstance(started, ModelCallStarted) and isinstance(replied, ModelReplied)
        assert started.site == SITE and started.prompt == replied.prompt == prompt_digest(PROMPT)
        assert (replied.answered, replied.finish) == ("m-2026-11-01", "stop")
        assert replied.usage == reply.usage == server.books.told == desk.spent.usage
        assert replied.usage is not None and (replied.usage.reasoning, replied.usage.cached) == (70, 3)
        with SessionReader(desk.paths) as reader:
            assert reader.text(replied.reply) == text
            assert Prompt.decode(reader.text(started.prompt)) == PROMPT
        assert (desk.spent.calls, desk.spent.failed, desk.spent.uncertain) == (1, 0, 0)


@pytest.mark.parametrize(("finish", "text"), [("length", "half a ker"), ("refusal", "I cannot help with that.")])
async def test_how_a_reply_ends(wire: Wire, finish: str, text: str, server: ModelServer, engine: Engine) -> None:
    server.script(Do(finish=finish, text=text))  # type: ignore[arg-type]
    async with engine.life(model_table(wire, server, MODEL)) as desk:
        reply = await desk.caller.call(SITE, PROMPT)
        assert (reply.finish, reply.text) == (finish, text)
        assert desk.spent.usage == server.books.told


@pytest.mark.parametrize(
    ("kind", "failure", "billed"),
    [
        ("rate_limit", "rate_limit", False),
        ("server_error", "server", False),
        ("drop_before", "connection", True),
        ("drop_mid", "connection", True),
        ("cut_short", "cut_short", True),
        ("malformed", "broken_reply", True),
        ("html", "broken_reply", True),
        ("hang", "timeout", True),
        ("hang_open", "timeout", True),
        ("error_event", "server", True),
    ],
)
async def test_what_may_succeed_next_time_is_repeated_once_and_seen(
    wire: Wire, kind: Kind, failure: FailureKind, billed: bool, server: ModelServer, engine: Engine
) -> None:
    if (wire, kind) == ("gemini", "hang_open"):
        pytest.skip("Gemini sends no comments, and its SDK takes them for a broken reply")
    if wire == "command":
        if kind == "cut_short":
            pytest.skip("a program ends its reply with its exit code")
        failure = "program" if failure == "connection" else failure
    server.script(Do(kind), Do(text="at last"))
    # A program's time limit covers its whole call, and so the second attempt.
    timeout_s = 30.0 if failure != "timeout" else 5.0 if wire == "command" else 2.0
    async with engine.life(model_table(wire, server, MODEL, timeout_s)) as desk:
        assert (await desk.caller.call(SITE, PROMPT)).text == "at last"
        first, failed, second, replied = desk.events()
        assert isinstance(first, ModelCallStarted) and isinstance(second, ModelCallStarted)
        assert isinstance(failed, ModelCallFailed) and isinstance(replied, ModelReplied)
        assert failed.failure == failure and failed.message and failed.wait_s is not None
        assert (first.call, first.attempt, second.call, second.attempt) == ("c1", 1, "c1", 2)
        assert server.books.calls == desk.spent.calls == 2
        assert desk.spent.usage == server.books.told
        assert desk.spent.uncertain == billed
        assert desk.spent.unknown.tokens == (first.tokens if billed else 0)
        assert server.books.billed.total <= desk.spent.at_most.tokens


@pytest.mark.parametrize(
    ("do", "model", "failure"),
    [
        (Do("quota"), "m", "quota"),
        (Do(), "nonsuch", "unknown_model"),
        (Do("bad_request"), "m", "bad_request"),
    ],
)
async def test_what_cannot_succeed_is_not_repeated(
    wire: Wire, do: Do, model: str, failure: FailureKind, server: ModelServer, engine: Engine
) -> None:
    server.script(do)
    async with engine.life(model_table(wire, server, f'model = "{model}"')) as desk:
        with pytest.raises(CallFailed) as caught:
            await desk.caller.call(SITE, PROMPT)
        (failed,) = desk.failures()
        assert caught.value.kind == failed.failure == failure
        assert failed.wait_s is None
        assert (server.books.calls, desk.spent.tokens, desk.spent.uncertain) == (1, 0, 0)
        if failure != "bad_request":  # the model is at fault, not the call, so no retry
            with pytest.raises(CallFailed):
                await desk.caller.call(SITE, PROMPT)
            assert server.books.calls == 1
            assert desk.caller.refusal is not None


async def test_a_wrong_key_is_one_failure_and_stands_nowhere(
    wire: Wire,
    server: ModelServer,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server echoes the rejected key, as some do."""
    wrong = "sk-wrong-fedcba9876543210"
    monkeypatch.setenv("TEST_MODEL_KEY", wrong)
    caplog.set_level(logging.DEBUG)
    async with engine.life(model_table(wire, server, MODEL)) as desk:
        with pytest.raises(CallFailed) as caught:
            await desk.caller.call(SITE, PROMPT)
        assert (caught.value.kind, desk.spent.failed) == ("key", 1)
        assert caught.value.__cause__ is None and caught.value.__context__ is None
        assert desk.failures()[0].message.startswith("TEST_MODEL_KEY: ") and "[key]" in desk.failures()[0].message
    assert server.requests[0].key == wrong
    said = caplog.text + "".join(str(line) for line in caplog.records)
    files = b"".join(file.read_bytes() for file in desk.paths.directory.rglob("*") if file.is_file())
    assert wrong not in said and wrong.encode() not in files


async def test_the_key_leaves_the_environment_with_the_engine_that_reads_it(
    wire: Wire, server: ModelServer, engine: Engine
) -> None:
    import os

    async with engine.life(model_table(wire, server, MODEL)) as desk:
        assert "TEST_MODEL_KEY" not in os.environ
        await desk.caller.call(SITE, PROMPT)
        assert server.requests[0].key == KEY


async def test_a_missing_key_is_told_before_anything_is_asked(
    wire: Wire, server: ModelServer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_MODEL_KEY")
    with pytest.raises(KeyMissing, match="TEST_MODEL_KEY is not set"):
        async with engine.life(model_table(wire, server, MODEL)):
            pass
    assert server.books.calls == 0


async def test_the_wait_that_a_server_asks_for_is_kept(wire: Wire, server: ModelServer, engine: Engine) -> None:
    server.script(Do("rate_limit", retry_after="1"))
    async with engine.life(model_table(wire, server, MODEL)) as desk:
        began = time.monotonic()
        await desk.caller.call(SITE, PROMPT)
        assert [failed.wait_s for failed in desk.failures()] == [1.0]
        assert time.monotonic() - began >= 1.0


async def test_a_wait_beyond_all_patience_is_not_begun(wire: Wire, server: ModelServer, engine: Engine) -> None:
    server.script(Do("rate_limit", retry_after="3600"))
    async with engine.life(model_table(wire, server, MODEL)) as desk:
        with pytest.raises(CallFailed):
            await desk.caller.call(SITE, PROMPT)
        assert desk.failures()[0].wait_s is None


async def test_attempts_that_may_have_been_billed_are_not_repeated_for_ever(
    wire: Wire, server: ModelServer, engine: Engine
) -> None:
    server.default = Do("drop_mid" if wire == "command" else "cut_short")
    async with engine.life(model_table(wire, server, MODEL)) as desk:
        with pytest.raises(CallFailed):
            await desk.caller.call(SITE, PROMPT)
        assert [failed.wait_s is None for failed in desk.failures()] == [False, False, True]
        assert desk.spent.tokens == 0
        assert server.books.billed.total <= desk.spent.at_most.tokens


async def test_a_server_that_is_not_there_costs_nothing(wire: Wire, server: ModelServer, engine: Engine) -> None:
    text = model_table(wire, server, MODEL)
    server.stop()
    async with engine.life(text) as desk:
        call = asyncio.create_task(desk.caller.call(SITE, PROMPT))
        await until(lambda: len(desk.failures()) >= 3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert {failed.failure for failed in desk.failures()} == {"connection"}
        assert (desk.spent.tokens, desk.spent.uncertain) == (0, 0)


async def test_ideas_are_asked_for_in_a_structure_where_the_server_can(
    wire: Wire, server: ModelServer, engine: Engine
) -> None:
    if wire == "command":
        pytest.skip("a program reads the prompt only, which describes the structure")
    schema = {
        "type": "object",
        "properties": {"ideas": {"type": "array", "items": {"type": "string"}}},
        "required": ["ideas"],
        "additionalProperties": False,
    }
    ideas = Prompt("ideas", "You have ideas.", "Three, please.", schema)
    plain = model_table(wire, server, 'model = "other"\nstructured = false')
    async with engine.life(model_table(wire, server, MODEL) + plain) as desk:
        for name in ("m", "other"):
            await desk.callers[name].call(SITE, ideas)
        await desk.callers["m"].call(SITE, PROMPT)
    assert [asked.schema for asked in server.requests] == [schema, None, None]
    assert {asked.limit for asked in server.requests} == {1000}
    assert all(asked.stream for asked in server.requests)


async def test_a_call_given_up_by_the_search_may_have_cost_something(
    wire: Wire, server: ModelServer, engine: Engine
) -> None:
    server.script(Do("hang"))
    async with engine.life(model_table(wire, server, MODEL)) as desk:
        call = asyncio.create_task(desk.caller.call(SITE, PROMPT))
        await until(lambda: server.books.calls)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: desk.spent.failed)
        (failed,) = desk.failures()
        assert (failed.failure, failed.usage) == ("cancelled", None)
        assert desk.spent.uncertain == 1 and not desk.state.spending.flying


async def test_a_reply_without_end_is_cut_and_says_so(wire: Wire, server: ModelServer, engine: Engine) -> None:
    server.script(Do(text="x" * 1_500_000, piece=100_000))
    async with engine.life(model_table(wire, server, MODEL)) as desk:
        reply = await desk.caller.call(SITE, PROMPT)
        assert (len(reply.text), reply.finish) == (1 << 20, "length")
        assert desk.spent.usage == server.books.told
        assert isinstance(desk.spent.usage, Usage)


async def test_what_is_no_text_is_a_reply_all_the_same(wire: Wire, server: ModelServer, engine: Engine) -> None:
    server.script(Do(text="a\ud83d\ude00\ud800b", piece=1, answered="m\ud800", tier="t\ud800"))
    async with engine.life(model_table(wire, server, MODEL)) as desk:
        reply = await desk.caller.call(SITE, PROMPT)
        assert (reply.text, reply.model) == ("a\N{GRINNING FACE}\ufffdb", "m?")
        assert (desk.spent.usage, desk.spent.uncertain) == (server.books.told, 0)


@pytest.mark.parametrize(
    "do",
    [
        Do("server_error", message="broken \ud800"),
        Do("server_error", retry_after="Mon, 01 Jan 2020 00:00:00 +99999999999999"),
        Do("server_error", retry_after="Mon, 01 Jan 99999999999 00:00:00 GMT"),
    ],
)
async def test_an_error_in_words_that_cannot_be_read_is_one_failure(
    wire: Wire, do: Do, server: ModelServer, engine: Engine
) -> None:
    server.script(do, Do(text="at last"))
    async with engine.life(model_table(wire, server, MODEL)) as desk:
        assert (await desk.caller.call(SITE, PROMPT)).text == "at last"
        assert [failed.failure for failed in desk.failures()] == ["server"]
        assert (desk.spent.usage, desk.spent.uncertain) == (server.books.told, 0)


async def test_counts_that_no_call_can_have_are_not_believed(wire: Wire, server: ModelServer, engine: Engine) -> None:
    server.script(Do(reasoning=10**30), Do(text="at last"))
    async with engine.life(model_table(wire, server, MODEL)) as desk:
        assert (await desk.caller.call(SITE, PROMPT)).text == "at last"
        first = desk.events()[0]
        assert isinstance(first, ModelCallStarted)
        assert [failed.failure for failed in desk.failures()] == ["broken_reply"]
        assert desk.spent.tokens < 100
        assert (desk.spent.uncertain, desk.spent.unknown.tokens) == (1, first.tokens)
