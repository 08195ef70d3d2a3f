"""The CUDA kernel file of a tensor-core convolution that builds its image operand in shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from engine.problem.c_header import ctype
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analysis.epilogue import ACC, is_acc
from engine.proposers.playbook.codegen.cuda import Cuda, flat_index
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import fixed_sizes
from engine.proposers.playbook.ir.program import Access, PointwiseProgram
from engine.proposers.playbook.patterns.conv.cuda_octets_plan import OctetPlan
from engine.proposers.playbook.patterns.conv.cuda_text import LOWEST
from engine.proposers.playbook.patterns.conv.program import ConvProgram
from engine.proposers.playbook.patterns.gemm.tiles.cuda_finish import (
    conversions,
    dtypes_of,
    helpers,
    pointers,
    tensors_struct,
)


def octets_kernel(conv: ConvProgram, plan: OctetPlan, spec: ProblemSpec, fast: bool) -> str:
    """Return the kernel source."""
    chains = [conv.chain, *([conv.before] if conv.before is not None else [])]
    names = pointers(chains, conv.x, conv.w)
    dtypes = dtypes_of(spec)
    output = conv.chain.stores[0]
    chain = conv.chain
    if dtypes[output.tensor] != "float32":
        plan = replace(plan, vector_stores=False)
    elif plan.vector_stores:
        chain = replace(chain, stores=(replace(output, tensor=ACC),))
    name = "finished" if plan.vector_stores else "finish"
    epilogues = [epilogue_function(chain, conv.columns, conv.filters, fast, name)]
    if conv.before is not None:
        epilogues += [epilogue_function(conv.before, conv.n, conv.filters, fast, "before")]
    return render(
        "conv_octets.cu.j2",
        conv=conv,
        plan=plan,
        pool=conv.pool,
        channels=conv.channels // conv.groups,
        element=ctype(conv.dtype, "cu"),
        size_assertions=fixed_sizes(tensor for tensor in spec.tensors if tensor.name in names),
        conversions=conversions({conv.dtype, *(dtypes[name] for name in names)}),
        helpers=helpers(chains, always=conv.pool is not None),
        tensors=tensors_struct(spec, names),
        epilogues=epilogues,
        lowest=LOWEST,
        output=output.tensor,
        arguments=", ".join(names),
        launch=launch_signature(spec, "cu", frozenset((*names, "workspace", "stream"))),
    )


def epilogue_function(chain: PointwiseProgram, plane: int, filters: int, fast: bool, name: str) -> dict[str, object]:
    """Return the function ``name``: the epilogue of output ``i``, which is element ``n`` of a plane of channel ``c``.

    If ``chain`` stores to ``ACC``, the function returns the value instead.
    """

    def index(access: Access) -> str:
        known = {(1, 1): "0", (1, plane): "n", (plane, filters): "c", (1, plane * filters): f"c * {plane} + n"}
        if access.count == 1:
            return "0"
        return known.get((access.inner, access.count)) or flat_index(access, "i", chain.numel)

    loads = [k for k in chain.order if chain.values[k].op == "load"]
    leaves = {
        k: "acc" if is_acc(value) else f"to_float(__ldg(t.{value.tensor} + {index(value.access)}))"
        for k, value in ((k, chain.values[k]) for k in loads)
    }
    lines, texts = Cuda(fast=fast).statements(chain.values, [store.value for store in chain.stores], leaves)
    stores: Sequence[str] = [
        f"return {texts[store.value]};" if store.tensor == ACC else f"put(t.{store.tensor} + i, {texts[store.value]});"
        for store in chain.stores
    ]
    result = "float" if any(store.tensor == ACC for store in chain.stores) else "void"
    return {"name": name, "result": result, "lines": [*lines, *stores]}
