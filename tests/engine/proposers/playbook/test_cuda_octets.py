"""Convolutions on tensor cores from octets in shared memory.

With mma.sync: random settings on random shapes, emulated on the CPU. With nvcc: no spills and no serialized products
for sm_90a. On a Hopper GPU: results.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from engine.devices.fact import DeviceFact
from engine.problem.c_header import derive_header
from engine.proposers.playbook.base import Choices, Recipe, Template
from engine.proposers.playbook.patterns.conv import cuda_octets_plan
from engine.proposers.playbook.patterns.conv.cuda import octets_of
from engine.proposers.playbook.patterns.conv.program import ConvProgram
from tests.engine.proposers.playbook.cpp_harness import Problem, make_problem
from tests.engine.proposers.playbook.cuda_harness import (
    A100,
    H200,
    compile_all_emulated,
    compile_cuda,
    errors,
    run,
)
from tests.engine.proposers.playbook.one_unit import Kernel, in_one_unit
from tests.engine.proposers.playbook.wandering import WGMMA, known
from tests.patience import PATIENCE_S

TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 6e-3}
"""Allowed relative error by output dtype. Three products of bf16 numbers reach 4e-6 to 7e-6 in fp32."""
FP16_TOLERANCE = 2e-3
DTYPES = ("float32", "float16", "bfloat16")
# name: forward, shape of x, constructor
CONVOLUTIONS: dict[str, tuple[str, tuple[int, ...], str]] = {
    "columns": ("return self.c(x)", (2, 3, 31, 37), "self.c = nn.Conv2d(3, 20, 11, stride=4, padding=2)"),
    "channels": ("return F.gelu(self.c(x)) + 1", (1, 19, 11, 13), "self.c = nn.Conv2d(19, 33, 3, padding=1)"),
    "dilated": (
        "return self.c(x) * 2", (2, 5, 23, 19),
        "self.c = nn.Conv2d(5, 13, (3, 4), stride=(2, 3), padding=(1, 2), dilation=(2, 1))",
    ),
    "grouped": (
        "return F.hardswish(self.c(x))", (2, 12, 14, 17),
        "self.c = nn.Conv2d(12, 40, 3, stride=2, padding=1, groups=2, bias=False)",
    ),
    "wide": ("return self.c(x)", (1, 3, 9, 301), "self.c = nn.Conv2d(3, 9, 5, padding=2)"),
    "line": ("return F.silu(self.c(x))", (2, 16, 61), "self.c = nn.Conv1d(16, 24, 9, stride=2)"),
    "strided_input": ("return self.c(x.transpose(2, 3))", (2, 8, 15, 12), "self.c = nn.Conv2d(8, 16, 3)"),
    "pooled": (
        "return F.max_pool2d(F.relu(self.c(x)), 3, 2, padding=1)", (2, 3, 30, 29),
        "self.c = nn.Conv2d(3, 24, 7, stride=2, padding=3)",
    ),
    "pooled_unevenly": (
        "return F.max_pool2d(self.c(x) * 2, (2, 3), stride=(1, 2), dilation=(2, 1), ceil_mode=True) - 1",
        (1, 9, 17, 21), "self.c = nn.Conv2d(9, 16, 3)",
    ),
}  # fmt: skip
LARGE: dict[str, tuple[str, tuple[int, ...], str]] = {
    "alexnet": ("return self.c(x)", (100, 3, 224, 224), "self.c = nn.Conv2d(3, 96, 11, stride=4, padding=2)"),
    "alexnet_pooled": (
        "return F.max_pool2d(F.relu(self.c(x)), 3, 2)", (100, 3, 224, 224),
        "self.c = nn.Conv2d(3, 96, 11, stride=4, padding=2)",
    ),
    "vgg": ("return F.relu(self.c(x))", (8, 64, 56, 56), "self.c = nn.Conv2d(64, 128, 3, padding=1)"),
}  # fmt: skip


def problem_of(folder: Path, case: str, dtype: str = "float32") -> Problem:
    forward, shape, init = (CONVOLUTIONS | LARGE)[case]
    return make_problem(folder, forward, {"x": shape}, init, dtype)


def conv_of(problem: Problem) -> tuple[Template, ConvProgram]:
    template, program = known(problem.spec, "cu")
    assert isinstance(program, ConvProgram)
    return template, program


def on_hopper(problem: Problem, changes: Choices) -> tuple[Recipe, str]:
    template, program = conv_of(problem)
    start = next(one for one in template.starts(program, problem.spec, H200) if one.name == WGMMA)
    recipe = start.recipe.with_(changes)
    return recipe, template.emit(program, recipe, problem.spec)


def with_mma(problem: Problem, changes: Choices, device: DeviceFact = A100) -> Recipe:
    template, program = conv_of(problem)
    plain = template.starts(program, problem.spec, device)[-1].recipe
    return plain.with_({**cuda_octets_plan.first_choices(2, wgmma=False), **changes})


def sampled(problem: Problem, seed: int) -> Recipe:
    """Draw a setting of every knob, and an arithmetic."""
    template, program = conv_of(problem)
    rng = random.Random(seed)
    recipe = with_mma(problem, {"arithmetic": rng.choice(["bf16x3", "fp16"])})
    return recipe.with_({knob: rng.choice(values) for knob, values in template.knobs(program, recipe, A100).items()})


def limit_of(problem: Problem, recipe: Recipe) -> float:
    dtype = str(problem.inputs[0].dtype).removeprefix("torch.")
    return FP16_TOLERANCE if dtype == "float32" and recipe.choices["arithmetic"] == "fp16" else TOLERANCE[dtype]


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_any_setting_is_right(tmp_path: Path, case: str) -> None:
    """Its threads run on the CPU, one after the other."""
    made = []
    for seed, dtype in enumerate((*DTYPES, "float32")):
        problem = problem_of(tmp_path, case, dtype)
        template, program = conv_of(problem)
        recipe = sampled(problem, 10 * len(case) + seed)
        assert octets_of(program, recipe) is not None
        made.append((problem, recipe, template.emit(program, recipe, problem.spec)))
    kernels = compile_all_emulated(tmp_path, [(problem.spec, source) for problem, _, source in made])
    for (problem, recipe, source), kernel in zip(made, kernels, strict=True):
        (error,) = errors(problem, run(problem, kernel, "cpu"))
        assert error <= limit_of(problem, recipe), f"error {error:.1e} with {recipe.choices}\n{source}"


@pytest.mark.parametrize(("memory_kb", "chunks"), [(12, 3), (24, 3), (99, 1)])
def test_channels_come_in_chunks_when_shared_memory_is_short(
    tmp_path: Path, memory_kb: int, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_octets_plan, "shared_limit", lambda arch: memory_kb * 1024)
    problem = problem_of(tmp_path, "channels")
    template, program = conv_of(problem)
    recipe = with_mma(problem, {"lines": 32, "fragments": 1, "team_warps": 2})
    plan = octets_of(program, recipe)
    assert plan is not None and plan.shared_bytes <= memory_kb * 1024
    assert plan.chunks == chunks
    (kernel,) = compile_all_emulated(tmp_path, [(problem.spec, template.emit(program, recipe, problem.spec))])
    (error,) = errors(problem, run(problem, kernel, "cpu"))
    assert error <= TOLERANCE["float32"]


def test_infinities_reach_only_the_outputs_that_they_belong_to(tmp_path: Path) -> None:
    """Such an output may be NaN, because an infinity also meets the remainders of the filters."""
    problem = make_problem(
        tmp_path, "return self.c(x)", {"x": (1, 16, 8, 8)}, "self.c = nn.Conv2d(16, 16, 1, bias=False)"
    )
    problem.inputs[0][0, 3, 2, 5] = torch.inf
    problem.inputs[0][0, 4, 6, 1] = -torch.inf
    template, program = conv_of(problem)
    recipe = with_mma(problem, {})
    (kernel,) = compile_all_emulated(tmp_path, [(problem.spec, template.emit(program, recipe, problem.spec))])
    (found,) = run(problem, kernel, "cpu")
    with torch.no_grad():
        wanted = problem.model(problem.inputs[0])
    finite = wanted.isfinite()
    assert int((~finite).sum()) == 32
    torch.testing.assert_close(found.isfinite(), finite)
    torch.testing.assert_close(found[finite], wanted[finite], rtol=1e-4, atol=1e-4)


COMPILED: list[tuple[str, str, Choices]] = [
    ("alexnet", "float32", {}),
    ("alexnet", "float32", {"arithmetic": "fp16"}),
    ("alexnet", "float32", {"arithmetic": "fp16", "loaders": True}),
    ("alexnet_pooled", "float32", {}),
    ("alexnet_pooled", "float32", {"arithmetic": "fp16"}),
    ("alexnet_pooled", "float32", {"teams": 2, "loaders": True}),
    ("vgg", "float16", {}),
    ("dilated", "bfloat16", {}),
    ("pooled_unevenly", "float32", {}),
]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_products_stay_asynchronous_and_in_registers(tmp_path: Path) -> None:
    parts = []
    for case, dtype, changes in COMPILED:
        problem = problem_of(tmp_path, case, dtype)
        parts.append((f"{case} {dtype}", derive_header(problem.spec, "cu"), on_hopper(problem, changes)[1]))
    report = ptxas_report(tmp_path, parts, "90a")
    assert not re.findall(r"C75\d\d", report), report
    spills = [int(size) for size in re.findall(r"(\d+) bytes spill", report)]
    assert len(spills) >= 4 * len(COMPILED) and not any(spills), report


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_mma_compiles_for_older_devices(tmp_path: Path) -> None:
    parts = []
    for case, dtype in (("columns", "float32"), ("grouped", "float16"), ("pooled", "bfloat16")):
        problem = problem_of(tmp_path, case, dtype)
        template, program = conv_of(problem)
        source = template.emit(program, with_mma(problem, {}), problem.spec)
        parts.append((case, derive_header(problem.spec, "cu"), source))
    assert ptxas_report(tmp_path, parts, "80").count("Compiling entry function") == 6


def ptxas_report(folder: Path, parts: list[tuple[str, str, str]], arch: str) -> str:
    """Compile ``parts`` (name, header, source). Warnings are errors."""
    source = folder / "kernels.cu"
    source.write_text(in_one_unit(parts))
    command = ["nvcc", "-O3", "-std=c++17", "-cubin", "-Xptxas", "-v", "-Werror", "all-warnings"]
    command += ["-gencode", f"arch=compute_{arch},code=sm_{arch}", str(source), "-o", str(folder / "kernels.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("dtype", DTYPES)
def test_wgmma_comes_first_on_hopper_only(tmp_path: Path, dtype: str) -> None:
    problem = problem_of(tmp_path, "columns", dtype)
    template, program = conv_of(problem)
    assert [start.name for start in template.starts(program, problem.spec, H200)] == [WGMMA, "direct"]
    assert [start.name for start in template.starts(program, problem.spec, A100)] == ["direct"]


def test_convolutions_smaller_than_an_instruction_keep_the_other_structures(tmp_path: Path) -> None:
    problem = make_problem(tmp_path, "return self.c(x)", {"x": (1, 2, 9, 9)}, "self.c = nn.Conv2d(2, 4, 2)")
    template, program = conv_of(problem)
    assert cuda_octets_plan.refusal(program, 90) == "the convolution is too small for tensor cores"
    assert [start.name for start in template.starts(program, problem.spec, H200)] == ["direct"]


def test_older_devices_reach_octets_from_tensor_cores(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "columns")
    template, program = conv_of(problem)
    tensor = template.starts(program, problem.spec, A100)[0].recipe.with_({"structure": "tensor"})
    (step,) = [one for one in template.transformations(program, tensor, A100) if one.name == "patch_in_shared_memory"]
    source = template.emit(program, tensor.with_(step.changes), problem.spec)
    assert "mma.sync" in source and "wgmma" not in source


@pytest.mark.parametrize("case", ["columns", "pooled"])
def test_every_transformation_changes_the_source_and_opens_knobs_that_exist(tmp_path: Path, case: str) -> None:
    problem = problem_of(tmp_path, case)
    template, program = conv_of(problem)
    recipe, source = on_hopper(problem, {"prefetch": False})
    found = template.transformations(program, recipe, H200)
    assert {"fp16_tensor_cores", "larger_tiles", "loader_warps", "prefetch_patches"} <= {one.name for one in found}
    for one in found:
        changed = recipe.with_(one.changes, one.opens)
        assert template.emit(program, changed, problem.spec) != source, one.name
        assert set(one.opens) <= set(template.knobs(program, changed, H200)), one.name


def test_a_kernel_is_the_same_each_time(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "pooled")
    assert on_hopper(problem, {}) == on_hopper(problem, {})


def test_fp32_that_came_out_wrong_is_tried_with_more_exact_arithmetic(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "columns")
    template, program = conv_of(problem)
    exact = template.safer(program, on_hopper(problem, {"arithmetic": "fp16"})[0])
    assert exact is not None and exact.choices["arithmetic"] == "bf16x3"
    plain = template.safer(program, exact)
    assert plain is not None and "mma" not in template.emit(program, plain, problem.spec)


@pytest.mark.parametrize("case", LARGE)
def test_every_setting_fits_a_block(tmp_path: Path, case: str) -> None:
    problem = problem_of(tmp_path, case)
    template, program = conv_of(problem)
    rng = random.Random(case)
    for _ in range(200):
        recipe, _ = on_hopper(problem, {"arithmetic": rng.choice(["bf16x3", "fp16"])})
        knobs = template.knobs(program, recipe, H200)
        plan = octets_of(program, recipe.with_({knob: rng.choice(values) for knob, values in knobs.items()}))
        assert plan is not None
        assert plan.shared_bytes <= 227 * 1024
        threads = plan.teams * plan.team_threads + plan.loader_threads
        assert threads <= 1024 and plan.fragments * plan.lines // 2 < 65536 // threads


@pytest.mark.gpu
@pytest.mark.parametrize(
    "changes",
    [{}, {"arithmetic": "fp16"}, {"loaders": True}, {"product": "mma"}, {"sms": 2}, {"sms": 2, "loaders": True}],
    ids=str,
)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_results_on_a_hopper_gpu(tmp_path: Path, case: str, changes: Choices) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    problem = problem_of(tmp_path, case, DTYPES[list(CONVOLUTIONS).index(case) % 3])
    recipe, source = on_hopper(problem, changes)
    with tempfile.TemporaryDirectory() as folder:
        kernel = Kernel(compile_cuda(Path(folder), problem.spec, source, H200.arch))
        for _ in range(2):
            (error,) = errors(problem, run(problem, kernel, "cuda"))
            assert error <= limit_of(problem, recipe), f"error {error:.1e}\n{source}"
