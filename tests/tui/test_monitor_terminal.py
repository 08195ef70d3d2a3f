"""The monitor in real terminals: a whole search steered through tmux, and closed terminals."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.synthetic_session import Shape, write_session
from engine.session.records.events import CommandHandled
from engine.session.state.session_state import fold
from engine.session.store import SessionPaths, SessionReader, engine_liveness
from tests.engine.proposers import canned
from tests.patience import PATIENCE_S
from tests.tui.conftest import Engine

ROOT = Path(__file__).parents[2]
CONFIG = """
name = "steered"
sessions = "sessions"
problems = ["softmax.py"]
[search]
strategy = "beam"
rounds = 40
ideas = 2
variants = 2
parents = 2
runoff = 2
fixes = 0
[budget]
minutes = 60
[evaluation]
torch_compile = false
other_sizes = false
max_pairs = 8
[[models]]
provider = "playbook"
"""


class Tmux:
    """A terminal in a separate tmux server."""

    def __init__(self, directory: Path, width: int = 120, height: int = 40) -> None:
        self._socket = str(directory / "tmux")
        self.environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": str(directory / "settings"),
            "EDITOR": str(directory / "editor"),
            "LC_ALL": "C.UTF-8",
        }
        for name in ("TMUX", "COLUMNS", "LINES"):
            self.environment.pop(name, None)
        self._run(
            "-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height), "-c", str(directory), "sh"
        )

    def type(self, text: str) -> None:
        self._run("send-keys", "-l", text)

    def keys(self, *keys: str) -> None:
        for key in keys:
            self._run("send-keys", key)
            time.sleep(0.2)

    def press(self, key: str) -> None:
        """Press one key."""
        self._run("send-keys", key)

    def command(self, text: str) -> None:
        self.type(text)
        self._run("send-keys", "Enter")

    def screen(self) -> str:
        return self._run("capture-pane", "-p")

    def until(self, text: str, seconds: float = PATIENCE_S, *, gone: bool = False) -> str:
        """Return the screen once ``text`` has appeared or, if requested, disappeared."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if (text in (screen := self.screen())) != gone:
                return screen
            time.sleep(0.1)
        raise AssertionError(f"{text!r} {'stayed' if gone else 'never came'}:\n{self.screen()}")

    def shows(self, text: str, seconds: float) -> bool:
        """Return whether ``text`` appears within ``seconds``."""
        with contextlib.suppress(AssertionError):
            self.until(text, seconds)
            return True
        return False

    def close(self) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self._run("kill-server")

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        return done.stdout


def answer(paths: SessionPaths, count: int) -> CommandHandled:
    """Return the engine's newest answer, once there are ``count`` answers."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with SessionReader(paths) as reader:
            handled = fold(reader.read()).handled
        if len(handled) >= count:
            return handled[max(handled)]
        time.sleep(0.1)
    raise AssertionError(f"{len(handled)} answers, not {count}")


def pin_and_unpin(tmux: Tmux) -> None:
    """Return the selected kernel from its row. (``benchmarks/monitor.py`` measures the delay.)"""
    tmux.press("1")
    before = tmux.screen().count("▪")
    for is_so in (lambda pins: pins > before, lambda pins: pins == before):
        tmux.press("b")
        deadline = time.monotonic() + PATIENCE_S
        while not is_so(tmux.screen().count("▪")):
            assert time.monotonic() < deadline, tmux.screen()
            time.sleep(0.05)


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "// edited by hand" >> "$1"\n')
    editor.chmod(0o755)
    terminal = Tmux(tmp_path)
    yield terminal
    terminal.close()
    with contextlib.suppress(Exception):  # an engine that a failed test left behind
        if (pid := engine_liveness(SessionPaths.at(tmp_path / "sessions" / "steered")).pid) is not None:
            os.kill(pid, signal.SIGTERM)


@pytest.mark.keys("SeedIdeaScreen", "tab")
def test_a_search_is_watched_and_steered_from_a_terminal(tmux: Tmux, tmp_path: Path) -> None:
    (tmp_path / "softmax.py").write_text(canned.PROBLEM)
    (tmp_path / "c.toml").write_text(CONFIG)
    program = f"{sys.executable} -m tui.cli.main"

    tmux.command(f"{program} c.toml")
    tmux.until("round 0")
    tmux.until("★ v")  # the first correct kernel

    paths = SessionPaths.at(tmp_path / "sessions" / "steered")
    tmux.keys("B")
    for place in range(6):  # meanwhile, the best may have changed, or all transformations were tried
        tmux.keys("i")
        dialog = tmux.until("Playbook transformations (the")
        assert dialog.index("Playbook transformations") < dialog.index("In your own words"), "what works comes first"
        tmux.keys(*["Down"] * place, "Enter")
        if answer(paths, 1 + place).ok:
            break
    tmux.until("playbook will write kernels for it")
    tmux.keys("i", "Tab")
    tmux.type("a lookup table")
    tmux.keys("Enter")
    tmux.until("a lookup table")
    # The editor has saved a template with one more line, which is judged as that idea's kernel. After a slow answer,
    # open it by hand.
    if not tmux.shows("the judge will evaluate v", 10):
        tmux.keys("e")
        tmux.until("the judge will evaluate v")

    best = next((paths.directory / "best").glob("softmax.*"))
    seed = tmp_path / f"seed{best.suffix}"
    seed.write_text(best.read_text() + "\n// seeded by hand\n")
    tmux.keys("a")
    tmux.until("Seed a C++ kernel for softmax")
    tmux.until('extern "C" int launch(const float* x, float* out, void* workspace);')
    tmux.command(str(seed))
    tmux.until("seeded from seed.cpp")

    tmux.keys("B", "e")
    tmux.until("+// edited by hand")
    named = re.search(r"parent v\d+ -> (v\d+)", tmux.until("Diff"))
    assert named is not None
    child = named[1]

    pin_and_unpin(tmux)

    tmux.keys("1", "d")
    tmux.until(f"Prune {child}?")
    tmux.keys("y")
    tmux.until(f"⊘ {child}")
    tmux.keys("z")
    tmux.until(f"⊘ {child}", gone=True)

    tmux.keys("q")
    tmux.until("continues (pid")
    assert engine_liveness(paths).running
    tmux.command("clear")
    tmux.command(f"{program} budget steered --rounds 1")  # it ends with the running rounds
    tmux.until("the budget is now 1 round")
    tmux.command("clear")
    tmux.command(f"{program} attach steered")
    tmux.until("1 Tree")
    tmux.until("The search is finished")  # the engine has ended, not only the problem
    tmux.keys("q")
    tmux.until("The search steered is finished.")

    with SessionReader(paths) as reader:
        following = len(fold(reader.read()).problems["softmax"].rounds)
    tmux.command("clear")
    tmux.command(f"{program} resume steered --rounds 40")
    tmux.until("live")
    tmux.until(f"round {following}/40")
    tmux.keys("Q")
    tmux.until("Stop the search now?")
    tmux.keys("y")
    tmux.until("Stopped on request")
    tmux.keys("q")
    tmux.until("kernel-tui resume steered")
    assert not engine_liveness(paths).running


class Terminal:
    """A monitor in a pseudo-terminal that can be closed."""

    def __init__(self, paths: SessionPaths, settings: Path) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        code = (
            "import sys; from pathlib import Path; from engine.session.store import SessionPaths; "
            "from tui.monitor.app import run_monitor; sys.exit(run_monitor(SessionPaths.at(Path(sys.argv[1]))))"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(paths.directory)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(settings), "TERM": "xterm-256color"},
        )
        os.close(slave)
        self.seen = b""
        self._open = True
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while self._open:
                if select.select([self.master], [], [], 0.1)[0]:
                    self.seen += os.read(self.master, 1 << 16)

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen[-2000:]
            time.sleep(0.05)

    def hang_up(self) -> None:
        self._open = False
        time.sleep(0.2)
        os.close(self.master)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    paths = write_session(tmp_path, "done", Shape(variants=40, problems=1, rounds=2), ended=True)
    found = Terminal(paths, tmp_path)
    found.wait_for(b"softmax")
    yield found
    if found.process.poll() is None:
        found.process.kill()
    found.process.wait()


def test_a_monitor_whose_terminal_is_gone_ends(terminal: Terminal) -> None:
    terminal.hang_up()
    assert terminal.process.wait(timeout=PATIENCE_S) in (128 + signal.SIGHUP, -signal.SIGHUP)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_monitor_and_restores_the_terminal(terminal: Terminal, number: signal.Signals) -> None:
    terminal.process.send_signal(number)
    assert terminal.process.wait(timeout=PATIENCE_S) == 128 + number
    time.sleep(0.3)
    assert b"\x1b[?1049l" in terminal.seen, "the alternate screen was left"


@pytest.mark.keys("MonitorScreen", "ctrl+z")
def test_a_stopped_monitor_comes_back(terminal: Terminal) -> None:
    os.write(terminal.master, b"\x1a")
    deadline = time.monotonic() + PATIENCE_S
    while (state := Path(f"/proc/{terminal.process.pid}/stat").read_text().split()[2]) != "T":
        assert time.monotonic() < deadline, state
        time.sleep(0.05)
    before = len(terminal.seen)
    terminal.process.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + PATIENCE_S
    while b"softmax" not in terminal.seen[before:]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def steering_terminal(engine: Engine, tmp_path: Path) -> Iterator[Callable[[str], Terminal]]:
    """Opens a monitor on a session with an engine, for a user with this ``$EDITOR``."""
    opened: list[Terminal] = []

    def open_terminal(editor: str) -> Terminal:
        with pytest.MonkeyPatch.context() as world:
            world.setenv("EDITOR", editor)
            terminal = Terminal(engine.paths, tmp_path)
        opened.append(terminal)
        terminal.wait_for(b"softmax")
        os.write(terminal.master, b"B")
        return terminal

    yield open_terminal
    for terminal in opened:
        terminal.process.kill()
        terminal.process.wait()


@pytest.mark.parametrize(
    ("editor", "said"),
    [
        ("no-such-editor", b"Cannot start the editor"),
        ("vi 'x", b"is not a valid command"),
    ],
)
def test_an_editor_that_cannot_be_started_leaves_the_monitor_alive(
    steering_terminal: Callable[[str], Terminal], editor: str, said: bytes
) -> None:
    terminal = steering_terminal(editor)
    os.write(terminal.master, b"e")
    terminal.wait_for(said)
    os.write(terminal.master, b"?")
    terminal.wait_for(b"Most used keys")


def test_ctrl_c_in_the_editor_is_the_editors(
    steering_terminal: Callable[[str], Terminal], engine: Engine, tmp_path: Path
) -> None:
    editor = tmp_path / "editor"
    editor.write_text(f'#!/bin/sh\necho "// half done" >> "$1"\ntouch {tmp_path}/opened\nexec sleep 60\n')
    editor.chmod(0o755)
    terminal = steering_terminal(str(editor))
    os.write(terminal.master, b"e")
    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / "opened").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(terminal.process.pid, signal.SIGINT)  # the terminal sends this to monitor and editor alike
    terminal.wait_for(b"ended by signal 2.")
    os.write(terminal.master, b"?")
    terminal.wait_for(b"Most used keys")
    assert engine.commands() == []


def test_no_color_means_no_color(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import re

    monkeypatch.setenv("NO_COLOR", "1")
    paths = write_session(tmp_path, "done", Shape(variants=40, problems=1, rounds=2), ended=True)
    found = Terminal(paths, tmp_path)
    try:
        found.wait_for(b"softmax")
        time.sleep(0.5)
        colours = {
            tuple(code.split(b";")) for code in re.findall(rb"\x1b\[(?:[\d;]*;)?[34]8;2;(\d+;\d+;\d+)", found.seen)
        }
        assert all(len(set(colour)) == 1 for colour in colours), "only greys"
    finally:
        found.process.kill()
        found.process.wait()
