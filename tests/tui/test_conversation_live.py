"""The monitor on real searches whose models are network servers or the user."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.widgets import TextArea

from engine.daemon.launch import EngineStart, spawn_engine
from engine.proposers.mailbox import Mailbox
from engine.proposers.partial_replies import partial_directory
from engine.session.store import SessionPaths, engine_liveness
from tests.commandline import KernelTui
from tests.engine.proposers import canned
from tests.model_server import Asked, Do, ModelServer
from tests.patience import TRIES
from tests.tui.conftest import Monitor
from tui.monitor.app import MonitorApp
from tui.monitor.settings import Settings
from tui.view.source import SessionSource

KEY = "sk-test-0123456789abcdef"
ENVIRONMENT = {"TEST_MODEL_KEY": KEY}
SEARCH = """\
name = "demo"
problems = ["softmax.py"]
[search]
rounds = 1
ideas = 1
variants = 1
fixes = 1
runoff = 0
[evaluation]
device = "cpu"
trials = 3
max_pairs = 8
torch_compile = false
other_sizes = false
"""
MODEL = """\
[budget]
calls = 1
[[models]]
provider = "openai"
model = "m-one"
base_url = "{openai}"
key_env = "TEST_MODEL_KEY"
max_output_tokens = 1000
input_price = 1.0
output_price = 10.0
"""


def author(asked: Asked) -> str:
    """Reply with an idea, a kernel that does not divide, and its repair."""
    if asked.schema is not None or "Propose " in asked.user:
        return "Let me think it over. " * 8 + canned.ideas(canned.IDEAS[0])
    if "The kernel that failed" in asked.user:
        return canned.block(canned.good("the repaired one"))
    return canned.block(canned.wrong("the first one"))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(keys=[KEY], models=["m-one"], author=author) as server:
        yield server


def begin(kernel_tui: KernelTui, directory: Path, models: str) -> SessionPaths:
    """Start a search in the background."""
    (directory / "softmax.py").write_text(canned.PROBLEM)
    (directory / "config.toml").write_text(SEARCH + models)
    started = kernel_tui("config.toml", "--detach", env=ENVIRONMENT)
    assert started.returncode == 0, started.stderr
    return SessionPaths.at(directory / "sessions" / "demo")


@asynccontextmanager
async def watching(paths: SessionPaths, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Monitor]:
    """Open the monitor as ``kernel-tui attach`` does."""
    under_way: list[EngineStart] = []

    def start() -> EngineStart:
        under_way.append(spawn_engine(paths))
        return under_way[-1]

    source = SessionSource(paths, starting=lambda: any(one.under_way for one in under_way))
    app = MonitorApp(source, start_engine=start, settings=Settings(notify="off"))
    async with app.run_test(size=size) as pilot:
        monitor = Monitor(app, pilot)
        await until(monitor, lambda: app.model.opened and app.model.link.kind != "connecting")
        yield monitor


async def until(monitor: Monitor, met: Callable[[], bool]) -> None:
    for _ in range(TRIES):
        if met():
            return
        await monitor.pilot.pause(0.05)
    raise AssertionError(monitor.text())


async def shown(monitor: Monitor, text: str) -> None:
    await until(monitor, lambda: text in monitor.text())


@pytest.mark.keys("SpendScreen", "escape")
async def test_a_reply_is_seen_while_it_streams_and_a_raised_limit_continues_the_search(
    kernel_tui: KernelTui, tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script(Do(pause_s=0.1))
    paths = begin(kernel_tui, tmp_path, MODEL.format(openai=server.openai))
    monkeypatch.setenv("TEST_MODEL_KEY", KEY)  # as in the shell of a user who starts an engine from the monitor
    async with watching(paths) as monitor:
        state = monitor.app.model.state
        await until(monitor, lambda: bool(monitor.app.model.state.spending.flying))
        await monitor.press("v")
        await shown(monitor, "characters so far")
        await shown(monitor, "Let me think it over. Let me")
        assert KEY not in "".join(file.read_text() for file in partial_directory(paths.directory).iterdir())
        state = monitor.app.model.state
        await until(monitor, lambda: not state.spending.flying and bool(state.ideas))
        assert not partial_directory(paths.directory).exists()

        # One call is all that it may spend: the search stops, and a larger limit continues it.
        await shown(monitor, "Budget used up")
        assert server.books.calls == 1
        await until(monitor, lambda: not engine_liveness(paths).running)
        await monitor.press("M")
        await shown(monitor, "Model calls (1 used)")
        for _ in range(4):
            await monitor.press("tab")
        await monitor.press("end", "backspace", "3", "enter")
        await until(monitor, lambda: any(variant.correct for variant in monitor.app.model.state.variants.values()))
        await until(monitor, lambda: server.books.calls == 3 and not monitor.app.model.state.spending.flying)
        state = monitor.app.model.state
        repaired = next(variant.id for variant in state.variants.values() if variant.correct)

        # The kernel's conversation: the idea, the failed kernel, the repair.
        screen = monitor.app.monitor_screen
        assert screen.tree_view.select(repaired)
        screen.action_pane(4)
        await monitor.press("plus")
        await shown(monitor, f"{repaired}, repair of v1")
        await shown(monitor, "kernel v1  by m-one (openai)")
        text = monitor.text()
        order = ("idea i1  by m-one", "kernel v1  by m-one", f"{repaired}, repair of v1")
        places = [text.index(what) for what in order]
        assert places == sorted(places)
        assert "tokens in" in text and "$0.0" in text
        assert "The problem: softmax" not in text, "prompts are not shown until somebody asks"
        await monitor.press("v", "g")
        await shown(monitor, "The problem: softmax")

        await monitor.press("dollar_sign")
        await shown(monitor, "Cost of model calls")
        text = monitor.text()
        spent = state.spending.total
        assert f"{spent.tokens:,}" in text and "3 of 3" in text
        told = server.books.told
        assert (spent.usage.input, spent.usage.output) == (told.input, told.output)
        await monitor.press("escape")
        await shown(monitor, "Budget used up")
        assert server.books.calls == 3


@pytest.mark.keys("MonitorScreen", "I")
@pytest.mark.keys("ReplyScreen", "ctrl+y", "ctrl+s", "ctrl+e", "escape")
async def test_a_person_is_the_model_without_leaving_the_monitor(
    kernel_tui: KernelTui, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = begin(kernel_tui, tmp_path, '[[models]]\nprovider = "manual"\nroles = ["ideas", "code", "fixes"]\n')
    async with watching(paths, (80, 24)) as monitor:
        sent: list[str] = []
        monkeypatch.setattr(monitor.app, "write_sequence", sent.append)
        await shown(monitor, "1 prompt to answer (I)")
        await monitor.press("I")
        await shown(monitor, "softmax.r0.ideas.start.0")
        await monitor.press("ctrl+y")
        copied = base64.b64decode(sent[-1].removeprefix("\x1b]52;c;").rstrip("\x07")).decode()
        assert "torch.softmax(x, dim=1)" in copied and "8<" not in copied
        await monitor.press("ctrl+s")
        await shown(monitor, "The reply is empty.")
        monitor.app.post_message(events.Paste(f"Sure!\n\x1b[31m{canned.ideas(canned.IDEAS[0])}\n"))
        await monitor.pilot.pause(0.1)
        monitor.app.post_message(events.Paste("and no more\n"))
        await monitor.pilot.pause(0.1)
        pasted = monitor.app.screen.query_one("#reply", TextArea).text
        assert (pasted.count("Sure!"), pasted.count("and no more")) == (1, 1)
        await monitor.press("ctrl+s")
        await shown(monitor, "softmax.r0.ideas.start.0: reply submitted")
        assert not list((paths.directory / "inbox").glob(".*")), "nothing half-written is left"

        # The engine reads it within a second and requests the kernel, which is written in the editor.
        await shown(monitor, "softmax.r0.kernel.i1.0")
        written = tmp_path / "written.md"
        written.write_text(canned.block(canned.good("by hand")))
        monkeypatch.setenv("EDITOR", f"cp {written}")
        await monitor.press("ctrl+e")
        await shown(monitor, "softmax.r0.kernel.i1.0: reply submitted")
        await until(monitor, lambda: any(variant.correct for variant in monitor.app.model.state.variants.values()))
        await until(monitor, lambda: "softmax.r0.kernel.i1.0" not in Mailbox(paths.directory).waiting())
        await monitor.press("escape")
        await monitor.press("B", "v")
        await shown(monitor, "kernel v1  by manual")
        assert "by hand" in monitor.text()
        assert monitor.app.model.state.spending.total.failed == 0
    living: Any = engine_liveness(paths)
    if living.running:
        os.kill(living.pid, signal.SIGTERM)
