"""Reductions over any dimensions: which problems the playbook takes, and the results of its C++ and CUDA kernels."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from engine.proposers.playbook.base import Choices, Unsupported
from engine.proposers.playbook.ir.reductions import Geometry
from engine.proposers.playbook.patterns.reductions.pattern import Reductions
from engine.proposers.playbook.patterns.reductions.program import as_reductions, recognize_reductions
from engine.session.records.other_sizes import NOT_FOR_THIS_SIZE
from tests.engine.proposers.playbook import cuda_harness
from tests.engine.proposers.playbook.cpp_harness import Problem, build, check_all, make_problem
from tests.engine.proposers.playbook.cuda_harness import H200
from tests.engine.proposers.playbook.wandering import CPU, known, wander

Shapes = dict[str, tuple[int, ...]]
CASES: dict[str, tuple[str, Shapes, Geometry]] = {
    "middle_sum": ("return x.sum(1)", {"x": (3, 70, 45)}, Geometry(3, 70, 45, 1)),
    "first_product": ("return (1 + x / 30).prod(0)", {"x": (30, 45)}, Geometry(1, 30, 45, 1)),
    "middle_softmax": ("return torch.softmax(x * 2, 1)", {"x": (3, 20, 44)}, Geometry(3, 20, 44, 1)),
    "middle_argmax": ("return torch.argmax(x, 1)", {"x": (3, 70, 45)}, Geometry(3, 70, 45, 1)),
    "last_argmin": ("return torch.argmin(x.abs(), -1, keepdim=True)", {"x": (5, 133)}, Geometry(5, 1, 1, 133)),
    "value_and_place": ("return torch.min(x, dim=0)", {"x": (40, 12)}, Geometry(1, 40, 12, 1)),
    "batch_statistics": (
        "return (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), keepdim=True) + 1).sqrt() * w",
        {"x": (3, 5, 7, 8), "w": (5, 1, 1)},
        Geometry(1, 3, 5, 56),
    ),
    "batch_norm": ("return F.relu(self.n(x))", {"x": (3, 5, 4, 9)}, Geometry(1, 3, 5, 36)),
    "running_statistics": ("return self.n(x)", {"x": (3, 5, 4, 6)}, Geometry(1, 3, 5, 24)),
    "sampled_mean": ("return self.n(x * 0.5 + 30)", {"x": (4, 3, 40, 50)}, Geometry(1, 4, 3, 2000)),
    "far_mean": ("return self.n(x)", {"x": (9, 8, 64)}, Geometry(1, 9, 8, 64)),
    "long_rows": ("return self.n(x)", {"x": (3000, 12)}, Geometry(1, 3000, 12, 1)),
    "rms_of_channels": (
        "return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-5)",
        {"x": (2, 6, 5, 9)},
        Geometry(2, 6, 45, 1),
    ),
    "largest_of_batch": ("return F.relu(x + b).amax((0, 2)) * 2", {"x": (4, 3, 50), "b": (50,)}, Geometry(1, 4, 3, 50)),
}
INITS = {
    "batch_norm": "self.n = nn.BatchNorm2d(5, track_running_stats=False)",
    "sampled_mean": "self.n = nn.BatchNorm2d(3)",
    "far_mean": "self.n = nn.BatchNorm1d(8)",
    "long_rows": "self.n = nn.BatchNorm1d(12)",
    "running_statistics": "self.n = nn.BatchNorm2d(5, momentum=0.25)",
}
SMALL_GPU = replace(H200, cores=1)
FAR_MEANS = {"far_mean", "long_rows"}
"""Cases with deviations so small beside the mean that the mean's rounding error is visible."""
CUDA: Choices = {"threads": 64, "across": 8, "unroll": 2}


def problem(folder: Path, case: str) -> Problem:
    forward, shapes, _ = CASES[case]
    made = make_problem(folder, forward, shapes, INITS.get(case, ""))
    if case in FAR_MEANS:
        made.inputs[0].mul_(0.01).add_(300)
    return made


@pytest.mark.parametrize("case", CASES)
def test_the_domain_is_four_runs_of_dimensions(tmp_path: Path, case: str) -> None:
    program = recognize_reductions(problem(tmp_path, case).spec)
    assert program is not None
    assert program.geometry == CASES[case][2]


@pytest.mark.parametrize(
    ("forward", "shapes", "reason"),
    [
        ("return x.sum(1).amax(1)", {"x": (4, 5, 6)}, "different dimensions"),
        ("return x.sum((0, 2, 4, 6))", {"x": (2, 3, 2, 3, 2, 3, 2)}, "alternate too often"),
        ("return x.argmax(0) * 2.0", {"x": (5, 6)}, "result of argmax or argmin"),
        ("return x.sum(0)", {"x": (5, 6)}, "float16"),
        ("return x.sum(0).cumsum(0)", {"x": (5, 6)}, "cumsum"),
    ],
)
def test_a_refusal_gives_the_reason(tmp_path: Path, forward: str, shapes: Shapes, reason: str) -> None:
    dtype = "float16" if reason == "float16" else "float32"
    with pytest.raises(Unsupported, match=reason):
        recognize_reductions(make_problem(tmp_path, forward, shapes, dtype=dtype).spec)


def test_a_problem_without_reductions_belongs_to_another_pattern(tmp_path: Path) -> None:
    assert recognize_reductions(make_problem(tmp_path, "return x + 1", {"x": (3, 4)}).spec) is None


def test_every_kernel_in_cpp_is_right(tmp_path: Path) -> None:
    kernels: list[tuple[Any, ...]] = []
    for case in CASES:
        one = problem(tmp_path, case)
        template, program = known(one.spec)
        assert isinstance(template, type(Reductions.templates[0]))
        first, plain = (start.recipe for start in template.starts(program, one.spec, CPU))
        split = first.with_({"tile": 64, "order": "passes", "parts": 3})
        recipes = [split, plain] if len(kernels) < 4 else [split if len(kernels) % 2 else first.with_({"lanes": 8})]
        kernels += [(one, template.emit(program, recipe, one.spec)) for recipe in recipes]
    check_all(kernels, tmp_path, optimize="-O1")


def test_every_kernel_in_cuda_is_right(tmp_path: Path) -> None:
    problems: list[Problem] = []
    kernels: list[tuple[Any, str]] = []
    for case in CASES:
        one = problem(tmp_path, case)
        template, program = known(one.spec, "cu")
        *_, first, plain = (start.recipe for start in template.starts(program, one.spec, H200))
        is_sampled = as_reductions(program).moments is not None
        recipes = [first.with_({**CUDA, "parts": 3}) if len(kernels) % 2 or is_sampled else plain.with_(CUDA)]
        if is_sampled:
            recipes.append(first.with_({**CUDA, "parts": 1, "unroll": 1, "held": 16}))
        if not as_reductions(program).geometry.adjacent:
            recipes.append(first.with_({**CUDA, "held": 16, "sample": 1}))
        for recipe in recipes:
            problems.append(one)
            kernels.append((one.spec, template.emit(program, recipe, one.spec)))
    assert any("whole<<<" in source for _, source in kernels)
    assert any("sample_end" in source for _, source in kernels)
    built = cuda_harness.compile_all_emulated(tmp_path, kernels)
    for one, (_, source), kernel in zip(problems, kernels, built, strict=True):
        cuda_harness.check(one, cuda_harness.run(one, kernel, "cpu"), message=source)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_takes_the_kernels(tmp_path: Path) -> None:
    kernels: list[tuple[Any, ...]] = []
    for case in ("middle_sum", "value_and_place", "batch_statistics"):
        one = problem(tmp_path, case)
        template, program = known(one.spec, "cu")
        recipe = template.starts(program, one.spec, H200)[0].recipe.with_({"parts": 2})
        kernels.append((case, one.spec, template.emit(program, recipe, one.spec)))
    for case in ("middle_softmax", "sampled_mean"):
        one = problem(tmp_path, case)
        template, program = known(one.spec, "cu")
        recipe = template.starts(program, one.spec, SMALL_GPU)[0].recipe
        kernels.append((case, one.spec, template.emit(program, recipe, one.spec)))
    assert "whole<<<" in kernels[-2][2] and "sample_end" in kernels[-1][2]
    code = cuda_harness.machine_code(tmp_path, kernels, H200.arch).read_bytes()
    assert all(f"kernel_{number}".encode() in code for number in range(len(kernels)))


def test_nan_wins_and_the_first_of_equals_is_the_position(tmp_path: Path) -> None:
    one = problem(tmp_path, "middle_argmax")
    x = one.inputs[0]
    x[0, 5:9] = 100.0
    x[1, [7, 30]] = torch.nan
    template, program = known(one.spec)
    recipe = template.starts(program, one.spec, CPU)[0].recipe
    check_all([(one, template.emit(program, recipe.with_({"order": "passes", "parts": 5}), one.spec))], tmp_path)
    template, program = known(one.spec, "cu")
    recipe = template.starts(program, one.spec, H200)[0].recipe.with_({**CUDA, "parts": 4})
    kernel = cuda_harness.compile_emulated(tmp_path, one.spec, template.emit(program, recipe, one.spec))
    x.nan_to_num_(200.0)  # the harness compares inputs, and a NaN differs from itself
    cuda_harness.check(one, cuda_harness.run(one, kernel, "cpu"))


def test_a_kernel_is_right_at_another_size(tmp_path: Path) -> None:
    rng = random.Random(3)
    kernels: list[tuple[Problem, str]] = []
    emulated: list[tuple[Problem, str]] = []
    for case, shape in (("middle_sum", (2, 9, 33)), ("middle_softmax", (1, 130, 7)), ("middle_argmax", (4, 3, 64))):
        source, there = problem(tmp_path, case), make_problem(tmp_path, CASES[case][0], {"x": shape})
        template, program = known(source.spec)
        recipe = wander(template, program, source.spec, rng.randrange(99))
        kernels.append((there, template.emit(program, recipe, source.spec)))
        template, program = known(source.spec, "cu")
        recipe = template.starts(program, source.spec, H200)[0].recipe.with_(CUDA)
        emulated.append((there, template.emit(program, recipe, source.spec)))
    check_all(kernels, tmp_path, optimize="-O1")
    built = cuda_harness.compile_all_emulated(tmp_path, [(there.spec, text) for there, text in emulated])
    for (there, text), kernel in zip(emulated, built, strict=True):
        cuda_harness.check(there, cuda_harness.run(there, kernel, "cpu"), message=text)


def test_a_broadcast_dimension_holds_the_kernel_to_its_size(tmp_path: Path) -> None:
    forward = "return (x * y).sum(1)"
    source = make_problem(tmp_path, forward, {"x": (3, 8, 5), "y": (1, 8, 5)})
    there = make_problem(tmp_path, forward, {"x": (3, 8, 5), "y": (3, 8, 5)})
    template, program = known(source.spec)
    text = template.emit(program, template.starts(program, source.spec, CPU)[0].recipe, source.spec)
    with pytest.raises(AssertionError, match=NOT_FOR_THIS_SIZE):
        build(tmp_path, there.spec, text)


@pytest.mark.parametrize(
    ("language", "case"),
    [("cpp", "batch_statistics"), ("cu", "batch_statistics"), ("cu", "sampled_mean"), ("cu", "middle_softmax")],
)
def test_every_transformation_changes_the_source(tmp_path: Path, language: str, case: str) -> None:
    one = problem(tmp_path, case)
    template, program = known(one.spec, "cpp" if language == "cpp" else "cu")
    device = CPU if language == "cpp" else SMALL_GPU
    recipe = template.starts(program, one.spec, device)[-1].recipe
    for _ in range(4):
        found = [each for each in template.transformations(program, recipe, device) if each.changes]
        if not found:
            break
        for each in found:
            changed = recipe.with_(each.changes, each.opens)
            assert template.emit(program, changed, one.spec) != template.emit(program, recipe, one.spec), each.name
            assert set(each.opens) <= set(template.knobs(program, changed, device)), each.name
        recipe = recipe.with_(found[0].changes, found[0].opens)
