"""The HTTP client that both SDKs are given: ``httpx2`` in front, aiohttp's connections behind it.

For each request, httpx2's own pool looks at every connection that it has and asks the system about each idle one, and
it reads replies with a parser in Python: with 64 calls at once that is half of what a call costs. OpenAI's SDK offers
aiohttp for the same reason; its transport takes a connection that broke after the request for one that never came
about, which is a difference in money here.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from urllib.request import getproxies

import aiohttp
import httpx2
from yarl import URL

logging.getLogger("httpx2").setLevel(logging.WARNING)  # every attempt is an event; a line of log each says no more

CONNECT_S = 30.0
MOST_BYTES = 64 << 20
"""No reply, and no error, is longer: of a server that goes on, no more is read."""
_PLAIN = {"accept-encoding": "identity"}
KEPT_S = 4.0
"""How long an idle connection is kept: less than servers do (uvicorn: 5 s), so that none is used as it dies."""


def http_client(timeout_s: float) -> httpx2.AsyncClient:
    """A client for any number of calls at once, to be made where they will run. A server that cannot be reached within
    ``timeout_s``, or 30 s, is a failure; whoever calls ends a call in which it says nothing (``streaming.Watch``)."""
    timeout = httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S))
    # No redirects: a key goes to the address of the config and nowhere else.
    if getproxies().keys() - {"no"}:  # a client with a transport of its own leaves proxies out
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx2.AsyncClient(timeout=timeout, limits=limits, follow_redirects=False, headers=_PLAIN)
    return httpx2.AsyncClient(
        timeout=timeout, transport=_Connections(timeout_s), follow_redirects=False, headers=_PLAIN
    )


class _Connections(httpx2.AsyncBaseTransport):
    """Requests and answers of httpx2, over connections of aiohttp."""

    def __init__(self, timeout_s: float) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S, ssl=httpx2.create_ssl_context()),
            timeout=aiohttp.ClientTimeout(sock_connect=min(timeout_s, CONNECT_S)),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers.update(_PLAIN)  # whatever an SDK asks for
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
            message = f"the server packs its reply ({packing[:40]}), although it was asked not to"
            raise httpx2.RemoteProtocolError(message, request=request)
        return httpx2.Response(answer.status, headers=answer.raw_headers, stream=_Body(answer, request))

    async def aclose(self) -> None:
        await self._session.close()


class _Body(httpx2.AsyncByteStream):
    """What has come, as it comes."""

    def __init__(self, answer: aiohttp.ClientResponse, request: httpx2.Request) -> None:
        self._answer, self._request = answer, request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        try:
            async for piece in self._answer.content.iter_any():
                count += len(piece)
                if count > MOST_BYTES:
                    message = f"the server's reply goes on after {MOST_BYTES >> 20} MiB"
                    raise httpx2.RemoteProtocolError(message, request=self._request)
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise _failure_of(error, self._request) from error

    async def aclose(self) -> None:
        self._answer.close()  # of one that was read to its end, the connection is free already


def _failure_of(error: Exception, request: httpx2.Request) -> httpx2.TransportError:
    """The same in httpx2's words. Only what names a connection that never came about says that nothing was sent."""
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
