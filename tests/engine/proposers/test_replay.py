"""A search by two providers and its offline replay give the same ideas and sources in the same tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from engine.exit_codes import ExitCode
from engine.session.state.session_state import SessionState, fold
from engine.session.store import SessionPaths, SessionReader
from tests.commandline import ROOT, KernelTui, environment
from tests.engine.proposers.test_language_search import KEY, Author, search_by_two_providers
from tests.model_server import ModelServer
from tests.patience import PATIENCE_S

REPLAY = """\
name = "again"
problems = ["softmax.py"]
[search]
rounds = 1
ideas = 2
variants = 2
fixes = 1
runoff = 0
[evaluation]
device = "cpu"
trials = 3
max_pairs = 8
torch_compile = false
other_sizes = false
[[models]]
provider = "replay"
session = "record"
"""

NO_SOCKETS = """\
import socket

class Blocked(socket.socket):
    def __init__(self, family=socket.AF_INET, *rest, **more):
        if family not in (socket.AF_UNIX, -1):
            raise RuntimeError("a socket to the network was opened")
        super().__init__(family, *rest, **more)

socket.socket = Blocked
socket.create_connection = socket.getaddrinfo = Blocked
"""

Tree = set[tuple[str, ...]]


def tree_of(directory: Path) -> tuple[Tree, Tree, SessionState]:
    """Return ideas and kernels by their texts and ancestors, independent of ids."""
    with SessionReader(SessionPaths.at(directory)) as reader:
        state = fold(reader.read())

        def shown(node: str) -> str:
            return reader.text(state.variants[node].source) if node in state.variants else state.ideas[node].text

        def path(node: str) -> tuple[str, ...]:
            round_number = (state.variants.get(node) or state.ideas[node]).round
            return (f"round {round_number}", *(shown(one) for one in state.lineage(node) if one not in state.problems))

        return {path(one) for one in state.ideas}, {path(one) for one in state.variants}, state


def test_what_two_providers_share_is_the_same_tree_again_without_a_network(
    kernel_tui: KernelTui, tmp_path: Path
) -> None:
    with ModelServer(keys=[KEY], models=["m-one", "m-two"], author=Author()) as server:
        paths = search_by_two_providers(kernel_tui, tmp_path, server)
    shutil.move(paths.directory, tmp_path / "record")
    (tmp_path / "replay.toml").write_text(REPLAY)
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "sitecustomize.py").write_text(NO_SOCKETS)
    offline = {"PYTHONPATH": f"{tmp_path / 'blocked'}:{ROOT}"}
    reached = "import socket; socket.create_connection(('127.0.0.1', 9))"
    blocked = subprocess.run(
        [sys.executable, "-c", reached], env=environment() | offline, capture_output=True, text=True
    )
    assert "a socket to the network was opened" in blocked.stderr
    again = kernel_tui("replay.toml", "--headless", env=offline, timeout=PATIENCE_S)
    assert again.returncode == ExitCode.OK, again.stderr + again.stdout

    ideas, kernels, before = tree_of(tmp_path / "record")
    ideas_again, kernels_again, after = tree_of(tmp_path / "sessions" / "again")
    assert ideas_again == ideas
    assert kernels_again == kernels
    assert not any(problem.standings for problem in after.problems.values()), "runoff = 0: none"
    assert len(kernels) == len(after.variants) >= 8
    replies = {call.reply for call in before.spending.calls.values() if call.reply is not None}
    assert {call.reply for call in after.spending.calls.values()} == replies
    assert after.spending.total.tokens == 0


def test_a_record_that_is_not_there_is_named(kernel_tui: KernelTui, tmp_path: Path) -> None:
    (tmp_path / "softmax.py").write_text("import torch\n")
    (tmp_path / "replay.toml").write_text(REPLAY)
    result = kernel_tui("replay.toml", "--headless", timeout=PATIENCE_S)
    assert result.returncode == ExitCode.NO_SESSION
    assert "no session to replay" in result.stderr
