"""The C++ template for copies."""

from __future__ import annotations

import ctypes
import math

from engine.devices.fact import DeviceFact
from engine.problem.c_header import ctype
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cpp import Cpp
from engine.proposers.playbook.codegen.dialect import Dialect
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import fixed_sizes
from engine.proposers.playbook.patterns.copies.program import Axis, as_copies


class CppCopies(Template):
    """Copies in C++ with OpenMP."""

    name = "copies_cpp"
    pattern = "copies"
    language = "cpp"

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        text = "Copy runs of adjacent output elements. Threads share the runs."
        plain = "Copy runs of adjacent output elements on one core."
        found = [Start("plain", plain, Recipe(self.name, {"parallel": False}))]
        if device.cores > 1:
            found.insert(0, Start("runs", text, Recipe(self.name, {"parallel": True})))
        return found

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        if recipe.choices["parallel"] or device.cores < 2:
            return []
        text = (
            f"Only one of {device.cores} cores has work. Parts of the output are independent: share them among threads."
        )
        return [Transformation("share_runs", "parallelism", text, {"parallel": True}, gain=1.5)]

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        return {}

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        copies = as_copies(program)
        used = {copies.output, *copies.tensors}
        return render(
            "copies.cpp.j2",
            title=f"Copies for {spec.name}, in {len(copies.boxes)} parts.",
            program=copies,
            type=ctype(copies.dtype, "cpp"),
            boxes=[(box, box.axes[:-1], box.axes[-1], fill(box.number, copies.dtype, Cpp())) for box in copies.boxes],
            digits=digits,
            parallel=recipe.choices["parallel"],
            size_assertions=fixed_sizes(tensor for tensor in spec.tensors if tensor.name in used),
            launch=launch_signature(spec, "cpp", used),
        )


def fill(number: float, dtype: str, dialect: Dialect) -> str:
    """Return the C expression for an element of ``dtype`` with the value ``number``, which may be infinite or NaN."""
    type_ = ctype(dtype, dialect.language)
    if dtype == "bool" or "int" in dtype:
        return f"{type_}({int(number)})"
    if dtype == "float64" and math.isfinite(number):
        return f"{number!r}"
    if dtype == "bfloat16" and dialect.language == "cpp":
        return f"{type_}({_bfloat16_bits(number)})"
    return f"{type_}({dialect.number(number)})"


def _bfloat16_bits(number: float) -> int:
    """Return the bits of ``number``, rounded to the nearest bfloat16. C++ kernels store bfloat16 as ``uint16_t``."""
    bits = ctypes.c_uint32.from_buffer(ctypes.c_float(number)).value
    return 0x7FC0 if math.isnan(number) else (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def digits(axes: tuple[Axis, ...], index: str, long: str) -> list[tuple[Axis, str]]:
    """Return each axis with a C expression for the position of element number ``index`` along the axis."""
    found = []
    inner = 1
    for place, axis in reversed(list(enumerate(axes))):
        part = index if inner == 1 else f"{index} / {inner}{long}"
        found.append((axis, part if place == 0 else f"{part} % {axis.size}{long}"))
        inner *= axis.size
    return found[::-1]
