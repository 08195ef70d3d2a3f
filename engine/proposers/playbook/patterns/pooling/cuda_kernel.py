"""The CUDA kernel file for a pooling program."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analysis.epilogue import is_acc, tensors_of
from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.codegen.cuda import Cuda, flat_index, pointer_types
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.ir.sizes import text
from engine.proposers.playbook.patterns.pooling.program import PoolProgram, pool_assertions


def pool_kernel(program: PoolProgram, choices: Choices, spec: ProblemSpec) -> str:
    """Return the kernel source."""
    chain, cuda = program.chain, Cuda()
    leaves = {}
    for k in chain.order:
        value = chain.values[k]
        if value.op == "load":
            index = "0" if value.access.count == 1 else flat_index(value.access, "(long long)(i)", chain.numel)
            leaves[k] = "pooled" if is_acc(value) else f"t.{value.tensor}[{index}]"
    statements, texts = cuda.statements(chain.values, [store.value for store in chain.stores], leaves)
    used = {program.x, *tensors_of(chain)}
    tensors = [tensor.name for tensor in spec.tensors if tensor.name in used]
    return render(
        "pooling.cu.j2",
        program=program,
        planes=text(program.planes),
        image=[text(size) for size in program.image],
        threads=choices["threads"],
        rows=choices["rows"],
        size_assertions=pool_assertions(program, spec),
        tensors=pointer_types(tensors, spec),
        statements=statements,
        results=[(store.tensor, texts[store.value]) for store in chain.stores],
        arguments=", ".join(tensors),
        launch=launch_signature(spec, "cu", {*tensors, "stream"}),
    )
