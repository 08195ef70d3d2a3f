"""Render a session's screen as plain text, for scripts, logs and tests."""

from __future__ import annotations

import asyncio
import importlib

from engine.session.store import SessionError, SessionPaths
from tui.monitor.app import MonitorApp
from tui.monitor.panes.charts.view import LIBRARY
from tui.monitor.settings import Settings
from tui.view.source import SessionSource

OPEN_S = 30.0


def screen_text(app: MonitorApp) -> str:
    """Return the app's screen as text, without styles."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)


def render_once(paths: SessionPaths, width: int = 120, height: int = 40) -> str:
    """Return the monitor's screen as text of ``width`` columns by ``height`` lines. Raises SessionError."""
    return asyncio.run(_render(paths, width, height))


async def _render(paths: SessionPaths, width: int, height: int) -> str:
    importlib.import_module(LIBRARY)  # With the library loaded, the first frame shows the charts.
    app = MonitorApp(SessionSource(paths, read_only=True), settings=Settings(notify="off"))
    async with app.run_test(size=(width, height)) as pilot:
        for _ in range(int(OPEN_S / 0.05)):
            await pilot.pause(0.05)
            if app.model.trouble is not None or (app.model.opened and app.model.link.kind != "connecting"):
                break
        if app.model.trouble is not None and not app.model.opened:
            raise SessionError(f"{paths.directory}: {app.model.trouble}", paths.directory)
        await pilot.pause(0.1)
        return screen_text(app)
