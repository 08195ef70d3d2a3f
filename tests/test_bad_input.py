"""Each external error gives one clear line and the documented exit code, and loses no data."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from engine.exit_codes import ExitCode
from engine.session.store import EngineLock, SessionPaths, SessionReader, create_session, write_best
from tests.commandline import KernelTui, environment
from tests.engine.proposers import canned
from tests.patience import PATIENCE_S

CONFIG = """\
problems = ["softmax.py"]
[search]
rounds = 1
ideas = 1
variants = 1
[evaluation]
device = "cpu"
torch_compile = false
other_sizes = false
"""

NO_TORCH = """\
# What it is like on a machine without PyTorch: it is not found on the path.
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] == "torch" else find(name, path, target)

PathFinder.find_spec = staticmethod(find_spec)
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "softmax.py").write_text(canned.PROBLEM)
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def session(config: Path, tmp_path: Path) -> SessionPaths:
    """Create a session without events."""
    return create_session(tmp_path / "sessions", "demo", config.read_text(), str(config), 0)


def one_line(result: subprocess.CompletedProcess[str], code: ExitCode) -> str:
    """Return the error of a command: one line on stderr, no traceback, exit status ``code``."""
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error:")]
    assert len(errors) == 1, result.stderr
    return errors[0]


def test_a_missing_config_says_how_to_make_one(kernel_tui: KernelTui) -> None:
    error = one_line(kernel_tui("absent.toml"), ExitCode.USAGE)
    assert "absent.toml" in error
    assert "kernel-tui init" in error


def test_broken_toml_is_named_with_its_line(kernel_tui: KernelTui, config: Path) -> None:
    config.write_text('problems = ["softmax.py"]\n[search\nrounds = 1\n')
    error = one_line(kernel_tui(config), ExitCode.USAGE)
    assert "config.toml:2" in error


@pytest.mark.parametrize(
    "value", ["[" * 10_000 + "]" * 10_000, "{a=" * 10_000 + "1" + "}" * 10_000, "[" * 100 + "]" * 100]
)
def test_a_config_that_is_nested_without_end_is_one_clear_error_wherever_it_is_read(
    kernel_tui: KernelTui, config: Path, session: SessionPaths, value: str
) -> None:
    for path in (config, session.config):
        path.write_text(f"{CONFIG}endless = {value}\n")
    for command in ((config,), ("doctor", config), ("resume", "demo")):
        error = one_line(kernel_tui(*command), ExitCode.USAGE)
        assert "config.toml: invalid TOML: tables or arrays are nested too deeply" in error
    shown = kernel_tui("show", "demo", "--full")
    assert shown.returncode == ExitCode.OK and "Traceback" not in shown.stderr


def test_an_unknown_key_gets_a_suggestion(kernel_tui: KernelTui, config: Path) -> None:
    config.write_text(CONFIG.replace("rounds", "ruonds"))
    error = one_line(kernel_tui(config), ExitCode.USAGE)
    assert "config.toml:3" in error
    assert '"rounds"' in error


def test_a_missing_problem_makes_no_session(kernel_tui: KernelTui, config: Path, tmp_path: Path) -> None:
    (tmp_path / "softmax.py").unlink()
    error = one_line(kernel_tui(config), ExitCode.USAGE)
    assert "softmax.py" in error
    assert not (tmp_path / "sessions").exists()


@pytest.mark.parametrize("command", [(), ("doctor",)])
def test_missing_problems_are_named_as_in_the_file_with_lines_and_what_was_meant(
    kernel_tui: KernelTui, config: Path, command: tuple[str, ...]
) -> None:
    config.write_text('problems = [\n  "sofmax.py",\n  "gelu",\n]\n')
    result = kernel_tui(*command, "config.toml")
    assert result.returncode == ExitCode.USAGE
    assert "config.toml:2: problems: sofmax.py: no such file or directory" in result.stderr
    assert "config.toml:3: problems: gelu: no such file or directory" in result.stderr
    assert "did you mean softmax.py?" in result.stderr and "did you mean builtin:quickstart/gelu?" in result.stderr


def test_what_is_no_config_is_told_what_it_is(kernel_tui: KernelTui, config: Path) -> None:
    assert 'set problems = ["softmax.py"] in it' in kernel_tui("softmax.py").stderr
    (config.parent / "own.cu").write_text("")
    assert "judge it with: kernel-tui eval own.cu" in kernel_tui("own.cu").stderr


def test_wishes_that_exclude_each_other_and_a_stop_of_nothing(kernel_tui: KernelTui, session: SessionPaths) -> None:
    both = kernel_tui("config.toml", "--new", "--resume")
    assert both.returncode == ExitCode.USAGE and "give only one of them" in both.stderr
    assert "there is nothing to stop" in one_line(kernel_tui("stop", session.name), ExitCode.FAILURE)


def test_a_place_where_no_directory_can_be_made_is_storage_that_fails(kernel_tui: KernelTui, config: Path) -> None:
    config.write_text('sessions = "/proc/nowhere"\n' + config.read_text())
    result = kernel_tui("config.toml")
    assert result.returncode == ExitCode.STORAGE
    assert "Error: /proc/nowhere: this file system does not support directories; set another" in result.stderr


def test_a_problem_that_raises_is_refused_with_its_own_words(kernel_tui: KernelTui, config: Path) -> None:
    (config.parent / "softmax.py").write_text(canned.PROBLEM.replace("torch.softmax(x, dim=1)", "1 / 0"))
    error = one_line(kernel_tui(config), ExitCode.NOTHING_CORRECT)
    assert "softmax.py:5" in error
    assert "division by zero" in error


def test_a_kernel_without_launch_is_a_build_error(kernel_tui: KernelTui, config: Path) -> None:
    kernel = config.parent / "kernel.cpp"
    kernel.write_text("int main_loop() { return 0; }\n")
    result = kernel_tui("eval", kernel, "--problem", "softmax.py", "--device", "cpu")
    assert result.returncode == ExitCode.NOTHING_CORRECT
    assert "build error" in result.stdout
    assert "launch" in result.stdout


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("sys.exit(3)", "the problem's own code called sys.exit(3)"),
        (
            "os._exit(3)",
            "ended with exit code 3: the problem's own code runs in the judge and may have ended this process",
        ),
    ],
)
def test_a_problem_that_ends_its_process_is_named_without_a_log_that_eval_does_not_keep(
    kernel_tui: KernelTui, config: Path, ending: str, words: str
) -> None:
    later = f"Model.calls += 1\n        if Model.calls > 4:\n            import os, sys; {ending}\n        return torch"
    text = canned.PROBLEM.replace("return torch", later, 1).replace("    def forward", "    calls = 0\n    def forward")
    (config.parent / "softmax.py").write_text(text)
    kernel = config.parent / "kernel.cpp"
    kernel.write_text('extern "C" int launch(const float*, float*, void*) { return 0; }\n')
    result = kernel_tui("eval", kernel, "--problem", "softmax.py", "--device", "cpu", "--quick")
    assert result.returncode == ExitCode.FAILURE, result.stdout + result.stderr
    assert words in result.stderr
    assert "engine.log" not in result.stderr


def test_a_full_disk_leaves_no_half_session(kernel_tui: KernelTui, config: Path, tmp_path: Path) -> None:
    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    error = one_line(kernel_tui(config, setup=little_room), ExitCode.STORAGE)
    assert str(tmp_path / "sessions") in error
    assert not list((tmp_path / "sessions").glob("*/session.db"))


def test_a_read_only_place_is_named(kernel_tui: KernelTui, config: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o500)
    place = Path("/sys/kernel-tui") if os.geteuid() == 0 else locked / "sessions"  # root may write anywhere else
    config.write_text(f'sessions = "{place}"\n' + CONFIG)
    error = one_line(kernel_tui(config), ExitCode.STORAGE)
    assert str(place) in error


@pytest.mark.parametrize("command", [["resume"], ["show"], ["pause"]])
def test_a_session_of_a_newer_version_is_refused_untouched(
    kernel_tui: KernelTui, session: SessionPaths, command: list[str]
) -> None:
    with sqlite3.connect(session.database) as database:
        database.execute("PRAGMA user_version = 99")
    before = session.database.read_bytes()
    error = one_line(kernel_tui(*command, "demo"), ExitCode.SESSION_NEWER)
    assert "newer kernel-tui" in error
    assert session.database.read_bytes() == before


def test_a_second_engine_on_a_session_is_refused(session: SessionPaths) -> None:
    lock = EngineLock(session)
    try:
        second = subprocess.run(
            [sys.executable, "-m", "engine.daemon.service", str(session.directory)],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=PATIENCE_S,
        )
    finally:
        lock.release()
    assert second.returncode == ExitCode.SESSION_LOCKED
    assert "already running this session" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_gpu_that_the_machine_lacks_is_a_missing_tool_unless_the_config_has_other_faults(
    kernel_tui: KernelTui, config: Path
) -> None:
    config.write_text(CONFIG.replace('device = "cpu"', 'device = "cuda:99"'))
    error = one_line(kernel_tui(config), ExitCode.NO_TOOLS)
    assert f"{config}:" in error and "evaluation.device: cuda:99: this machine has" in error
    (config.parent / "softmax.py").unlink()
    both = kernel_tui(config)
    assert both.returncode == ExitCode.USAGE
    assert "softmax.py: no such file" in both.stderr and "cuda:99: this machine has" in both.stderr
    assert not (config.parent / "sessions").exists()


@pytest.mark.parametrize("compiler", ["an empty PATH", "CXX that points nowhere"])
def test_without_a_compiler_a_search_says_what_to_install_and_its_session_is_kept(
    kernel_tui: KernelTui, config: Path, tmp_path: Path, compiler: str
) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    env = {"PATH": str(empty)} if compiler == "an empty PATH" else {"CXX": "/nowhere/g++"}
    error = one_line(kernel_tui(config, env=env), ExitCode.NO_TOOLS)
    assert "compiler" in error
    assert "install" in error
    listed = kernel_tui("sessions")
    assert listed.returncode == ExitCode.OK
    assert "failed" in listed.stdout
    assert "install" in listed.stdout


def test_without_a_compiler_a_kernel_is_not_judged(kernel_tui: KernelTui, config: Path) -> None:
    kernel = config.parent / "kernel.cpp"
    kernel.write_text("int nothing;\n")
    result = kernel_tui("eval", kernel, "--problem", "softmax.py", "--device", "cpu", env={"CXX": "/nowhere/g++"})
    assert "install" in one_line(result, ExitCode.NO_TOOLS)


@pytest.mark.parametrize("command", ["run", "eval"])
def test_without_torch_it_says_how_to_install_it(
    kernel_tui: KernelTui, config: Path, tmp_path: Path, command: str
) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "sitecustomize.py").write_text(NO_TORCH)
    path = os.pathsep.join((str(shadow), environment()["PYTHONPATH"]))
    kernel = config.parent / "kernel.cpp"
    kernel.write_text("int nothing;\n")
    words = [config] if command == "run" else ["eval", kernel, "--problem", "softmax.py", "--device", "cpu"]
    error = one_line(kernel_tui(*words, env={"PYTHONPATH": path}), ExitCode.NO_TOOLS)
    assert "PyTorch is not installed" in error
    assert "pip install torch" in error


def test_an_unknown_session_and_an_unknown_command(kernel_tui: KernelTui) -> None:
    assert "kernel-tui sessions" in one_line(kernel_tui("show", "nobody"), ExitCode.NO_SESSION)
    assert "'resume'" in one_line(kernel_tui("resmue", "nobody"), ExitCode.USAGE)


def test_a_command_to_a_session_without_engine_says_how_to_resume(kernel_tui: KernelTui, session: SessionPaths) -> None:
    error = one_line(kernel_tui("pause", "demo"), ExitCode.FAILURE)
    assert "no engine is running" in error
    assert "kernel-tui resume demo" in error


@pytest.mark.parametrize(
    "arguments",
    [
        ("resume", "demo", "--detach"),
        ("resume", "demo", "--minutes", "5", "--detach"),
        ("prompt", "demo"),
        ("eval", "sessions/demo/best/softmax.cpp"),
        ("eval", "sessions/demo/best/softmax.cpp", "--problem", "softmax.py"),
        ("build", "sessions/demo/best/softmax.cpp"),
    ],
)
def test_a_session_without_its_own_config_says_what_to_restore(
    kernel_tui: KernelTui, session: SessionPaths, arguments: tuple[str, ...]
) -> None:
    write_best(session, "softmax", ".cpp", "// a kernel")
    session.config.unlink()
    error = one_line(kernel_tui(*arguments), ExitCode.USAGE)
    assert str(session.config) in error and "Restore this file" in error and "init" not in error
    with SessionReader(session) as reader:
        assert not reader.commands()


def test_a_best_kernel_of_an_unknown_problem_needs_its_name(kernel_tui: KernelTui, session: SessionPaths) -> None:
    kernel = write_best(session, "other", ".cpp", "// a kernel")
    assert "Missing option '--problem'" in one_line(kernel_tui("build", kernel), ExitCode.USAGE)


def test_a_damaged_session_is_named(kernel_tui: KernelTui, session: SessionPaths) -> None:
    shutil.copyfile(__file__, session.database)
    assert str(session.database) in one_line(kernel_tui("show", "demo"), ExitCode.NO_SESSION)
