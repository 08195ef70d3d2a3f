"""Convolutions over one to three dimensions, transposed or not: recognition, and results of C++ and CUDA kernels."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.problem.c_header import derive_header
from engine.proposers.playbook.base import Choices, Recipe, Unsupported
from engine.proposers.playbook.patterns.grid_conv import cuda_plan
from engine.proposers.playbook.patterns.grid_conv.cuda import CudaGridConv
from engine.proposers.playbook.patterns.grid_conv.grid import grid_of
from engine.proposers.playbook.patterns.grid_conv.pattern import GridConv
from engine.proposers.playbook.patterns.grid_conv.program import GridConvProgram, recognize_grid_conv
from tests.engine.proposers.playbook import cuda_harness
from tests.engine.proposers.playbook.cpp_harness import Problem, check_all, make_problem
from tests.engine.proposers.playbook.cuda_harness import A100, H200, compile_cuda, errors
from tests.engine.proposers.playbook.one_unit import Kernel
from tests.engine.proposers.playbook.test_cuda_octets import DTYPES, TOLERANCE, ptxas_report
from tests.engine.proposers.playbook.wandering import CPU, known

Shape = tuple[int, ...]
PLAIN, SCALED = "return self.c(x)", "return F.relu(self.c(x)) * 2"
CASES: dict[str, tuple[str, str, Shape]] = {
    "3d": (PLAIN, "nn.Conv3d(5, 9, 3)", (2, 5, 6, 7, 9)),
    "3d_uneven": (
        SCALED, "nn.Conv3d(3, 20, (2, 3, 4), stride=(1, 2, 3), padding=(1, 0, 2), dilation=(2, 1, 1))",
        (1, 3, 7, 9, 11),
    ),
    "3d_grouped": (
        SCALED, "nn.Conv3d(12, 24, (1, 3, 3), stride=2, padding=1, groups=3, bias=False)", (2, 12, 5, 6, 7),
    ),
    "3d_depthwise": (PLAIN, "nn.Conv3d(6, 6, (3, 1, 3), padding=(1, 0, 1), groups=6)", (1, 6, 4, 5, 9)),
    "transposed_1d": (SCALED, "nn.ConvTranspose1d(9, 33, 5, dilation=3)", (3, 9, 50)),
    "transposed_1d_with_gaps": (PLAIN, "nn.ConvTranspose1d(1, 4, 4, stride=6, padding=1)", (3, 1, 30)),
    "transposed_2d": (
        PLAIN, "nn.ConvTranspose2d(3, 5, (3, 5), stride=2, padding=(1, 2), output_padding=1)", (2, 3, 7, 9),
    ),
    "transposed_2d_dilated": (
        SCALED, "nn.ConvTranspose2d(16, 8, 3, stride=5, padding=1, dilation=2)", (1, 16, 6, 7),
    ),
    "transposed_3d": (PLAIN, "nn.ConvTranspose3d(10, 17, (3, 2, 3), bias=False)", (1, 10, 4, 5, 6)),
    "transposed_3d_uneven": (
        SCALED, "nn.ConvTranspose3d(8, 12, 3, stride=(2, 1, 3), padding=(1, 0, 2), output_padding=(1, 0, 1), "
        "dilation=(1, 2, 2), groups=2)", (2, 8, 4, 5, 6),
    ),
    "other_order": ("return self.c(x.transpose(2, 4))", "nn.Conv3d(4, 8, 2)", (1, 4, 5, 4, 6)),
}  # fmt: skip
PATTERN = GridConv()
CUDA = CudaGridConv()


def problem_of(folder: Path, case: str, dtype: str = "float32") -> tuple[Problem, GridConvProgram]:
    forward, init, shape = CASES[case]
    problem = make_problem(folder, forward, {"x": shape}, f"self.c = {init}", dtype)
    program = PATTERN.recognize(problem.spec)
    assert program is not None
    return problem, program


def sampled(problem: Problem, program: GridConvProgram, recipe: Recipe, seed: str, changes: Choices) -> str:
    """Return a kernel with a random value of every knob."""
    rng = random.Random(seed)
    knobs = CUDA.knobs(program, recipe, A100)
    drawn: Choices = {knob: rng.choice(values) for knob, values in knobs.items()}
    return CUDA.emit(program, recipe.with_({**drawn, **changes}), problem.spec)


@pytest.mark.parametrize("case", CASES)
def test_every_tap_of_every_output_appears_once(tmp_path: Path, case: str) -> None:
    """Count taps per output along each dimension, and compare the sums with a convolution of ones."""
    program = problem_of(tmp_path, case)[1]
    for dim, axis in enumerate(grid_of(program).axes):
        found = torch.zeros(program.size[dim])
        for phase, (taps, outputs) in enumerate(zip(axis.phases, axis.outputs, strict=True)):
            for q in range(outputs):
                for tap in taps:
                    place = axis.residues[tap.residue] + axis.input_step * (q + tap.shift)
                    assert q + tap.shift < axis.pitch and q + tap.shift >= axis.extent - axis.pitch
                    found[axis.output_step * q + phase] += 0 <= place < program.image[dim]
        ones, filters = torch.ones(1, 1, program.image[dim]), torch.ones(1, 1, program.kernel[dim])
        step, padding, dilation = program.stride[dim], program.padding[dim], program.dilation[dim]
        if program.transposed:
            least = (program.image[dim] - 1) * step - 2 * padding + dilation * (program.kernel[dim] - 1) + 1
            more = program.size[dim] - least
            wanted = torch.conv_transpose1d(ones, filters, None, step, padding, more, 1, dilation)
        else:
            wanted = torch.conv1d(ones, filters, None, step, padding, dilation)
        assert torch.equal(found, wanted.flatten()), dim


@pytest.mark.parametrize(
    ("forward", "init", "reason"),
    [
        ("return self.d(self.c(x))", "self.c = nn.Conv3d(2, 2, 3); self.d = nn.Conv3d(2, 2, 3)", "has 2 convolutions"),
        ("return self.c(x).sum(1)", "self.c = nn.ConvTranspose3d(2, 2, 3)", "the model reduces the operator's result"),
        ("return self.c(F.relu(x))", "self.c = nn.Conv3d(2, 2, 3)", "the model computes an operand of its convolution"),
    ],
)
def test_a_refusal_gives_the_reason(tmp_path: Path, forward: str, init: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        recognize_grid_conv(make_problem(tmp_path, forward, {"x": (1, 2, 8, 8, 8)}, init).spec)


@pytest.mark.parametrize(("case", "pattern"), [("3d", "grid_conv"), ("transposed_1d", "grid_conv"), (None, "conv")])
def test_each_convolution_has_one_pattern(tmp_path: Path, case: str | None, pattern: str) -> None:
    spec = (
        make_problem(tmp_path, PLAIN, {"x": (1, 2, 8, 8)}, "self.c = nn.Conv2d(2, 2, 3)").spec
        if case is None
        else problem_of(tmp_path, case)[0].spec
    )
    for language in ("cpp", "cu"):
        assert known(spec, "cu" if language == "cu" else "cpp")[0].pattern == pattern


def test_every_kernel_in_cpp_is_right(tmp_path: Path) -> None:
    kernels: list[tuple[Problem, str]] = []
    rng = random.Random(3)
    for case in CASES:
        problem, program = problem_of(tmp_path, case)
        template = known(problem.spec)[0]
        recipe = template.starts(program, problem.spec, CPU)[0].recipe
        knobs = template.knobs(program, recipe, CPU)
        drawn: Choices = {knob: rng.choice(values) for knob, values in knobs.items()}
        for changes in ({}, {**drawn, "rows": min(4, int(drawn["rows"]))}):
            kernels.append((problem, template.emit(program, recipe.with_(changes), problem.spec)))
    check_all(kernels, tmp_path, optimize="-O1")


def test_every_kernel_in_cuda_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads run on the CPU, one after the other. Blocks compute several tiles although the problems are small."""
    monkeypatch.setattr(cuda_plan, "_LEAST_BLOCKS", 1)
    made: list[tuple[Problem, str]] = []
    for number, case in enumerate(CASES):
        problem, program = problem_of(tmp_path, case, (*DTYPES, "float32")[number % 4])
        tensor, direct = CUDA.starts(program, problem.spec, A100)
        made.append((problem, sampled(problem, program, tensor.recipe, case, {})))
        made.append((problem, CUDA.emit(program, (direct if number % 2 else tensor).recipe, problem.spec)))
    kernels = cuda_harness.compile_all_emulated(tmp_path, [(problem.spec, source) for problem, source in made])
    for (problem, source), kernel in zip(made, kernels, strict=True):
        (error,) = errors(problem, cuda_harness.run(problem, kernel, "cpu"))
        assert error <= TOLERANCE[problem.spec.outputs[0].dtype], f"error {error:.1e}\n{source}"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("arch", ["80", "90a", "100"])
def test_kernels_keep_their_sums_in_registers(tmp_path: Path, arch: str) -> None:
    parts: list[tuple[str, str, str]] = []
    device = H200 if arch == "90a" else A100
    for case, dtype in (("3d_uneven", "float32"), ("transposed_2d", "float16")):
        problem, program = problem_of(tmp_path, case, dtype)
        for start in CUDA.starts(program, problem.spec, device)[: 1 if arch == "100" else 2]:
            source = CUDA.emit(program, start.recipe.with_({"arch": int(arch.rstrip("a"))}), problem.spec)
            parts.append((f"{case} {start.name}", derive_header(problem.spec, "cu"), source))
    report = ptxas_report(tmp_path, parts, arch)
    assert not re.findall(r"C75\d\d", report), report
    spills = [int(size) for size in re.findall(r"(\d+) bytes spill", report)]
    assert spills and not any(spills), report


@pytest.mark.parametrize("case", ["3d_uneven", "transposed_2d_dilated"])
def test_every_setting_fits_a_block(tmp_path: Path, case: str) -> None:
    problem, program = problem_of(tmp_path, case)
    rng = random.Random(case)
    for arch, kilobytes in ((80, 163), (86, 99), (90, 227)):
        start = CUDA.starts(program, problem.spec, H200 if arch == 90 else A100)[0].recipe
        knobs = CUDA.knobs(program, start, H200)
        for _ in range(60):
            drawn: Choices = {knob: rng.choice(values) for knob, values in knobs.items()}
            plan = cuda_plan.resolve(program, start.with_({**drawn, "arch": arch}).choices)
            assert plan.shared_bytes <= kilobytes * 1024
            assert plan.threads <= 1024 and plan.bm * plan.bn // plan.threads <= 128


def test_every_transformation_changes_the_kernel(tmp_path: Path) -> None:
    problem, program = problem_of(tmp_path, "transposed_3d_uneven")
    for device, language in ((A100, "cu"), (CPU, "cpp")):
        template: Any = known(problem.spec, "cu" if language == "cu" else "cpp")[0]
        for start in template.starts(program, problem.spec, device):
            source = template.emit(program, start.recipe, problem.spec)
            for one in template.transformations(program, start.recipe, device):
                changed = start.recipe.with_(one.changes, one.opens)
                assert one.name == "tune" or template.emit(program, changed, problem.spec) != source, one.name
                assert set(one.opens) <= set(template.knobs(program, changed, device)), one.name


def test_fp32_that_came_out_wrong_is_tried_with_more_exact_arithmetic(tmp_path: Path) -> None:
    problem, program = problem_of(tmp_path, "3d")
    first = CUDA.starts(program, problem.spec, H200)[0].recipe
    exact = CUDA.safer(program, first.with_({"arithmetic": "fp16"}))
    assert exact is not None and exact.choices["arithmetic"] == "bf16x3"
    plain = CUDA.safer(program, exact)
    assert plain is not None and "mma" not in CUDA.emit(program, plain, problem.spec)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "changes", [{}, {"bm": 256}, {"repeat": 1}, {"product": "mma"}, {"arithmetic": "fp16"}], ids=str
)
@pytest.mark.parametrize("case", CASES)
def test_results_on_a_hopper_gpu(tmp_path: Path, case: str, changes: Choices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_plan, "_LEAST_BLOCKS", 1)
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    problem, program = problem_of(tmp_path, case, DTYPES[list(CASES).index(case) % 3])
    recipe = CUDA.starts(program, problem.spec, H200)[0].recipe.with_(changes)
    with tempfile.TemporaryDirectory() as folder:
        kernel = Kernel(compile_cuda(Path(folder), problem.spec, CUDA.emit(program, recipe, problem.spec), H200.arch))
        (error,) = errors(problem, cuda_harness.run(problem, kernel, "cuda"))
    limit = 2e-3 if changes.get("arithmetic") == "fp16" else 0.0
    assert error <= max(limit, TOLERANCE[problem.spec.outputs[0].dtype])
