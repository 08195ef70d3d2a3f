"""Before a search, ``run`` reports an earlier session of the same config."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.differences import differences
from engine.config.schema import load_config, parse_config
from engine.exit_codes import ExitCode
from engine.session.store import EngineLock, SessionPaths, create_session
from tests.commandline import KernelTui
from tests.engine.proposers import canned

CONFIG = """\
name = "demo"
problems = ["softmax.py"]
[search]
rounds = 4
[budget]
minutes = 2
[evaluation]
device = "cpu"
"""
EDITED = CONFIG.replace("rounds = 4", "rounds = 7").replace("minutes = 2\n", "")


@pytest.fixture
def earlier(tmp_path: Path) -> SessionPaths:
    """Create a session of the config in which no search has run yet."""
    (tmp_path / "softmax.py").write_text(canned.PROBLEM)
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return create_session(tmp_path / "sessions", "demo", load_config(path).frozen_toml(), str(path), 0)


def test_attaching_says_which_session_it_is_and_what_has_changed(kernel_tui: KernelTui, earlier: SessionPaths) -> None:
    lock = EngineLock(earlier)
    same = kernel_tui("config.toml", "--detach")
    assert same.returncode == ExitCode.OK and "demo: searching" in same.stdout and "changed" not in same.stderr
    (kernel_tui.directory / "config.toml").write_text(EDITED)
    attached = kernel_tui("config.toml", "--detach")
    lock.release()
    assert attached.returncode == ExitCode.OK
    for words in ("demo", "search.rounds 4 -> 7", "budget.minutes 2 -> none", "kernel-tui run config.toml --new"):
        assert words in attached.stderr
    assert [one.name for one in earlier.directory.parent.iterdir()] == ["demo"]


def test_a_new_session_names_the_unfinished_one(kernel_tui: KernelTui, earlier: SessionPaths) -> None:
    started = kernel_tui("config.toml", "--detach", "--new")
    assert started.returncode == ExitCode.OK
    assert "demo is unfinished" in started.stderr and "kernel-tui resume demo" in started.stderr
    assert "demo-2" in started.stderr


@pytest.mark.parametrize("options", [(), ("--detach",)])
def test_without_a_terminal_an_unfinished_session_needs_a_choice(
    kernel_tui: KernelTui, earlier: SessionPaths, options: tuple[str, ...]
) -> None:
    (kernel_tui.directory / "config.toml").write_text(EDITED)
    refused = kernel_tui("config.toml", *options)
    assert refused.returncode == ExitCode.USAGE
    for words in ("demo is unfinished", "search.rounds 4 -> 7", "--resume", "--new"):
        assert words in refused.stderr
    assert [one.name for one in earlier.directory.parent.iterdir()] == ["demo"]


def test_only_what_differs_is_named(tmp_path: Path) -> None:
    models = '[[models]]\nprovider = "openai"\nmodel = "a"\n[[models]]\nprovider = "playbook"\n'
    before = parse_config(CONFIG + models, tmp_path / "config.toml")
    assert differences(before, before) == []
    now = parse_config(CONFIG + models.replace('"a"', '"b"\neffort = "high"'), tmp_path / "config.toml")
    assert differences(before, now) == ["models[1].model a -> b", "models[1].effort none -> high"]
    longer = parse_config(CONFIG.replace('"softmax.py"', '"softmax.py", "gelu.py"'), tmp_path / "config.toml")
    assert differences(parse_config(CONFIG, tmp_path / "config.toml"), longer) == ["problems"]


def test_an_old_key_is_named_once_with_its_line_and_its_new_name(kernel_tui: KernelTui, earlier: SessionPaths) -> None:
    lock = EngineLock(earlier)
    (kernel_tui.directory / "config.toml").write_text(CONFIG.replace("rounds = 4", "rounds = 4\nsurvivors = 2"))
    said = kernel_tui("config.toml", "--detach").stderr
    lock.release()
    (line,) = [one for one in said.splitlines() if "survivors" in one]
    assert "config.toml:5: " in line and "search.parents" in line
    assert "has changed" not in said, "it is the same value under another name"
    listed = kernel_tui("--help").stdout
    assert "unpause" in listed and "continue " not in listed
    for name in ("unpause", "continue"):
        assert "after a pause" in kernel_tui(name, "--help").stdout
    assert "--transform" in (text := kernel_tui("seed-idea", "--help").stdout) and "--move" not in text
    assert "--bank" not in kernel_tui("kernels", "--help").stdout
