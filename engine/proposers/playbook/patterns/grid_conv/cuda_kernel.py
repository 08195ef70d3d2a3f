"""The CUDA kernel files of grid convolutions."""

from __future__ import annotations

from engine.problem.c_header import ctype
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import fixed_sizes
from engine.proposers.playbook.patterns.conv.cuda_octets import epilogue_function
from engine.proposers.playbook.patterns.gemm.tiles.cuda_finish import (
    conversions,
    dtypes_of,
    helpers,
    pointers,
    tensors_struct,
)
from engine.proposers.playbook.patterns.grid_conv.cuda_plan import GridPlan
from engine.proposers.playbook.patterns.grid_conv.program import GridConvProgram

_HEADERS = {"float16": "cuda_fp16.h", "bfloat16": "cuda_bf16.h"}


def grid_kernel(conv: GridConvProgram, plan: GridPlan, spec: ProblemSpec, fast: bool) -> str:
    """Return the source of a kernel on tensor cores."""
    return _rendered("grid_conv.cu.j2", conv, spec, fast, ("workspace", "stream"), plan=plan)


def direct_kernel(conv: GridConvProgram, spec: ProblemSpec, fast: bool) -> str:
    """Return the source of a kernel with a thread per output."""
    dtypes = dtypes_of(spec)
    used = {conv.dtype, *(dtypes[name] for name in pointers([conv.chain]))}
    headers = sorted(_HEADERS[dtype] for dtype in used if dtype in _HEADERS)
    return _rendered("grid_conv_direct.cu.j2", conv, spec, fast, ("stream",), headers=headers)


def _rendered(
    template: str, conv: GridConvProgram, spec: ProblemSpec, fast: bool, more: tuple[str, ...], **values: object
) -> str:
    names = pointers([conv.chain], conv.x, conv.w)
    dtypes = dtypes_of(spec)
    return render(
        template,
        conv=conv,
        element=ctype(conv.dtype, "cu"),
        size_assertions=fixed_sizes(tensor for tensor in spec.tensors if tensor.name in names),
        conversions=conversions({conv.dtype, *(dtypes[name] for name in names)}),
        helpers=helpers([conv.chain]),
        tensors=tensors_struct(spec, names),
        epilogue=epilogue_function(conv.chain, conv.plane, conv.filters, fast, "finish"),
        arguments=", ".join(names),
        launch=launch_signature(spec, "cu", frozenset((*names, *more))),
        **values,
    )
