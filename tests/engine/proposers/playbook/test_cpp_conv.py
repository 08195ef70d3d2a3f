"""Convolutions in C++: every kernel within reach of a search matches the reference on any shape, stride and padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from engine.proposers.playbook.base import Unsupported
from engine.proposers.playbook.patterns.conv.program import ConvProgram, recognize_conv
from tests.engine.proposers.playbook.cpp_harness import Problem, build, check, check_all, expected, make_problem, run
from tests.engine.proposers.playbook.wandering import CPU, known, ladder, wander

GENERATE = (Phase.explicit, Phase.generate)  # each step of shrinking a failure would need a compiler run
CONV = "self.c = nn.Conv2d({c}, {f}, ({kh}, {kw}), stride=({s}, {t}), padding=({p}, {q}), dilation=({d}, 1))"
GROUPED = "self.c = nn.Conv2d(2 * {c}, 2 * {f}, {kw}, stride={s}, padding={q}, groups=2, bias=False)"
# name: forward, input channels as a multiple of c, constructor
CONVOLUTIONS: dict[str, tuple[str, int, str]] = {
    "conv": ("return self.c(x)", 1, CONV),
    "activated": ("return F.gelu(self.c(x)) + 1", 1, CONV),
    "grouped": ("return F.hardswish(self.c(x))", 2, GROUPED),
    "pooled": ("return F.max_pool2d(F.relu(self.c(x)), 3, 2, padding=1)", 1, CONV),
    "pooled_unevenly": (
        "return F.max_pool2d(self.c(x) * 2, (2, 3), stride=(1, 2), dilation=(2, 1), ceil_mode=True) - 1", 1, CONV,
    ),
}  # fmt: skip
sizes = st.fixed_dictionaries(
    {"n": st.integers(1, 2), "c": st.integers(1, 4), "f": st.integers(1, 9), "kh": st.integers(1, 3),
     "kw": st.integers(1, 4), "s": st.integers(1, 2), "t": st.integers(1, 3), "p": st.integers(0, 2),
     "q": st.integers(0, 3), "d": st.integers(1, 2), "high": st.integers(12, 24), "wide": st.integers(12, 40)}
)  # fmt: skip


def shaped(case: str, size: dict[str, int]) -> tuple[str, dict[str, tuple[int, ...]], str]:
    forward, times, init = CONVOLUTIONS[case]
    shape = (size["n"], times * size["c"], size["high"], size["wide"])
    return forward, {"x": shape}, init.format(**size)


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_whatever_a_search_reaches_is_right(tmp_path: Path, case: str) -> None:
    found: list[tuple[Problem, str]] = []

    @settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=GENERATE)
    @given(size=sizes, seed=st.integers(0, 2**16))
    def search(size: dict[str, int], seed: int) -> None:
        problem = make_problem(tmp_path, *shaped(case, size))
        template, program = known(problem.spec)
        recipe = wander(template, program, problem.spec, seed)
        found.append((problem, template.emit(program, recipe, problem.spec)))

    search()
    check_all(found, tmp_path, optimize="-O1")


POOLED = (
    "return F.max_pool2d(torch.tanh(self.c(x)), 3, 2)",
    {"x": (2, 3, 30, 41)},
    "self.c = nn.Conv2d(3, 13, 7, 2, 3)",
)


def test_every_transformation_changes_the_kernel_and_the_last_is_right(tmp_path: Path) -> None:
    problem = make_problem(tmp_path, *POOLED)
    template, program = known(problem.spec)
    steps = ladder(template, program, problem.spec, CPU)
    assert len({template.emit(program, recipe, problem.spec) for recipe in steps}) > 40
    final = steps[-1].with_({"rows": 12, "depth": 128, "pack_a": True, "fused": True, "math": "polynomial"})
    check(problem, tmp_path, template.emit(program, final, problem.spec))


def test_a_convolution_in_one_dimension_is_one_in_two(tmp_path: Path) -> None:
    problem = make_problem(
        tmp_path, "return F.silu(self.c(x))", {"x": (2, 5, 40)}, "self.c = nn.Conv1d(5, 9, 4, 2, 3, 2)"
    )
    template, program = known(problem.spec)
    assert isinstance(program, ConvProgram)
    assert (program.image, program.kernel, program.stride, program.padding) == ((1, 40), (1, 4), (1, 2), (0, 3))
    check(problem, tmp_path, template.emit(program, wander(template, program, problem.spec, 11), problem.spec))


def test_a_maximum_over_nan_is_nan_as_in_pytorch(tmp_path: Path) -> None:
    problem = make_problem(
        tmp_path, "return F.max_pool2d(self.c(x), 2)", {"x": (1, 1, 8, 8)}, "self.c = nn.Conv2d(1, 1, 1)"
    )
    problem.inputs[0][0, 0, 3, 5] = np.nan
    template, program = known(problem.spec)
    recipe = template.starts(program, problem.spec, CPU)[0].recipe
    (found,) = run(problem, build(tmp_path, problem.spec, template.emit(program, recipe, problem.spec)))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected(problem)[0]))


@pytest.mark.parametrize(
    ("forward", "init", "reason"),
    [
        (
            "return self.d(self.c(x))",
            "self.c = nn.Conv2d(2, 2, 3); self.d = nn.Conv2d(2, 2, 3)",
            "the model has 2 convolutions",
        ),
        ("return F.avg_pool2d(self.c(x), 2)", "self.c = nn.Conv2d(2, 2, 3)", "covers the operator avg_pool2d"),
        ("return self.c(F.relu(x))", "self.c = nn.Conv2d(2, 2, 3)", "the model computes an operand of its convolution"),
        (
            "return F.max_pool2d(F.max_pool2d(self.c(x), 2), 2)",
            "self.c = nn.Conv2d(2, 2, 3)",
            "the model has 2 pooling operators",
        ),
    ],
)
def test_what_the_templates_lack_is_said(tmp_path: Path, forward: str, init: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        recognize_conv(make_problem(tmp_path, forward, {"x": (1, 2, 20, 20)}, init).spec)
