"""``kernel-tui sass`` as a user runs it."""

from __future__ import annotations

from pathlib import Path

from engine.exit_codes import ExitCode
from tests.commandline import KernelTui
from tui.text.machine_code import occupancies

PROBLEM = """\
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sqrt(x)
def get_inputs():
    return [torch.rand(1000)]
"""
KERNEL = """\
#include <cmath>
extern "C" int launch(const float* x, float* out, void*) {
    for (long long i = 0; i < x_numel; i++)
        out[i] = std::sqrt(x[i]);
    return 0;
}
"""


def test_a_file_with_its_problem(tmp_path: Path) -> None:
    (tmp_path / "root.py").write_text(PROBLEM)
    (tmp_path / "root.cpp").write_text(KERNEL)
    shown = KernelTui(tmp_path)("sass", "root.cpp", "--problem", "root.py")
    assert shown.returncode == ExitCode.OK, shown.stderr
    assert "    4: out[i] = std::sqrt(x[i]);" in shown.stdout
    assert "sqrt" in shown.stdout.split("4: out[i]", 1)[1]


def test_what_does_not_build_is_told_with_the_name_of_the_persons_file(tmp_path: Path) -> None:
    (tmp_path / "root.py").write_text(PROBLEM)
    (tmp_path / "root.cpp").write_text(KERNEL.replace("sqrt(", "sqroot("))
    told = KernelTui(tmp_path)("sass", "root.cpp", "--problem", "root.py")
    assert told.returncode == ExitCode.FAILURE
    assert "root.cpp does not build" in told.stderr and "root.cpp:4:" in told.stderr
    assert "kernel.cpp" not in told.stderr


def test_a_file_needs_its_problem_and_a_session_must_exist(tmp_path: Path) -> None:
    (tmp_path / "root.cpp").write_text(KERNEL)
    run = KernelTui(tmp_path)
    alone = run("sass", "root.cpp")
    assert alone.returncode == ExitCode.USAGE
    assert "with --problem P" in alone.stderr
    nowhere = run("sass", "demo", "v1")
    assert nowhere.returncode == ExitCode.NO_SESSION
    assert "no such session" in nowhere.stderr


DYNAMIC = """\
__global__ void k(float* out) { extern __shared__ float s[]; out[0] = s[0]; }
extern "C" int launch(float* out) { k<<<1, 256, 65536>>>(out); return 0; }
"""


def test_dynamic_shared_memory_counts_where_it_is_a_number_and_is_said_to_be_missing_elsewhere() -> None:
    (known,) = occupancies("sm_90a", 32, 0, DYNAMIC)
    assert known.startswith("blocks of 256 threads with 65,536 bytes of dynamic shared memory: occupancy 38% (3 blocks")
    computed = DYNAMIC.replace("256, 65536>", "256, bytes>")
    counted, said = occupancies("sm_90a", 32, 0, computed)
    assert counted.startswith("blocks of 256 threads: occupancy 100%")
    assert "not counted: dynamic shared memory" in said
    (given,) = occupancies("sm_90a", 32, 0, computed, dynamic_shared=65536)
    assert given == known
