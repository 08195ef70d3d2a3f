"""Matrix products in C++: every kernel within reach of a search matches the reference, on any shape and operands."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.problem.c_header import derive_header
from engine.proposers.playbook import Playbook
from engine.proposers.playbook.base import Unsupported
from engine.proposers.playbook.patterns.gemm.program import batch_text, recognize_matmul
from engine.proposers.playbook.transformations.catalog import tuned as tuned_recipe
from engine.proposers.protocol import Task
from tests.engine.proposers.playbook.cpp_harness import Problem, check, check_all, make_problem
from tests.engine.proposers.playbook.wandering import CPU, known, ladder, wander

Shapes = dict[str, tuple[int, ...]]
LINEAR = "self.l = nn.Linear({k}, {n})"
# name: forward, inputs by the letters of their dimensions, constructor
PRODUCTS: dict[str, tuple[str, dict[str, str], str]] = {
    "plain": ("return x @ y", {"x": "mk", "y": "kn"}, ""),
    "transposed": ("return x.t() @ y.t()", {"x": "km", "y": "nk"}, ""),
    "batched": ("return torch.matmul(x, y)", {"x": "bmk", "y": "bkn"}, ""),
    "broadcast": ("return x @ y.transpose(-1, -2)", {"x": "b1mk", "y": "cnk"}, ""),
    "shared": ("return torch.einsum('bcmk,kn->bcmn', x, y) * 2", {"x": "bcmk", "y": "kn"}, ""),
    "einsum": ("return torch.einsum('bmk,bnk->bmn', x, y) + y[0, 0, 0]", {"x": "bmk", "y": "bnk"}, ""),
    "linear_gelu": ("return F.gelu(self.l(x)) * 2 + 1", {"x": "bmk"}, LINEAR),
    "linear_gated": (
        "y = self.l(x)\nreturn torch.sigmoid(y) * y, y + z / w", {"x": "bmk", "z": "m1", "w": "n"}, LINEAR
    ),
    "vector": ("return F.relu(torch.mv(x, y)) - 1", {"x": "mk", "y": "k"}, ""),
    "triangle": ("return torch.triu(torch.tril(x @ y, 2) * 2, -5)", {"x": "bmk", "y": "bkn"}, ""),
    "baddbmm": ("return torch.baddbmm(z, x, y, beta=0.5, alpha=2)", {"x": "bmk", "y": "bkn", "z": "bmn"}, ""),
}  # fmt: skip
GENERATE = (Phase.explicit, Phase.generate)  # each step of shrinking a failure would need a compiler run
sizes = st.fixed_dictionaries(
    {"m": st.integers(1, 40), "n": st.integers(1, 90), "k": st.integers(1, 300), "b": st.integers(1, 3),
     "c": st.integers(1, 3)}
)  # fmt: skip


def shaped(case: str, size: dict[str, int]) -> tuple[str, Shapes, str]:
    forward, letters, init = PRODUCTS[case]
    if case == "einsum":
        forward = forward.replace(" + y[0, 0, 0]", "")
    shapes = {name: tuple(size.get(letter, 1) for letter in word) for name, word in letters.items()}
    return forward, shapes, init.format(**size)


@pytest.mark.parametrize("case", PRODUCTS)
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


def test_every_transformation_changes_the_kernel_and_the_last_is_right(tmp_path: Path) -> None:
    problem = make_problem(tmp_path, "return F.silu(x @ y)", {"x": (47, 530), "y": (530, 101)})
    template, program = known(problem.spec)
    steps = ladder(template, program, problem.spec, CPU)
    assert len({template.emit(program, recipe, problem.spec) for recipe in steps}) > 40
    final = steps[-1].with_({"rows": 12, "depth": 256, "pack_a": True, "pack_b": True, "math": "polynomial"})
    check(problem, tmp_path, template.emit(program, final, problem.spec))


def test_an_operand_whose_columns_are_contiguous_is_transposed_in_squares(tmp_path: Path) -> None:
    problem = make_problem(tmp_path, "return F.silu(self.l(x))", {"x": (21, 601)}, LINEAR.format(k=601, n=77))
    template, program = known(problem.spec)
    start = template.starts(program, problem.spec, CPU)[0].recipe
    tuned, made = tuned_recipe(template, program, start, CPU, lambda one: True)
    assert {"register_tiles", "block_depth"} <= {one.name for one in made}
    for changes in ({}, {"lanes": 8, "vecs": 3}, {"depth": 0, "pack_a": True}):
        source = template.emit(program, tuned.with_(changes), problem.spec)
        assert "transpose(square)" in source
        check(problem, tmp_path, source)


def test_tiles_fit_the_registers_of_the_processor(tmp_path: Path) -> None:
    problem = make_problem(tmp_path, "return x @ y", {"x": (96, 64), "y": (64, 96)})
    template, program = known(problem.spec)
    start = template.starts(program, problem.spec, CPU)[-1].recipe
    for features, lanes, rows in ((("avx2", "fma"), 8, 6), (("avx2", "fma", "avx512f"), 16, 12)):
        device = replace(CPU, features=features)
        recipe, _ = tuned_recipe(template, program, start, device, lambda one: True)
        assert (recipe.choices["lanes"], recipe.choices["rows"], recipe.choices["vecs"]) == (lanes, rows, 2)


def test_an_operand_is_read_where_it_lies(tmp_path: Path) -> None:
    problem = make_problem(tmp_path, "return x[:, 1, 2:10:2].t() @ y", {"x": (7, 3, 12), "y": (7, 5)})
    program = recognize_matmul(problem.spec)
    assert program is not None
    assert (program.m, program.k, program.n) == (4, 7, 5)
    assert (program.a.offset, program.a.row_stride, program.a.col_stride) == (14, 2, 36)
    template, _ = known(problem.spec)
    check(
        problem, tmp_path, template.emit(program, template.starts(program, problem.spec, CPU)[0].recipe, problem.spec)
    )


def test_a_batch_that_is_broadcast_has_an_address_formula() -> None:
    assert batch_text(((2, 60), (3, 0), (5, 7)), "b") == "(b / 15) * 60LL + (b % 5) * 7LL"


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("return torch.relu(x) @ x", "the model computes an operand of its matrix product \\(by relu\\)"),
        ("return (x @ x) @ x", "the model has 2 matrix products"),
        ("return torch.softmax(x @ x, -1)", "the model reduces the operator's result"),
        ("return (x @ x).t() + 1", "the model permutes dimensions"),
        ("return (x @ x).cumsum(0)", "no pattern covers the operator cumsum"),
    ],
)
def test_what_the_templates_lack_is_said(tmp_path: Path, forward: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        recognize_matmul(make_problem(tmp_path, forward, {"x": (8, 8)}).spec)


def test_problems_without_a_product_are_left_to_other_patterns(tmp_path: Path) -> None:
    assert recognize_matmul(make_problem(tmp_path, "return x + 1", {"x": (8, 8)}).spec) is None


def test_what_only_one_language_has_is_said_for_the_other(tmp_path: Path) -> None:
    problem = make_problem(tmp_path, "return x @ y", {"x": (8, 8), "y": (8, 8)}, dtype="float16")
    device = DeviceFact(id="cpu", kind="cpu", name="cpu", arch="native", memory_bytes=1 << 33, cores=2)
    task = Task(problem.spec, derive_header(problem.spec, "cpp"), "cpp", device, None, None)
    assert Playbook().refusal(task) == (
        "the playbook has no template for problem, because `x` is float16, but C++ kernels support only float32"
    )
    on_gpu = Task(problem.spec, derive_header(problem.spec, "cu"), "cu", device, None, None)
    assert Playbook().refusal(on_gpu) is None
