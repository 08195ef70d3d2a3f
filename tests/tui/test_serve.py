"""The monitor in a browser: who may see it, who may steer it, and what is left when a viewer goes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest
from yarl import URL

from benchmarks.synthetic_session import Shape, write_session
from engine.exit_codes import ExitCode
from engine.session.records.requests import Command, Pause
from engine.session.store import EngineLock, SessionPaths, SessionReader
from tests.commandline import KernelTui

SOON_S = 30.0
Serve = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def session(tmp_path: Path) -> SessionPaths:
    return write_session(tmp_path / "sessions", "small", Shape(variants=20, problems=1, rounds=1))


@pytest.fixture
def serve(kernel_tui: KernelTui, session: SessionPaths) -> Iterator[Serve]:
    """Start a server. Returns its process and its address with the token."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> tuple[subprocess.Popen[str], str]:
        process = kernel_tui.start("serve", session.name, *options)
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        return process, line.rpartition(" ")[2].strip()

    yield start
    for process in started:
        process.kill()
        process.wait(SOON_S)


def browser() -> aiohttp.ClientSession:
    """A client that keeps cookies, also of a host without a name."""
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))


async def shown(websocket: aiohttp.ClientWebSocketResponse, words: str) -> str:
    """Read what the viewer's terminal gets until ``words`` appear."""
    text = ""
    async with asyncio.timeout(SOON_S):
        async for message in websocket:
            data = message.data if isinstance(message.data, bytes) else b""
            text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))
            if words in text:
                break
    return text


async def opened(client: aiohttp.ClientSession, address: str, **headers: str) -> aiohttp.ClientWebSocketResponse:
    page = await client.get(address)
    assert page.status == 200 and "token" not in str(page.url)
    return await client.ws_connect(str(page.url) + "ws?width=120&height=40", headers=headers)


def viewers(server: subprocess.Popen[str]) -> list[psutil.Process]:
    return [one for one in psutil.Process(server.pid).children() if "tui.web.viewer" in " ".join(one.cmdline())]


def commands(session: SessionPaths) -> list[Command]:
    with SessionReader(session) as reader:
        return [sent.command for sent in reader.commands() if sent.command is not None]


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=SOON_S)[1]


async def test_without_its_token_the_server_shows_nothing(serve: Serve) -> None:
    _, address = serve()
    plain = address.partition("?")[0]
    async with browser() as client:
        for url in (plain, f"{plain}?token=wrong", f"{plain}ws", f"{plain}static/js/textual.js"):
            answer = await client.get(url)
            assert answer.status == 401 and "kernel-tui serve printed" in await answer.text()
        assert "127.0.0.1" in plain


async def test_the_cookie_of_an_earlier_server_on_the_port_does_no_harm(serve: Serve) -> None:
    _, address = serve()
    port = urlsplit(address).port
    async with browser() as client:
        client.cookie_jar.update_cookies({f"kernel_tui_{port}": "old"}, URL(address))
        assert (await client.get(address)).status == 200


async def test_a_page_of_another_site_cannot_open_the_monitor(serve: Serve) -> None:
    server, address = serve()
    async with browser() as client:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await opened(client, address, Origin="http://127.0.0.1:1")
    assert refused.value.status == 403
    assert viewers(server) == []


async def test_a_viewer_watches_and_leaves_nothing_behind(serve: Serve, session: SessionPaths) -> None:
    server, address = serve()
    async with browser() as client:
        websocket = await opened(client, address, Origin=address.partition("/?")[0])
        text = await shown(websocket, "read-only")
        assert session.name in text
        (viewer,) = viewers(server)
        await websocket.close()
        assert await asyncio.to_thread(gone, [viewer])
    server.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(server.wait, SOON_S) == 0


async def test_a_key_steers_a_search_that_viewers_may_steer(serve: Serve, session: SessionPaths) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(EngineLock(session).release)
        _, address = serve("--writable")
        async with browser() as client:
            websocket = await opened(client, address)
            await shown(websocket, "round 0")  # While the session opens, the monitor accepts no requests.
            await websocket.send_json(["stdin", "P"])
            async with asyncio.timeout(SOON_S):
                while not (sent := commands(session)):  # noqa: ASYNC110  the request is in a database
                    await asyncio.sleep(0.1)
            await websocket.close()
    assert sent == [Pause()]


async def test_a_viewer_runs_no_command_reads_no_file_and_saves_no_setting(
    serve: Serve, session: SessionPaths, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(EngineLock(session).release)
        _, address = serve("--writable")
        async with browser() as client:
            websocket = await opened(client, address)
            await shown(websocket, "round 0")
            for key, words in (
                ("A", "Choose alerts in a terminal"),
                ("T", "use on this page"),
                ("\r", "on this page only"),
                ("a", "ctrl+s: submit the pasted text"),
            ):
                await websocket.send_json(["stdin", key])
                text = await shown(websocket, words)
            assert "path of a" not in text
            await websocket.close()
    assert not list((tmp_path / "settings").rglob("*.json"))


async def test_a_killed_server_takes_its_viewers_with_it(serve: Serve) -> None:
    server, address = serve()
    async with browser() as client:
        websocket = await opened(client, address)
        await shown(websocket, "read-only")
        here = viewers(server)
        assert len(here) == 1
        server.kill()
        assert await asyncio.to_thread(gone, here)
        with contextlib.suppress(aiohttp.ClientError):
            await websocket.close()


def test_a_port_in_use_is_named(serve: Serve, kernel_tui: KernelTui, session: SessionPaths) -> None:
    _, address = serve()
    port = str(urlsplit(address).port)
    failed = kernel_tui("serve", session.name, "--port", port)
    assert failed.returncode == ExitCode.FAILURE
    assert failed.stderr == f"Error: cannot listen on port {port}: Address already in use; choose another with --port\n"
