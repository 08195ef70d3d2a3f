"""The HTTP client for the SDKs: the ``httpx2`` interface over aiohttp's connections.

For each request, httpx2's own pool examines all connections and parses replies in Python. With 64 concurrent calls,
this pool accounts for half of each call's time. OpenAI's SDK offers aiohttp for the same reason. However, OpenAI's
transport does not distinguish a connection that broke after the request from a connection that failed before the
request. The difference matters, because only a break after the request may cost money.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from urllib.request import getproxies

import aiohttp
import httpx2
from yarl import URL

# Do not log requests, because events already record every attempt.
logging.getLogger("httpx2").setLevel(logging.WARNING)

CONNECT_S = 30.0
MOST_BYTES = 64 << 20
"""Maximum size of a reply or an error response, in bytes. The client stops reading at this size."""
_PLAIN = {"accept-encoding": "identity"}
KEPT_S = 4.0
"""Seconds before the client closes an idle connection. Servers close idle connections later (uvicorn: 5 s)."""


def http_client(timeout_s: float) -> httpx2.AsyncClient:
    """Create a client for any number of concurrent calls. Call this function in the event loop that will use the
    client.

    Connecting fails after ``timeout_s`` or 30 s, whichever is shorter. Callers must detect a silent server themselves,
    with ``streaming.Watch``.
    """
    timeout = httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S))
    # Do not follow redirects, so that a key is sent only to the address in the config.
    if getproxies().keys() - {"no"}:  # A client with a custom transport would ignore proxies.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx2.AsyncClient(timeout=timeout, limits=limits, follow_redirects=False, headers=_PLAIN)
    return httpx2.AsyncClient(
        timeout=timeout, transport=_Connections(timeout_s), follow_redirects=False, headers=_PLAIN
    )


class _Connections(httpx2.AsyncBaseTransport):
    """A transport that carries httpx2 requests and responses over aiohttp connections."""

    def __init__(self, timeout_s: float) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S, ssl=httpx2.create_ssl_context()),
            timeout=aiohttp.ClientTimeout(sock_connect=min(timeout_s, CONNECT_S)),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers.update(_PLAIN)  # The SDK's own header would allow compression.
        try:
            answer = await self._session.request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=request.headers.multi_items(),
                data=await request.aread(),
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError) as error:
            raise _failure_of(error, request) from error
        packing = answer.headers.get("content-encoding", "identity")
        if packing.lower() not in ("identity", ""):
            answer.close()
            message = f"the server compressed its reply ({packing[:40]}) although the request forbade compression"
            raise httpx2.RemoteProtocolError(message, request=request)
        return httpx2.Response(answer.status, headers=answer.raw_headers, stream=_Body(answer, request))

    async def aclose(self) -> None:
        await self._session.close()


class _Body(httpx2.AsyncByteStream):
    """A response's body, yielded as it arrives."""

    def __init__(self, answer: aiohttp.ClientResponse, request: httpx2.Request) -> None:
        self._answer, self._request = answer, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        try:
            async for piece in self._answer.content.iter_any():
                count += len(piece)
                if count > MOST_BYTES:
                    message = f"the server's reply exceeds {MOST_BYTES >> 20} MiB"
                    raise httpx2.RemoteProtocolError(message, request=self._request)
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise _failure_of(error, self._request) from error

    async def aclose(self) -> None:
        self._answer.close()  # If the body was read completely, the connection is already free.


def _failure_of(error: Exception, request: httpx2.Request) -> httpx2.TransportError:
    """Convert an aiohttp error to an httpx2 error. Only connection failures become errors that mean "the request was
    not sent".
    """
    message = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return httpx2.ConnectTimeout(message, request=request)
    if isinstance(error, aiohttp.ClientConnectorError):
        return httpx2.ConnectError(message, request=request)
    if isinstance(error, TimeoutError):
        return httpx2.ReadTimeout(message, request=request)
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | aiohttp.ClientResponseError):
        return httpx2.RemoteProtocolError(message, request=request)
    return httpx2.ReadError(message, request=request)
