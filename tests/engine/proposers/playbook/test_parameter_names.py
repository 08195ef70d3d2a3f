"""A problem may name its tensors and scalars like the variables of the playbook's kernels."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.problem.c_header import derive_header
from engine.problem.spec import LANGUAGE_OF_DEVICE, ScalarSpec
from engine.proposers.playbook import Playbook
from engine.proposers.protocol import Board, Task
from tests.engine.proposers.playbook.cpp_harness import make_problem
from tests.engine.proposers.playbook.cuda_harness import H200
from tests.engine.proposers.playbook.one_unit import in_one_unit
from tests.engine.proposers.playbook.wandering import CPU

TAKEN = {
    "row": ("return torch.softmax(row, dim=-1) * r", {"row": (64, 3000), "r": (3000,)}, ""),
    "rows": ("return torch.relu(rows) * i", {"rows": (64, 3000), "i": (64, 3000)}, ""),
    "t": ("return t @ row", {"t": (64, 32), "row": (32, 64)}, ""),
    "results": ("return F.relu(self.block(results))", {"results": (2, 4, 16, 16)}, "self.block = nn.Conv2d(4, 8, 3)"),
    "first": ("return torch.softmax(first, 1) * found", {"first": (4, 50, 30), "found": (30,)}, ""),
    "found": ("return torch.argmax(found, 0)", {"found": (64, 300)}, ""),
    "line": ("return F.max_pool2d(line, 3, 1)", {"line": (2, 3, 9, 9)}, ""),
    "h": ("return F.avg_pool1d(h, 3) ", {"h": (2, 3, 90)}, ""),
    "carry": ("return torch.cumsum(carry, 1) * p", {"carry": (20, 90), "p": (90,)}, ""),
    "value": ("return torch.argmax(value, dim=1)", {"value": (64, 300, 8)}, ""),
    "vec": ("return torch.cumsum(vec, -1)", {"vec": (64, 300)}, ""),
    "M": ("return F.scaled_dot_product_attention(t, M, N)", dict.fromkeys(("t", "M", "N"), (2, 4, 128, 64)), ""),
    "x": ("return self.up(x)", {"x": (2, 4, 9, 9)}, "self.up = nn.ConvTranspose2d(4, 8, 3, stride=2)"),
}
SCALARS = (
    "block", "channels", "cols", "filters", "finish", "groups", "keep", "kernel", "kRows", "parts", "rows", "steps",
    "taps", "threads", "tile", "width",
)  # fmt: skip
"""Names of the kernels' own constants and functions, which here are also in the header."""
COMMANDS = {
    "cpu": ["g++", "-std=c++17", "-fsyntax-only", "-fopenmp", "-Wall", "-Werror", "-Wno-psabi", "kernels.cpp"],
    "cuda": ["nvcc", "-std=c++17", "-arch=sm_90a", "--ptx", "-o", "kernels.ptx", "kernels.cu"],
}


@pytest.mark.parametrize("device", [CPU, H200], ids=lambda device: device.kind)
def test_first_kernels_compile(tmp_path: Path, device: DeviceFact) -> None:
    command = COMMANDS[device.kind]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    language = LANGUAGE_OF_DEVICE[device.kind]
    kernels = []
    for name, (forward, shapes, init) in TAKEN.items():
        spec = make_problem(tmp_path, forward, shapes, init).spec
        assert name in [tensor.name for tensor in spec.tensors]
        spec = replace(spec, scalars=tuple(ScalarSpec(scalar, "long long", 2) for scalar in SCALARS))
        header = derive_header(spec, language)
        task = Task(spec, header, language, device, sol_ms=1.0, eager_ms=4.0)
        kernels += [(f"{name} {k}", header, source) for k, source in enumerate(asyncio.run(first_kernels(task)))]
    assert len(kernels) >= len(TAKEN)
    (tmp_path / command[-1]).write_text(in_one_unit(kernels))
    compiled = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr


async def first_kernels(task: Task) -> list[str]:
    playbook, board = Playbook(), Board()
    drafts = []
    for idea in await playbook.ideas(task, None, board, 9, 0):
        drafts += [draft async for draft in playbook.variants(task, idea, None, board, range(1), 0)]
    return [draft.source for draft in drafts]
