"""``problems --check``: a hanging problem affects only its own row."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.problem.catalog import resolve
from tui.cli.machine import check_problems

PROBLEM = """\
import time
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        while {hangs} and "engine.evaluation.judge" in open("/proc/self/cmdline").read():
            open({hanging!r}, "w").close()
            time.sleep(1)
        return x + 1

def get_inputs():
    return [torch.randn(16, 16)]

def get_init_inputs():
    return []
"""


async def test_what_takes_too_long_is_named_and_the_next_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / "hanging"
    (tmp_path / "a_hangs.py").write_text(PROBLEM.format(hangs=True, hanging=str(hanging)))
    (tmp_path / "b_sound.py").write_text(PROBLEM.format(hangs=False, hanging=str(hanging)))
    with monkeypatch.context() as patched:
        patched.setattr(check_problems, "OPEN_S", 5.0)
        checking = asyncio.create_task(check_problems.checked(resolve(["*.py"], tmp_path)))
        while not hanging.exists() and not checking.done():  # noqa: ASYNC110 - another process says so
            await asyncio.sleep(0.05)
    # The sound one has the whole time, however busy the machine.
    (hangs, _), (sound, _) = await checking
    assert hangs.id == "a_hangs" and hangs.remark.startswith("TIMED OUT after 5 s")
    assert sound.remark.startswith("eager ") and sound.remark.endswith("trivial outputs fail")
