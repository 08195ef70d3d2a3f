"""A kernel written for one size and built with another size's header is correct, or refuses to build."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.proposers.playbook.base import Choices
from engine.session.records.other_sizes import NOT_FOR_THIS_SIZE
from tests.engine.proposers.playbook import cuda_harness
from tests.engine.proposers.playbook.cpp_harness import Problem, check, check_all, make_problem
from tests.engine.proposers.playbook.wandering import known, wander

Shape = tuple[int, ...]
CASES: dict[str, tuple[str, str]] = {
    "softmax": ("return torch.softmax(x, -1)", ""),
    "layernorm": ("return self.n(x)", "self.n = nn.LayerNorm({cols})"),
    "rmsnorm": (
        "return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6) * self.w",
        "self.w = nn.Parameter(torch.ones({cols}))",
    ),
    "gelu": ("return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))", ""),
    "standardised": ("return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 0.1), x.sum(-1)", ""),
    "channels": ("return torch.exp(x + self.b) / 3", "self.b = nn.Parameter(torch.ones({first}, *[1] * {rank}))"),
    "mean_by_hand": ("return x - x.sum(-1, keepdim=True) / x.shape[-1]", ""),
    "groups": ("return self.n(x)", "self.n = nn.GroupNorm(2, {channels})"),
}


def problem_at(folder: Path, case: str, shape: Shape) -> Problem:
    forward, init = CASES[case]
    if case == "groups":  # images of an even number of channels
        shape = (shape[0], 2 * shape[1], 3)
    first = shape[0 if len(shape) < 3 else 1]
    words = init.format(cols=shape[-1], channels=shape[1], first=first, rank=max(1, len(shape) - 2))
    return make_problem(folder, forward, {"x": shape}, words)


LENGTHS = {"whole": (64, 96, 128, 1024), "tail": (33, 70, 333, 1003), "tiny": (2, 3, 5), "long": (4500, 8200)}
"""Rows of whole vectors, with a tail, shorter than a vector, and longer than a template's block."""
MOVES = [("whole", "tail"), ("tail", "whole"), ("long", "tiny"), ("tiny", "long"), ("tail", "tiny"), ("whole", "long")]


def two_shapes(rng: random.Random, kinds: tuple[str, str]) -> tuple[Shape, Shape]:
    """Return shapes of the same rank, with the rows of ``kinds``."""
    leading = rng.choice([1, 2])
    one, other = ((*(rng.randint(2, 9) for _ in range(leading)), rng.choice(LENGTHS[kind])) for kind in kinds)
    return one, other


PLAIN: Choices = {"width": 4, "fused": True, "merge": "shuffle", "read": "stream", "store": "stream", "unroll": 4}
STRUCTURES: dict[str, Choices] = {
    "plain": {"threads": 64},
    "loop": {**PLAIN, "threads": 64},
    "registers": {**PLAIN, "structure": "registers", "threads": 64},
    "warp": {**PLAIN, "structure": "registers", "cluster": 0, "threads": 64},
}


@pytest.mark.parametrize("case", ["softmax", "layernorm", "gelu", "channels"])
def test_a_cuda_kernel_is_right_at_a_size_that_it_was_not_written_for(tmp_path: Path, case: str) -> None:
    """The kernel's threads run on the CPU, one after another."""
    problems, sources = [], []
    for structure in STRUCTURES if case in ("softmax", "layernorm") else ("plain", "loop"):
        rng = random.Random(case + structure)
        searched, shape = two_shapes(rng, rng.choice([one for one in MOVES if "long" not in one]))
        source, there = problem_at(tmp_path, case, searched), problem_at(tmp_path, case, shape)
        template, program = known(source.spec, "cu")
        plain = template.starts(program, source.spec, cuda_harness.A100)[0].recipe
        wanted = {key: value for key, value in STRUCTURES[structure].items() if key in plain.choices}
        problems.append(there)
        sources.append(template.emit(program, plain.with_(wanted), source.spec))
    specs = [there.spec for there in problems]
    kernels = cuda_harness.compile_all_emulated(tmp_path, list(zip(specs, sources, strict=True)))
    for there, text, kernel in zip(problems, sources, kernels, strict=True):
        cuda_harness.check(there, cuda_harness.run(there, kernel, "cpu"), message=text)


PRODUCTS: dict[str, tuple[str, dict[str, str], str]] = {
    "matmul": ("return a @ w", {"a": "mk", "w": "kn"}, ""),
    "linear": ("return F.relu(self.l(x))", {"x": "bmk"}, "self.l = nn.Linear({k}, {n})"),
    "batched": ("return (a @ w.transpose(1, 2)) * 2", {"a": "bmk", "w": "bnk"}, ""),
}


def product_at(folder: Path, case: str, sizes: dict[str, int]) -> Problem:
    forward, operands, init = PRODUCTS[case]
    shapes = {name: tuple(sizes[dim] for dim in dims) for name, dims in operands.items()}
    return make_problem(folder, forward, shapes, init.format(**sizes))


def sizes_of_product(rng: random.Random, step: int) -> dict[str, int]:
    """Draw multiples of ``step``, small enough that tiles end inside a matrix."""
    return {dim: step * rng.randint(2, 90 // step) for dim in "bmnk"} | {"b": rng.randint(2, 4)}


@pytest.mark.parametrize("case", PRODUCTS)
def test_a_product_is_right_at_a_size_that_it_was_not_written_for(tmp_path: Path, case: str) -> None:
    rng = random.Random(case)
    kernels = []
    for steps in ((1, 1), (16, 1)):
        source, there = (product_at(tmp_path, case, sizes_of_product(rng, step)) for step in steps)
        kernels.append((there, emitted(source, rng.randrange(1000))))
    check_all(kernels, tmp_path, optimize="-O1")


@pytest.mark.parametrize("case", PRODUCTS)
def test_a_product_in_cuda_is_right_elsewhere_or_needs_multiples(tmp_path: Path, case: str) -> None:
    rng = random.Random(case)
    for seed, steps in enumerate(((1, 1), (8, 8), (8, 1))):
        source, there = (product_at(tmp_path, case, sizes_of_product(rng, step)) for step in steps)
        template, program = known(source.spec, "cu")
        recipe = wander(template, program, source.spec, rng.randrange(1000) + seed, cuda_harness.A100)
        kernel = template.emit(program, recipe.with_({"math": "precise"}), source.spec)
        try:
            library = cuda_harness.compile_emulated(tmp_path, there.spec, kernel)
        except AssertionError as error:
            assert f"{NOT_FOR_THIS_SIZE}: needs" in str(error).split("#include")[0] and "to be a multiple of" in kernel
            assert steps == (8, 1)
            continue
        tf32 = recipe.choices["structure"] == "tensor"
        found = cuda_harness.run(there, library, "cpu")
        cuda_harness.check(there, found, tf32=tf32, message=kernel)


def emitted(source: Problem, seed: int) -> str:
    """Return a kernel that a search of ``source`` can reach."""
    template, program = known(source.spec)
    return template.emit(program, wander(template, program, source.spec, seed), source.spec)


def attention_at(folder: Path, batch: int, length: int, width: int) -> Problem:
    shape = (batch, 3, length, width)
    return make_problem(folder, "return F.scaled_dot_product_attention(q, k, v)", dict.fromkeys("qkv", shape))


def test_attention_is_right_at_a_size_that_it_was_not_written_for(tmp_path: Path) -> None:
    source = attention_at(tmp_path, 2, 40, 24)
    kernels = [(attention_at(tmp_path, 3, 70 + seed, 33), emitted(source, seed)) for seed in (1, 2)]
    check_all(kernels, tmp_path, optimize="-O1")
    template, program = known(source.spec, "cu")
    kernel = template.emit(program, wander(template, program, source.spec, 3, cuda_harness.A100), source.spec)
    there = attention_at(tmp_path, 3, 51, 24)
    cuda_harness.check(
        there, cuda_harness.run(there, cuda_harness.compile_emulated(tmp_path, there.spec, kernel), "cpu")
    )


def test_attention_on_tensor_cores_is_right_at_any_width(tmp_path: Path) -> None:
    shapes = [dict.fromkeys("qkv", (2, 3, length, width)) for length, width in ((40, 64), (51, 48), (70, 61), (33, 80))]
    forward = "return F.scaled_dot_product_attention(q, k, v, is_causal=True)"
    searched, *others = (make_problem(tmp_path, forward, shape, dtype="float16") for shape in shapes)
    template, program = known(searched.spec, "cu")
    plain = template.starts(program, searched.spec, cuda_harness.A100)[-1].recipe
    source = template.emit(program, plain.with_({"structure": "tensor", "keys": 64, "vector": True}), searched.spec)
    kernels = cuda_harness.compile_all_emulated(tmp_path, [(other.spec, source) for other in others])
    for other, kernel in zip(others, kernels, strict=True):
        cuda_harness.check(other, cuda_harness.run(other, kernel, "cpu"))


def is_right_elsewhere(folder: Path, case: str, searched: Shape, shape: Shape, seed: int) -> bool:
    """Return whether the kernel builds, or False if it refuses ``shape``. Asserts that it is correct."""
    source, there = problem_at(folder, case, searched), problem_at(folder, case, shape)
    try:
        check(there, folder, emitted(source, seed), optimize="-O1")
    except AssertionError as error:
        if NOT_FOR_THIS_SIZE not in str(error).split("#include")[0]:
            raise
        return False
    return True


@pytest.mark.parametrize("case", [case for case in CASES if case != "mean_by_hand"])
def test_a_kernel_is_right_at_a_size_that_it_was_not_written_for(tmp_path: Path, case: str) -> None:
    rng = random.Random(case)
    kernels = []
    for kinds in rng.sample(MOVES, 3):
        source, there = (problem_at(tmp_path, case, shape) for shape in two_shapes(rng, kinds))
        kernels.append((there, emitted(source, rng.randrange(1000))))
    check_all(kernels, tmp_path, optimize="-O1")


@pytest.mark.parametrize("case", ["softmax", "rmsnorm", "gelu"])
def test_at_a_single_row_or_element_it_is_right_or_says_that_it_is_not_for_it(tmp_path: Path, case: str) -> None:
    assert is_right_elsewhere(tmp_path, case, (5, 70), (1, 1), 3)
    is_right_elsewhere(tmp_path, case, (1, 70), (5, 33), 4)


def test_a_number_that_may_be_a_size_holds_the_kernel_to_it(tmp_path: Path) -> None:
    """The trace of ``x.sum(-1) / x.shape[-1]`` says ``/ 70``."""
    assert is_right_elsewhere(tmp_path, "mean_by_hand", (5, 70), (3, 70), 1)
    assert not is_right_elsewhere(tmp_path, "mean_by_hand", (5, 70), (3, 71), 1)
