"""The C++ kernel file for a pointwise program, with a loop over all elements or over blocks that threads share."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.codegen.cpp import Cpp
from engine.proposers.playbook.codegen.cpp_math import math_functions, needs_no_errno
from engine.proposers.playbook.codegen.cpp_options import ElementwiseOptions
from engine.proposers.playbook.codegen.dialect import Namer
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import program_assertions
from engine.proposers.playbook.ir.program import PointwiseProgram, needed
from engine.proposers.playbook.ir.sizes import text


class PointwiseOptions(ElementwiseOptions, frozen=True):
    """The choices for a pointwise kernel. ``block`` is the number of elements per work item if threads share the
    elements.
    """

    parallel: bool = False
    block: int = 16384


def pointwise_kernel(program: PointwiseProgram, options: PointwiseOptions, spec: ProblemSpec) -> str:
    """Return the kernel source: helpers, the function ``chain`` over a range of elements, and ``launch``."""
    values, order, wide = program.values, program.order, options.lanes > 1
    loads = [k for k in order if values[k].op == "load"]
    stored = {store.tensor for store in program.stores}
    used = stored | {values[k].tensor for k in loads}
    tensors = [tensor.name for tensor in spec.tensors if tensor.name in used]
    ops = {values[k].op for k in order}
    whole = dict.fromkeys(values[k].tensor for k in loads if values[k].access.count == program.numel)
    polynomials = options.math == "polynomial"
    return render(
        "pointwise.cpp.j2",
        title=f"Pointwise kernel for {spec.name}, tuned for {program.numel} elements.",
        no_errno=needs_no_errno(ops),
        elements=text(program.numel),
        size_assertions=program_assertions(program, order, spec),
        wide=wide,
        lanes=options.lanes,
        unroll=options.unroll,
        parallel=options.parallel,
        block=options.block,
        schedule=options.schedule,
        streaming=wide and options.stores == "stream",
        prefetch=options.prefetch,
        prefetched=list(whole) if options.prefetch else [],
        parameters=[
            *(("float*" if name in stored else "const float*", name) for name in tensors),
            *(("long long", name) for name in ("begin", "end")),
        ],
        statements=_statements(program, loads, Cpp(wide=wide, streaming=options.stores == "stream"), tensors),
        tensors=", ".join(tensors),
        launch=launch_signature(spec, "cpp", set(tensors)),
        math=math_functions(ops, wide=wide, polynomials=polynomials, degree=options.exp_degree),
    )


def _statements(program: PointwiseProgram, loads: list[int], cpp: Cpp, tensors: list[str]) -> list[str]:
    """Return statements that compute and store element ``i``, or a vector of elements that starts at ``i``."""
    values = program.values
    leaves = {k: cpp.load(values[k].tensor, values[k].access, "i", program.numel) for k in loads}
    namer = Namer(["i", "begin", "end", "width", "step", *tensors])
    lines, texts = cpp.statements(values, [store.value for store in program.stores], leaves, namer)
    for store in program.stores:
        result = texts[store.value]
        if cpp.wide and not _varies(program, store.value):
            result = f"spread(width, {result})"
        lines.append(cpp.store(store.tensor, "i", result))
    return lines


def _varies(program: PointwiseProgram, value: int) -> bool:
    """Return whether a value differs between elements, and therefore is a vector in a vector loop."""
    return any(
        program.values[k].op == "load" and program.values[k].access.count > 1 for k in needed(program.values, (value,))
    )
