"""The whole kernel file for attention with wgmma, and the tensor maps of the operands."""

from __future__ import annotations

from engine.problem.c_header import ctype
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.ir.sizes import Size, factor, text
from engine.proposers.playbook.patterns.attention import cuda_plan
from engine.proposers.playbook.patterns.attention.cuda_text import body, launching, scale_of
from engine.proposers.playbook.patterns.attention.hopper import PRODUCER_REGISTERS, Plan, resolve, stepped
from engine.proposers.playbook.patterns.attention.program import AttentionProgram
from engine.proposers.playbook.patterns.gemm.program import Operand
from engine.proposers.playbook.patterns.gemm.tiles.cuda_finish import (
    conversions,
    dtypes_of,
    finish,
    helpers,
    pointers,
    tensors_struct,
)

_SLACK = {"float16": 8, "bfloat16": 0}
"""Largest exponent (base 2) that a weight may have before the kernel rescales the row, by dtype. fp16 represents
powers of two up to 2^15.

If the largest exponent is 0, a row's largest weight is 1, which is exact. In a simulation with 1024 keys in bf16, the
largest error is 7.4e-3 for an exponent of 0. For an exponent of 8, the largest error is 9.1e-3, too close to the
tolerance of 1e-2.
"""
_FALLBACK: Choices = {"structure": "tensor", "threads": 128, "queries": 64, "keys": 64, "vector": True}


def kernel(program: AttentionProgram, choices: Choices, spec: ProblemSpec) -> str:
    """Return the kernel source."""
    plan, half = resolve(program, choices), program.dtype == "float16"
    names = pointers([program.chain], program.q.tensor, program.k.tensor, program.v.tensor)
    # For wider rows, or sizes that tensor maps cannot describe, another structure in the same file takes over.
    other = cuda_plan.resolve(program, {**choices, **_FALLBACK})
    operands = {"q": program.q, "k": program.k, "v": program.v}
    return render(
        "hopper/attention.cu.j2",
        element=ctype(program.dtype, "cu"),
        type="f16" if half else "bf16",
        pair_type="__half2" if half else "__nv_bfloat162",
        make_pair="__floats2half2_rn" if half else "__floats2bfloat162_rn",
        map_type=f"CU_TENSOR_MAP_DATA_TYPE_{'FLOAT16' if half else 'BFLOAT16'}",
        queries=text(program.rows),
        keys=text(program.keys),
        width=text(program.width),
        values=text(program.value_width),
        batch=text(program.batch),
        scale=scale_of(program),
        causal=program.causal,
        size_assertions=program.size_assertions,
        fits=_fits(program, plan),
        fallback=body(program, other, spec, fast=True, space="elsewhere"),
        fallback_launch=launching(program, other, names, "elsewhere"),
        tensors=tensors_struct(spec, names),
        finish=_finish(program, plan, choices, spec),
        groups=plan.groups,
        tile_keys=plan.tile_keys,
        stages=plan.stages,
        width_padded=plan.width,
        values_padded=plan.values,
        query_slots=plan.query_slots,
        staged=plan.staged,
        turns=plan.turns,
        sms=plan.sms,
        registers=plan.registers,
        producer_registers=PRODUCER_REGISTERS,
        slack=_SLACK[program.dtype],
        output=program.chain.stores[0].tensor,
        ranks=sorted({2 + len(stepped(operand)) for operand in operands.values()}),
        coordinates={name: _coordinates(operand) for name, operand in operands.items()},
        maps={
            "q": _map(program.q, "width", "queries", "64"),
            "k": _map(program.k, "width", "keys", "tile_keys"),
            "v": _map(program.v, "values", "keys", "tile_keys"),
        },
        arguments=", ".join(names),
        launch=launch_signature(spec, "cu", frozenset((*names, "stream"))),
    )


def _finish(program: AttentionProgram, plan: Plan, choices: Choices, spec: ProblemSpec) -> str:
    """Return the epilogue with its helpers, or "" if the kernel has no epilogue."""
    if plan.staged:
        return ""
    dtypes = dtypes_of(spec)
    used = {dtypes[name] for name in pointers([program.chain])}
    body = finish(program.chain, program.value_width, choices["math"] == "fast")
    return conversions({*used, program.dtype}) + helpers([program.chain]) + body


def _fits(program: AttentionProgram, plan: Plan) -> str:
    """Return a C expression that is true if tensor maps can describe the operands and the rows fit the plan's
    widths. The copies through tensor maps pad narrow rows.
    """
    parts = [f"width <= {plan.width}", f"values <= {plan.values}", "width % 8 == 0", "values % 8 == 0"]
    for operand in (program.q, program.k, program.v):
        for size in (operand.row_stride, operand.offset, *(step for _, step in operand.batch)):
            if isinstance(size, Size):
                parts.append(f"{factor(size)} % 8 == 0")
    return " && ".join(dict.fromkeys(parts))


def _coordinates(operand: Operand) -> list[str]:
    """Return C expressions for the coordinates of matrix ``b`` that follow column and row in the tensor map."""
    found: list[str] = []
    inner = 1
    for place, (size, step) in reversed(list(enumerate(operand.batch))):
        part = "b" if inner == 1 else f"b / int({text(inner)})"
        if any(outer != 1 for outer, _ in operand.batch[:place]):
            part = f"{part} % int({text(size)})"
        if step and size != 1:
            found.append(part)
        inner = inner * size
    return found


def _map(operand: Operand, width: str, rows: str, box_rows: str) -> dict[str, object]:
    """Return the tensor map of an operand, in boxes of 64 columns. Strides are in elements."""
    batch = list(reversed(stepped(operand)))
    return {
        "tensor": f"{operand.tensor} + {text(operand.offset)}" if operand.offset else operand.tensor,
        "sizes": [width, rows, *(text(size) for size, _ in batch)],
        "strides": [factor(step) for step in (operand.row_stride, *(step for _, step in batch))],
        "box": ["64", box_rows, *("1" for _ in batch)],
    }
