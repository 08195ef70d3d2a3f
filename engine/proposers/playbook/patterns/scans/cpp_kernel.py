"""The C++ kernel file for a scan."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analysis.epilogue import ACC, is_acc
from engine.proposers.playbook.codegen.cpp import Cpp
from engine.proposers.playbook.codegen.cpp_math import math_functions, needs_no_errno
from engine.proposers.playbook.codegen.dialect import Namer
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.ir.program import PointwiseProgram
from engine.proposers.playbook.ir.sizes import text
from engine.proposers.playbook.patterns.scans.program import ScanProgram, scan_assertions

_LOCALS = (
    "i",
    "l",
    "p",
    "row",
    "base",
    "carry",
    "scanned",
    "element",
    "values",
    "tile",
    "first",
    "count",
    "c",
    "total",
)


class ScanOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The choices for a scan.

    Attributes:
        lanes: Elements of a row that a vector scans together; 1 means one after the other.
        tile: Adjacent rows that a thread scans together, if the elements of a row are not adjacent.
        parallel: Whether threads share the rows.
        chunk: Rows or tiles per work item.
    """

    lanes: int = 1
    tile: int = 256
    parallel: bool = False
    schedule: Literal["static", "dynamic", "guided"] = "static"
    chunk: int = 1


def scan_kernel(program: ScanProgram, options: ScanOptions, spec: ProblemSpec) -> str:
    """Return the kernel source."""
    names = [tensor.name for tensor in spec.tensors]
    before, element = _statements(program.before, names)
    after, _ = _statements(program.chain, names)
    used = {one.tensor for part in (program.before, program.chain) for one in part.values if one.op == "load"} - {ACC}
    written = {store.tensor for store in program.chain.stores}
    ops = {part.values[k].op for part in (program.before, program.chain) for k in part.order}
    types = {tensor.name: "bool" if tensor.dtype == "bool" else "float" for tensor in spec.tensors}
    tensors = [name for name in names if name in used | written]
    return render(
        "scans.cpp.j2",
        title=f"Scan kernel for {spec.name}, tuned for {text(program.rows)} rows of {text(program.length)} elements.",
        no_errno=needs_no_errno(ops),
        program=program,
        outer=text(program.outer),
        length=text(program.length),
        inner=text(program.inner),
        lanes=options.lanes if program.inner == 1 else 1,
        tile=options.tile,
        parallel=options.parallel,
        schedule=f"{options.schedule}, {options.chunk}" if options.chunk > 1 else options.schedule,
        size_assertions=scan_assertions(program, spec),
        parameters=[(f"{types[name]}*" if name in written else f"const {types[name]}*", name) for name in tensors],
        before=before,
        element=element,
        after=after,
        arguments=", ".join(tensors),
        launch=launch_signature(spec, "cpp", tensors),
        math=math_functions(ops, wide=False),
    )


def _statements(part: PointwiseProgram, names: list[str]) -> tuple[list[str], str]:
    """Return the statements of ``part`` for element ``i``, and the expression that ``part`` stores to ``ACC``."""
    cpp, leaves = Cpp(), {}
    for k in part.order:
        value = part.values[k]
        if value.op == "load":
            leaves[k] = "scanned" if is_acc(value) else cpp.load(value.tensor, value.access, "i", part.numel)
    roots = [store.value for store in part.stores]
    lines, texts = cpp.statements(part.values, roots, leaves, Namer([*_LOCALS, *names]))
    lines += [cpp.store(one.tensor, "i", texts[one.value]) for one in part.stores if one.tensor != ACC]
    return lines, next((texts[one.value] for one in part.stores if one.tensor == ACC), "")
