"""The C++ kernel file for a pooling program."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analysis.epilogue import is_acc, tensors_of
from engine.proposers.playbook.codegen.cpp import Cpp
from engine.proposers.playbook.codegen.cpp_math import math_functions, needs_no_errno
from engine.proposers.playbook.codegen.dialect import Namer
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import size_assertion
from engine.proposers.playbook.ir.sizes import text
from engine.proposers.playbook.patterns.pooling.program import PoolProgram, pool_assertions

_LOCALS = (
    "line",
    "lines",
    "i",
    "at",
    "tap",
    "from",
    "result",
    "results",
    "column",
    "window",
    "plane",
    "inside",
    "task",
    "pooled",
)


MAX_LINE = 131072
"""Maximum number of floats in a row of the image or the output. A thread keeps one row of each on its stack."""


class PoolOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The choices for a pooling kernel.

    Attributes:
        separable: Whether to fold the rows of a window first, and then the columns.
        rows: Rows of the output per work item.
        parallel: Whether threads share the rows.
    """

    separable: bool = False
    rows: int = 1
    parallel: bool = False
    schedule: Literal["static", "dynamic", "guided"] = "static"


def pool_kernel(program: PoolProgram, options: PoolOptions, spec: ProblemSpec) -> str:
    """Return the kernel source."""
    chain = program.chain
    names = [tensor.name for tensor in spec.tensors]
    cpp = Cpp()
    leaves = {}
    for k in chain.order:
        value = chain.values[k]
        if value.op == "load":
            leaves[k] = "pooled" if is_acc(value) else cpp.load(value.tensor, value.access, "i", chain.numel)
    stores = [store.value for store in chain.stores]
    statements, texts = cpp.statements(chain.values, stores, leaves, Namer([*_LOCALS, *names]))
    statements += [cpp.store(store.tensor, "i", texts[store.value]) for store in chain.stores]
    used = {program.x, *tensors_of(chain)}
    written = {store.tensor for store in chain.stores}
    fits = f"image_w <= {MAX_LINE} && size_w <= {MAX_LINE}"
    ops = {chain.values[k].op for k in chain.order}
    return render(
        "pooling.cpp.j2",
        title=f"Pooling kernel for {spec.name}, tuned for {text(program.planes)} planes.",
        no_errno=needs_no_errno(ops),
        program=program,
        planes=text(program.planes),
        image=[text(size) for size in program.image],
        options=options,
        size_assertions=[*pool_assertions(program, spec), size_assertion(fits, f"rows of at most {MAX_LINE} elements")],
        parameters=[("float*" if name in written else "const float*", name) for name in names if name in used],
        arguments=", ".join(name for name in names if name in used),
        statements=statements,
        launch=launch_signature(spec, "cpp", used),
        math=math_functions(ops, wide=False),
    )
