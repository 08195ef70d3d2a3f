"""Each kernel template compiles for a representative plan, with the real compilers."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

import pytest

from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.ir.program import RowProgram
from engine.proposers.playbook.patterns.rows.cuda_plan import resolve
from tests.engine.proposers.playbook.cpp_harness import Problem, build_all, make_problem
from tests.engine.proposers.playbook.cuda_harness import H200, machine_code
from tests.engine.proposers.playbook.wandering import CPU, known

TEMPLATES = resources.files("engine.proposers.playbook") / "templates"
WIDE: Choices = {"lanes": 16, "math": "polynomial", "unroll": 2, "prefetch": 512, "stores": "stream"}
VECTORS: Choices = {"width": 4, "fused": True, "merge": "shuffle", "math": "fast", "read": "stream", "store": "stream"}
ROWS: dict[str, list[Choices]] = {
    "rows.cpp.j2": [
        {"order": "passes"},
        {**WIDE, "parallel": "rows", "reuse": "buffer", "accumulators": 4, "backward": True, "block": 512},
        {**WIDE, "parallel": "columns", "fused": True, "block": 512},
    ],
    "rows_loop.cu.j2": [{}, {**VECTORS, "unroll": 2}],
    "rows_registers.cu.j2": [
        {**VECTORS, "structure": "registers", "cluster": cluster, "threads": 128} for cluster in (0, 1, 4)
    ],
    "rows_split.cu.j2": [{**VECTORS, "structure": "split", "rows_per_block": 3}],
    "rows_ring.cu.j2": [
        {**VECTORS, "structure": "ring", "cluster": 2, "slot_kb": 2},
        {**VECTORS, "structure": "ring", "cluster": 0, "slot_kb": 4, "keep": 1},
    ],
    "rows_block.cu.j2": [{**VECTORS, "structure": "block", "threads": 128, "unroll": 2}],
    "rows_halves.cu.j2": [{**VECTORS, "structure": "halves", "threads": 256}],
}
POINTWISE: dict[str, list[Choices]] = {
    "pointwise.cpp.j2": [{}, {**WIDE, "parallel": True}],
    "pointwise.cu.j2": [{}, {**VECTORS, "unroll": 2, "persistent": True}],
}


def problems(folder: Path) -> tuple[Problem, Problem]:
    """Return a row program with moments and weights, and a pointwise chain with a broadcast."""
    rows = make_problem(folder, "return self.n(x)", {"x": (6, 2052)}, "self.n = nn.LayerNorm(2052)")
    return rows, make_problem(folder, "return F.silu(x / 3) * y", {"x": (5, 3333), "y": (3333,)})


def sources(folder: Path, language: str) -> list[tuple[str, Problem, str]]:
    """Return (template and plan, problem, source) for each template of a language."""
    found = []
    for problem, plans in zip(problems(folder), (ROWS, POINTWISE), strict=True):
        template, program = known(problem.spec, "cu" if language == "cu" else "cpp")
        start = template.starts(program, problem.spec, H200 if language == "cu" else CPU)[-1].recipe
        for name, choices in plans.items():
            for changes in choices if name.endswith(f".{language}.j2") else ():
                recipe = start.with_({key: value for key, value in changes.items() if key in start.choices})
                if language == "cu" and isinstance(program, RowProgram):
                    assert f"rows_{resolve(program, recipe.choices).structure}.cu.j2" == name
                found.append((f"{name} {changes}", problem, template.emit(program, recipe, problem.spec)))
    return found


def test_every_template_has_a_plan_here() -> None:
    kernels = {each.name for each in TEMPLATES.glob("*.j2") if not each.name.startswith("_")}
    extended = {"rows.cu.j2"}
    elsewhere = {"conv_octets.cu.j2"}  # in test_cuda_octets
    elsewhere |= {"reductions.cpp.j2", "reductions.cu.j2"}  # in test_reductions
    elsewhere |= {"pooling.cpp.j2", "pooling.cu.j2"}  # in test_pooling
    elsewhere |= {"attention_decode.cu.j2"}  # in test_cuda_decode
    elsewhere |= {"copies.cpp.j2", "copies.cu.j2", "groups.j2"}  # in test_groups
    elsewhere |= {"scans.cpp.j2", "scans.cu.j2"}  # in test_scans
    elsewhere |= {"conv_channels.cu.j2"}  # in test_cuda_channels
    elsewhere |= {"matvec.cu.j2"}  # in test_cuda_vector
    elsewhere |= {"grid_conv.cpp.j2", "grid_conv.cu.j2", "grid_conv_direct.cu.j2"}  # in test_grid_conv
    assert kernels - extended - elsewhere == {*ROWS, *POINTWISE}


def test_every_part_is_included_by_a_template() -> None:
    templates = {each.relative_to(TEMPLATES).as_posix(): each for each in TEMPLATES.rglob("*.j2")}
    texts = "".join(each.read_text() for each in templates.values())
    rendered = {"_math.cpp.j2", "_usual_scale.cu.j2"}
    parts = {name for name, each in templates.items() if each.name.startswith("_")}
    assert {part for part in parts if f'"{part}"' not in texts} == rendered


def test_templates_of_cpp_compile(tmp_path: Path) -> None:
    kernels = sources(tmp_path, "cpp")
    assert len(build_all(tmp_path, [(problem.spec, source) for _, problem, source in kernels], optimize="-O1")) == 5


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_templates_of_cuda_compile(tmp_path: Path) -> None:
    kernels = [(name, problem.spec, source) for name, problem, source in sources(tmp_path, "cu")]
    code = machine_code(tmp_path, kernels, H200.arch).read_bytes()
    assert all(f"kernel_{number}".encode() in code for number in range(len(kernels)))
