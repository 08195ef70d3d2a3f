"""Trigger alerts for a user who is looking elsewhere, and deliver them to a command or webhook."""

from __future__ import annotations

import os
import queue
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

from engine.session.records.verdict_text import speedup_words
from tui.monitor.settings import Settings
from tui.text.narration import overtaken_words
from tui.text.runoff_text import why_lower
from tui.text.sanitize import one_line
from tui.view.model import Model
from tui.view.prompts import unanswered

COMMAND_S = 30.0
"""Time limit for a command, in seconds. After this time, the monitor kills the command."""
WEBHOOK_S = 10.0
WAITING = 20
"""Maximum number of alerts queued for a slow command or webhook. A further alert replaces the oldest."""


class News:
    """Detect what needs an alert: a new best kernel, a prompt to answer, a stalled engine, or the end of the search.

    A best kernel needs no alert if it only ties with the best kernel before it, or if the user pruned or restored one
    of the two.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._bests: dict[str, str | None] = {}
        self._pruned: set[str] = set()
        self._engine: str | None = None
        self._prompts = 0

    def catch_up(self) -> None:
        """Treat the current state as known, so that it triggers no alert."""
        self._bests, self._pruned = self._standing(), set(self._model.state.pruned)
        self._prompts = len(unanswered(self._model.state, self._model.directory))

    def look(self) -> list[str]:
        """Return the alerts since the last call, one sentence each."""
        return [*self._new_bests(), *self._new_prompts(), *self._new_link()]

    def _new_bests(self) -> list[str]:
        before, self._bests = self._bests, self._standing()
        state, news = self._model.state, []
        changed, self._pruned = self._pruned ^ state.pruned, set(state.pruned)
        for problem, best in self._bests.items():
            former = before.get(problem)
            if best is None or former is None or former == best:
                continue
            if changed and not changed.isdisjoint((*state.lineage(best), *state.lineage(former))):
                continue
            if overtaken_words(state.variants.get(former), state.variants[best]):
                continue
            lower = why_lower(state, state.problems[problem], former) if state.problems[problem].best == best else ""
            words = f"{problem}: new best {best}, {speedup_words(state.variants[best].verdict)}"
            news.append(f"{words}, {lower}" if lower else words)
        return news

    def _new_prompts(self) -> list[str]:
        """Return an alert if prompts are waiting for the user and none was waiting at the last call."""
        before, self._prompts = self._prompts, len(unanswered(self._model.state, self._model.directory))
        if before or not self._prompts:
            return []
        return [f"{self._model.source.name}: a prompt is waiting for a reply (press I)"]

    def _new_link(self) -> list[str]:
        model, kind = self._model, self._model.engine
        if kind in ("connecting", self._engine):
            return []
        first, self._engine = self._engine is None, kind
        if first:
            return []
        name, engine = model.source.name, model.state.engine
        why = engine.stopped if engine is not None else None
        if kind == "stalled":
            return [f"{name}: the engine stalled: {one_line(model.link.message)}"]
        if kind == "gone":
            return [f"{name}: the session was moved or deleted"]
        if kind == "died":
            return [f"{name}: the engine died"]
        if kind == "stopped" and why == "budget":
            return [f"{name}: the budget is used up and the search has stopped"]
        if kind == "ended early":
            return [f"{name}: the search ended: {model.link.message}"]
        return [f"{name}: the search ended ({why or kind})"] if kind in ("finished", "stopped") else []

    def _standing(self) -> dict[str, str | None]:
        return {problem.id: problem.best_with_lead for problem in self._model.state.problems.values()}


class Messenger:
    """Deliver alerts to a command and a webhook, each in its own thread, so that the monitor never waits for them.

    These threads call ``failed`` once per new failure.
    """

    def __init__(self, failed: Callable[[str], None]) -> None:
        self._failed = failed
        self._lanes: dict[str, queue.Queue[Callable[[], str | None]]] = {}

    def tell(self, settings: Settings, text: str) -> None:
        if command := settings.command:
            self._put("command", lambda: run_command(command, text))
        if webhook := settings.webhook:
            self._put("webhook", lambda: post_webhook(webhook, text))

    def _put(self, lane: str, deliver: Callable[[], str | None]) -> None:
        waiting = self._lanes.get(lane)
        if waiting is None:
            waiting = self._lanes[lane] = queue.Queue(WAITING)
            threading.Thread(target=self._work, args=(waiting,), name=f"news-{lane}", daemon=True).start()
        while True:
            try:
                waiting.put_nowait(deliver)
                return
            except queue.Full:
                with suppress(queue.Empty):
                    waiting.get_nowait()

    def _work(self, waiting: queue.Queue[Callable[[], str | None]]) -> None:
        said: str | None = None
        while True:
            failure = waiting.get()()
            if failure is not None and failure != said:
                self._failed(failure)
            said = failure


def run_command(command: str, text: str, timeout_s: float = COMMAND_S) -> str | None:
    """Run a command with the alert as its last argument and in the environment variable ``KERNEL_TUI_NEWS``.

    Return an error message, or None if the command succeeds.
    """
    try:
        process = subprocess.Popen(
            [*shlex.split(command), text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"KERNEL_TUI_NEWS": text},
        )
    except (OSError, ValueError) as error:
        return f"cannot run the alert command: {error}"
    try:
        status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"the alert command took longer than {timeout_s:g} s and was killed"
    return f"the alert command failed with status {status}" if status else None


def post_webhook(url: str, text: str, timeout_s: float = WEBHOOK_S) -> str | None:
    """POST ``{"text": ...}``. Return an error message, or None if the webhook accepts the alert."""
    import json
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    if not url.startswith(("http://", "https://")):
        return f"the alert webhook is not an http or https address: {url}"
    body = json.dumps({"text": text}).encode()
    try:
        urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=timeout_s).close()
    except (OSError, ValueError, HTTPException) as error:
        return f"the alert webhook failed: {error}"
    return None
