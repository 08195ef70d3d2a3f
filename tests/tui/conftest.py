"""A monitor on a real session file, driven by keys. The engine's side uses the real lock and writer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from benchmarks.synthetic_session import GPU, Shape, write_session
from engine.session.records.events import AnyEvent, CommandHandled
from engine.session.records.requests import Command
from engine.session.store import EngineLock, EventWriter, SessionPaths, SessionReader
from tests.patience import TRIES
from tui.monitor.app import MonitorApp
from tui.monitor.settings import Settings
from tui.monitor.snapshot import screen_text
from tui.view.source import SessionSource

NOW = 1_780_000_000.0
SMALL = Shape(variants=60, problems=2, rounds=3, flying=4, device=GPU)


@dataclass
class Engine:
    """The engine's events, written by the test."""

    paths: SessionPaths
    lock: EngineLock
    writer: EventWriter
    seen: list[Command] = field(default_factory=list)

    def record(self, *events: AnyEvent) -> None:
        for event in events:
            self.writer.append(event)
        self.writer.flush(5)

    def commands(self) -> list[Command]:
        with SessionReader(self.paths) as reader:
            return [sent.command for sent in reader.commands() if sent.command is not None]

    def answer(self, *events: AnyEvent, ok: bool = True, message: str = "done", node: str | None = None) -> None:
        """Record the engine's answer to the newest request."""
        self.record(*events, CommandHandled(command=len(self.commands()), ok=ok, message=message, node=node))


@dataclass
class Monitor:
    """An app under test, and its keyboard."""

    app: MonitorApp
    pilot: Pilot[int]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause(0.05)

    async def type(self, text: str) -> None:
        await self.press(*text)

    async def press_ahead(self, *keys: events.Key | events.Paste) -> None:
        """Press keys faster than the monitor handles them, as a slow connection delivers them."""
        for key in keys:
            self.app.post_message(key)
        await self.pilot.pause(0.05)

    async def until(self, met: Callable[[], bool], what: str = "") -> None:
        """Wait until the monitor has reached a state."""
        for _ in range(TRIES):
            if met():
                return
            await self.pilot.pause(0.05)
        raise AssertionError(f"never came: {what}\n{self.text()}")

    async def until_shown(self, text: str) -> None:
        await self.until(lambda: text in self.text(), f"{text!r} on the screen")

    def text(self) -> str:
        return screen_text(self.app)

    def row(self) -> str | None:
        row = self.app.monitor_screen.tree_view.row
        return row.id if row is not None else None


Opener = Callable[..., "Awaitable[Monitor]"]


@pytest.fixture(autouse=True)
def plain_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove colors, settings and editors of the user who runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("TZ", "UTC")
    for name in ("NO_COLOR", "VISUAL", "TMUX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EDITOR", "true")  # one that saves nothing


@pytest.fixture(autouse=True)
def declared_keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Require that a test marked ``keys`` presses its keys. (Tests in a real terminal have no pilot.)"""
    declared = {key for mark in request.node.iter_markers("keys") for key in mark.args[1:]}
    pressed: set[str] = set()
    press = Pilot.press

    async def noted(pilot: Pilot[Any], *keys: str) -> None:
        pressed.update(keys)
        await press(pilot, *keys)

    monkeypatch.setattr(Pilot, "press", noted)
    yield
    assert not pressed or not declared - pressed, f"declared but never pressed: {declared - pressed}"


@pytest.fixture
def session(tmp_path: Path) -> SessionPaths:
    """Write a session of 60 kernels, two problems and three rounds. Four kernels are in flight."""
    return write_session(tmp_path, "small", SMALL, end=NOW)


@pytest.fixture
def engine(session: SessionPaths) -> Iterator[Engine]:
    lock = EngineLock(session)
    writer = EventWriter(session)
    yield Engine(session, lock, writer)
    writer.close()
    lock.release()


@asynccontextmanager
async def monitor_of(
    paths: SessionPaths, size: tuple[int, int] = (120, 40), *, read_only: bool = False, **options: object
) -> AsyncIterator[Monitor]:
    source = SessionSource(paths, read_only=read_only, clock=lambda: NOW)
    settings = Settings(notify="off")
    app = MonitorApp(source, settings=settings, ascii_only=bool(options.get("ascii_only", False)))
    async with app.run_test(size=size, notifications=True) as pilot:
        monitor = Monitor(app, pilot)
        await monitor.until(lambda: app.model.opened and app.model.link.kind != "connecting", "the session is open")
        await pilot.pause(0.3)
        yield monitor


@pytest.fixture
def open_monitor() -> object:
    return monitor_of
