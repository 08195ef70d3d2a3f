"""Attention in C++: every kernel within reach of a search matches the reference, on any shape, causal or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from engine.proposers.playbook.base import Unsupported
from engine.proposers.playbook.patterns.attention.program import AttentionProgram, recognize_attention
from tests.engine.proposers.playbook.cpp_harness import Problem, check, check_all, make_problem
from tests.engine.proposers.playbook.wandering import CPU, known, ladder, wander

GENERATE = (Phase.explicit, Phase.generate)  # each step of shrinking a failure would need a compiler run
MASKED = """\
scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
mask = torch.triu(torch.ones({l}, {s}, dtype=torch.bool), diagonal=1)
return torch.relu(F.softmax(scores.masked_fill(mask, float('-inf')), dim=-1) @ v)"""
TRIANGLE = """\
scores = (q * 0.2) @ k.transpose(-2, -1)
scores = scores.masked_fill(torch.tril(torch.ones({l}, {s})) == 0, float('-inf'))
return torch.softmax(scores, -1) @ v"""
HEADS = """\
q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
return F.scaled_dot_product_attention(q, k, v) + 1"""
# name: forward, whether heads come after the length
ATTENTION: dict[str, tuple[str, bool]] = {
    "operator": ("return F.scaled_dot_product_attention(q, k, v, scale=0.3)", False),
    "causal": ("return F.scaled_dot_product_attention(q, k, v, is_causal=True)", False),
    "primitives": ("return torch.softmax(q @ k.transpose(-2, -1) * 0.3, dim=-1) @ v * 2", False),
    "masked": (MASKED, False),
    "triangle": (TRIANGLE, False),
    "heads": (HEADS, True),
}
sizes = st.fixed_dictionaries(
    {"b": st.integers(1, 2), "h": st.integers(1, 3), "l": st.integers(1, 80), "s": st.integers(1, 90),
     "d": st.integers(1, 70), "e": st.integers(1, 70)}
)  # fmt: skip


def shaped(case: str, size: dict[str, int]) -> tuple[str, dict[str, tuple[int, ...]], str]:
    forward, behind = ATTENTION[case]
    shapes = {}
    for name, (length, width) in {"q": "ld", "k": "sd", "v": "se"}.items():
        between = (size[length], size["h"]) if behind else (size["h"], size[length])
        shapes[name] = (size["b"], *between, size[width])
    return forward.format(**size), shapes, ""


@pytest.mark.parametrize("case", ATTENTION)
def test_whatever_a_search_reaches_is_right(tmp_path: Path, case: str) -> None:
    found: list[tuple[Problem, str]] = []

    @settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=GENERATE)
    @given(size=sizes, seed=st.integers(0, 2**16))
    def search(size: dict[str, int], seed: int) -> None:
        problem = make_problem(tmp_path, *shaped(case, size))
        template, program = known(problem.spec)
        assert isinstance(program, AttentionProgram)
        assert program.causal == (case in ("causal", "masked", "triangle"))
        recipe = wander(template, program, problem.spec, seed)
        found.append((problem, template.emit(program, recipe, problem.spec)))

    search()
    check_all(found, tmp_path, optimize="-O1")


def test_every_transformation_changes_the_kernel_and_the_last_is_right(tmp_path: Path) -> None:
    size = {"b": 2, "h": 2, "l": 61, "s": 75, "d": 48, "e": 50}
    problem = make_problem(tmp_path, *shaped("causal", size))
    template, program = known(problem.spec)
    steps = ladder(template, program, problem.spec, CPU)
    assert len({template.emit(program, recipe, problem.spec) for recipe in steps}) > 20
    final = steps[-1].with_({"rows": 8, "vecs": 2, "key_tiles": 2, "math": "polynomial", "row_tiles": 2})
    check(problem, tmp_path, template.emit(program, final, problem.spec))


QKV = dict.fromkeys(("q", "k", "v"), (2, 8, 8))


@pytest.mark.parametrize(
    ("forward", "shapes", "reason"),
    [
        (
            "return F.scaled_dot_product_attention(q, k, v, attn_mask=m)",
            {**QKV, "m": (8, 8)},
            "mask tensor|applies add",
        ),
        ("return torch.softmax(q @ k.transpose(-2, -1) + m, -1) @ v", {**QKV, "m": (8, 8)}, "applies add"),
        ("return torch.softmax(q @ k.transpose(-2, -1), 1) @ v", QKV, "does not run over the keys"),
        ("return F.scaled_dot_product_attention(torch.relu(q), k, v)", QKV, "the model computes a query, key or value"),
    ],
)
def test_what_the_templates_lack_is_said(
    tmp_path: Path, forward: str, shapes: dict[str, tuple[int, ...]], reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason):
        recognize_attention(make_problem(tmp_path, forward, shapes).spec)
