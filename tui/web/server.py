"""Serve the monitor of a session to browsers. Each page runs its own monitor (``tui.web.viewer``).

textual-serve carries the terminal over a websocket. This module protects the monitor on a shared machine. The server
listens on 127.0.0.1 only, and each request needs a token. A page from another site cannot open the websocket.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import shlex
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp_jinja2
import jinja2
from aiohttp import web
from textual_serve.server import Server

from engine.session.store import SessionPaths
from engine.system.python_process import python_command

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_TEMPLATES = Path(__file__).parent / "templates"
_NO_TOKEN = "This page needs a token. Open the address that kernel-tui serve printed.\n"
_OTHER_SITE = "A page from another site cannot open the monitor. Open the address that kernel-tui serve printed.\n"
_SHUTDOWN_S = 2.0


class MonitorServer(Server):  # type: ignore[misc]  # textual-serve's base class is untyped
    """A web server for one session's monitor.

    Args:
        paths: The session.
        writable: Whether viewers may steer the search.
        public_url: The address that browsers use, if the server is behind a proxy.
        token: The secret in the address. By default, the server creates a new secret.
    """

    def __init__(
        self, paths: SessionPaths, listening: socket.socket, *, writable: bool, public_url: str = "", token: str = ""
    ) -> None:
        host, port = listening.getsockname()[:2]
        options = ["--writable"] if writable else []
        viewer = python_command("tui.web.viewer", str(paths.directory.absolute()), *options)
        super().__init__(
            f"exec {shlex.join(viewer)}",  # exec makes the viewer a child of this process, without a shell in between.
            host=host,
            port=port,
            title=f"kernel-tui {paths.name}",
            public_url=public_url.rstrip("/") or f"http://{host}:{port}",
        )
        self.listening = listening
        self.token = token or secrets.token_urlsafe(24)
        self._cookie = f"kernel_tui_{port}"

    @property
    def address(self) -> str:
        """The address to open, with the token."""
        return f"{self.public_url}/?token={self.token}"

    def application(self) -> web.Application:
        """Return the web application: the page, its static files and the websocket."""
        application = web.Application(middlewares=[self._guard])
        aiohttp_jinja2.setup(application, loader=jinja2.FileSystemLoader(_TEMPLATES))
        application.add_routes(
            [
                web.get("/", self._page),
                web.get("/ws", self.handle_websocket),
                web.static("/static", self.statics_path),
            ]
        )
        return application

    async def run(self) -> None:
        """Serve until SIGINT or SIGTERM. The viewers' processes end with the server."""
        runner = web.AppRunner(self.application(), shutdown_timeout=_SHUTDOWN_S, handle_signals=False)
        await runner.setup()
        await web.SockSite(runner, self.listening).start()
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        await ended.wait()
        await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Respond with 401 to a request without the token, and with 403 to a request from another site's page."""
        # A browser may still hold the cookie of an earlier server on this port.
        given = (request.cookies.get(self._cookie, ""), request.query.get("token", ""))
        if not any(hmac.compare_digest(one.encode(), self.token.encode()) for one in given):
            raise web.HTTPUnauthorized(text=_NO_TOKEN)
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc not in (request.host, urlsplit(self.public_url).netloc):
            raise web.HTTPForbidden(text=_OTHER_SITE)
        return await handler(request)

    async def _page(self, request: web.Request) -> web.StreamResponse:
        """Show the page. The first request moves the token from the address to a cookie."""
        if "token" in request.query:
            moved = web.HTTPFound("./")
            secure = self.public_url.startswith("https:")
            moved.set_cookie(self._cookie, self.token, httponly=True, samesite="Strict", secure=secure)
            raise moved
        secure = urlsplit(self.public_url).scheme == "https"
        values: dict[str, Any] = {
            "title": self.title,
            "websocket": f"{'wss' if secure else 'ws'}://{request.host}/ws",
        }
        return aiohttp_jinja2.render_template("page.html", request, values)


def listen(port: int) -> socket.socket:
    """Return a socket that listens on 127.0.0.1 only. ``port`` 0 chooses a free port. Raises ``OSError``."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening
