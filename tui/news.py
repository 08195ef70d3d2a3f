"""News for a person who looks elsewhere: what is worth telling, and how it is carried to their command and webhook."""

from __future__ import annotations

import os
import queue
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

from tui.certainty import factor_words
from tui.conversation import prompts_waiting
from tui.model import Model
from tui.sanitize import one_line
from tui.settings import Settings

COMMAND_S = 30.0
"""Seconds that a person's command may take before it is killed."""
WEBHOOK_S = 10.0
WAITING = 20
"""News that wait behind a slow command or webhook; the oldest of more than these are dropped."""


class News:
    """Notices what has become new in ``model`` since the last look: a best kernel, a prompt to
    answer, a stall, a spent budget, the end."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._bests: dict[str, str | None] = {}
        self._engine: str | None = None
        self._prompts = 0

    def catch_up(self) -> None:
        """What the model holds now was so before anyone looked."""
        self._bests = self._standing()
        self._prompts = prompts_waiting(self._model)

    def look(self) -> list[str]:
        """What is new, one sentence each."""
        return [*self._new_bests(), *self._new_prompts(), *self._new_link()]

    def _new_bests(self) -> list[str]:
        before, self._bests = self._bests, self._standing()
        state = self._model.state
        return [
            f"{problem}: new best {best}, {factor_words(state.variants[best].verdict)}"
            for problem, best in self._bests.items()
            if best is not None and before.get(problem) not in (None, best)
        ]

    def _new_prompts(self) -> list[str]:
        """That prompts wait for a person, once for all that come until none is left."""
        before, self._prompts = self._prompts, prompts_waiting(self._model)
        if before or not self._prompts:
            return []
        return [f"{self._model.source.name}: a prompt waits for a reply (I answers it)"]

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
        if kind == "dead":
            return [f"{name}: the engine died"]
        if kind == "stopped" and why == "budget":
            return [f"{name}: the budget is spent, the search has stopped"]
        if kind == "ended early":
            return [f"{name}: the search ended: {model.link.message}"]
        return [f"{name}: the search ended ({why or kind})"] if kind in ("finished", "stopped") else []

    def _standing(self) -> dict[str, str | None]:
        return {problem.id: problem.best for problem in self._model.state.problems.values()}


class Messenger:
    """Tells a command and a webhook, each in a thread of its own and one news at a time, so that neither a slow nor a
    broken one holds up the monitor or the other. ``failed`` is called, from such a thread, once for each new failure.
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
    """Run a person's own command, told in its last argument and in ``KERNEL_TUI_NEWS``. What went wrong, or None."""
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
        return f"the command for news cannot be run: {error}"
    try:
        status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"the command for news took longer than {timeout_s:g} s and was killed"
    return f"the command for news failed with status {status}" if status else None


def post_webhook(url: str, text: str, timeout_s: float = WEBHOOK_S) -> str | None:
    """POST ``{"text": ...}``. What went wrong, or None."""
    import json
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    if not url.startswith(("http://", "https://")):
        return f"the webhook for news is no http address: {url}"
    body = json.dumps({"text": text}).encode()
    try:
        urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=timeout_s).close()
    except (OSError, ValueError, HTTPException) as error:
        return f"the webhook for news failed: {error}"
    return None
