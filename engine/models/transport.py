"""The HTTP client that both SDKs are given: ``httpx2`` with many small connection pools in place of one large.

For each request, httpx2's pool looks at every connection that it has, and asks the system about each idle one. With 64
connections that is more work than the request itself. Eight to a pool cost next to nothing.
"""

from __future__ import annotations

import itertools
import logging
from urllib.request import getproxies

import httpx2

logging.getLogger("httpx2").setLevel(logging.WARNING)  # every attempt is an event; a line of log each says no more

CONNECT_S = 30.0
_POOL = 8


def http_client(concurrency: int, timeout_s: float) -> httpx2.AsyncClient:
    """A client for ``concurrency`` calls at once, each silent for ``timeout_s`` at most."""
    timeout = httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S))
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    if concurrency <= _POOL or getproxies():  # a client with a transport of its own leaves proxies out
        return httpx2.AsyncClient(timeout=timeout, limits=limits, follow_redirects=True)
    return httpx2.AsyncClient(timeout=timeout, transport=_Pools(concurrency, limits), follow_redirects=True)


class _Pools(httpx2.AsyncBaseTransport):
    """Pools that take the requests in turn."""

    def __init__(self, concurrency: int, limits: httpx2.Limits) -> None:
        verify = httpx2.create_ssl_context()
        self._pools = [httpx2.AsyncHTTPTransport(verify=verify, limits=limits) for _ in range(-(-concurrency // _POOL))]
        self._turn = itertools.cycle(self._pools)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await next(self._turn).handle_async_request(request)

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()
