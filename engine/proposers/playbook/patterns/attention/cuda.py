"""The CUDA template for attention.

On Hopper it starts with wgmma and tensor maps. Elsewhere it starts with a warp per query, then uses shared memory and
tensor cores.
"""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.c_header import ctype
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cuda import Cuda
from engine.proposers.playbook.codegen.size_assertions import size_assertion
from engine.proposers.playbook.codegen.text import fill, launch
from engine.proposers.playbook.ir.sizes import Size, factor
from engine.proposers.playbook.ir.sizes import text as size_text
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
from engine.proposers.playbook.patterns.attention.program import AttentionProgram
from engine.proposers.playbook.patterns.gemm.tiles.cuda_file import launch_lines
from engine.proposers.playbook.patterns.gemm.tiles.cuda_finish import (
    conversions,
    dtypes_of,
    finish,
    helpers,
    pointers,
    tensors_struct,
)

_FILE = """\
#include <cuda_runtime.h>
#include <cstring>

namespace playbook {

using Element = $element;
constexpr int queries = $queries, keys = $keys, width = $width, values = $values, threads = $threads;
constexpr float scale = $scale;
$size_assertions
$conversions$helpers$tensors
__device__ __forceinline__ float exp_of(float a) { return $exponential; }
$finish
$kernel
}  // namespace playbook

"""
_FAST_EXP = "exp2f(1.4426950408889634f * a)"


class CudaAttention(Template):
    """Attention in CUDA C++ for fp32, fp16 and bf16 operands. Softmax and sums use fp32."""

    name = "attention_cu"
    pattern = "attention"
    language = "cu"

    def refusal(self, program: Program) -> str | None:
        attention = as_attention(program)
        if attention.batch * attention.rows >= 2**31 or max(attention.keys, attention.width) >= 2**30:
            return "its attention is too large for the kernels' index types"
        if attention.value_width > 1024:
            return f"its values have {attention.value_width} columns, and the kernels support at most 1024"
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
            "columns of the values. Everything is read from global memory."
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
                    "Every query reads all keys and values from global memory again. Let a block take 64 queries and "
                    "go through tiles of keys and values in shared memory. Scores and sums stay in registers, and a "
                    "running maximum (online softmax) joins the tiles.",
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
                    "the first product to the second in registers, because its results already have the layout of the "
                    "next operand.",
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
                    "Load 16 bytes of a row at a time where addresses allow it, which needs only a fraction of the "
                    "load instructions.",
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
                    "with log2(e) folded in. Errors stay near 1e-6.",
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
        dtypes = dtypes_of(spec)
        warps = plan.structure == "warps"
        batch, rows = factor(attention.batch), "playbook::queries"
        grid = (
            f"unsigned(({batch} * {rows} + {plan.queries - 1}) / {plan.queries})"
            if warps
            else f"unsigned({batch} * (({rows} + {plan.queries - 1}) / {plan.queries}))"
        )
        text = fill(
            _FILE,
            element=ctype(attention.dtype, "cu"),
            queries=size_text(attention.rows),
            keys=size_text(attention.keys),
            width=size_text(attention.width),
            values=size_text(attention.value_width),
            threads=f"{plan.threads}{f', batch = {batch}' if warps else ''}",
            scale=Cuda().number(attention.scale),
            size_assertions="\n".join([*attention.size_assertions, *_of_plan(attention, plan)]),
            conversions=conversions({attention.dtype, *(dtypes[name] for name in names)}),
            helpers=helpers([attention.chain]),
            tensors=tensors_struct(spec, names),
            exponential=_FAST_EXP if fast else "expf(a)",
            finish=finish(attention.chain, attention.value_width, fast),
            kernel=cuda_text.kernel(attention, plan),
        )
        return text + launch(spec, names, [
            f"const playbook::Tensors t{{{', '.join(names)}}};",
            *launch_lines("playbook::attention", grid, plan.threads, plan.shared_bytes),
            "return int(cudaGetLastError());",
        ])  # fmt: skip

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        changes: dict[str, Choice] = {"math": "precise"}
        if recipe.choices["structure"] in ("tensor", hopper.STRUCTURE):
            changes |= {"structure": "tiles", "keys": 32}
        exact = recipe.with_(changes)
        return exact if exact.choices != recipe.choices else None


def _of_plan(program: AttentionProgram, plan: Plan) -> list[str]:
    """Assert what the plan assumes about padded widths and vector loads."""
    widths = [(program.width, "queries and keys"), (program.value_width, "values")]
    lines = [
        size_assertion(f"{size_text(size)} == {int(size)}", f"{what} of {int(size)} elements") for size, what in widths
    ]
    for operand, many in zip((program.q, program.k, program.v), plan.vector, strict=True):
        for size in (operand.row_stride, operand.offset, *(step for _, step in operand.batch)):
            if many > 1 and isinstance(size, Size):
                lines.append(
                    size_assertion(f"{factor(size)} % {many} == 0", f"{size_text(size)} to be a multiple of {many}")
                )
    return list(dict.fromkeys(lines))


def plan_of(program: AttentionProgram, recipe: Recipe) -> Plan:
    return cuda_plan.resolve(program, recipe.choices)
