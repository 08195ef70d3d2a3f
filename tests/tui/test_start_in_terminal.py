"""In a real terminal, the monitor opens before the engine is ready, and errors are reported plainly."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.pseudo_terminal import Terminal
from engine.exit_codes import ExitCode
from engine.session.records.events import EngineStarted, EngineStopped, ModelCallStarted, ModelReplied, StopReason
from engine.session.records.model_calls import CallSite, Usage
from engine.session.records.requests import ChangeBudget
from engine.session.store import (
    EngineLock,
    EventWriter,
    SessionPaths,
    SessionReader,
    create_session,
    engine_liveness,
)
from tests.commandline import KernelTui, environment

CONFIG = """\
name = "demo"
sessions = "sessions"
problems = ["builtin:quickstart/softmax"]
[search]
rounds = 1
[evaluation]
torch_compile = false
"""
Open = Callable[..., Terminal]


@pytest.fixture
def paths(tmp_path: Path) -> SessionPaths:
    return SessionPaths.at(tmp_path / "sessions" / "demo")


@pytest.fixture
def kernel_tui_in_terminal(tmp_path: Path, paths: SessionPaths) -> Iterator[Open]:
    opened: list[Terminal] = []

    def start(*words: str) -> Terminal:
        terminal = Terminal(words, tmp_path / "settings", directory=tmp_path)
        terminal.record = bytearray()
        opened.append(terminal)
        return terminal

    (tmp_path / "config.toml").write_text(CONFIG)
    yield start
    for terminal in opened:
        terminal.close()
    if paths.database.exists() and (living := engine_liveness(paths)).running and living.pid is not None:
        os.kill(living.pid, signal.SIGKILL)


def ended(terminal: Terminal) -> tuple[int, str]:
    """Return the exit status and the terminal's final content."""
    while terminal.process.poll() is None:
        terminal.read_for(0.1)
        assert time.monotonic() < terminal.started + 30
    terminal.read_for(0.2)
    assert terminal.record is not None
    return terminal.process.returncode, bytes(terminal.record).decode(errors="replace")


def test_the_monitor_is_there_before_its_engine(kernel_tui_in_terminal: Open, paths: SessionPaths) -> None:
    terminal = kernel_tui_in_terminal("config.toml")
    terminal.wait_for("1 \x1b")  # the number of the tree's pane
    if not engine_liveness(paths).running:  # on a busy machine the engine may be as fast as a test that looks
        terminal.wait_for("No problem is open yet.")
    terminal.wait_for("live")
    assert engine_liveness(paths).running
    terminal.type("q")
    status, text = ended(terminal)
    assert status == ExitCode.OK
    assert "session " in text and "The search demo continues (pid " in text

    again = kernel_tui_in_terminal("config.toml")
    again.wait_for("is already running; attaching")
    again.wait_for("live")


def test_a_wrong_configuration_is_one_line_and_no_monitor(kernel_tui_in_terminal: Open, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG.replace("rounds", "ruonds"))
    status, text = ended(kernel_tui_in_terminal("config.toml"))
    assert status == ExitCode.USAGE
    assert text.count("Error:") == 1 and "config.toml:5" in text and '"rounds"' in text
    assert "Traceback" not in text and "\x1b[?1049h" not in text
    assert not (tmp_path / "sessions").exists()


def test_an_unfinished_search_is_offered_and_ctrl_c_leaves(kernel_tui_in_terminal: Open, tmp_path: Path) -> None:
    from engine.config.schema import load_config

    (tmp_path / "config.toml").write_text(CONFIG + 'tolerance = "crfm"\n')
    config = load_config(tmp_path / "config.toml")
    older = config.frozen_toml().replace('tolerance = "crfm"', 'tolerance = "published"')
    assert older != config.frozen_toml()
    create_session(tmp_path / "sessions", "demo", older, str(config.path), 0)
    terminal = kernel_tui_in_terminal("config.toml")
    terminal.wait_for("demo is unfinished (0 verdicts). Resume it?")
    for _ in range(5):  # one that comes just before readline waits for a key is seen with the next key only
        os.killpg(terminal.process.pid, signal.SIGINT)  # what a terminal does for Ctrl-C
        terminal.read_for(4.0)
        if terminal.process.poll() is not None:
            break
    status, text = ended(terminal)
    assert status == ExitCode.INTERRUPTED
    assert text.count("interrupted") == 1 and "Traceback" not in text
    assert len(list((tmp_path / "sessions").iterdir())) == 1


DIE = """\
import os, sys
from pathlib import Path
from engine.session.store import EngineLock, SessionPaths
EngineLock(SessionPaths.at(Path(sys.argv[1])))
os._exit(1)
"""


def test_older_interrupted_searches_are_counted(kernel_tui_in_terminal: Open, tmp_path: Path) -> None:
    from engine.config.schema import load_config

    config = load_config(tmp_path / "config.toml")
    for _ in range(3):
        paths = create_session(tmp_path / "sessions", "demo", config.frozen_toml(), str(config.path), 0)
        subprocess.run([sys.executable, "-c", DIE, paths.directory], env=environment(), check=False)
    terminal = kernel_tui_in_terminal("config.toml")
    terminal.wait_for("2 older sessions were interrupted. To list them: kernel-tui sessions")
    terminal.wait_for("demo-3 is unfinished")


@pytest.mark.parametrize(("answer", "sessions"), [("\n", 1), ("n\n", 2)])
def test_enter_resumes_an_unfinished_search_also_if_the_config_has_changed(
    kernel_tui_in_terminal: Open, tmp_path: Path, answer: str, sessions: int
) -> None:
    from engine.config.schema import load_config

    config = load_config(tmp_path / "config.toml")
    older = config.frozen_toml().replace("rounds = 1", "rounds = 2")
    assert older != config.frozen_toml()
    create_session(tmp_path / "sessions", "demo", older, str(config.path), 0)
    terminal = kernel_tui_in_terminal("config.toml", "--detach")
    terminal.wait_for("config.toml has changed since: search.rounds")
    terminal.wait_for("Enter resumes; n starts a new session. [Y/n]")
    terminal.type(answer)
    status, text = ended(terminal)
    found = [SessionPaths.at(one) for one in sorted((tmp_path / "sessions").iterdir())]
    for one in found:
        if (living := engine_liveness(one)).running and living.pid is not None:
            os.kill(living.pid, signal.SIGKILL)
    assert status == ExitCode.OK and "searching in the background" in text
    assert len(found) == sessions


def test_the_live_table_names_its_tolerance(kernel_tui_in_terminal: Open, tmp_path: Path) -> None:
    lock = EngineLock(spent_session(tmp_path))
    terminal = kernel_tui_in_terminal("attach", "demo", "--headless")
    terminal.wait_for("tolerance kernelbench (1e-4 in fp32)")
    lock.release()
    ended(terminal)


def spent_session(tmp_path: Path, reason: StopReason = "budget", seconds: int = 110) -> SessionPaths:
    """Create a session with a budget of 2 minutes, which ended the search after 1:50."""
    from engine.config.schema import load_config

    (tmp_path / "config.toml").write_text(CONFIG + "[budget]\nminutes = 2\n")
    config = load_config(tmp_path / "config.toml")
    paths = create_session(tmp_path / "sessions", "demo", config.frozen_toml(), str(config.path), 0)
    lock, writer = EngineLock(paths), EventWriter(paths)
    writer.append(EngineStarted(pid=1, host="", version="", resumed=False, devices=(), sandbox=""))
    writer.append(EngineStopped(reason=reason, message="it has ended"))
    writer.flush(5)
    writer.close()
    lock.release()
    with sqlite3.connect(paths.database) as db:
        db.execute("UPDATE event SET time = time + ? WHERE kind = 'engine_stopped'", (seconds,))
    db.close()
    return paths


def test_a_headless_search_asks_nothing(kernel_tui_in_terminal: Open, tmp_path: Path) -> None:
    spent_session(tmp_path)
    terminal = kernel_tui_in_terminal("config.toml", "--headless")
    terminal.wait_for("Starting a new session: demo-2")
    paths = SessionPaths.at(tmp_path / "sessions" / "demo-2")
    terminal.process.terminate()
    ended(terminal)
    if (living := engine_liveness(paths)).running and living.pid is not None:
        os.kill(living.pid, signal.SIGKILL)


def test_a_search_whose_minutes_are_spent_says_what_it_would_take(kernel_tui: KernelTui, tmp_path: Path) -> None:
    spent_session(tmp_path)
    used = "1.8 of 2 min; the rest is too short for another kernel"
    refused = kernel_tui("config.toml")
    assert refused.returncode == ExitCode.USAGE
    assert f"demo: time budget used up ({used}). Add --resume --minutes 4 to resume it, or --new" in refused.stderr
    told = f"demo: time budget used up ({used}). Continue with: kernel-tui resume demo --minutes 4"
    for words in (("resume", "demo", "--headless"), ("run", "config.toml", "--resume", "--headless")):
        refused = kernel_tui(*words)
        assert refused.returncode == ExitCode.USAGE and told in refused.stderr
    shown = kernel_tui("show", "demo").stdout
    assert shown.startswith(told.replace("demo: ", "demo: 1:50 search time, 0 verdicts; ", 1))
    (listed,) = kernel_tui.json("sessions")
    assert f"demo: {listed['note']}" == told
    screen = kernel_tui("attach", "demo", "--once", "--read-only").stdout
    assert "Budget used up. Resume: kernel-tui resume demo --minutes 4 " in screen


def test_more_rounds_do_not_continue_a_search_whose_minutes_are_spent(kernel_tui: KernelTui, tmp_path: Path) -> None:
    paths = spent_session(tmp_path)
    refused = kernel_tui("resume", "demo", "--rounds", "4", "--headless")
    assert refused.returncode == ExitCode.USAGE and "demo: time budget used up (1.8 of 2 min" in refused.stderr
    assert refused.stderr.endswith("Continue with: kernel-tui resume demo --rounds 4 --minutes 4\n")
    with SessionReader(paths) as reader:
        assert not reader.commands(), "no request waits for the next engine"


def test_a_finished_search_whose_minutes_are_over_needs_both_limits(kernel_tui: KernelTui, tmp_path: Path) -> None:
    paths = spent_session(tmp_path, reason="finished", seconds=130)
    refused = kernel_tui("resume", "demo", "--headless")
    assert refused.returncode == ExitCode.USAGE
    assert refused.stderr.endswith("Add rounds with: kernel-tui resume demo --rounds N --minutes 4\n")
    with SessionReader(paths) as reader:
        assert not reader.commands()


def test_a_limit_for_a_search_without_an_engine_is_for_resume(kernel_tui: KernelTui, tmp_path: Path) -> None:
    spent_session(tmp_path)
    raised = kernel_tui("budget", "demo", "--minutes", "6", "--tokens", "2000000")
    assert raised.returncode == ExitCode.FAILURE
    assert raised.stderr.endswith("kernel-tui resume demo --minutes 6 --tokens 2000000\n")
    assert kernel_tui("pause", "demo").stderr.endswith("resume demo --minutes 4\n")


@pytest.mark.parametrize("minutes", ["1.5", "2"])
def test_a_limit_that_leaves_no_time_is_refused_before_an_engine_starts(
    kernel_tui: KernelTui, tmp_path: Path, minutes: str
) -> None:
    paths = spent_session(tmp_path)
    told = f"--minutes {minutes} is too low, because the search has used 1.8 min"
    enough = "kernel-tui resume demo --minutes 4\n"
    for words in (("resume", "demo"), ("config.toml", "--resume")):
        refused = kernel_tui(*words, "--minutes", minutes, "--headless")
        assert refused.returncode == ExitCode.USAGE and told in refused.stderr and refused.stderr.endswith(enough)
    lowered = kernel_tui("budget", "demo", "--minutes", minutes)
    assert lowered.returncode == ExitCode.FAILURE and told in lowered.stderr and lowered.stderr.endswith(enough)
    with SessionReader(paths) as reader:
        assert not reader.commands(), "no request waits for the next engine"
        assert sum(isinstance(recorded.event, EngineStarted) for recorded in reader.read()) == 1


def test_a_limit_below_the_used_minutes_is_refused_also_if_the_old_limit_leaves_time(
    kernel_tui: KernelTui, tmp_path: Path
) -> None:
    paths = spent_session(tmp_path)
    paths.config.write_text(paths.config.read_text().replace("minutes = 2.0", "minutes = 20.0"))
    refused = kernel_tui("resume", "demo", "--minutes", "1", "--headless")
    assert refused.returncode == ExitCode.USAGE and "--minutes 2" in refused.stderr


@pytest.mark.parametrize(
    ("limit", "used", "more"),
    [
        (("--dollars", "1.75"), "used $1.75, including unconfirmed calls", "--dollars 2"),
        (
            ("--tokens", "1500000"),
            "used 2,000,000 tokens, including unconfirmed calls",
            "--tokens 2100000",
        ),
        (("--calls", "2"), "made 2 calls", "--calls 3"),
        (("--minutes", "60", "--dollars", "0.5"), "used $1.75", "--dollars 2"),
    ],
)
def test_a_spending_limit_that_is_used_up_is_refused_before_an_engine_starts(
    kernel_tui: KernelTui, tmp_path: Path, limit: tuple[str, ...], used: str, more: str
) -> None:
    paths = spent_session(tmp_path)
    site = CallSite(problem="softmax", round=0, purpose="ideas", subject="")
    writer = EventWriter(paths)
    for call in ("c1", "c2"):  # the provider never reports the cost of c2
        writer.append(
            ModelCallStarted(
                call=call, attempt=1, provider="openai", model="gpt", site=site, prompt="", tokens=1000000, dollars=0.5
            )
        )
    answered = Usage(input=900000, output=100000)
    writer.append(
        ModelReplied(call="c1", attempt=1, answered="gpt", prompt="", reply="", finish="stop", seconds=1.0,
                     usage=answered, dollars=1.25)
    )  # fmt: skip
    writer.flush(5)
    writer.close()
    refused = kernel_tui("resume", "demo", *limit, "--headless")
    assert refused.returncode == ExitCode.USAGE, refused.stderr
    assert f"{limit[-2]} {limit[-1]} is too low, because the search has {used}" in refused.stderr
    assert refused.stderr.endswith(f"kernel-tui resume demo {more}\n")
    with SessionReader(paths) as reader:
        assert not reader.commands(), "no request waits for the next engine"
        assert sum(isinstance(recorded.event, EngineStarted) for recorded in reader.read()) == 1


def test_show_of_a_search_without_a_kernel_names_none(kernel_tui: KernelTui, tmp_path: Path) -> None:
    spent_session(tmp_path)
    (line,) = kernel_tui("show", "demo").stdout.splitlines()
    assert line.startswith("demo: 1:50 search time, 0 verdicts; ")


@pytest.mark.parametrize(("answer", "sessions", "minutes"), [("\n", 1, [4.0]), ("n\n", 2, [])])
def test_a_search_whose_minutes_are_spent_is_offered_with_more(
    kernel_tui_in_terminal: Open, tmp_path: Path, answer: str, sessions: int, minutes: list[float]
) -> None:
    paths = spent_session(tmp_path)
    terminal = kernel_tui_in_terminal("config.toml", "--detach")
    terminal.wait_for("demo: time budget used up (1.8 of 2 min")
    terminal.wait_for("Continue with a limit of 4 min? Enter continues; n starts a new session. [Y/n]")
    terminal.type(answer)
    status, text = ended(terminal)
    assert status == ExitCode.OK and "searching in the background" in text
    found = [SessionPaths.at(one) for one in sorted((tmp_path / "sessions").iterdir())]
    for one in found:
        if (living := engine_liveness(one)).running and living.pid is not None:
            os.kill(living.pid, signal.SIGKILL)
    assert len(found) == sessions
    with SessionReader(paths) as reader:
        asked = [sent.command for sent in reader.commands()]
    assert [one.minutes for one in asked if isinstance(one, ChangeBudget)] == minutes


def test_an_engine_that_cannot_start_is_shown_and_is_the_last_word(
    kernel_tui_in_terminal: Open, tmp_path: Path, paths: SessionPaths
) -> None:
    create_session(tmp_path / "sessions", "demo", CONFIG, "config.toml", 0)
    paths.lock.mkdir()  # in the way, also of root
    terminal = kernel_tui_in_terminal("resume", "demo")
    terminal.wait_for("No engine has run in this session")
    terminal.wait_for(
        "the engine ended during startup (status 6): engine.lock: Is a directory."
    )  # however long the path
    terminal.type("q")
    status, text = ended(terminal)
    assert status == ExitCode.STORAGE
    last = text[text.rindex("\x1b[?1049l") :]
    assert "The search demo is not running." in last and "Error: " in last and "engine.lock: Is a directory" in last
