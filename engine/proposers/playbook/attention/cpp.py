"""Attention in C++ as a template."""

from __future__ import annotations

import msgspec

from engine.events import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook import cpp_moves
from engine.proposers.playbook.attention.cpp_file import AttentionOptions, attention_kernel
from engine.proposers.playbook.attention.program import AttentionProgram
from engine.proposers.playbook.gemm import cpp_tile_moves
from engine.proposers.playbook.ir import Program
from engine.proposers.playbook.template import Choice, Choices, First, Move, Recipe, Template


class CppAttention(Template):
    """The attention family in C++ with OpenMP and GCC's vector extensions."""

    name = "attention_cpp"
    family = "attention"
    language = "cpp"

    def refusal(self, program: Program) -> str | None:
        dtype = as_attention(program).dtype
        return None if dtype == "float32" else f"it attends in {dtype} and its C++ templates are for float32"

    def first(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[First]:
        text = (
            "A query at a time: its score with each key, the softmax of all scores, then the weighted sum of "
            "values. Scalar and on one core, to be checked by reading."
        )
        return [First("rows", text, Recipe(self.name, choices_of(AttentionOptions())))]

    def moves(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Move]:
        now = options_of(recipe.choices)
        found = []
        if now.structure == "rows":
            found.append(
                Move(
                    "blocks_of_queries",
                    "compute",
                    "Every query reads all keys and values again, one number at a time. Take a block of queries and a "
                    "block of keys: scores and weighted sums become products of small matrices in tiles of vector "
                    "registers, and a running maximum with running sums (online softmax) joins the blocks of keys, so "
                    "that scores never leave the cache.",
                    {"structure": "blocks"},
                    ("row_tiles", "key_tiles"),
                    gain=8.0,
                    helps="compute",
                )
            )
        else:
            if now.math == "libm":
                found.append(
                    Move(
                        "polynomial_exponential",
                        "compute",
                        "The softmax calls the C library for every score. Evaluate a polynomial on whole vectors "
                        "instead (about 1e-7 relative error).",
                        {"math": "polynomial"},
                        (),
                        gain=1.8,
                        helps="compute",
                    )
                )
            elif now.exp_degree == 6:
                found.append(cpp_moves.shorter_polynomial())
            if now.rows <= 6:
                found.append(cpp_tile_moves.larger_tiles())
            if now.unroll == 1:
                found.append(cpp_tile_moves.unroll_depth())
            if now.row_tiles <= 4:
                found.append(
                    Move(
                        "more_queries",
                        "memory",
                        "Each block of queries copies and turns all keys and values again. Take more queries at a "
                        "time, as long as their sums stay in the second-level cache.",
                        {"row_tiles": 8},
                        ("row_tiles",),
                        gain=1.2,
                        helps="memory",
                    )
                )
        if not now.parallel and device.cores > 1:
            found.append(cpp_tile_moves.share_blocks(device.cores))
        knobs = self.knobs(program, recipe, device)
        return [*found, cpp_moves.tune(tuple(knobs))] if recipe.opened and len(knobs) > 1 else found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        now = options_of(recipe.choices)
        found: dict[str, tuple[Choice, ...]] = {"schedule": ("static", "dynamic")} if now.parallel else {}
        if now.structure == "blocks":
            found |= {
                "rows": (2, 4, 6, 8, 10, 12, 14),
                "vecs": (1, 2, 3, 4),
                "lanes": (8, 16),
                "row_tiles": (1, 2, 4, 6, 8, 12, 16),
                "key_tiles": (1, 2, 4, 6, 8),
                "unroll": (1, 2, 4, 8),
            }
        if now.math == "polynomial":
            found["exp_degree"] = (5, 6)
        return found

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return attention_kernel(as_attention(program), options_of(recipe.choices), spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        exact = recipe.with_({"math": "libm"})
        return exact if exact.choices != recipe.choices else None


def as_attention(program: Program) -> AttentionProgram:
    assert isinstance(program, AttentionProgram), "the attention templates take attention"
    return program


def options_of(choices: Choices) -> AttentionOptions:
    return msgspec.convert(choices, AttentionOptions)


def choices_of(options: AttentionOptions) -> Choices:
    choices: Choices = msgspec.to_builtins(options)
    return choices
