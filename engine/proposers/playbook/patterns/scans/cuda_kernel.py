"""The CUDA kernel file for a scan."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analysis.epilogue import ACC, is_acc
from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.codegen.cuda import Cuda, flat_index
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.ir.program import PointwiseProgram
from engine.proposers.playbook.ir.sizes import text
from engine.proposers.playbook.patterns.scans.program import ScanProgram, scan_assertions


def scan_kernel(program: ScanProgram, choices: Choices, spec: ProblemSpec) -> str:
    """Return the kernel source."""
    before, elements = _statements(program.before)
    after, results = _statements(program.chain)
    loads = {one.tensor for part in (program.before, program.chain) for one in part.values if one.op == "load"}
    written = [store.tensor for store in program.chain.stores]
    tensors = [tensor for tensor in spec.tensors if tensor.name in {*loads, *written} - {ACC}]
    return render(
        "scans.cu.j2",
        program=program,
        outer=text(program.outer),
        length=text(program.length),
        inner=text(program.inner),
        threads=choices["threads"],
        items=choices["items"],
        size_assertions=scan_assertions(program, spec),
        tensors=[
            {
                "name": one.name,
                "type": f"{'' if one.name in written else 'const '}{'bool' if one.dtype == 'bool' else 'float'}*",
            }
            for one in tensors
        ],
        before=before,
        element=elements[ACC],
        after=after,
        results=results,
        arguments=", ".join(tensor.name for tensor in tensors),
        launch=launch_signature(spec, "cu", {*(tensor.name for tensor in tensors), "stream"}),
    )


def _statements(part: PointwiseProgram) -> tuple[list[str], dict[str, str]]:
    """Return the statements of ``part`` for element ``i``, and the expression that ``part`` stores to each tensor."""
    cuda, leaves = Cuda(), {}
    for k in part.order:
        value = part.values[k]
        if value.op == "load":
            index = "0" if value.access.count == 1 else flat_index(value.access, "(long long)(i)", part.numel)
            leaves[k] = "scanned" if is_acc(value) else f"float(t.{value.tensor}[{index}])"
    lines, texts = cuda.statements(part.values, [store.value for store in part.stores], leaves)
    return lines, {store.tensor: texts[store.value] for store in part.stores}
