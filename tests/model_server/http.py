"""A minimal HTTP/1.1 server for the model servers: keep-alive, chunked bodies, and misbehavior on demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


class Gone(Exception):
    """Close the connection without another byte."""


class Exchange:
    """One request, and the connection for its response."""

    def __init__(
        self, method: str, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        self.method, self.path, self.headers, self.body = method, path, headers, body
        self._writer = writer

    async def respond(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self._head(status, {"content-type": kind, "content-length": str(len(body)), **(headers or {})})
        self._writer.write(body)
        await self._writer.drain()

    async def begin(self, kind: str) -> None:
        """Begin a body of unknown length."""
        self._head(200, {"content-type": kind, "transfer-encoding": "chunked"})
        await self._writer.drain()

    async def send(self, *pieces: bytes) -> None:
        """Send each piece as its own chunk, all in one write."""
        self._writer.write(b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces))
        await self._writer.drain()

    async def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def _head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}", *(f"{key}: {headers[key]}" for key in headers)]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())


async def serve_connection(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Callable[[Exchange], Awaitable[None]]
) -> None:
    """Serve the requests of one connection in order."""
    try:
        while (exchange := await _request(reader, writer)) is not None:
            await handle(exchange)
    except (Gone, ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange | None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    headers = {
        key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in head[1:] if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Exchange(method, path, headers, body, writer)
