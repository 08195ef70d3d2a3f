"""A session that calls models: the real journal, the real SDKs and programs, and a model server on the network."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from engine.config.schema import Config, parse_config
from engine.proposers.llm.calls.connect import make_callers
from engine.proposers.llm.calls.retrying_caller import Caller, Retry
from engine.proposers.llm.model_protocol import Prompt
from engine.session.journal import Journal
from engine.session.records.events import AnyEvent, EngineStarted, ModelCallFailed, ModelCallStarted, ModelReplied
from engine.session.records.model_calls import CallSite
from engine.session.state.session_state import SessionState, fold
from engine.session.state.spend import Spend
from engine.session.store import EventWriter, SessionPaths, SessionReader, create_session
from tests.model_server import ModelServer
from tests.patience import PATIENCE_S

Wire = Literal["responses", "chat", "gemini", "anthropic", "command"]
WIRES: tuple[Wire, ...] = ("responses", "chat", "gemini", "anthropic", "command")
KEY = "sk-test-0123456789abcdef"
SITE = CallSite("softmax", 1, "kernel", "i1")
PROMPT = Prompt("kernel", "You write kernels.", "Write a softmax, please.")
QUICK = Retry(first_s=0.01, longest_s=0.05, patience_s=4.0, costly=2)


@dataclass
class Desk:
    """An engine's run on a session, with its callers and recorded events."""

    config: Config
    paths: SessionPaths
    journal: Journal
    callers: dict[str, Caller]
    text: Callable[[str], str]

    @property
    def state(self) -> SessionState:
        return self.journal.state

    @property
    def spent(self) -> Spend:
        return self.state.spending.total

    @property
    def caller(self) -> Caller:
        return next(iter(self.callers.values()))

    def events(self) -> list[AnyEvent]:
        """Return the calls' events from the session file."""
        with SessionReader(self.paths) as reader:
            kinds = (ModelCallStarted, ModelCallFailed, ModelReplied)
            return [recorded.event for recorded in reader.read() if isinstance(recorded.event, kinds)]

    def failures(self) -> list[ModelCallFailed]:
        return [event for event in self.events() if isinstance(event, ModelCallFailed)]


def model_table(wire: Wire, server: ModelServer, extra: str = "", timeout_s: float = 30.0) -> str:
    """Return a ``[[models]]`` table for one protocol of the server. ``extra``: more keys, ``model`` among them."""
    limits = f"timeout_s = {timeout_s}\nmax_output_tokens = 1000"
    if wire == "command":
        found = re.search(r'(?m)^model = "(.*)"$', extra)
        name = found[1] if found is not None else "m"
        where = f'provider = "command"\nname = "{name}"\ncommand = {json.dumps([*server.command, name])}'
        extra = re.sub(r"(?m)^(model|structured) = .*$", "", extra)
        return f'[[models]]\n{where}\nkey_env = "TEST_MODEL_KEY"\n{limits}\n{extra}\n'
    if wire in ("gemini", "anthropic"):
        where = f'provider = "{wire}"\nbase_url = "{server.gemini if wire == "gemini" else server.anthropic}"'
    else:
        where = f'provider = "openai"\nbase_url = "{server.openai}"\napi = "{wire}"'
    return f'[[models]]\n{where}\nkey_env = "TEST_MODEL_KEY"\n{limits}\n{extra}\n'


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(keys=[KEY], models=["m", "other"]) as server:
        yield server


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.proposers.llm.clients.keys._taken", {})
    monkeypatch.setenv("TEST_MODEL_KEY", KEY)


async def until(met: Callable[[], object]) -> None:
    """Wait until a condition outside this loop holds. On a busy machine, an SDK takes seconds to import."""
    async with asyncio.timeout(PATIENCE_S):
        while not met():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Engine:
    """Open a session as an engine does, repeatedly."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._paths: SessionPaths | None = None

    @contextlib.asynccontextmanager
    async def life(self, text: str, retry: Retry = QUICK) -> AsyncIterator[Desk]:
        config = parse_config('problems = ["builtin:quickstart/softmax"]\n' + text, self._directory / "config.toml")
        if self._paths is None:
            self._paths = create_session(self._directory, "demo", config.frozen_toml(), "config.toml", 0)
        with SessionReader(self._paths) as reader:
            writer = EventWriter(self._paths)
            journal = Journal(writer, fold(reader.read()))
            await journal.record(
                EngineStarted(pid=1, host="here", version="0", resumed=False, devices=(), sandbox="none")
            )
            callers = make_callers(config, journal.state, journal, retry)
            try:
                yield Desk(config, self._paths, journal, callers, reader.text)
            finally:
                for caller in callers.values():
                    await caller.close()
                writer.close()


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)
