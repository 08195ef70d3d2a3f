"""A search whose prompts a person answers with files: prompts, replies, stop, copy, resume."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.exit_codes import ExitCode
from engine.proposers.llm.model_protocol import Prompt
from engine.proposers.mailbox import MAX_READ_BYTES, RULER, FoundReply, Mailbox
from engine.session.state.session_state import SessionState, fold
from engine.session.store import SessionError, SessionPaths, SessionReader
from tests.commandline import KernelTui
from tests.engine.proposers import canned
from tests.patience import PATIENCE_S

CONFIG = """\
name = "demo"
problems = ["softmax.py"]
[search]
rounds = 1
ideas = 2
variants = 2
fixes = 1
[evaluation]
device = "cpu"
trials = 3
max_pairs = 8
torch_compile = false
[[models]]
provider = "manual"
"""


def state_of(directory: Path) -> SessionState:
    with SessionReader(SessionPaths.at(directory)) as reader:
        return fold(reader.read())


def until(session: Path, running: subprocess.Popen[str], holds: Callable[[SessionState], bool]) -> SessionState:
    """Return the first state in which ``holds`` is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds(state := state_of(session)):
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.1)
    return state


def test_a_search_by_hand_stops_while_it_waits_and_goes_on_elsewhere(kernel_tui: KernelTui, tmp_path: Path) -> None:
    (tmp_path / "softmax.py").write_text(canned.PROBLEM)
    (tmp_path / "config.toml").write_text(CONFIG)
    session = tmp_path / "sessions" / "demo"

    first = kernel_tui("config.toml", "--headless", "--until-idle", timeout=PATIENCE_S)
    assert first.returncode == ExitCode.WAITING, first.stderr
    assert re.search(
        r"^\d\d:\d\d:\d\d the search will stop when it is waiting only for a person's replies$",
        first.stdout,
        re.MULTILINE,
    )
    assert "outbox/softmax.r0.ideas.start.0.md" in first.stderr
    text = (session / "outbox" / "softmax.r0.ideas.start.0.md").read_text()
    header, _, prompt = text.partition(RULER)
    assert "inbox/softmax.r0.ideas.start.0.md" in header
    assert "torch.softmax(x, dim=1)" in prompt
    assert 'extern "C" int launch(const float* x, float* out, void* workspace);' in prompt

    ideas = tmp_path / "reply.txt"
    ideas.write_text(canned.block(canned.good("a kernel where ideas are wanted")))
    refused = kernel_tui("reply", "demo", "softmax.r0.ideas.start.0", ideas)
    assert refused.returncode == ExitCode.USAGE
    assert "no idea" in refused.stderr and "--anyway" in refused.stderr
    ideas.write_text("Sure!\n```json\n" + canned.ideas(*canned.IDEAS[:2]) + "\n```\nGood luck.")
    replied = kernel_tui("reply", "demo", "softmax.r0.ideas.start.0", ideas)
    assert replied.returncode == ExitCode.OK
    assert replied.stdout.endswith("kernel-tui resume demo\n")
    assert kernel_tui("reply", "demo").stdout.endswith("kernel-tui resume demo\n")

    # Copied to another place, where neither the config nor the problem's file exists any more.
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(session, elsewhere / "copy")
    shutil.rmtree(session)
    (tmp_path / "softmax.py").unlink()
    session = elsewhere / "copy"
    running = kernel_tui.start("resume", session, "--headless")
    mailbox = Mailbox(session)
    until(session, running, lambda _: len(mailbox.unanswered()) == 4)
    assert "no engine" not in kernel_tui("reply", session).stdout
    calls = [one["call"] for one in kernel_tui.json("reply", session)]
    assert calls == [f"softmax.r0.kernel.{idea}.{number}" for idea in ("i1", "i2") for number in (0, 1)]
    assert "call softmax.r0.kernel.i1.0, waiting for its reply" in kernel_tui("prompt", session).stderr
    refused = kernel_tui("reply", session, "softmax.r0.kernel.i1.0", ideas)
    assert refused.returncode == ExitCode.USAGE and "launch" in refused.stderr
    sources = {"i1.0": canned.good("one"), "i1.1": canned.wrong("two"), "i2.0": canned.broken("three")}
    for call in calls:
        reply = canned.block(sources[name]) if (name := call[-4:]) in sources else "I would rather not."
        mailbox.deliver(call, reply)
    state = until(session, running, lambda state: state.verdicts == 4 and len(mailbox.unanswered()) == 3)
    by_call = {variant.data["call"]: variant for variant in state.variants.values()}
    statuses = {call[-4:]: v.verdict.status for call, v in by_call.items() if v.verdict is not None}
    assert statuses == {"i1.0": "correct", "i1.1": "wrong", "i2.0": "build_error", "i2.1": "build_error"}
    none = next(variant for call, variant in by_call.items() if call.endswith("i2.1"))
    assert none.verdict is not None
    assert "no fenced code block" in none.verdict.reason

    fixes = mailbox.unanswered()
    failed = {by_call[f"softmax.r0.kernel.{name}"].id for name in ("i1.1", "i2.0", "i2.1")}
    assert {call.split(".")[3] for call in fixes} == failed
    for call in fixes:
        prompt = (session / "outbox" / f"{call}.md").read_text()
        assert f"kernel-tui reply {session} {call} FILE" in prompt, "the session is not in a directory `sessions`"
        broken = call.split(".")[3] == by_call["softmax.r0.kernel.i2.0"].id
        assert ("zero" in prompt and "error:" in prompt) == broken
    for call in fixes:
        mailbox.deliver(call, canned.block(canned.divides(call)))
    until(session, running, lambda state: state.problems["softmax"].rounds[0].finished_at is not None)
    while running.poll() is None:
        for call in mailbox.unanswered():
            assert call.startswith("softmax.r1.ideas.v")
            mailbox.deliver(call, "I would rather not.")
        time.sleep(0.1)
    said, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == ExitCode.OK, said
    assert "so the search does not ask again" in said
    assert "asks again in the next round" not in said

    # The outbox held exactly the recorded prompts.
    state = state_of(session)
    with SessionReader(SessionPaths.at(session)) as reader:
        for call_state in state.spending.calls.values():
            prompt = Prompt.decode(reader.text(call_state.prompt))
            assert "launch(const float* x" in prompt.user
    assert state.spending.total.failed == 0
    assert state.spending.total.calls == len(state.spending.calls)


def test_a_reply_that_repeats_a_source_is_recorded_and_shown(kernel_tui: KernelTui, tmp_path: Path) -> None:
    (tmp_path / "softmax.py").write_text(canned.PROBLEM)
    (tmp_path / "config.toml").write_text(CONFIG.replace("ideas = 2", "ideas = 1"))
    session = tmp_path / "sessions" / "demo"
    running = kernel_tui.start("config.toml", "--headless")
    deadline = time.monotonic() + PATIENCE_S
    while not (mailbox := Mailbox(session)).unanswered():
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.1)
    mailbox.deliver("softmax.r0.ideas.start.0", canned.ideas(canned.IDEAS[0]))
    until(session, running, lambda _: len(mailbox.unanswered()) == 2)
    mailbox.deliver("softmax.r0.kernel.i1.0", canned.block(canned.wrong("first")))
    until(session, running, lambda state: state.verdicts == 1)
    mailbox.deliver("softmax.r0.kernel.i1.1", canned.block(canned.wrong("first")))
    until(session, running, lambda state: any("fix" in one for one in mailbox.unanswered()))
    mailbox.deliver("softmax.r0.fix.v1.0", canned.block(canned.wrong("first")))
    state = until(session, running, lambda state: len(state.ideas["i1"].repeats) == 2)
    repeats = {(one.same_as, one.number, one.parent) for one in state.ideas["i1"].repeats}
    assert repeats == {("v1", 1, None), ("v1", None, "v1")}, "in either order"
    assert set(state.variants) == {"v1"}
    kernel_tui("stop", "demo")
    said, _ = running.communicate(timeout=PATIENCE_S)
    assert said.count("same source as v1") == 2, said
    assert kernel_tui("show", "demo", "i1").stdout.count("same source as v1") == 2
    assert [one["same_as"] for one in kernel_tui.json("show", "demo", "i1")["repeats"]] == ["v1", "v1"]


def test_a_reply_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path)
    prompt = Prompt("kernel", "system", "user")
    mailbox.post("softmax.r0.kernel.i1.0", prompt)
    assert mailbox.waiting() == ["softmax.r0.kernel.i1.0"]
    file = mailbox.inbox / "softmax.r0.kernel.i1.0.txt"
    file.write_text("```cpp\nint half")
    assert mailbox.reply("softmax.r0.kernel.i1.0") is None
    with file.open("a") as more:
        more.write("_of_it;\n```\n")
    assert mailbox.reply("softmax.r0.kernel.i1.0") is None
    time.sleep(0.01)
    assert mailbox.reply("softmax.r0.kernel.i1.0") == FoundReply("```cpp\nint half_of_it;\n```\n", whole=True)
    mailbox.withdraw("softmax.r0.kernel.i1.0")
    assert mailbox.waiting() == []
    assert file.exists()


def test_only_regular_files_are_prompts_and_replies(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path)
    mailbox.post("call", Prompt("kernel", "system", "user"))
    (mailbox.outbox / "loop.md").symlink_to("loop.md")
    (mailbox.outbox / "nowhere.md").symlink_to("missing")
    assert mailbox.waiting() == ["call"]
    secret = tmp_path / "secret"
    secret.write_text("not for a model's reply")
    (mailbox.inbox / "call.md").symlink_to(secret)
    os.mkfifo(mailbox.inbox / "call.txt")
    assert [mailbox.reply("call") for _ in range(3)] == [None] * 3
    assert not mailbox.has_reply("call")


def test_a_reply_that_is_too_long_is_refused_or_known_as_cut(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path)
    with pytest.raises(SessionError, match="the limit is 8,388,608 bytes"):
        mailbox.deliver("call", "x" * (MAX_READ_BYTES + 1))
    mailbox.inbox.mkdir()
    (mailbox.inbox / "call.md").write_text("x" * (MAX_READ_BYTES + 1))
    assert mailbox.reply("call") is None
    found = mailbox.reply("call")
    assert found is not None
    assert not found.whole and len(found.text) == MAX_READ_BYTES
