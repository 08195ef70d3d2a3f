"""The default limits of kernels grow with what the kernels need."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from engine.evaluation.judge.messages import JudgeSettings
from engine.evaluation.judge_policy import MIB
from engine.evaluation.sandbox.resource_limits import limits_of
from engine.problem.spec import ProblemSpec

SETTINGS = JudgeSettings("cpu", "cpu", "a CPU", 1, 4, 8, 30.0, 0, 1e-2, 1e-2, isolate=True)
PROBLEM = ProblemSpec("p", "p", "p.py", "", ())


@pytest.mark.parametrize("module", [False, True])
def test_each_thread_may_have_the_stacks_of_two_openmp_libraries(module: bool) -> None:
    one, many = (limits_of(PROBLEM, replace(SETTINGS, threads=threads), None, module).data_bytes for threads in (1, 65))
    assert many - one == 64 * 16 * MIB


@pytest.mark.parametrize("module", [False, True])
def test_a_limit_in_the_config_counts_as_it_is(module: bool) -> None:
    assert limits_of(PROBLEM, replace(SETTINGS, threads=64, memory_bytes=100), None, module).data_bytes == 100
