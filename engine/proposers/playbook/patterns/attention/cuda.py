"""The CUDA template for attention.

For few queries and many keys, the template starts with the structure of ``decode``. Otherwise, it starts with wgmma and
tensor maps on Hopper. Elsewhere, it starts with a warp per query, then uses shared memory and tensor cores.
"""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.text import launch
from engine.proposers.playbook.patterns.attention import (
    cuda_plan,
    cuda_text,
    decode,
    hopper,
    hopper_file,
    hopper_transformations,
)
from engine.proposers.playbook.patterns.attention.cpp import as_attention
from engine.proposers.playbook.patterns.attention.cuda_plan import Plan
from engine.proposers.playbook.patterns.attention.program import AttentionProgram, is_wide
from engine.proposers.playbook.patterns.gemm.tiles.cuda_finish import pointers


class CudaAttention(Template):
    """Attention in CUDA C++ for fp32, fp16 and bf16 operands. The softmax and the accumulators use fp32."""

    name = "attention_cu"
    pattern = "attention"
    language = "cu"

    def refusal(self, program: Program) -> str | None:
        attention = as_attention(program)
        if attention.batch * attention.rows >= 2**31 or max(attention.keys, attention.width) >= 2**30:
            return "the attention is too large for the kernels' index types"
        if attention.value_width > 1024:
            return f"the values have {attention.value_width} columns, and the kernels support at most 1024"
        wide = is_wide(attention.dtype, attention.rows, attention.width, attention.value_width)
        if wide and not attention.causal:
            return "separate matrix products are faster for wide heads"
        return None

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        attention = as_attention(program)
        found = []
        if decode.refusal(attention) is None:
            found.append(Start("keys_split", decode.IDEA, decode.recipe(self.name, attention, device)))
        elif hopper.refusal(attention, device.arch) is None:
            found.append(Start("wgmma", hopper_transformations.IDEA, hopper.recipe(self.name, attention, device)))
        text = (
            "Give each query a warp and a running maximum: each lane scores one of 32 keys, then the lanes share the "
            "columns of the values. The kernel reads all operands from global memory."
        )
        return [*found, Start("warps", text, Recipe(self.name, cuda_plan.plain(device)))]

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        attention, now = as_attention(program), recipe.choices
        if now["structure"] == hopper.STRUCTURE:
            return hopper_transformations.transformations(attention, now)
        if now["structure"] == decode.STRUCTURE:
            return decode.transformations(now)
        plan, arch = plan_of(attention, recipe), int(now["arch"])
        found = []
        if plan.structure == "warps":
            found.append(
                Transformation(
                    "query_tiles",
                    "memory",
                    "Every query reads all keys and values from global memory again. Let a block process 64 queries "
                    "with tiles of keys and values in shared memory. Scores and accumulators stay in registers, and a "
                    "running maximum (online softmax) combines the tiles.",
                    {"structure": "tiles"},
                    ("queries", "keys"),
                    gain=4.0,
                    helps="memory",
                )
            )
        if plan.structure != "tensor" and attention.element_bytes == 2 and arch >= 80:
            found.append(
                Transformation(
                    "tensor_cores",
                    "compute",
                    "Compute both products on tensor cores (mma.m16n8k16), 16 queries per warp. The weights go from "
                    "the first product to the second in registers, because the first product's results already have "
                    "the layout of the next operand.",
                    {"structure": "tensor", "keys": 64},
                    ("keys", "threads"),
                    gain=8.0,
                    helps="compute",
                )
            )
        if plan.structure != "warps" and not now["vector"]:
            found.append(
                Transformation(
                    "vector_loads",
                    "memory",
                    "Where addresses allow it, load 16 bytes of a row at a time. The kernel then needs far fewer load "
                    "instructions.",
                    {"vector": True},
                    (),
                    gain=1.2,
                    helps="memory",
                )
            )
        if now["math"] != "fast":
            found.append(
                Transformation(
                    "fast_exponential",
                    "compute",
                    "The softmax computes an exponential for every score. Use the special-function unit: one exp2 "
                    "with log2(e) folded in. The error stays near 1e-6.",
                    {"math": "fast"},
                    (),
                    gain=1.1,
                    helps="compute",
                )
            )
        if plan.structure == "tiles" and plan.rows <= 8:
            found.append(
                Transformation(
                    "larger_tiles",
                    "compute",
                    "Give a thread more rows of scores, so that each key or value that it reads serves more queries.",
                    {"queries": plan.queries * 2},
                    ("queries", "keys", "threads"),
                    gain=1.15,
                    helps="compute",
                )
            )
        return found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        if recipe.choices["structure"] == hopper.STRUCTURE:
            return hopper_transformations.KNOBS
        if recipe.choices["structure"] == decode.STRUCTURE:
            return decode.KNOBS
        structure = plan_of(as_attention(program), recipe).structure
        if structure == "warps":
            return {"threads": (32, 64, 128, 256)}
        if structure == "tensor":
            return {"keys": (16, 32, 64, 128), "threads": (32, 64, 128, 256)}
        return {"queries": (16, 32, 64, 128), "keys": (16, 32, 64), "threads": (64, 128, 256)}

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        attention, fast = as_attention(program), recipe.choices["math"] == "fast"
        if recipe.choices["structure"] == hopper.STRUCTURE:
            return hopper_file.kernel(attention, recipe.choices, spec)
        if recipe.choices["structure"] == decode.STRUCTURE:
            return decode.kernel(attention, recipe.choices, spec)
        plan = plan_of(attention, recipe)
        names = pointers([attention.chain], attention.q.tensor, attention.k.tensor, attention.v.tensor)
        text = "#include <cuda_runtime.h>\n#include <cstring>\n\n" + cuda_text.body(attention, plan, spec, fast=fast)
        return text + launch(spec, names, cuda_text.launching(attention, plan, names))

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        changes: dict[str, Choice] = {"math": "precise"}
        if recipe.choices["structure"] in ("tensor", hopper.STRUCTURE):
            changes |= {"structure": "tiles", "keys": 32}
        exact = recipe.with_(changes)
        return exact if exact.choices != recipe.choices else None


def plan_of(program: AttentionProgram, recipe: Recipe) -> Plan:
    return cuda_plan.resolve(program, recipe.choices)
