"""If no proposer supports an operator, the search says so and waits for the user's kernel."""

from __future__ import annotations

import os
import signal
import time
import tomllib
from collections.abc import Callable

import pytest

from engine.config.schema import load_config, parse_config
from engine.doctor import models, tools
from engine.exit_codes import ExitCode
from engine.session.budget import elapsed_s
from engine.session.state.session_state import SessionState, fold
from engine.session.store import SessionPaths, SessionReader, engine_liveness
from tests.commandline import KernelTui
from tests.patience import PATIENCE_S

PROBLEM = """\
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {formula}

def get_inputs():
    return [torch.randn(100, 300)]

def get_init_inputs():
    return []
"""
CONFIG = """\
name = "demo"
problems = [{problems}]
[search]
rounds = 1
ideas = 1
variants = 1
runoff = 0
[budget]
minutes = 60
[evaluation]
device = "cpu"
trials = 3
max_pairs = 8
torch_compile = false
"""
KERNEL = """\
extern "C" int launch(const float* x, float* out, void* workspace) {
    for (long long r = 0; r < x_dim0; ++r) {
        float highest = x[r * x_dim1];
        for (long long c = 0; c < x_dim1; ++c) {
            if (!(x[r * x_dim1 + c] <= highest)) highest = x[r * x_dim1 + c];
            out[r * x_dim1 + c] = highest;
        }
    }
    return 0;
}
"""
FORMULAS = {"scan": "torch.cummax(x, dim=1).values", "relu": "torch.relu(x) * 2"}


def project(kernel_tui: KernelTui, *problems: str) -> SessionPaths:
    """Write a config with the playbook as the only proposer. Return the paths of its future session."""
    for name in problems:
        (kernel_tui.directory / f"{name}.py").write_text(PROBLEM.format(formula=FORMULAS[name]))
    named = ", ".join(f'"{name}.py"' for name in problems)
    (kernel_tui.directory / "config.toml").write_text(CONFIG.format(problems=named))
    return SessionPaths.at(kernel_tui.directory / "sessions" / "demo")


def state_of(paths: SessionPaths) -> SessionState:
    with SessionReader(paths) as reader:
        return fold(reader.read())


def until(paths: SessionPaths, holds: Callable[[SessionState], bool]) -> SessionState:
    deadline = time.monotonic() + PATIENCE_S
    while not holds(state := state_of(paths)):
        assert time.monotonic() < deadline and engine_liveness(paths).running
        time.sleep(0.1)
    return state


def test_without_a_person_the_search_ends_at_once_and_says_why_and_what_to_do(kernel_tui: KernelTui) -> None:
    project(kernel_tui, "scan")
    ended = kernel_tui("config.toml", "--headless")
    assert ended.returncode == ExitCode.NOTHING_CORRECT, ended.stderr
    assert "cummax" in ended.stderr, "the operator that no proposer covers"
    assert "kernel-tui resume demo" in ended.stderr and "kernel-tui seed-kernel demo" in ended.stderr
    table = ended.stderr[ended.stderr.index("[[models]]") :].split("\n\n")[0]
    assert tomllib.loads(table)["models"][0]["provider"] == "manual"
    parse_config((kernel_tui.directory / "config.toml").read_text() + table, "config.toml")


def test_what_other_problems_came_to_counts(kernel_tui: KernelTui) -> None:
    paths = project(kernel_tui, "scan", "relu")
    ended = kernel_tui("config.toml", "--headless")
    assert ended.returncode == ExitCode.OK, ended.stderr
    assert "cummax" in ended.stdout and "kernel-tui seed-kernel demo" in ended.stdout
    state = state_of(paths)
    assert state.problems["relu"].best is not None and state.problems["relu"].cannot_write is None
    assert not state.finished, "it can be resumed, for a kernel that a person seeds"


def test_the_problem_stays_open_for_a_seeded_kernel_until_the_minutes_are_used_up(kernel_tui: KernelTui) -> None:
    paths = project(kernel_tui, "scan")
    assert kernel_tui("config.toml", "--detach").returncode == ExitCode.OK
    state = until(paths, lambda state: any(one.cannot_write for one in state.problems.values()))
    assert "cummax" in (state.problems["scan"].cannot_write or "")
    assert any("[[models]]" in remedy for remedy in state.problems["scan"].remedies)
    time.sleep(3)
    assert engine_liveness(paths).running and state_of(paths).problems["scan"].finished is None
    shown = kernel_tui("show", "demo", "scan").stdout
    assert "cummax" in shown and 'provider = "manual"' in shown
    (kernel_tui.directory / "scan.cpp").write_text(KERNEL)
    seeded = kernel_tui("seed-kernel", "demo", "scan.cpp", "--problem", "scan")
    assert seeded.returncode == ExitCode.OK, seeded.stderr
    best = until(paths, lambda state: state.problems["scan"].best is not None).problems["scan"].best
    assert best is not None and engine_liveness(paths).running
    assert kernel_tui("budget", "demo", "--minutes", "0.01").returncode == ExitCode.OK
    deadline = time.monotonic() + PATIENCE_S
    while engine_liveness(paths).running and time.monotonic() < deadline:
        time.sleep(0.1)
    assert engine_liveness(paths).exit_code == ExitCode.OK
    state = state_of(paths)
    assert state.engine is not None and state.engine.stopped == "budget"


def test_the_minutes_of_a_quiet_engine_survive_its_death(kernel_tui: KernelTui) -> None:
    paths = project(kernel_tui, "scan")
    assert kernel_tui("config.toml", "--detach").returncode == ExitCode.OK
    until(paths, lambda state: any(one.cannot_write for one in state.problems.values()))
    time.sleep(6)  # in which it records no event
    before = kernel_tui.json("show", "demo")["seconds"]
    pid = engine_liveness(paths).pid
    assert pid is not None and before - elapsed_s(state_of(paths), state_of(paths).time) > 4, "it was quiet"
    os.kill(pid, signal.SIGKILL)
    while engine_liveness(paths).running:
        time.sleep(0.05)
    assert kernel_tui.json("show", "demo")["seconds"] > before - 2.5
    assert kernel_tui("resume", "demo", "--detach").returncode == ExitCode.OK
    until(paths, lambda state: state.starts == 2)
    assert state_of(paths).search_seconds > before - 2.5
    kernel_tui.kill_engines()


def test_a_person_may_give_up_the_open_problem(kernel_tui: KernelTui) -> None:
    paths = project(kernel_tui, "scan")
    assert kernel_tui("config.toml", "--detach").returncode == ExitCode.OK
    until(paths, lambda state: any(one.cannot_write for one in state.problems.values()))
    assert kernel_tui("prune", "demo", "scan").returncode == ExitCode.OK
    deadline = time.monotonic() + PATIENCE_S
    while engine_liveness(paths).running and time.monotonic() < deadline:
        time.sleep(0.1)
    assert state_of(paths).finished
    assert engine_liveness(paths).exit_code == ExitCode.OK, "what a person pruned is not unsolved"


@pytest.mark.parametrize("with_manual", [False, True])
def test_what_the_proposers_can_write_is_said_beforehand(kernel_tui: KernelTui, with_manual: bool) -> None:
    project(kernel_tui, "scan", "relu")
    path = kernel_tui.directory / "config.toml"
    if with_manual:
        path.write_text(path.read_text() + '[[models]]\nprovider = "playbook"\n[[models]]\nprovider = "manual"\n')
    rows = {row["id"]: row["proposers"] for row in kernel_tui.json("problems", "--config", "config.toml")}
    able = {name: [one["proposer"] for one in row if "cpp" in one["languages"]] for name, row in rows.items()}
    assert able == {"scan": ["manual"] * with_manual, "relu": ["playbook", "manual"][: 1 + with_manual]}
    assert "cummax" in rows["scan"][0]["refusal"]
    assert "cummax" in kernel_tui("problems", "scan.py").stdout
    finding = models.coverage(load_config(path), tools.Gpus((), (), "", None, "none"))
    assert finding.level == ("ok" if with_manual else "warn")
    assert ("scan" in finding.what) and (with_manual or "[[models]]" in finding.remedy)
