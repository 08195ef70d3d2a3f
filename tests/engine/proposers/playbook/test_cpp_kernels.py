"""Emitted C++ kernels build without warnings and match the reference on any shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.proposers.playbook.transformations.catalog import apply, reachable
from tests.engine.proposers.playbook.cpp_harness import Problem, build_all, check_all, expected, make_problem, run
from tests.engine.proposers.playbook.wandering import CPU, known, wander

LAYER_NORM = "self.n = nn.LayerNorm(x_shape)"

ROWS = {
    "softmax": "return torch.softmax(x, -1)",
    "log_softmax": "return F.log_softmax(x, dim=-1)",
    "layernorm": "return F.layer_norm(x, x.shape[-1:])",
    "rmsnorm": "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)",
    "sum": "return x.sum(dim=-1)",
    "amax": "return x / (x.abs().amax(dim=-1, keepdim=True) + 1)",
    "standardised": "return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 0.1)",
    "normalised": "return F.normalize(x, dim=-1)",
    "logsumexp": "return torch.logsumexp(x, dim=-1)",
    "gated": "return torch.sigmoid(x) * torch.softmax(x * 2, dim=-1) + x.amin(-1, keepdim=True)",
}
CHAINS = {
    "gelu_written_out": "return 0.5 * x * (1 + torch.tanh(0.797884 * (x + 0.044715 * torch.pow(x, 3.0))))",
    "gelu": "return F.gelu(x) + F.gelu(x, approximate='tanh')",
    "swiglu": "return F.silu(x) * (x + 1)",
    "relus": "return F.relu(x) + F.leaky_relu(x, 0.1) + F.hardtanh(x) + F.hardswish(x) + F.relu6(x * 4)",
    "exponentials": "return F.elu(x) + F.selu(x) + F.softplus(x) + F.mish(x) + F.logsigmoid(x)",
    "roots": "return torch.sqrt(x.abs()) + torch.rsqrt(x * x + 1) + 1 / (x.abs() + 1) + torch.log(x.abs() + 0.1)",
    "masks": "return torch.where((x > 0) & (x < 1), x, x * x) + (x > 0.5) * x + x.masked_fill(x < 0, 2.0)",
    "rounded": "return torch.floor(x * 3) + torch.round(x * 2) + torch.trunc(x) + torch.sign(x) + x.clamp(-1, 1)",
    "limited": "return torch.clamp_min(x, torch.tensor(-0.5)) * torch.clamp_max(x, torch.tanh(x) + 1)",
    "divided": "return x / 3 + torch.sin(x) / 7 + torch.erf(x)",
    "scalars": "return torch.maximum(x, -x) + x.abs().pow(1.5) + 2 ** x + torch.expm1(x) + torch.atan2(x, x + 4)",
}


shapes = st.one_of(
    st.tuples(st.integers(1, 400)),
    st.tuples(st.integers(1, 40), st.integers(1, 300)),
    st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 70)),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(2, 40)),
)


@pytest.mark.parametrize("forward", [*ROWS.values(), *CHAINS.values()], ids=[*ROWS, *CHAINS])
def test_whatever_a_search_reaches_is_right(tmp_path: Path, forward: str) -> None:
    found: list[tuple[Problem, str]] = []

    @settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(shape=shapes, seed=st.integers(0, 2**16))
    def search(shape: tuple[int, ...], seed: int) -> None:
        if forward == ROWS["standardised"] and shape[-1] < 2:
            shape = (*shape[:-1], 2)
        problem = make_problem(tmp_path, forward, {"x": shape})
        template, program = known(problem.spec)
        recipe = wander(template, program, problem.spec, seed)
        found.append((problem, template.emit(program, recipe, problem.spec)))

    search()
    check_all(found, tmp_path, optimize="-O1")


AFFINE = ("return self.n(x)", {"x": (3, 7, 4999)}, "self.n = nn.LayerNorm((7, 4999))")
LONG = ("return torch.softmax(x, -1)", {"x": (3, 40000)}, "")
TALL = ("return torch.softmax(x, -1)", {"x": (65, 336)}, "")
CHAIN = ("return F.silu(x / 3) * y", {"x": (5, 3333), "y": (3333,)}, "")


@pytest.mark.parametrize("case", [AFFINE, LONG, TALL, CHAIN], ids=["affine", "long", "tall", "chain"])
def test_every_transformation_and_every_setting_of_every_knob(
    tmp_path: Path, case: tuple[str, dict[str, tuple[int, ...]], str]
) -> None:
    problem = make_problem(tmp_path, *case)
    template, program = known(problem.spec)
    firsts = [first.recipe for first in template.starts(program, problem.spec, CPU)]
    sources = {template.emit(program, recipe, problem.spec) for recipe in firsts}
    recipe, wanted = (
        firsts[-1],
        {transformation.name for transformation in reachable(template, program, firsts, CPU)},
    )
    while transformation := next(
        (one for one in template.transformations(program, recipe, CPU) if one.name in wanted), None
    ):
        wanted.remove(transformation.name)
        recipe = apply(recipe, transformation)
        sources.add(template.emit(program, recipe, problem.spec))
        if transformation.name in ("narrower_vectors", "share_columns"):
            knobs = template.knobs(program, recipe, CPU)
            for place in range(max(len(values) for values in knobs.values())):
                setting = recipe.with_({knob: values[place % len(values)] for knob, values in knobs.items()})
                sources.add(template.emit(program, setting, problem.spec))
    assert wanted <= {"row_at_a_time", "row_buffer", "dynamic_schedule", "share_rows", "backward_output"}
    check_all([(problem, source) for source in sorted(sources)], tmp_path, optimize="-O1")


def test_channels_and_rows_of_other_shapes_are_broadcast(tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, tuple[int, ...]], str]] = [
        ("return F.relu(x + b)", {"x": (2, 6, 5, 16), "b": (6, 1, 1)}, ""),
        ("return F.relu(x + b) * s", {"x": (2, 6, 5, 3), "b": (6, 1, 1), "s": (1,)}, ""),
        ("return self.n(x)", {"x": (2, 6, 5, 16)}, "self.n = nn.GroupNorm(3, 6)"),
        ("return self.n(x)", {"x": (2, 6, 5, 3)}, "self.n = nn.GroupNorm(3, 6)"),
        ("return torch.softmax(x * t + b, -1)", {"x": (4, 3, 33), "t": (4, 1, 1), "b": (3, 33)}, ""),
        ("return x - x.mean(-1, keepdim=True), x.mean(-1)", {"x": (4, 3, 33)}, ""),
    ]
    kernels = []
    for place, (forward, shape, init) in enumerate(cases):
        problem = make_problem(tmp_path, forward, shape, init)
        template, program = known(problem.spec)
        for seed in (2 * place, 2 * place + 1):
            recipe = wander(template, program, problem.spec, seed)
            kernels.append((problem, template.emit(program, recipe, problem.spec)))
    check_all(kernels, tmp_path)


def test_layernorm_far_from_zero_keeps_its_digits(tmp_path: Path) -> None:
    problem = make_problem(tmp_path, "return F.layer_norm(x, x.shape[-1:])", {"x": (3, 20000)})
    for x in problem.inputs:
        x.mul_(0.1).add_(1000.0)
    template, program = known(problem.spec)
    first = template.starts(program, problem.spec, CPU)[-1].recipe
    kernels = []
    for lanes, math in ((1, "libm"), (16, "polynomial")):
        for fused in (False, True):
            recipe = first.with_({"lanes": lanes, "math": math, "fused": fused, "block": 512})
            kernels.append((problem, template.emit(program, recipe, problem.spec)))
    check_all(kernels, tmp_path)


def test_extreme_inputs_give_what_pytorch_gives(tmp_path: Path) -> None:
    problems, kernels = [], []
    for forward in (ROWS["softmax"], CHAINS["swiglu"], CHAINS["relus"]):
        problem = make_problem(tmp_path, forward, {"x": (4, 70)})
        template, program = known(problem.spec)
        recipe = template.starts(program, problem.spec, CPU)[-1].recipe.with_({"lanes": 16, "math": "polynomial"})
        problems.append(problem)
        kernels.append((problem.spec, template.emit(program, recipe, problem.spec)))
    for problem, kernel in zip(problems, build_all(tmp_path, kernels), strict=True):
        (x,) = problem.inputs
        for value in (np.inf, -np.inf, np.nan, 1e30, -1e30):
            x[1, 3] = x[2, 69] = value
            (found,), (wanted,) = run(problem, kernel), expected(problem)
            message = f"{value}, {problem.spec.source}"
            np.testing.assert_allclose(found, wanted.astype(np.float32), rtol=2e-5, atol=2e-5, err_msg=message)
