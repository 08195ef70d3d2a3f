"""The command line as a user or a script uses it: real processes, real searches."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from engine import __version__
from engine.config.schema import EvaluationConfig, load_config, preset_text
from engine.exit_codes import ExitCode
from engine.session.records.events import DeviceMeasured, Recorded
from engine.session.records.requests import ChangeBudget
from engine.session.state.session_state import SessionState, fold
from engine.session.store import SessionError, SessionPaths, SessionReader, create_session, engine_liveness
from tests.commandline import KernelTui, environment
from tests.engine.proposers import canned
from tests.patience import PATIENCE_S
from tui.cli.kernel.eval import evaluate
from tui.cli.main import COMMANDS, cli
from tui.cli.shared.kernel_file import problem_line

CONFIG = """\
name = "demo"
problems = ["softmax.py"]
[search]
rounds = {rounds}
ideas = 1
variants = 1
runoff = 0
[evaluation]
device = "cpu"
trials = 3
max_pairs = 8
torch_compile = false
other_sizes = false
"""

SCALAR = """\
#include <math.h>
extern "C" int launch(const float* x, float* out, void* workspace) {
    for (long long r = 0; r < x_dim0; ++r) {
        const float* a = x + r * x_dim1;
        float* b = out + r * x_dim1;
        float top = a[0], sum = 0.0f;
        for (long long c = 1; c < x_dim1; ++c) top = fmaxf(top, a[c]);
        for (long long c = 0; c < x_dim1; ++c) sum += b[c] = expf(a[c] - top);
        for (long long c = 0; c < x_dim1; ++c) b[c] /= sum;
    }
    return 0;
}
"""

LOUD = r"""
import os, sys
print("\033[2J\0" + "x" * 100_000)
print("to standard error \033]0;title\007", file=sys.stderr)
os.write(1, b"\n\033[31mthe last\n")
"""


def write_project(directory: Path, rounds: int) -> None:
    (directory / "softmax.py").write_text(canned.PROBLEM)
    (directory / "config.toml").write_text(CONFIG.format(rounds=rounds))


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """Create a project whose search would run for a long time."""
    write_project(tmp_path, rounds=900)
    return tmp_path


Printed = tuple[KernelTui, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Printed]:
    """A project whose search is finished, and the JSON output of that run."""
    directory = tmp_path_factory.mktemp("finished")
    write_project(directory, rounds=1)
    kernel_tui = KernelTui(directory)
    yield kernel_tui, kernel_tui("config.toml", "--json")
    kernel_tui.kill_engines()


@pytest.fixture(scope="module")
def evaluated(finished: Printed) -> subprocess.CompletedProcess[str]:
    """Return the output of ``eval`` on the best kernel of ``finished``, with a problem that prints a lot."""
    kernel_tui, _ = finished
    directory = kernel_tui.directory
    (directory / "loud.py").write_text(canned.PROBLEM + LOUD)
    file = session(directory).best("softmax", ".cpp")
    buffered = {"PYTHONUNBUFFERED": ""}
    return kernel_tui("eval", file, "--problem", "loud.py", "--device", "cpu", "--quick", env=buffered)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Printed]:
    """A project with a long search that Ctrl-C stopped, and the output of that run."""
    directory = tmp_path_factory.mktemp("interrupted")
    write_project(directory, rounds=900)
    kernel_tui = KernelTui(directory)
    process = kernel_tui.start("config.toml")
    wait_until(lambda: closed_rounds(directory) >= 2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    yield kernel_tui, subprocess.CompletedProcess(process.args, process.returncode, output)
    kernel_tui.kill_engines()


def session(directory: Path, name: str = "demo") -> SessionPaths:
    return SessionPaths.at(directory / "sessions" / name)


def events_of(paths: SessionPaths) -> list[Recorded]:
    with SessionReader(paths) as reader:
        return list(reader.read())


def state_of(paths: SessionPaths) -> SessionState:
    return fold(events_of(paths))


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.1)


def closed_rounds(directory: Path) -> int:
    """Return the number of finished rounds of the session in ``directory``."""
    paths = session(directory)
    with contextlib.suppress(SessionError):  # exists, but is not complete yet
        if paths.database.exists():
            problems = state_of(paths).problems.values()
            return sum(round_.finished_at is not None for problem in problems for round_ in problem.rounds)
    return 0


# Without a search


def test_version_and_help(kernel_tui: KernelTui) -> None:
    assert __version__ in kernel_tui("--version").stdout
    help_text = kernel_tui("--help").stdout
    for word in ("run", "resume", "prune", "eval", "Exit codes"):
        assert word in help_text
    for code in ExitCode:
        assert re.search(rf"^ +{code.value} ", help_text, re.MULTILINE), f"{code!r} is not documented"


def test_help_names_types_in_words_and_fits_80_columns() -> None:
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        text = command.get_help(click.Context(command, info_name=f"kernel-tui {name}", terminal_width=80))
        assert " RANGE" not in text and "1000000000000" not in text, name
        assert max(map(len, text.splitlines())) <= 80, name


def test_help_imports_neither_torch_nor_anything_slow() -> None:
    program = """\
import sys
import kernel_tui.command
from tui.cli.main import cli
cli.main(["--help"], standalone_mode=False)
loaded = {name.partition(".")[0] for name in sys.modules}
heavy = loaded & {"torch", "textual", "rich", "pydantic", "numpy", "openai", "google", "asyncio", "tomllib"}
sys.exit(f"imported: {heavy}" if heavy else 0)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert result.returncode == 0, result.stderr


def test_the_monitor_paints_before_it_imports_what_a_tab_or_a_key_needs() -> None:
    program = """\
import sys
import tui.monitor.app
late = ("jinja2", "pydantic", "engine.proposers.llm", "engine.proposers.mailbox", "engine.devices.hardware",
        "tui.monitor.panes.detail.evidence", "tui.monitor.panes.detail.conversation", "tui.monitor.steering.steer")
heavy = [name for name in late if name in sys.modules]
sys.exit(f"imported: {heavy}" if heavy else 0)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert result.returncode == 0, result.stderr


def test_a_command_imports_no_other() -> None:
    program = """\
import sys
from tui.cli.main import cli
try:
    cli.main(["attach", "absent"], standalone_mode=False)
except Exception:
    pass
print(*sorted(name for name in sys.modules if name.startswith("tui.cli.")))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert result.stdout.split() == [
        "tui.cli.main",
        "tui.cli.search",
        "tui.cli.search.attach",
        "tui.cli.shared",
        "tui.cli.shared.common",
    ], result.stderr


def test_every_command_goes_by_its_name() -> None:
    found = {name: cli.get_command(click.Context(cli), name) for name in COMMANDS}
    assert {name: command.name for name, command in found.items() if command is not None} == {n: n for n in COMMANDS}


def test_a_first_word_that_is_no_command_is_a_config(kernel_tui: KernelTui) -> None:
    assert kernel_tui("absent.toml").stderr == kernel_tui("run", "absent.toml").stderr
    assert "no such command" in kernel_tui("absent").stderr


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("demo", "To watch the session: kernel-tui attach demo"),
        ("ls", "Did you mean 'sessions'?"),
        ("evla", "Did you mean 'eval'?"),
        ("mine.tml", "Did you mean 'mine.toml'?"),
        ("xyzzy", "See: kernel-tui --help"),
    ],
)
def test_a_word_that_is_no_command_gets_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    create_session(tmp_path / "sessions", "demo", "", "c.toml", 0)
    (tmp_path / "mine.toml").touch()
    refused = CliRunner().invoke(cli, [word])
    assert refused.exit_code == ExitCode.USAGE
    assert f"no such command or file: '{word}'. {hint}" in " ".join(refused.output.split())


def test_init_writes_a_config_and_never_replaces_one(kernel_tui: KernelTui, tmp_path: Path) -> None:
    assert kernel_tui("init", "--preset", "headline", "mine.toml").returncode == 0
    text = (tmp_path / "mine.toml").read_text()
    assert "headline" in text
    assert "kernel-tui mine.toml" in text and "kernel-tui config.toml" not in text
    assert kernel_tui("init", "my own.toml").stdout.endswith("run it with: kernel-tui 'my own.toml'\n")
    again = kernel_tui("init", "mine.toml")
    assert again.returncode == ExitCode.USAGE
    assert "--force" in again.stderr


def test_init_prints_a_config(kernel_tui: KernelTui, tmp_path: Path) -> None:
    assert kernel_tui("init", "-").stdout == preset_text("quickstart")
    assert not list(tmp_path.iterdir())


def test_problems_lists_files_and_builtins_with_their_shapes(kernel_tui: KernelTui, endless: Path) -> None:
    own, builtin = kernel_tui.json("problems", "softmax.py", "builtin:quickstart/layernorm")
    assert own["inputs"] == ["x (200, 1000) float32"]
    assert "cpp" in own["languages"]
    assert builtin["id"] == "layernorm"
    signature = 'extern "C" int launch(const float* x, float* out, void* workspace, cudaStream_t stream);'
    assert signature in kernel_tui("problems", "softmax.py").stdout


def test_problems_can_be_opened_to_find_those_that_need_no_kernel(kernel_tui: KernelTui, tmp_path: Path) -> None:
    text = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return {}\n"
    text += "def get_inputs():\n    return [torch.randn(64, 300)]\ndef get_init_inputs():\n    return []\n"
    (tmp_path / "sound.py").write_text(text.format("torch.tanh(x)"))
    (tmp_path / "empty.py").write_text(text.format("torch.relu(x.mean() - x.mean())"))
    sound, empty = kernel_tui.json("problems", "sound.py", "empty.py", "--check")
    assert "eager" in sound["remark"] and "trivial outputs fail" in sound["remark"]
    assert "DEGENERATE: zeros pass every check" in empty["remark"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_program(kernel_tui: KernelTui, shell: str) -> None:
    assert "kernel-tui" in kernel_tui("completion", shell).stdout


def test_completion_knows_the_sessions(finished: Printed) -> None:
    words = {"_KERNEL_TUI_COMPLETE": "bash_complete", "COMP_WORDS": "kernel-tui show d", "COMP_CWORD": "2"}
    assert "demo" in finished[0](env=words).stdout
    words |= {"COMP_WORDS": "kernel-tui show demo v", "COMP_CWORD": "3"}
    assert "plain,v1" in finished[0](env=words).stdout.split()
    words |= {"COMP_WORDS": "kernel-tui export d", "COMP_CWORD": "2"}
    assert finished[0](env=words).stdout.split() == ["plain,demo", "file,d"]


# One kernel


def test_the_best_kernel_is_a_file_that_eval_says_is_right(evaluated: subprocess.CompletedProcess[str]) -> None:
    assert evaluated.returncode == ExitCode.OK, evaluated.stderr
    for word in ("softmax.cpp: correct", "kernel", "eager", "95%", "right on fresh inputs", "KernelBench's rules"):
        assert word in evaluated.stdout


def test_what_a_problem_prints_is_shown_cleaned_and_cut(evaluated: subprocess.CompletedProcess[str]) -> None:
    assert not set(evaluated.stdout + evaluated.stderr) & {"\x1b", "\0", "\a"}
    assert "␛[2J␀xxx" in evaluated.stderr and "to standard error ␛]0;title␇" in evaluated.stderr
    assert "\nthe problem printed" in evaluated.stderr and "␛[31mthe last\n" in evaluated.stderr
    assert len(evaluated.stderr) < 2_000


def test_compare_times_two_kernels_side_by_side(kernel_tui: KernelTui, endless: Path) -> None:
    (endless / "one.cpp").write_text(SCALAR)
    slower = SCALAR.replace("    return 0;", "    for (int k = 0; k < 30; ++k)\n" + _again() + "    return 0;")
    (endless / "slow.cpp").write_text(slower)
    result = kernel_tui("compare", "slow.cpp", "one.cpp", "--problem", "softmax.py", "--device", "cpu", "--json")
    assert result.returncode == ExitCode.OK, result.stdout + result.stderr
    found = json.loads(result.stdout)
    standings = found["standings"]
    assert [one["variant"] for one in standings] == ["one.cpp", "slow.cpp"]
    assert standings[1]["ratio"] > 1.5 and not found["same_machine_code"]
    pairs = [one["kernel"]["count"] for one in found["verdicts"].values()]
    assert max(pairs) <= EvaluationConfig().max_pairs, "each is judged once, as in a search: the runoff is what counts"
    for command in ("eval", "compare"):
        assert ("--quick" in kernel_tui(command, "--help").stdout) == (command == "eval")


def test_eval_reports_a_first_build_and_then_one_from_the_cache(kernel_tui: KernelTui, endless: Path) -> None:
    (endless / "new.cpp").write_text(f"// {uuid.uuid4()}\n{SCALAR}")
    command = ("eval", "new.cpp", "--problem", "softmax.py", "--device", "cpu", "--quick")
    first, again = kernel_tui.json(*command), kernel_tui.json(*command)
    assert first["status"] == again["status"] == "correct"
    assert not first["build"].get("cached") and first["build"]["seconds"] > 0.0
    assert first["stage_s"]["build"] == first["build"]["seconds"]
    assert again["build"]["cached"] and again["stage_s"]["build"] == 0.0


def test_compare_says_that_two_kernels_are_one_to_the_machine(kernel_tui: KernelTui, endless: Path) -> None:
    (endless / "one.cpp").write_text(SCALAR)
    (endless / "two.cpp").write_text(SCALAR + "// in other words\n")
    said = kernel_tui("compare", "one.cpp", "two.cpp", "--problem", "softmax.py", "--device", "cpu", "--quick").stdout
    assert "one.cpp and two.cpp compile to the same machine code." in said
    assert "noise" in said and "is the fastest" not in said


def _again() -> str:
    """Return ``SCALAR`` with its loop repeated."""
    return SCALAR[SCALAR.index("    for (long long r") : SCALAR.index("    return 0;")]


def test_build_compiles_without_running(kernel_tui: KernelTui, endless: Path) -> None:
    (endless / "good.cpp").write_text(SCALAR)
    assert kernel_tui("build", "good.cpp", "--problem", "softmax.py", "--output", "k.so").returncode == 0
    assert (endless / "k.so").read_bytes()[:4] == b"\x7fELF"
    for_gpu = kernel_tui("build", "good.cpp", "--problem", "softmax.py", "--arch", "sm_80")
    assert for_gpu.returncode == ExitCode.USAGE and "--arch is for .cu kernels" in for_gpu.stderr
    (endless / "bad.cpp").write_text(SCALAR.replace("return 0;", "return nonsense;"))
    bad = kernel_tui("build", "bad.cpp", "--problem", "softmax.py")
    assert bad.returncode == ExitCode.FAILURE
    assert "bad.cpp:11:12: error: 'nonsense'" in bad.stdout and "kernel.cpp" not in bad.stdout


def test_build_replaces_a_file_only_with_force(kernel_tui: KernelTui, endless: Path) -> None:
    kernel = endless / "good.cpp"
    kernel.write_text(SCALAR)
    build = ("build", "good.cpp", "--problem", "softmax.py", "--output", "good.cpp")
    refused = kernel_tui(*build)
    assert refused.returncode == ExitCode.USAGE and "good.cpp already exists" in refused.stderr
    assert kernel.read_text() == SCALAR
    assert kernel_tui(*build, "--force").returncode == 0
    assert kernel.read_bytes()[:4] == b"\x7fELF"


def test_build_takes_the_problem_of_the_kernel_not_of_the_output(kernel_tui: KernelTui, endless: Path) -> None:
    best = create_session(endless / "sessions", "demo", "", "config.toml", 0).directory / "best"
    best.mkdir()
    (best / "softmax.cpp").write_text(SCALAR)
    (best.parent / "config.toml").write_text(f"problems = ['{endless / 'softmax.py'}']")
    done = kernel_tui("build", "sessions/demo/best/softmax.cpp", "--output", "new.so")
    assert done.returncode == 0, done.stderr
    assert (endless / "new.so").read_bytes()[:4] == b"\x7fELF"


# A search from start to end


def test_show_and_sessions_read_what_was_saved(finished: Printed) -> None:
    kernel_tui, _ = finished
    (listed,) = kernel_tui.json("sessions")
    assert (listed["name"], listed["state"]) == ("demo", "finished")
    results = kernel_tui.json("show", "demo")
    (row,) = results["problems"]
    assert row["best_ms"] > 0
    assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
    variant = kernel_tui.json("show", "demo", row["best"])
    assert variant["verdict"]["status"] == "correct"
    assert "launch" in variant["source"]
    assert variant["lineage"][0] == row["best"]
    text = kernel_tui("show", "demo", "softmax").stdout
    assert "selected" in text
    assert kernel_tui("show", "demo", "i1").returncode == 0
    verdict = kernel_tui.json("eval", row["file"], "--quick")
    assert verdict["status"] == "correct", "a file in best/ knows its problem"
    (kernel_tui.directory / "sessions" / "demo" / "other.cpp").touch()
    elsewhere = kernel_tui("build", "sessions/demo/other.cpp")
    assert elsewhere.returncode == ExitCode.USAGE and "The problems of session demo:" in elsewhere.stderr


def test_a_finished_search_is_resumed_only_for_more_rounds(finished: Printed) -> None:
    kernel_tui, _ = finished
    events_before = events_of(session(kernel_tui.directory))
    refused = kernel_tui("resume", "demo")
    assert refused.returncode == ExitCode.USAGE
    assert "--rounds" in refused.stderr
    for command, code in (("resume", ExitCode.USAGE), ("budget", ExitCode.FAILURE)):
        same = kernel_tui(command, "demo", "--rounds", "1")
        assert (
            same.returncode == code
            and "--rounds 1 is too low, because the search has completed 1 round." in same.stderr
        )
        assert same.stderr.endswith("kernel-tui resume demo --rounds 2\n")
    assert events_of(session(kernel_tui.directory)) == events_before, "no engine has started"
    resumed = kernel_tui("resume", "demo", "--rounds", "2")
    assert resumed.returncode == ExitCode.OK, resumed.stdout + resumed.stderr
    events_after = events_of(session(kernel_tui.directory))
    assert events_after[: len(events_before)] == events_before
    peaks = [one.event.device for one in events_after if isinstance(one.event, DeviceMeasured)]
    assert len(peaks) == 2 and peaks[0] == peaks[1] and peaks[0].bandwidth_gbs is not None
    before, after = fold(events_before), fold(events_after)
    startup = ("starting the engine", "starting the judge\n", "opening problems 1/1: reopening softmax")
    for word in (*startup, "round 2 from", "selected", "speedup", f"best softmax: {after.problems['softmax'].best}"):
        assert word in resumed.stdout, resumed.stdout
    rounds_before, rounds_after = before.problems["softmax"].rounds, after.problems["softmax"].rounds
    assert [one.selected for one in rounds_after[: len(rounds_before)]] == [one.selected for one in rounds_before]
    assert after.finished
    assert (len(rounds_before), len(rounds_after)) == (2, 3)
    assert list(after.ideas)[: len(before.ideas)] == list(before.ideas)
    assert after.verdicts > before.verdicts


def test_json_is_a_line_for_every_event_and_the_results(finished: Printed) -> None:
    _, run = finished
    assert run.returncode == ExitCode.OK, run.stdout + run.stderr
    *events, results = [json.loads(line) for line in run.stdout.splitlines()]
    assert [one["seq"] for one in events] == list(range(1, len(events) + 1))
    assert events[-1]["event"]["kind"] == "engine_stopped"
    assert results["results"]["problems"][0]["problem"] == "softmax"


# Interrupted and resumed


def test_a_headless_run_tells_its_story_until_ctrl_c_stops_the_engine(interrupted: Printed) -> None:
    kernel_tui, run = interrupted
    assert run.returncode == ExitCode.INTERRUPTED, run.stdout
    state = state_of(session(kernel_tui.directory))
    best = state.problems["softmax"].best
    story = ("eager", "round 0", "round 1 from", "best so far", "selected")
    for word in (*story, "stopping", "speedup", f"best softmax: {best}"):
        assert word in run.stdout, run.stdout
    assert "\x1b" not in run.stdout
    assert state.engine is not None
    assert state.engine.stopped == "stopped"


def test_resume_goes_on_killing_it_leaves_the_search_and_attach_finds_it(interrupted: Printed) -> None:
    kernel_tui, _ = interrupted
    paths = session(kernel_tui.directory)
    verdicts = state_of(paths).verdicts
    process = kernel_tui.start("resume", "demo")
    wait_until(lambda: state_of(paths).verdicts > verdicts)
    process.kill()
    process.communicate()
    assert engine_liveness(paths).running
    for command in (["attach", "demo"], ["resume", "demo"], ["config.toml"]):
        watcher = kernel_tui.start(*command)
        assert watcher.stdout is not None
        wait_until(lambda watcher=watcher: "softmax:" in watcher.stdout.readline())  # type: ignore[misc]
        watcher.send_signal(signal.SIGINT)
        output, _ = watcher.communicate(timeout=PATIENCE_S)
        assert "detached" in output
    assert engine_liveness(paths).running
    assert [one.name for one in (kernel_tui.directory / "sessions").iterdir()] == ["demo"]
    starts = state_of(paths).starts
    assert kernel_tui("stop", "demo").returncode == 0
    again = kernel_tui("resume", "demo", "--detach")  # it may still be running
    assert again.returncode == 0 and "attaching" not in again.stderr
    wait_until(lambda: state_of(paths).starts == starts + 1)
    kernel_tui.kill_engines()
    wait_until(lambda: not engine_liveness(paths).running)


def test_a_script_starts_a_new_session_or_resumes_the_unfinished_one(interrupted: Printed) -> None:
    kernel_tui, _ = interrupted
    directory = kernel_tui.directory
    verdicts = state_of(session(directory)).verdicts
    new = kernel_tui("config.toml", "--new", "--detach")
    assert "unfinished" in new.stderr
    assert "kernel-tui resume demo" in new.stderr and "demo-2" in new.stderr
    assert session(directory, "demo-2").database.exists()
    kernel_tui.kill_engines()
    wait_until(lambda: not engine_liveness(session(directory, "demo-2")).running)
    assert kernel_tui("config.toml", "--resume", "--detach").returncode == 0
    wait_until(lambda: engine_liveness(session(directory, "demo-2")).running)
    assert state_of(session(directory)).verdicts == verdicts


def test_limits_at_the_start_replace_those_of_the_config(interrupted: Printed) -> None:
    kernel_tui, _ = interrupted
    new = kernel_tui("config.toml", "--new", "--minutes", "0.5", "--rounds", "3", "--detach")
    (name,) = re.findall(r"Starting a new session: (\S+)", new.stderr)
    paths = session(kernel_tui.directory, name)
    frozen = load_config(paths.config)
    assert (frozen.budget.minutes, frozen.search.rounds) == (0.5, 3)
    kernel_tui.kill_engines()
    wait_until(lambda: not engine_liveness(paths).running)
    assert kernel_tui("config.toml", "--resume", "--minutes", "7", "--detach").returncode == 0
    with SessionReader(paths) as reader:
        assert [sent.command for sent in reader.commands()] == [ChangeBudget(minutes=7.0)]
    kernel_tui.kill_engines()


def test_an_exported_file_names_its_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    problem, kernel = tmp_path / "relu.py", tmp_path / "kernel.py"
    problem.touch()
    kernel.write_text(f"# A KernelBench solution for relu, exported by kernel-tui.\n# {problem_line('relu.py')}\n")
    assert evaluate.make_context("eval", [str(kernel)]).params["problem"] == "relu.py"
    assert evaluate.make_context("eval", [str(kernel), "--problem", "other.py"]).params["problem"] == "other.py"
    problem.unlink()
    with pytest.raises(click.MissingParameter) as refused:
        evaluate.make_context("eval", [str(kernel)])
    assert f"{kernel} is for problem relu.py, but the current directory" in refused.value.format_message()


def test_an_exported_file_that_names_no_problem_gets_those_of_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, problem in (("earlier", "gelu"), ("newest", "softmax")):
        paths = create_session(tmp_path / "sessions", name, "", "c.toml", 0)
        paths.config.write_text(f'problems = ["builtin:quickstart/{problem}"]\n[[models]]\nprovider = "playbook"\n')
    about = "Kernel v1 of session earlier: speedup 2x over eager PyTorch on cpu (tol. crfm)."
    exported, plain = tmp_path / "exported.py", tmp_path / "plain.cpp"
    exported.write_text(f"# A KernelBench solution for gelu, exported by kernel-tui.\n# {about}\n")
    plain.touch()
    for kernel, words in (
        (exported, "The problems of session earlier: --problem builtin:quickstart/gelu"),
        (plain, "The problems of the newest session, newest: --problem builtin:quickstart/softmax"),
    ):
        with pytest.raises(click.MissingParameter) as refused:
            evaluate.make_context("eval", [str(kernel)])
        assert words in refused.value.format_message()
