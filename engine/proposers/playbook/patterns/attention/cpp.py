"""The C++ template for attention. The template starts with one query at a time, then uses blocks with tiles in vector
registers.
"""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cpp_options import choices_of, options_of
from engine.proposers.playbook.patterns.attention.cpp_file import AttentionOptions, attention_kernel
from engine.proposers.playbook.patterns.attention.program import AttentionProgram
from engine.proposers.playbook.patterns.gemm.tiles import cpp_transformations as tile_transformations
from engine.proposers.playbook.transformations import cpp as shared


class CppAttention(Template):
    """Attention in C++ with OpenMP and GCC's vector extensions."""

    name = "attention_cpp"
    pattern = "attention"
    language = "cpp"

    def refusal(self, program: Program) -> str | None:
        dtype = as_attention(program).dtype
        return (
            None if dtype == "float32" else f"the model's attention is in {dtype}, but C++ kernels support only float32"
        )

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        text = (
            "Process one query at a time: compute a score for each key, take the softmax of all scores, then sum the "
            "weighted values. The code is scalar, runs on one core, and is easy to check by reading."
        )
        return [Start("rows", text, Recipe(self.name, choices_of(AttentionOptions())))]

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        now = options_of(AttentionOptions, recipe.choices)
        found = []
        if now.structure == "rows":
            found.append(
                Transformation(
                    "blocks_of_queries",
                    "compute",
                    "Every query reads all keys and values again, one number at a time. Process one block of queries "
                    "and one block of keys at a time. Scores and weighted sums then become products of small matrices "
                    "in tiles of vector registers. A running maximum and running sums (online softmax) combine the "
                    "blocks of keys, and scores never leave the cache.",
                    {"structure": "blocks", "lanes": shared.usual_lanes(device)},
                    ("row_tiles", "key_tiles"),
                    gain=8.0,
                    helps="compute",
                )
            )
        else:
            if now.math == "libm":
                found.append(
                    Transformation(
                        "polynomial_exponential",
                        "compute",
                        "The softmax calls the C library for every score. Evaluate a polynomial on whole vectors "
                        "instead (relative error about 1e-7).",
                        {"math": "polynomial"},
                        (),
                        gain=1.8,
                        helps="compute",
                    )
                )
            elif now.exp_degree == 6:
                found.append(shared.shorter_polynomial())
            if now.rows <= 6 and shared.has_avx512(device):
                found.append(tile_transformations.larger_tiles())
            if now.unroll == 1:
                found.append(tile_transformations.unroll_depth())
            if now.row_tiles <= 4:
                found.append(
                    Transformation(
                        "more_queries",
                        "memory",
                        "Each block of queries copies and transposes all keys and values again. Process more queries "
                        "at a time, as long as the queries' accumulators fit in the L2 cache.",
                        {"row_tiles": 8},
                        ("row_tiles",),
                        gain=1.2,
                        helps="memory",
                    )
                )
        if not now.parallel and device.cores > 1:
            found.append(tile_transformations.share_blocks(device.cores))
        knobs = self.knobs(program, recipe, device)
        return [*found, shared.tune(tuple(knobs))] if recipe.opened and len(knobs) > 1 else found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        now = options_of(AttentionOptions, recipe.choices)
        found: dict[str, tuple[Choice, ...]] = {"schedule": ("static", "dynamic")} if now.parallel else {}
        if now.structure == "blocks":
            found |= {
                "rows": (2, 4, 6, 8, 10, 12, 14),
                "vecs": (1, 2, 3, 4),
                "lanes": shared.lanes_knob(device),
                "row_tiles": (1, 2, 4, 6, 8, 12, 16),
                "key_tiles": (1, 2, 4, 6, 8),
                "unroll": (1, 2, 4, 8),
            }
        if now.math == "polynomial":
            found["exp_degree"] = (5, 6)
        return found

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return attention_kernel(as_attention(program), options_of(AttentionOptions, recipe.choices), spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        exact = recipe.with_({"math": "libm"})
        return exact if exact.choices != recipe.choices else None


def as_attention(program: Program) -> AttentionProgram:
    assert isinstance(program, AttentionProgram), "the attention templates support only attention programs"
    return program
