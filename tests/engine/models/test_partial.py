"""Streamed replies appear in the session's directory while they arrive, at low cost, and leave no files behind."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from engine.proposers.llm.model_protocol import CallFailed
from engine.proposers.partial_replies import (
    MOST_WRITES_A_SECOND,
    SHOWN_CHARS,
    WRITE_EVERY_S,
    Partials,
    partial_directory,
    read_partial,
)
from engine.session.records.model_calls import CallSite
from tests.engine.models.conftest import KEY, PROMPT, SITE, WIRES, Engine, Wire, model_table, until
from tests.model_server import Do, ModelServer


def left_in(session: Path) -> list[str]:
    directory = partial_directory(session)
    return [file.name for file in directory.iterdir()] if directory.exists() else []


@pytest.mark.parametrize("wire", WIRES)
async def test_a_reply_is_seen_growing_and_gone_at_its_end(engine: Engine, server: ModelServer, wire: Wire) -> None:
    said = "".join(f"line {number}\n" for number in range(30))
    server.script(Do(text=said, pause_s=0.05))
    async with engine.life(model_table(wire, server, 'model = "m"')) as desk:
        session = desk.paths.directory
        partials = Partials(session)

        async def ask() -> str:
            with partials.of(SITE) as on_text:
                return (await desk.caller.call(SITE, PROMPT, on_text)).text

        call = asyncio.ensure_future(ask())
        await until(lambda: read_partial(session, SITE))
        first = read_partial(session, SITE)
        assert first is not None
        assert said.startswith(first.text)
        assert first.characters == len(first.text)
        await until(lambda: (now := read_partial(session, SITE)) and now.characters > first.characters)
        assert not call.done()
        assert KEY not in "".join(file.read_text() for file in partial_directory(session).iterdir())
        assert await call == said
        assert not partial_directory(session).exists()


async def test_a_second_attempt_begins_with_nothing(engine: Engine, server: ModelServer) -> None:
    server.script(Do("drop_mid", text="the first " * 20, pause_s=0.05), Do(text="the second", delay_s=0.5))
    async with engine.life(model_table("chat", server, 'model = "m"')) as desk:
        session = desk.paths.directory
        partials = Partials(session)

        async def ask() -> str:
            with partials.of(SITE) as on_text:
                return (await desk.caller.call(SITE, PROMPT, on_text)).text

        call = asyncio.ensure_future(ask())
        await until(lambda: read_partial(session, SITE))
        await until(lambda: server.books.calls == 2)
        assert read_partial(session, SITE) is None
        assert await call == "the second"


async def test_a_call_that_fails_leaves_nothing(engine: Engine, server: ModelServer) -> None:
    server.default = Do("quota")
    async with engine.life(model_table("chat", server, 'model = "m"')) as desk:
        with pytest.raises(CallFailed), Partials(desk.paths.directory).of(SITE) as on_text:
            on_text("words")
            await asyncio.sleep(WRITE_EVERY_S)
            on_text("words of before")
            assert left_in(desk.paths.directory)
            await desk.caller.call(SITE, PROMPT, on_text)
        assert left_in(desk.paths.directory) == []


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_an_endless_reply_is_kept_by_its_end_and_many_calls_write_no_more_than_a_few(tmp_path: Path) -> None:
    clock = Clock()
    partials = Partials(tmp_path, clock)
    with partials.of(SITE) as on_text:
        on_text("x")
        clock.now_s += WRITE_EVERY_S
        on_text("x" * 1_000_000 + "end")
        found = read_partial(tmp_path, SITE)
        assert found is not None
        assert found.characters == 1_000_003
        assert len(found.text) == SHOWN_CHARS
        assert found.text.endswith("end")
        clock.now_s += 0.9 * WRITE_EVERY_S
        on_text("soon after")
        assert read_partial(tmp_path, SITE) == found, "four times a second at most"


def test_many_calls_at_once_write_a_few_times_a_second_together(tmp_path: Path) -> None:
    clock = Clock()
    partials = Partials(tmp_path, clock)
    sites = [CallSite("softmax", 1, "kernel", "i1", number) for number in range(64)]
    with contextlib.ExitStack() as calls:
        shows = [calls.enter_context(partials.of(site)) for site in sites]
        texts: dict[CallSite, set[int]] = {site: set() for site in sites}
        for length in range(1, 201):
            clock.now_s += 0.01
            for site, show in zip(sites, shows, strict=True):
                show("x" * length)
                if (found := read_partial(tmp_path, site)) is not None:
                    texts[site].add(found.characters)
        written = sum(len(seen) for seen in texts.values())
    assert MOST_WRITES_A_SECOND / 4 <= written / 2.0 <= MOST_WRITES_A_SECOND + 1
    assert not partial_directory(tmp_path).exists()


def test_what_a_dead_engine_left_is_swept_away(tmp_path: Path) -> None:
    clock = Clock()
    on_text = Partials(tmp_path, clock).of(SITE).__enter__()
    on_text("half")
    clock.now_s += WRITE_EVERY_S
    on_text("half a reply")
    assert left_in(tmp_path) == ["softmax.r1.kernel.i1.0.part"]
    Partials(tmp_path).sweep()
    assert not partial_directory(tmp_path).exists()
    Partials(tmp_path).sweep()


def test_a_full_disk_costs_the_view_and_not_the_reply(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    partial_directory(tmp_path).write_text("a file where the directory should be")
    clock = Clock()
    with Partials(tmp_path, clock).of(SITE) as on_text:
        on_text("one")
        for _ in range(2):
            clock.now_s += WRITE_EVERY_S
            on_text("two")
    assert read_partial(tmp_path, SITE) is None
    assert len(caplog.records) == 1
