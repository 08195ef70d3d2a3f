"""Alerts through real terminals, commands and servers. Failures there do not disturb the monitor."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.events import Paste

from benchmarks.pseudo_terminal import Terminal
from engine.session.records import events as ev
from engine.session.records.verdict import Standing, Timing, Verdict
from engine.session.store import SessionPaths
from tests.patience import PATIENCE_S
from tui.monitor.notifications import Messenger, News, post_webhook, run_command
from tui.monitor.settings import Settings, load_settings, settings_file
from tui.view.model import Model
from tui.view.source import Link, SessionSource

BEST = ev.VerdictGiven(variant="v57", verdict=Verdict(status="correct", speedup=9.0, kernel=Timing(0.4, 0.4, 0.4, 9)))


class Inbox(BaseHTTPRequestHandler):
    """A webhook that stores its requests."""

    got: list[dict[str, str]]

    def do_POST(self) -> None:
        self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(500 if self.path == "/broken" else 200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, str]]]]:
    Inbox.got = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Inbox)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", Inbox.got
    server.shutdown()
    server.server_close()


@pytest.fixture
def silent() -> Iterator[str]:
    """A webhook that accepts a connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def teller(tmp_path: Path) -> tuple[Path, str]:
    """Return a file, and a command that appends alerts to that file."""
    told = tmp_path / "told"
    script = tmp_path / "tell"
    script.write_text(f'#!/bin/sh\nprintf "%s=%s\\n" "$2" "$KERNEL_TUI_NEWS" >> "{told}"\n')
    script.chmod(0o755)
    return told, f"{script} --quietly"


def wait_until(met: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def test_a_best_kernel_that_only_a_repeated_verdict_overtook_is_no_news(session: SessionPaths) -> None:
    source = SessionSource(session)
    model = Model(source)
    model.take(source.open())
    source.close()
    news = News(model)

    def judge(variant: str, speedup: float | None) -> list[str]:
        kernel = Timing(0.4 / (speedup or 1.0), 0.4, 0.4, 9)
        verdict = Verdict(status="correct" if speedup else "wrong", speedup=speedup, kernel=kernel)
        event = ev.VerdictGiven(variant=variant, verdict=verdict)
        model.state.apply(ev.Recorded(model.state.seq + 1, model.state.time + 1.0, event))
        return news.look()

    judge("v57", 9.0)
    assert judge("v57", 8.0) == []
    assert judge("v58", 8.5) == [], "lower than the first verdict on v57"
    assert judge("v57", 9.5) == ["layernorm: new best v57, 9.50x"]
    assert judge("v57", None) == ["layernorm: new best v58, 8.50x"], "v57 is withdrawn"


def test_the_alert_for_a_new_best_says_why_its_speedup_is_lower(session: SessionPaths) -> None:
    source = SessionSource(session)
    model = Model(source)
    model.take(source.open())
    source.close()
    news, state = News(model), model.state
    best = state.problems["softmax"].best or ""
    rival = next(leader.id for leader in state.leaders("softmax") if leader.id != best)
    speedup = (state.variants[rival].speedup or 0.0) + 1.0
    verdict = Verdict(status="correct", speedup=speedup, kernel=Timing(0.1, 0.1, 0.1, 9))
    judged = ev.VerdictGiven(variant=best, verdict=verdict)
    standings = (Standing(rival, 1.0, 1.0, 1.0, 1.0, False), Standing(best, 1.04, 1.04, 1.0, 1.1, False))
    state.apply(ev.Recorded(state.seq + 1, state.time + 1.0, judged))
    news.catch_up()
    runoff = ev.RunoffFinished(problem="softmax", round=2, standings=standings)
    state.apply(ev.Recorded(state.seq + 1, state.time + 1.0, runoff))
    (told,) = news.look()
    assert told.startswith(f"softmax: new best {rival}, ")
    assert f"4.0% faster than {best} side by side ({best}'s verdict: {speedup:.2f}x; the runoff decides)" in told


def test_what_is_news(session: SessionPaths) -> None:
    source = SessionSource(session)
    model = Model(source)
    model.take(source.open())
    source.close()
    news = News(model)
    news.catch_up()
    assert news.look() == [], "what was so before is no news"
    model.link = Link("live")
    assert news.look() == []
    for variant, speedup in (("v57", 9.0), ("v58", 5.0)):
        verdict = Verdict(status="correct", speedup=speedup, kernel=Timing(0.4, 0.4, 0.4, 9))
        model.state.apply(ev.Recorded(10_000, 1.0, ev.VerdictGiven(variant=variant, verdict=verdict)))
    assert news.look() == ["layernorm: new best v57, 9.00x"]
    for link, stopped, told in (
        ("stalled", None, ["small: the engine stalled: no sign of life"]),
        ("live", None, []),
        ("ended", None, ["small: the engine died"]),
        ("live", None, []),
        ("ended", "budget", ["small: the budget is used up and the search has stopped"]),
        ("live", None, []),
        ("ended", "finished", ["small: the search ended (finished)"]),
    ):
        assert model.state.engine is not None
        model.state.engine.stopped = stopped  # type: ignore[assignment]
        model.link = Link(link, message="no sign of life" if link == "stalled" else "")  # type: ignore[arg-type]
        assert news.look() == told
        assert news.look() == [], "once"


def test_a_command_is_told(tmp_path: Path) -> None:
    told, command = teller(tmp_path)
    assert run_command(command, "softmax: new best; $(reboot) 'x'") is None
    text = "softmax: new best; $(reboot) 'x'"
    assert told.read_text() == f"{text}={text}\n"


def test_what_goes_wrong_with_a_command_is_said(tmp_path: Path) -> None:
    assert "status 3" in (run_command("sh -c 'exit 3'", "x") or "")
    assert "cannot run" in (run_command(str(tmp_path / "missing"), "x") or "")
    assert "cannot run" in (run_command("sh -c 'unclosed", "x") or "")
    # Longer than the test's own limit, so that a command which is not killed with its children fails the test.
    assert "longer than 0.2 s and was killed" in (run_command("sh -c 'sleep 1000; true'", "x", 0.2) or "")


def test_a_webhook_is_told(webhook: tuple[str, list[dict[str, str]]], silent: str) -> None:
    address, got = webhook
    assert post_webhook(f"{address}/hook", 'a "quoted" word') is None
    assert got == [{"text": 'a "quoted" word'}]
    assert "500" in (post_webhook(f"{address}/broken", "x") or "")
    assert "timed out" in (post_webhook(silent, "x", 0.3) or "")
    assert "Connection refused" in (post_webhook("http://127.0.0.1:1/", "x") or "")
    assert "not an http or https address" in (post_webhook("file:///etc/passwd", "x") or "")


def test_a_hanging_webhook_holds_up_nobody(tmp_path: Path, silent: str) -> None:
    told, command = teller(tmp_path)
    failures: list[str] = []
    messenger = Messenger(failures.append)
    for number in range(60):  # If each waited for the webhook's limit, the test would exceed its own.
        messenger.tell(Settings(command=command, webhook=silent), f"news {number}")
    wait_until(lambda: told.exists() and "news 59" in told.read_text())


def test_the_same_failure_is_said_once() -> None:
    failures: list[str] = []
    messenger = Messenger(failures.append)
    for command in ("false", "false", "true", "false"):
        messenger.tell(Settings(command=command), "x")
    wait_until(lambda: len(failures) == 2)
    assert set(failures) == {"the alert command failed with status 1"}


async def test_the_monitor_tells_and_writes_failures_into_its_log(
    open_monitor: Any, engine: Any, tmp_path: Path, webhook: tuple[str, list[dict[str, str]]]
) -> None:
    address, got = webhook
    async with open_monitor(engine.paths) as monitor:
        monitor.app.settings = Settings(notify="off", command="sh -c 'exit 7'", webhook=f"{address}/")
        engine.record(BEST)
        await monitor.until(lambda: len(got) == 1, "the webhook is told")
        assert got == [{"text": "layernorm: new best v57, 9.00x"}]
        await monitor.until_shown("the alert command failed with status 7")
        await monitor.press("j")
        assert monitor.row() == "softmax/r0", "the monitor goes on"


@pytest.mark.keys("MonitorScreen", "A")
@pytest.mark.keys("AlertsScreen", "ctrl+t", "escape")
async def test_how_news_reach_a_person_is_chosen_tried_and_kept(
    open_monitor: Any, engine: Any, tmp_path: Path, webhook: tuple[str, list[dict[str, str]]]
) -> None:
    address, got = webhook
    told, command = teller(tmp_path)
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("A")
        await monitor.until_shown("Alerts: new best")
        assert all(f"{way}: " in monitor.text() for way in ("bell", "osc9", "off"))
        await monitor.press("home", "down", "tab")
        monitor.app.screen.focused.post_message(Paste(command))
        await monitor.press("tab")
        monitor.app.screen.focused.post_message(Paste(f"{address}/"))
        await monitor.press("ctrl+t")
        await monitor.until_shown("OSC 9 was sent; the command ran; the webhook accepted the alert")
        assert "this is a test alert" in told.read_text() and len(got) == 1
        await monitor.press("enter")
        await monitor.until_shown("The monitor will send alerts this way for every session")
        kept = Settings(notify="osc9", command=command, webhook=f"{address}/")
        assert load_settings() == kept == monitor.app.settings
        await monitor.press("A", "tab", "tab", "backspace", "escape")
        assert load_settings() == kept, "esc leaves it as it was"


def bells(terminal: Terminal) -> int:
    """Count the bell characters. The same character also ends an OSC."""
    return re.sub(rb"\x1b\][^\x07\x1b]*\x07", b"", terminal.seen).count(b"\x07")


def settled(way: str) -> None:
    settings_file().parent.mkdir(parents=True)
    settings_file().write_bytes(msgspec.json.encode({"notify": way}))


@pytest.mark.parametrize(
    ("way", "painted"), [("bell", b"\x07"), ("osc9", b"\x1b]9;layernorm: new best v57, 9.00x\x07")]
)
def test_a_terminal_rings_or_notifies(engine: Any, tmp_path: Path, way: str, painted: bytes) -> None:
    settled(way)
    terminal = Terminal(["attach", str(engine.paths.directory)], tmp_path / "settings")
    try:
        terminal.wait_for("softmax")
        terminal.read_for(1.0)
        assert bells(terminal) == 0 and b"\x1b]9;" not in terminal.seen
        engine.record(BEST)
        terminal.wait_for("new best v57")
        terminal.read_for(0.5)
        assert painted in terminal.seen
        assert bells(terminal) == (way == "bell")
        assert (b"\x1b]9;" in terminal.seen) == (way == "osc9")
    finally:
        terminal.close()


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_the_terminal_around_tmux_notifies(engine: Any, tmp_path: Path) -> None:
    settled("osc9")
    (tmp_path / "tmux.conf").write_text("set -g allow-passthrough on\n")
    server = ["tmux", "-S", str(tmp_path / "tmux"), "-f", str(tmp_path / "tmux.conf")]
    terminal = Terminal(
        ["attach", str(engine.paths.directory)], tmp_path / "settings", inside=[*server, "-u", "new-session"]
    )
    try:
        terminal.wait_for("softmax")
        terminal.read_for(1.0)
        terminal.forget()
        engine.record(BEST)
        terminal.wait_for("new best v57")
        terminal.read_for(0.5)
        assert b"\x1b]9;layernorm: new best v57, 9.00x" in terminal.seen
    finally:
        terminal.close()
        subprocess.run([*server, "kill-server"], check=False, capture_output=True)


async def test_lines_that_arrive_while_another_pane_is_zoomed_are_shown_after_it(
    open_monitor: Any, engine: Any
) -> None:
    async with open_monitor(engine.paths) as monitor:
        await monitor.press("4", "+")
        engine.record(ev.LogLine(level="info", text="said meanwhile"))
        await monitor.until(
            lambda: any(one.text == "said meanwhile" for one in monitor.app.model.story.lines), "the line"
        )
        assert "said meanwhile" not in monitor.text()
        await monitor.press("+")
        await monitor.until_shown("said meanwhile")
