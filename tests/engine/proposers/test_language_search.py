"""Whole searches with models on the network: repairs, a budget, a crash, hostile replies."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.exit_codes import ExitCode
from engine.session.state.session_state import SessionState, fold
from engine.session.store import SessionPaths, SessionReader, engine_liveness
from tests.commandline import KernelTui
from tests.engine.proposers import canned
from tests.model_server import Asked, Do, ModelServer
from tests.model_server.asked import Dialect
from tests.patience import PATIENCE_S

KEY = "sk-test-0123456789abcdef"
ENVIRONMENT = {"TEST_MODEL_KEY": KEY}

CONFIG = """\
name = "demo"
problems = ["softmax.py"]
[search]
rounds = {rounds}
ideas = 2
variants = 2
fixes = 1
runoff = 0
[budget]
{budget}
[evaluation]
device = "cpu"
trials = 3
max_pairs = 8
torch_compile = false
other_sizes = false
{models}
roles = {roles}
"""
MODEL = """\
[[models]]
{where}
key_env = "TEST_MODEL_KEY"
max_output_tokens = 1000
timeout_s = 20
"""
NETWORK: tuple[Dialect, Dialect] = ("chat", "gemini")
OTHERS: tuple[Dialect, Dialect] = ("anthropic", "command")


class Author:
    """Answer like a model, with new ideas, some failing kernels, and correct repairs."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> str:
        with self._lock:
            number = next(self._numbers)
        if asked.schema is not None or "Propose " in asked.user:
            return canned.ideas(*(_words(f"{number} {which}") for which in range(2)))
        if "The kernel that failed" in asked.user or "The unusable reply" in asked.user:
            return canned.block(canned.good(f"repaired {number}"))
        kinds = (canned.good, canned.wrong, canned.divides, canned.broken)
        return canned.block(kinds[number % 4](f"number {number}"))


def _words(seed: str) -> str:
    """Return a sentence that shares no words with another seed's sentence."""
    digits = hashlib.sha256(seed.encode()).hexdigest().translate(str.maketrans("0123456789", "ghijklmnop"))
    return " ".join(digits[start : start + 6] for start in range(0, 48, 6))


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(keys=[KEY], models=["m-one", "m-two"], author=Author()) as server:
        yield server


def prepare(
    directory: Path,
    server: ModelServer,
    budget: str = "",
    rounds: int = 1,
    roles: str = '["ideas", "code", "fixes"]',
    dialects: tuple[Dialect, Dialect] = NETWORK,
) -> SessionPaths:
    (directory / "softmax.py").write_text(canned.PROBLEM)
    tables = (model_table(dialect, name, server) for dialect, name in zip(dialects, ("m-one", "m-two"), strict=True))
    text = CONFIG.format(models="".join(tables), budget=budget, rounds=rounds, roles=roles)
    (directory / "config.toml").write_text(text)
    return SessionPaths.at(directory / "sessions" / "demo")


def model_table(dialect: Dialect, name: str, server: ModelServer) -> str:
    """Return a ``[[models]]`` table for a model of the server, without an end."""
    if dialect == "command":
        where = f'provider = "command"\nname = "{name}"\ncommand = {json.dumps([*server.command, name])}'
    else:
        provider = "openai" if dialect == "chat" else dialect
        where = f'provider = "{provider}"\nmodel = "{name}"\nbase_url = "{getattr(server, provider)}"'
    return MODEL.format(where=where)


def state_of(paths: SessionPaths) -> SessionState:
    with SessionReader(paths) as reader:
        return fold(reader.read())


def programs(server: ModelServer) -> list[int]:
    """Return the running processes of the server's program."""
    wanted = "\0".join(server.command).encode()
    return [process.pid for process in psutil.process_iter() if wanted in command_line(process.pid)]


def command_line(pid: int) -> bytes:
    """Return a process's arguments, separated by NUL; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def check_books(state: SessionState, server: ModelServer) -> None:
    """Check that the session's recorded usage equals the server's bill, to the token."""
    spent = state.spending.total
    assert (spent.usage.input, spent.usage.output) == (server.books.told.input, server.books.told.output)
    assert spent.calls == server.books.calls


def search_by_two_providers(kernel_tui: KernelTui, directory: Path, server: ModelServer) -> SessionPaths:
    """Assert that a finished search has ideas, kernels and repairs from both models."""
    paths = prepare(directory, server)
    result = kernel_tui("config.toml", "--headless", env=ENVIRONMENT, timeout=PATIENCE_S)
    assert result.returncode == ExitCode.OK, result.stderr + result.stdout
    state = state_of(paths)
    check_books(state, server)
    assert {idea.proposer for idea in state.ideas.values()} == {"m-one", "m-two"}
    assert {variant.proposer for variant in state.variants.values()} == {"m-one", "m-two"}
    assert {asked.dialect for asked in server.requests} == {"chat", "gemini"}
    repaired = [variant for variant in state.variants.values() if variant.note.startswith("fix 1 of ")]
    failed = [
        variant
        for variant in state.variants.values()
        if variant.verdict is not None and not variant.correct and variant.verdict.same_code_as is None
    ]
    assert len(repaired) == len(failed) >= 2
    assert all(variant.correct for variant in repaired)
    codes: dict[str, list[str]] = {}
    for variant in state.variants.values():
        if variant.verdict is not None and variant.verdict.build is not None and variant.verdict.build.code:
            codes.setdefault(variant.verdict.build.code, []).append(variant.id)
    assert len(codes) == 3, "good, divides and wrong"
    for same in codes.values():
        timed = [name for name in same if (verdict := state.variants[name].verdict) and not verdict.same_code_as]
        assert len(timed) == 1
        assert f"same machine code as {timed[0]}" in result.stdout or len(same) == 1
    assert {len(round_.ideas) for round_ in state.problems["softmax"].rounds} == {2}
    for asked in server.requests:
        assert KEY not in asked.prompt
    assert KEY not in paths.log.read_text()
    assert KEY.encode() not in paths.database.read_bytes()
    return paths


@pytest.mark.parametrize("dialects", [NETWORK, OTHERS], ids="-".join)
def test_it_ends_in_order_when_its_tokens_are_spent_and_survives_a_death(
    dialects: tuple[Dialect, Dialect], kernel_tui: KernelTui, tmp_path: Path, server: ModelServer
) -> None:
    server.default = Do(delay_s=0.05)
    paths = prepare(tmp_path, server, budget="tokens = 22_000", rounds=50, dialects=dialects)
    started = kernel_tui("config.toml", "--detach", env=ENVIRONMENT)
    assert started.returncode == ExitCode.OK, started.stderr
    deadline = time.monotonic() + PATIENCE_S
    while state_of(paths).verdicts < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pid = engine_liveness(paths).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while engine_liveness(paths).running or programs(server):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    finished = kernel_tui("resume", "demo", "--headless", env=ENVIRONMENT, timeout=PATIENCE_S)
    assert finished.returncode == ExitCode.OK, finished.stderr
    state = state_of(paths)
    assert state.engine is not None
    assert state.engine.stopped == "budget"
    spent = state.spending.total
    # The server may have billed the calls in flight at the crash, and the session says "at most".
    told = server.books.told
    assert spent.tokens <= told.input + told.output <= spent.at_most.tokens
    if not spent.uncertain:
        check_books(state, server)
    assert spent.at_most.tokens <= 22_000
    assert not state.in_flight()
    assert {asked.dialect for asked in server.requests} == set(dialects)
    assert not programs(server)
    calls = [variant.data["call"] for variant in state.variants.values()]
    assert len(calls) == len(set(calls))
    replied = {call.site for call in state.spending.calls.values() if call.reply is not None}
    assert len(replied) == sum(call.reply is not None for call in state.spending.calls.values())


def test_a_budget_below_one_call_ends_it_in_words_that_name_the_key(
    kernel_tui: KernelTui, tmp_path: Path, server: ModelServer
) -> None:
    prepare(tmp_path, server, budget="tokens = 900")
    ended = kernel_tui("config.toml", "--headless", env=ENVIRONMENT, timeout=PATIENCE_S)
    assert ended.returncode == ExitCode.NOTHING_CORRECT
    for said in (ended.stderr, kernel_tui("show", "demo").stdout, kernel_tui("sessions").stdout):
        assert "max_output_tokens is 1000" in said, said


def test_a_wrong_key_ends_it_with_a_sentence_and_replies_of_no_use_are_failed_kernels_and_questions_for_later(
    kernel_tui: KernelTui, tmp_path: Path, server: ModelServer
) -> None:
    paths = prepare(tmp_path, server, roles='["code", "fixes"]')
    missing = kernel_tui("config.toml", "--headless", timeout=PATIENCE_S)
    assert missing.returncode == ExitCode.NO_KEY
    assert "export TEST_MODEL_KEY=" in missing.stderr
    wrong = kernel_tui("config.toml", "--headless", env={"TEST_MODEL_KEY": "sk-wrong-9876543210"}, timeout=PATIENCE_S)
    assert wrong.returncode == ExitCode.FAILURE
    assert "the search no longer calls m-one: key rejected: TEST_MODEL_KEY: " in wrong.stderr
    assert f"To resume: kernel-tui resume {paths.directory}" in wrong.stderr
    assert "Error: all models failed permanently: " in wrong.stderr
    assert "set TEST_MODEL_KEY to a valid key, then resume the session" in wrong.stderr
    assert "sk-wrong" not in wrong.stdout + wrong.stderr

    server.script(
        Do(text="<!doctype html><html><body>Please sign in</body></html>"),
        Do(text=f"Certainly! {canned.ideas(*canned.IDEAS[:2])} I hope this helps {{ }}."),
        Do(text="I cannot help with that.", finish="refusal"),
        Do(text=canned.block(canned.good("cut"))[:300], finish="length"),
        Do(text=canned.block("import torch\n", "python")),
        Do(text=canned.block(canned.good("one")) + canned.block(canned.divides("two"))),
    )
    result = kernel_tui("resume", "demo", "--headless", env=ENVIRONMENT, timeout=PATIENCE_S)
    assert result.returncode == ExitCode.OK, result.stderr + result.stdout
    state = state_of(paths)
    check_books(state, server)
    assert "returned no first ideas: the reply is an HTML page" in result.stdout
    assert "the search asks again in the next round" in result.stdout
    reasons = sorted(
        variant.verdict.reason
        for variant in state.variants.values()
        if variant.verdict is not None and variant.data.get("unusable")
    )
    assert [re.sub(r"[:;(].*", "", reason).strip() for reason in reasons] == [
        "the code block is python, but the kernel must be C++",
        "the kernel is cut off at the output limit",
        "the model refused to answer",
        "the reply has 2 different kernels instead of exactly one",
    ]
    assert all(idea.proposer == "m-one" for idea in state.ideas.values())
    assert any(variant.correct for variant in state.variants.values())
