"""The progress line of a command."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commandline import KernelTui, environment, without_waits
from tests.patience import PATIENCE_S

PROBLEM = """\
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sqrt(x)
def get_inputs():
    return [torch.rand(100_000)]
"""
KERNEL = """\
#include <cmath>
extern "C" int launch(const float* x, float* out, void*) {
    for (long long i = 0; i < x_numel; i++) out[i] = std::sqrt(x[i]);
    return 0;
}
"""
SCRIPT = """
from tui.console.progress_line import working
with working("inspecting") as work:
    work.say("k.cpp: [bold]building\\x1b]0;title\\x07")
    import time; time.sleep(0.6)
print("the answer")
"""


@pytest.mark.parametrize("where", ["terminal", "piped answer", "piped words", "quiet"])
def test_it_is_shown_on_a_terminal_alone(where: str) -> None:
    master, slave = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(Path.cwd())}
    script = SCRIPT.replace('"inspecting")', '"inspecting", quiet=True)') if where == "quiet" else SCRIPT
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE if where == "piped answer" else slave,
        stderr=subprocess.PIPE if where == "piped words" else slave,
        env=variables,
    ) as process:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal ends after its last program has exited
            while chunk := os.read(master, 4096):
                shown += chunk
        answer, words = process.communicate(timeout=PATIENCE_S)
    os.close(master)
    assert process.returncode == 0
    assert b"the answer\r\n" in shown or answer == b"the answer\n"
    assert (b"[bold]building" in shown) == (where == "terminal")
    assert b"\x1b]0;" not in shown
    assert not words and (where == "terminal" or shown.strip() in (b"", b"the answer"))


@pytest.mark.parametrize("option", ["", "--json"])
def test_in_a_pipe_eval_prints_a_line_per_stage(tmp_path: Path, option: str) -> None:
    (tmp_path / "root.py").write_text(PROBLEM)
    (tmp_path / "one.cpp").write_text(KERNEL)
    command = ("eval", "one.cpp", "--device", "cpu", "--problem", "root.py", *filter(None, (option,)))
    judged = KernelTui(tmp_path)(*command)
    assert judged.returncode == 0, judged.stderr
    lines = without_waits(judged.stderr).splitlines()
    if option == "--json":
        assert lines == []
        return
    assert lines == list(dict.fromkeys(lines)), "each line once"
    processes = ("process 1 of 3 (--quick: 1)", "process 2 of 3", "process 3 of 3")
    expected = ["inspecting the problem and starting the judge", "one.cpp: building", "opening root: timing eager"]
    expected += [f"one.cpp: checking and timing, {one}" for one in processes]
    assert lines == expected


@pytest.mark.parametrize("command", ["build", "compare"])
def test_commands_that_take_a_while_say_what_they_do(tmp_path: Path, command: str) -> None:
    (tmp_path / "root.py").write_text(PROBLEM)
    for name in ("one.cpp", "two.cpp"):
        (tmp_path / name).write_text(KERNEL)
    words = {"build": ["one.cpp"], "compare": ["one.cpp", "two.cpp", "--device", "cpu", "--quick"]}[command]
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "tui.cli.main", command, *words, "--problem", "root.py"],
        stdout=slave,
        stderr=slave,
        stdin=subprocess.DEVNULL,
        env=environment() | {"TERM": "xterm"},
        cwd=tmp_path,
    ) as process:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal ends after its last program has exited
            while chunk := os.read(master, 4096):
                shown += chunk
    os.close(master)
    assert process.returncode == 0, shown
    assert b"inspecting the problem" in shown
    if command == "compare":  # whichever of these lasts long enough to be drawn
        assert any(word in shown for word in (b"timing eager", b"one.cpp: ", b"two.cpp: ", b"side by side"))
    erased = shown.rpartition(b"\x1b[2K")
    assert erased[1] and b"inspecting" not in erased[2], "it is gone at the end"
