"""Problems as groups: how the playbook partitions them, and the results of its C++ and CUDA kernels."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.problem.inspection import inspect_file
from engine.problem.spec import Language, ProblemSpec
from engine.proposers.playbook.base import Program, Unsupported
from engine.proposers.playbook.codegen.cpp import Cpp
from engine.proposers.playbook.patterns import PATTERNS
from engine.proposers.playbook.patterns.copies.cpp import fill
from engine.proposers.playbook.patterns.groups.plan import Source, Step, place
from engine.proposers.playbook.patterns.groups.template import Groups
from engine.proposers.playbook.transformations import catalog
from engine.session.records.other_sizes import NOT_FOR_THIS_SIZE
from tests.engine.proposers.playbook import cuda_harness
from tests.engine.proposers.playbook.cpp_harness import Problem, build, check_all, make_problem, run
from tests.engine.proposers.playbook.cuda_harness import A100, H200
from tests.engine.proposers.playbook.wandering import CPU, wander

BF16X3_TOLERANCE = 2e-5
"""Allowed relative error in the Euclidean norm of two products in three bf16 steps each. On a CPU, these steps yield
6e-6."""
Shapes = dict[str, tuple[int, ...]]
SELF_ATTENTION = """
q, k, v = self.l(x).split(8, 2)
q, k, v = (one.view(2, 5, 2, 4).transpose(1, 2) for one in (q, k, v))
y = torch.softmax(q @ k.transpose(-2, -1) * 0.5, -1) @ v
return self.p(y.transpose(1, 2).reshape(2, 5, 8))""".strip()
CASES: dict[str, tuple[str, str, Shapes, str]] = {
    "sum_of_product": ("self.l = nn.Linear(37, 19)", "return F.gelu(self.l(x)).sum(1)", {"x": (13, 37)},
                       "matmul rows"),
    "mlp": ("self.a = nn.Linear(9, 17); self.b = nn.Linear(17, 17); self.c = nn.Linear(17, 17)",
            "return self.c(F.relu(self.b(F.relu(self.a(x)))))", {"x": (5, 9)}, "matmul matmul matmul"),
    "two_outputs": ("self.l = nn.Linear(11, 7)", "y = self.l(x)\nreturn y.softmax(-1), y.view(-1), y.mean()",
                    {"x": (3, 5, 11)}, "matmul rows rows"),
    "softmax_of_product": ("", "return torch.softmax(x @ y, 0)", {"x": (7, 6), "y": (6, 5)}, "matmul reductions"),
    "reduced_twice": ("self.l = nn.Linear(7, 5)",
                      "y = self.l(x).sum(1, keepdim=True)\nreturn torch.logsumexp(y.mean(1, keepdim=True), 1)",
                      {"x": (6, 7)}, "matmul rows"),
    "group_norm_3d": ("self.l = nn.Linear(6, 6); self.n = nn.GroupNorm(2, 4)", "return self.n(self.l(x)).mean(1)",
                      {"x": (2, 4, 3, 5, 6)}, "matmul rows reductions"),
    "batch_norm": ("self.c = nn.Conv2d(3, 5, 3); self.n = nn.BatchNorm2d(5)",
                   "return F.relu(self.n(self.c(x))) * 2", {"x": (3, 3, 9, 11)}, "conv reductions"),
    "residual": ("self.a = nn.Conv2d(6, 6, 3, padding=1, bias=False); self.m = nn.BatchNorm2d(6); "
                 "self.n = nn.BatchNorm2d(6)",
                 "y = F.relu(self.m(self.a(x)))\nreturn F.relu(self.n(self.a(y)) + x)", {"x": (2, 6, 7, 5)},
                 "conv reductions conv reductions"),
    "pooled_twice": ("self.c = nn.Conv2d(3, 4, 3)", "return F.avg_pool2d(F.avg_pool2d(self.c(x), 2), 2).flatten(1)",
                     {"x": (2, 3, 13, 11)}, "conv pooling pooling"),
    "inception": ("self.a = nn.Conv2d(3, 4, 1); self.b = nn.Conv2d(3, 5, 3, padding=1)",
                  "return torch.cat([self.a(x), F.relu(self.b(x)), x], 1)", {"x": (2, 3, 5, 7)}, "conv conv copies"),
    "self_attention": ("self.l = nn.Linear(8, 24); self.p = nn.Linear(8, 8)", SELF_ATTENTION, {"x": (2, 5, 8)},
                       "matmul attention copies matmul"),
    "wide_attention": ("", "return F.scaled_dot_product_attention(x, y, y, scale=0.1) + 1",
                       {"x": (2, 1, 64, 260), "y": (2, 1, 9, 260)}, "attention"),
    "wide_values": ("", "return F.scaled_dot_product_attention(x, y, z)",
                    {"x": (1, 2, 64, 8), "y": (1, 2, 9, 8), "z": (1, 2, 9, 260)}, "pointwise copies attention"),
    "shuffle": ("self.c = nn.Conv2d(6, 6, 1, groups=3)",
                "return F.relu(self.c(x).view(2, 3, 2, 3, 5).transpose(1, 2).reshape(2, 6, 3, 5)).sum(1)",
                {"x": (2, 6, 3, 5)}, "conv copies reductions"),
    "outer_dimension": ("", "return (x @ y).sum(1, keepdim=True) * z", {"x": (3, 4, 5), "y": (5, 6), "z": (3, 7, 6)},
                        "matmul reductions copies pointwise"),
    "triangle": ("", "return torch.tril(torch.tril(x) @ torch.tril(y), -1)", {"x": (6, 6), "y": (6, 6)},
                 "copies copies matmul"),
    "patches": ("self.l = nn.Linear(12, 5)",
                "p = x.unfold(2, 2, 2).unfold(3, 2, 2).reshape(2, -1, 12)\nreturn torch.cat([p[:, :1], p[:, 2:]], 1), "
                "self.l(p)", {"x": (2, 3, 4, 6)}, "copies copies matmul"),
    "rolled": ("self.l = nn.Linear(4, 4)",
               "y = F.pad(torch.roll(x, (1, -2), (1, 2)), (0, 0, 1, 2))\nreturn self.l(y).relu().max(1).values",
               {"x": (2, 5, 6, 4)}, "copies copies matmul reductions"),
    "hidden": ("self.register_buffer('hidden', torch.zeros(3, 4)); self.l = nn.Linear(9, 4)",
               "self.hidden.copy_(torch.tanh(self.l(torch.cat((x, self.hidden), 1))))\nreturn self.hidden * 2",
               {"x": (3, 5)}, "copies matmul pointwise"),
}  # fmt: skip


def partitioned(spec: ProblemSpec, language: Language = "cpp") -> tuple[Groups, Program]:
    template = next(one for one in PATTERNS[-1].templates if one.language == language)
    program = PATTERNS[-1].recognize(spec)
    assert isinstance(template, Groups) and program is not None
    return template, program


def kernel_of(spec: ProblemSpec) -> str:
    template, program = partitioned(spec)
    return template.emit(program, template.starts(program, spec, CPU)[0].recipe, spec)


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Problem]:
    folder = tmp_path_factory.mktemp("groups")
    return {name: make_problem(folder, forward, shapes, init) for name, (init, forward, shapes, _) in CASES.items()}


def test_groups_are_as_large_as_patterns_allow(problems: dict[str, Problem]) -> None:
    found = {}
    for name, problem in problems.items():
        template, program = partitioned(problem.spec)
        plan = template.plan(program)
        found[name] = " ".join(plan.kinds[step.kind].pattern for step in plan.steps)
    assert found == {name: case[-1] for name, case in CASES.items()}
    template, program = partitioned(problems["wide_attention"].spec, "cu")
    plan = template.plan(program)
    assert [plan.kinds[step.kind].pattern for step in plan.steps] == ["matmul", "rows", "matmul"]


def test_every_kernel_in_cpp_is_right(problems: dict[str, Problem], tmp_path: Path) -> None:
    kernels = []
    for problem in problems.values():
        template, program = partitioned(problem.spec)
        recipes = [start.recipe for start in template.starts(program, problem.spec, CPU)]
        recipes.append(wander(template, program, problem.spec, 7))
        kernels += [(problem, template.emit(program, recipe, problem.spec)) for recipe in recipes]
    check_all(kernels, tmp_path, optimize="-O1")


def test_every_kernel_in_cuda_is_right(problems: dict[str, Problem], tmp_path: Path) -> None:
    kernels: list[tuple[Problem, str]] = []
    for problem in problems.values():
        template, program = partitioned(problem.spec, "cu")
        recipes = [template.starts(program, problem.spec, A100)[-1].recipe]
        recipes.append(wander(template, program, problem.spec, 3, A100))
        kernels += [(problem, template.emit(program, recipe, problem.spec)) for recipe in recipes]
    built = cuda_harness.compile_all_emulated(tmp_path, [(problem.spec, source) for problem, source in kernels])
    for (problem, source), kernel in zip(kernels, built, strict=True):
        cuda_harness.check(problem, cuda_harness.run(problem, kernel, "cpu"), tf32=True, message=source)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_nvcc_takes_the_kernels(problems: dict[str, Problem], tmp_path: Path, arch: str) -> None:
    kernels = []
    for name in ("batch_norm", "self_attention"):
        spec = problems[name].spec
        template, program = partitioned(spec, "cu")
        device = cuda_harness.DeviceFact("gpu", "cuda", "", arch, 80 << 30, 108)
        kernels.append((name, spec, template.emit(program, template.starts(program, spec, device)[0].recipe, spec)))
    code = cuda_harness.machine_code(tmp_path, kernels, arch).read_bytes()
    assert b"kernel_0" in code and b"kernel_1" in code


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_results_on_a_gpu(problems: dict[str, Problem], tmp_path: Path, name: str) -> None:
    problem = problems[name]
    template, program = partitioned(problem.spec, "cu")
    for start in template.starts(program, problem.spec, H200):
        source = template.emit(program, start.recipe, problem.spec)
        library = cuda_harness.compile_cuda(tmp_path, problem.spec, source, H200.arch)
        cuda_harness.check(problem, cuda_harness.run(problem, cuda_harness.Kernel(library), "cuda"), tf32=True)


WIDE_ATTENTION = """
import torch
class Model(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)
def get_inputs():
    return [torch.rand(32, 32, 512, 1024) for _ in range(3)]
def get_init_inputs():
    return []
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_constants_and_offsets_of_tensors_over_two_gigabytes(tmp_path: Path) -> None:
    """nvcc warns if a constant exceeds its type, and each warning is an error."""
    path = tmp_path / "attention.py"
    path.write_text(WIDE_ATTENTION)
    spec = inspect_file(path, "attention")
    template, program = partitioned(spec, "cu")
    recipe = template.starts(program, spec, H200)[0].recipe
    source = template.emit(program, recipe, spec)
    assert recipe.choices["0.structure"] == recipe.choices["2.structure"] == "wgmma"
    scores = 4 * 32 * 32 * 512 * 512
    assert f"memory + {scores})" in source and f"scratch = memory + {2 * scores};" in source
    cuda_harness.machine_code(tmp_path, [("attention", spec, source)], H200.arch)


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "rows", "keys", "width"), [((3, 2), 512, 512, 1024), ((2, 3), 200, 328, 264)])
def test_attention_of_wide_heads_on_a_hopper_gpu(
    tmp_path: Path, heads: tuple[int, int], rows: int, keys: int, width: int
) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    shapes = {"x": (*heads, rows, width), "y": (*heads, keys, width), "z": (*heads, keys, width)}
    problem = make_problem(tmp_path, "return F.scaled_dot_product_attention(x, y, z)", shapes)
    template, program = partitioned(problem.spec, "cu")
    recipe = template.starts(program, problem.spec, H200)[0].recipe
    assert recipe.choices["0.structure"] == recipe.choices["2.structure"] == "wgmma"
    library = cuda_harness.compile_cuda(tmp_path, problem.spec, template.emit(program, recipe, problem.spec), H200.arch)
    (error,) = cuda_harness.errors(problem, cuda_harness.run(problem, cuda_harness.Kernel(library), "cuda"))
    assert error <= BF16X3_TOLERANCE


def test_equal_groups_share_a_kernel_and_memory(problems: dict[str, Problem]) -> None:
    template, program = partitioned(problems["mlp"].spec)
    plan = template.plan(program)
    assert [step.kind for step in plan.steps] == [0, 1, 2] and plan.kinds[1].spec != plan.kinds[2].spec
    template, program = partitioned(problems["residual"].spec)
    plan = template.plan(program)
    assert plan.steps[0].kind == plan.steps[2].kind
    assert plan.tensor_bytes < sum(4 * 2 * 6 * 7 * 5 for step in plan.steps[:-1]) + 2 * 256


def test_tensors_share_memory_only_when_no_step_needs_both() -> None:
    names = "abcde"
    steps = [Step(0, (Source(names[k - 1]),) if k else (), (name,)) for k, name in enumerate(names)]
    steps.append(Step(0, (Source("a"), Source("e")), ("f",)))
    sizes = {name: 1000 * (k + 1) for k, name in enumerate(names)}
    offsets, end = place(steps, sizes)
    together = [("a", other) for other in "bcde"] + [("b", "c"), ("c", "d"), ("d", "e")]
    for one, other in together:
        assert offsets[one] + sizes[one] <= offsets[other] or offsets[other] + sizes[other] <= offsets[one]
    assert all(offset % 256 == 0 for offset in offsets.values()) and end < sum(sizes.values())


def test_a_transformation_changes_one_kernel_or_all(problems: dict[str, Problem]) -> None:
    spec = problems["mlp"].spec
    template, program = partitioned(spec)
    plain = template.starts(program, spec, CPU)[-1].recipe
    names = [one.name for one in template.transformations(program, plain, CPU)]
    single = next(name for name in names if name.endswith("@1"))
    everywhere = single.replace("@1", "@all")
    assert everywhere in names
    changed = {}
    for name in (single, everywhere):
        found = catalog.find(template, program, plain, name, CPU)
        assert found is not None
        after = found[0].choices
        changed[name] = {key.split(".")[0] for key, value in after.items() if plain.choices[key] != value}
        assert template.emit(program, found[0], spec) != template.emit(program, plain, spec)
    assert changed == {single: {"1"}, everywhere: {"0", "1", "2"}}


@pytest.mark.parametrize(
    ("init", "forward", "reason"),
    [
        ("", "return torch.linalg.inv(x) @ x", "no pattern covers the operator linalg_inv_ex"),
        ("self.l = nn.Linear(6, 6)", "return self.l(x).argmax(1).float()", "int64"),
    ],
)
def test_a_refusal_gives_the_reason_of_a_part(tmp_path: Path, init: str, forward: str, reason: str) -> None:
    template, program = partitioned(make_problem(tmp_path, forward, {"x": (6, 6)}, init).spec)
    assert reason in (template.refusal(program) or "")
    with pytest.raises(Unsupported, match=reason):
        template.plan(program)


@pytest.mark.parametrize("number", ["-math.inf", "math.nan"])
def test_padding_with_numbers_that_are_not_finite(tmp_path: Path, number: str) -> None:
    problem = make_problem(tmp_path, f"return F.pad(x, (1, 2, 0, 1), value={number})", {"x": (5, 7)})
    wanted = problem.model(*problem.inputs)
    (found,) = run(problem, build(tmp_path, problem.spec, kernel_of(problem.spec), optimize="-O1"))
    assert np.array_equal(found, wanted.numpy(), equal_nan=True)
    template, program = partitioned(problem.spec, "cu")
    source = template.emit(program, template.starts(program, problem.spec, A100)[0].recipe, problem.spec)
    (kernel,) = cuda_harness.compile_all_emulated(tmp_path, [(problem.spec, source)])
    (emulated,) = cuda_harness.run(problem, kernel, "cpu")
    assert np.array_equal(emulated.numpy(), wanted.numpy(), equal_nan=True)
    if shutil.which("nvcc") is not None:
        cuda_harness.machine_code(tmp_path, [("pad", problem.spec, source)], "sm_80")


@pytest.mark.parametrize("number", [0.1, 3e38, -1.00390625, float("inf"), float("nan")])
def test_a_fill_in_bfloat16_has_the_bits_of_pytorch(number: float) -> None:
    bits = torch.tensor(number, dtype=torch.bfloat16).view(torch.uint16).item()
    assert fill(number, "bfloat16", Cpp()) == f"uint16_t({bits})"


def test_a_concatenation_of_many_views_copies_each(tmp_path: Path) -> None:
    """Not every set of the 20 operands is tried: a million sets would take hours."""
    names = [f"x{number}" for number in range(20)]
    parts = ", ".join(f"{name}.t().reshape(3, 8)[:, 1:5].reshape(-1)" for name in names)
    problem = make_problem(tmp_path, f"return torch.cat([{parts}], 0)", dict.fromkeys(names, (4, 6)))
    template, program = partitioned(problem.spec)
    assert len(template.plan(program).steps) == 2 * len(names) + 1


def test_groups_hold_a_kernel_to_its_sizes(tmp_path: Path) -> None:
    init, forward, _, _ = CASES["sum_of_product"]
    here, there = (make_problem(tmp_path, forward, {"x": (rows, 37)}, init) for rows in (13, 14))
    with pytest.raises(AssertionError, match=NOT_FOR_THIS_SIZE):
        build(tmp_path, there.spec, kernel_of(here.spec))
