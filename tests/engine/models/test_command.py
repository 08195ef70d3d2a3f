"""Models that are programs: what a program receives, what it may report, and that nothing of it remains."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config.schema import ConfigError, parse_config
from engine.proposers.llm.calls.retrying_caller import Retry
from engine.proposers.llm.clients.command.program import ProgramMissing
from engine.proposers.llm.model_protocol import CallFailed, Prompt
from engine.proposers.registry import check_providers
from engine.session.records.events import ModelCallFailed, ModelReplied
from engine.session.records.model_calls import FailureKind, Usage
from engine.system.child import state_of
from tests.engine.models.conftest import KEY, PROMPT, SITE, Engine, until

ONCE = Retry(patience_s=0.0)
LEAVES_PROCESSES = """
sleep 1000 & echo $! >> "$0.pids"
setsid sleep 1000 & echo $! >> "$0.pids"
(env -i setsid sh -c 'echo $$ >> "$1"; exec sleep 1000' sh "$0.pids" &)
while [ "$(wc -l < "$0.pids")" -lt 3 ]; do sleep 0.01; done
echo $$ >> "$0.pids"
"""
"""A child, one in its own process session, and one without a parent or an environment."""


def table(directory: Path, script: str, extra: str = "") -> str:
    """Return a ``[[models]]`` table whose program is a shell script beside the config."""
    file = directory / "agent.sh"
    file.write_text("#!/bin/sh\n" + script)
    file.chmod(0o755)
    (directory / "agent.sh.pids").touch()
    return f'[[models]]\nprovider = "command"\ncommand = ["./agent.sh", "--fast"]\nmax_output_tokens = 1000\n{extra}\n'


def survivors(directory: Path) -> list[int]:
    """Return the script's processes that are still alive."""
    pids = [int(line) for line in (directory / "agent.sh.pids").read_text().split()]
    return [pid for pid in pids if state_of(pid) not in ("", "Z")]


def rooms(directory: Path) -> list[Path]:
    """Return the directories in which programs run."""
    return list((directory / "tmp").glob("kernel-tui-command-*"))


@pytest.fixture(autouse=True)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


async def test_a_program_reads_one_text_in_an_empty_directory_with_the_named_variables(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SHELL", "s3cret")
    monkeypatch.setenv("AGENT_HOME", "/opt/agent")
    script = 'cat; echo "--"; ls -A; pwd; echo "$1"; touch file; exec env'
    keys = 'environment = ["AGENT_HOME", "PATH"]\nkey_env = "TEST_MODEL_KEY"'
    async with engine.life(table(tmp_path, script, keys)) as desk:
        reply = await desk.callers["agent.sh"].call(SITE, PROMPT)
    prompt, _, rest = reply.text.partition("--\n")
    assert prompt == "You write kernels.\n\nWrite a softmax, please.\n"
    directory, argument, *environment = rest.splitlines()
    assert Path(directory).parent == tmp_path / "tmp"
    assert argument == "--fast"
    variables = dict(line.split("=", 1) for line in environment)
    assert variables.items() >= {"AGENT_HOME": "/opt/agent", "TEST_MODEL_KEY": KEY}.items()
    assert variables.keys() <= {"AGENT_HOME", "PATH", "TEST_MODEL_KEY", "PWD", "OLDPWD", "SHLVL", "_"}
    assert not rooms(tmp_path)


@pytest.mark.parametrize("end", ["exit", "cancel", "timeout", "failure"])
async def test_no_descendant_of_a_program_survives_its_call(end: str, tmp_path: Path, engine: Engine) -> None:
    last = {"exit": "echo done", "failure": "kill -SEGV $$"}.get(end, "sleep 1000")
    text = table(tmp_path, LEAVES_PROCESSES + last, f"timeout_s = {2.0 if end == 'timeout' else 60.0}")
    async with engine.life(text, ONCE) as desk:
        call = asyncio.create_task(desk.caller.call(SITE, PROMPT))
        if end == "cancel":
            await until(lambda: len(survivors(tmp_path)) == 4)
            call.cancel()
        (outcome,) = await asyncio.gather(call, return_exceptions=True)
        assert end == "timeout" or len((tmp_path / "agent.sh.pids").read_text().split()) == 4
        assert not survivors(tmp_path)
        assert not rooms(tmp_path)
        match end:
            case "exit":
                assert not isinstance(outcome, BaseException) and outcome.text == "done\n"
            case "cancel":
                assert isinstance(outcome, asyncio.CancelledError)
            case "timeout":
                assert isinstance(outcome, CallFailed) and outcome.kind == "timeout"
            case "failure":
                assert isinstance(outcome, CallFailed) and outcome.kind == "program" and "SIGSEGV" in str(outcome)


ENGINE = """
import asyncio, sys
from engine.config.model_tables import CommandModel
from engine.proposers.llm.clients.command.client import CommandClient
from engine.proposers.llm.model_protocol import Prompt
client = CommandClient(CommandModel(provider="command", command=[sys.argv[1]]), "none")
asyncio.run(client.complete(Prompt("kernel", "s", "u"), lambda text: None))
"""


async def test_no_descendant_of_a_program_survives_a_killed_engine(tmp_path: Path) -> None:
    table(tmp_path, LEAVES_PROCESSES + "sleep 1000")
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ENGINE, str(tmp_path / "agent.sh")]
    dying = subprocess.Popen(command, env=environment)  # noqa: ASYNC220
    try:
        await until(lambda: len(survivors(tmp_path)) == 4)
        assert len(rooms(tmp_path)) == 1
    finally:
        dying.send_signal(signal.SIGKILL)
        dying.wait()
    await until(lambda: not survivors(tmp_path))
    await until(lambda: not rooms(tmp_path))


USAGE = 'kernel-tui-usage: {"input_tokens": 1200, "output_tokens": 800'


@pytest.mark.parametrize(
    ("said", "prices", "usage", "dollars"),
    [
        (USAGE + ', "dollars": 0.02}', "", Usage(1200, 800), 0.02),
        (USAGE + ', "dollars": 0.02}', "input_price = 1.0\noutput_price = 1.0", Usage(1200, 800), 0.02),
        (USAGE + "}", "input_price = 1.0\noutput_price = 10.0", Usage(1200, 800), 0.0092),
        (USAGE + "}", "", Usage(1200, 800), None),
        (USAGE.replace("8", "9") + "}\nthinking\n" + USAGE + "}\nbye", "", Usage(1200, 800), None),
        ("thought for a while", "input_price = 1.0\noutput_price = 10.0", None, None),
    ],
)
async def test_a_program_tells_what_its_call_cost(
    said: str, prices: str, usage: Usage | None, dollars: float | None, tmp_path: Path, engine: Engine
) -> None:
    script = f"echo reply\ncat >&2 <<'END'\n{said}\nEND\n"
    async with engine.life(table(tmp_path, script, prices)) as desk:
        reply = await desk.caller.call(SITE, PROMPT)
        started, replied = desk.events()
        assert isinstance(replied, ModelReplied)
        assert (reply.text, replied.usage) == ("reply\n", usage)
        assert replied.dollars == pytest.approx(dollars)
        assert desk.spent.uncertain == (usage is None)
        assert desk.spent.unknown.tokens == (0 if usage is not None else started.tokens)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("echo half; echo 'no such option: --fast' >&2; exit 2", "program", "exit code 2: no such option: --fast"),
        ("kill -KILL $$", "program", "killed by SIGKILL"),
        ("echo '  '; echo nothing to say >&2", "broken_reply", "printed no reply: nothing to say"),
        ("yes error | head -c 9000000 >&2; exit 1", "program", "exit code 1: ..."),
        ("while true; do echo thinking >&2; done", "timeout", "did not finish within 1 s"),
        ("exec yes", "broken_reply", "the reply exceeds 64 MiB"),
        ("echo reply; echo 'kernel-tui-usage: {}' >&2", "broken_reply", "the kernel-tui-usage: line on stderr"),
        (
            f"echo reply; echo '{USAGE}, \"tokens\": 1}}' >&2",
            "broken_reply",
            "`tokens`",
        ),
    ],
)
async def test_a_program_that_fails_is_a_failed_call_with_the_end_of_its_stderr(
    script: str, kind: FailureKind, words: str, tmp_path: Path, engine: Engine
) -> None:
    timeout_s = 1.0 if kind == "timeout" else 60.0
    async with engine.life(table(tmp_path, script, f"timeout_s = {timeout_s}"), ONCE) as desk:
        with pytest.raises(CallFailed) as caught:
            await desk.caller.call(SITE, PROMPT)
        (failed,) = desk.failures()
        assert (failed.failure, failed.usage) == (kind, None)
        assert words in failed.message and len(failed.message) < 500
        assert str(caught.value) == failed.message


async def test_what_a_failed_program_spent_counts(tmp_path: Path, engine: Engine) -> None:
    script = f"""echo '{USAGE}, "dollars": 0.5}}' >&2; exit 1"""
    async with engine.life(table(tmp_path, script), ONCE) as desk:
        with pytest.raises(CallFailed):
            await desk.caller.call(SITE, PROMPT)
        failed = desk.failures()[0]
        assert isinstance(failed, ModelCallFailed)
        assert (failed.usage, failed.dollars, desk.spent.dollars) == (Usage(1200, 800), 0.5, 0.5)


async def test_a_program_need_not_read_its_prompt(tmp_path: Path, engine: Engine) -> None:
    long = Prompt("kernel", "You write kernels.", "please " * 200_000)
    async with engine.life(table(tmp_path, "exec 0<&-; echo reply")) as desk:
        assert (await desk.caller.call(SITE, long)).text == "reply\n"


async def test_no_more_programs_run_at_a_time_than_the_config_allows(tmp_path: Path, engine: Engine) -> None:
    log = tmp_path / "log"
    both = f'while [ "$(grep -c + "{log}")" -lt 2 ]; do sleep 0.01; done'
    script = f'echo + >> "{log}"; {both}; sleep 0.05; echo - >> "{log}"; echo reply'
    async with engine.life(table(tmp_path, script, "concurrency = 2")) as desk:
        await asyncio.gather(*(desk.caller.call(SITE, PROMPT) for _ in range(5)))
    running = [1 if mark == "+" else -1 for mark in log.read_text().split()]
    assert max(sum(running[:count]) for count in range(len(running) + 1)) == 2


async def test_a_program_that_does_not_exist_is_told_before_the_search_and_ends_its_calls(
    tmp_path: Path, engine: Engine
) -> None:
    text = table(tmp_path, "echo reply")
    for command, words in [('["no-such-agent"]', "the program no-such-agent in PATH"), ('["./gone"]', "gone is not")]:
        other = text.replace('["./agent.sh", "--fast"]', command)
        with pytest.raises(ProgramMissing, match=words):
            check_providers(parse_config('problems = ["builtin:quickstart/softmax"]\n' + other, tmp_path / "c.toml"))
    async with engine.life(text) as desk:
        (tmp_path / "agent.sh").unlink()
        with pytest.raises(CallFailed):
            await desk.caller.call(SITE, PROMPT)
        assert [failed.failure for failed in desk.failures()] == ["no_program"]
        assert desk.caller.refusal is not None and desk.spent.uncertain == 0


@pytest.mark.parametrize(
    "keys",
    ["command = []", 'command = [""]', 'command = "agent --print"', 'command = ["a"]\nenvironment = ["KEY=sk-secret"]'],
)
def test_tables_that_name_no_program_or_no_variables(keys: str, tmp_path: Path) -> None:
    text = f'problems = ["builtin:quickstart/softmax"]\n[[models]]\nprovider = "command"\n{keys}\n'
    with pytest.raises(ConfigError) as caught:
        parse_config(text, tmp_path / "config.toml")
    assert "models[1]" in str(caught.value) and "sk-secret" not in str(caught.value)
