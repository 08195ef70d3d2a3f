"""The model server: handles requests and records usage."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from engine.session.records.model_calls import Finish, Usage
from tests.model_server.asked import Asked, asked_of
from tests.model_server.http import Exchange, Gone, serve_connection
from tests.model_server.wire import (
    STATUS,
    Answer,
    acts_of,
    error_event,
    error_of,
    malformed_event,
    stream_of,
    terminal_events,
    whole_of,
)

Kind = Literal[
    "reply",
    "rate_limit",
    "quota",
    "server_error",
    "overloaded",
    "key",
    "unknown_model",
    "bad_request",
    "drop_before",
    "drop_mid",
    "cut_short",
    "malformed",
    "html",
    "hang",
    "hang_open",
    "error_event",
]

_PAGE = b"<!doctype html><html><head><title>Sign in</title></head><body>{ Please sign in. }</body></html>"
_KEEP_ALIVE_S = 0.05


@dataclass(frozen=True)
class Do:
    """Behavior for one request.

    ``text``: the reply, by default from the server's author. ``delay_s``: before the first byte. ``pause_s``: between
    events of ``piece`` characters each. ``hang_open``: send only comments that keep the connection open. ``counts``
    and ``parts``: see ``Answer``.
    """

    kind: Kind = "reply"
    text: str | None = None
    finish: Finish = "stop"
    reasoning: int = 0
    cached: int = 0
    cache_written: int = 0
    answered: str = ""
    tier: str = "default"
    delay_s: float = 0.0
    pause_s: float = 0.0
    piece: int = 12
    counts: dict[str, Any] | None = None
    parts: bool = False
    retry_after: str | None = None
    message: str = ""


@dataclass
class Books:
    """Usage that a provider would bill.

    ``told``: usage reported to clients, request by request, up to the last byte. ``untold``: usage of broken requests,
    which no client learned of.
    """

    calls: int = 0
    told: Usage = field(default_factory=Usage)
    untold: Usage = field(default_factory=Usage)
    by_kind: dict[str, int] = field(default_factory=dict)

    @property
    def billed(self) -> Usage:
        return _sum(self.told, self.untold)


def echo(asked: Asked) -> str:
    """Writes replies that are not scripted."""
    return f"{asked.model} was asked {len(asked.prompt)} characters.\n```cpp\nint main() {{ return 0; }}\n```\n"


class ModelServer:
    """Serves on a free port of this machine from its own thread, until the ``with`` block ends.

    ``keys`` and ``models``: accepted values, by default any. ``author`` writes the replies.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        keys: Iterable[str] | None = None,
        models: Iterable[str] | None = None,
        author: Callable[[Asked], str] = echo,
        default: Do | None = None,
    ) -> None:
        self.books = Books()
        self.requests: list[Asked] = []
        self.default = default or Do()
        self._author = author
        self._keys = set(keys) if keys is not None else None
        self._models = set(models) if models is not None else None
        self._script: deque[Do] = deque()
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="model-server", daemon=True)

    @property
    def openai(self) -> str:
        """``base_url`` for OpenAI's protocols."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def gemini(self) -> str:
        """``base_url`` for Gemini's."""
        return f"http://127.0.0.1:{self._port}/"

    @property
    def anthropic(self) -> str:
        """``base_url`` for Anthropic's."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def command(self) -> list[str]:
        """``command`` for a program that plays the server's script; the model's name follows."""
        return [sys.executable, "-I", "-S", str(Path(__file__).with_name("agent.py")), f"{self._port}"]

    def script(self, *steps: Do) -> None:
        """Script the behavior for the next requests, in order. Later requests get ``default`` again."""
        self._script.extend(steps)

    def next_step(self) -> Do:
        """Return the behavior for the current request."""
        return self._script.popleft() if self._script else self.default

    def __enter__(self) -> ModelServer:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Close every connection and end. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        connections: set[asyncio.Task[Any]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            try:
                await serve_connection(reader, writer, self._handle)
            except asyncio.CancelledError:
                writer.close()
            finally:
                connections.discard(task)

        server = await asyncio.start_server(connected, "127.0.0.1", self._port, backlog=1024, limit=1 << 24)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopping.wait()
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _handle(self, exchange: Exchange) -> None:
        asked = asked_of(exchange.path, exchange.headers, exchange.body)
        if asked is None:
            await exchange.respond(404, b'{"error": {"message": "no such address"}}', "application/json")
            return
        self.requests.append(asked)
        do = self.next_step()
        if self._keys is not None and asked.key not in self._keys:
            do = replace(do, kind="key", message=f"Incorrect API key provided: {asked.key}.")
        elif self._models is not None and asked.model not in self._models:
            do = replace(do, kind="unknown_model", message=f"The model {asked.model} does not exist.")
        self.books.calls += 1
        self.books.by_kind[do.kind] = self.books.by_kind.get(do.kind, 0) + 1
        await asyncio.sleep(do.delay_s)
        await self._act(exchange, asked, do)

    async def _act(self, exchange: Exchange, asked: Asked, do: Do) -> None:
        if asked.dialect == "command":
            await self._direct(exchange, asked, do)
            return
        if do.kind == "drop_before":
            raise Gone
        if do.kind == "hang":
            await self._stopping.wait()
            raise Gone
        if do.kind == "html":
            await exchange.respond(200, _PAGE, "text/html; charset=utf-8")
            return
        if do.kind in STATUS:
            status, body = error_of(asked.dialect, do.kind, do.message or f"scripted {do.kind}", do.retry_after)
            headers = {"retry-after": do.retry_after} if do.retry_after is not None else {}
            await exchange.respond(status, body, "application/json", headers)
            return
        answer = self._answer(asked, do)
        usage = answer.usage
        # Record usage first: a client that has read the last byte may check it before this continues.
        if do.kind == "reply":
            self.books.told = _sum(self.books.told, usage)
        else:
            self.books.untold = _sum(self.books.untold, usage)
        try:
            if asked.stream:
                await self._stream(exchange, asked, do, answer)
            else:
                await exchange.respond(200, whole_of(asked, answer), "application/json")
        except (Gone, ConnectionError):
            if do.kind == "reply":
                self.books.told = _sum(self.books.told, usage, sign=-1)
                self.books.untold = _sum(self.books.untold, usage)
            raise

    async def _direct(self, exchange: Exchange, asked: Asked, do: Do) -> None:
        """Tell a program what to do. What it will report counts as told already."""
        answer = self._answer(asked, do)
        if do.kind == "reply":
            self.books.told = _sum(self.books.told, answer.usage)
        elif do.kind not in STATUS:
            self.books.untold = _sum(self.books.untold, answer.usage)
        await exchange.respond(200, acts_of(answer, do.kind, do.message, do.retry_after, do.pause_s), "text/plain")

    def _answer(self, asked: Asked, do: Do) -> Answer:
        text = do.text if do.text is not None else self._author(asked)
        usage = Usage(
            input=len(asked.prompt) // 4 + 1,
            output=len(text) // 4 + 1 + do.reasoning,
            cached=do.cached,
            reasoning=do.reasoning,
            cache_written=do.cache_written,
        )
        return Answer(text, usage, do.answered or asked.model, do.finish, do.tier, do.piece, do.counts, do.parts)

    async def _stream(self, exchange: Exchange, asked: Asked, do: Do, answer: Answer) -> None:
        await exchange.begin("text/event-stream")
        while do.kind == "hang_open" and not self._stopping.is_set():
            await exchange.send(b": still thinking\n\n")
            await asyncio.sleep(_KEEP_ALIVE_S)
        events = list(stream_of(asked, answer))
        whole = len(events) - (0 if do.kind == "reply" else terminal_events(asked.dialect))
        events = events[: max(1, whole)]
        if not do.pause_s:
            await exchange.send(*events)
        else:
            for event in events:
                await asyncio.sleep(do.pause_s)
                await exchange.send(event)
        if do.kind == "drop_mid":
            raise Gone
        if do.kind == "malformed":
            await exchange.send(malformed_event(asked.dialect))
        if do.kind == "error_event":
            await exchange.send(error_event(asked.dialect))
        await exchange.end()


def _sum(one: Usage, other: Usage, sign: int = 1) -> Usage:
    return Usage(
        one.input + sign * other.input,
        one.output + sign * other.output,
        one.cached + sign * other.cached,
        one.reasoning + sign * other.reasoning,
        one.cache_written + sign * other.cache_written,
    )
