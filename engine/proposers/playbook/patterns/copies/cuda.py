"""The CUDA template for copies."""

from __future__ import annotations

from math import gcd

from engine.devices.fact import DeviceFact
from engine.problem.c_header import ctype
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cuda import Cuda
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import fixed_sizes
from engine.proposers.playbook.patterns.copies.cpp import digits, fill
from engine.proposers.playbook.patterns.copies.program import Axis, Box, CopyProgram, as_copies

_UNITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "uint2", 16: "uint4"}
"""The type that one instruction copies, by the type's size in bytes."""
PLAIN: Choices = {"threads": 256, "vector": False}


class CudaCopies(Template):
    """Copies in CUDA C++."""

    name = "copies_cu"
    pattern = "copies"
    language = "cu"

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        plain = Recipe(self.name, dict(PLAIN))
        found = [Start("plain", "Give each element of the output a thread. Adjacent threads write adjacent elements.",
                       plain)]  # fmt: skip
        if _widens(as_copies(program)):
            found.insert(0, Start("vectors", _VECTORS.text, plain.with_({"vector": True}, ("threads",))))
        return found

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        return [_VECTORS] if not recipe.choices["vector"] and _widens(as_copies(program)) else []

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        return {"threads": (128, 256, 512)}

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        copies = as_copies(program)
        vector = bool(recipe.choices["vector"])
        used = [tensor for tensor in spec.tensors if tensor.name in {copies.output, *copies.tensors}]
        type_ = ctype(copies.dtype, "cu")
        boxes = [_part(copies, box, vector, type_) for box in copies.boxes]
        return render(
            "copies.cu.j2",
            title=f"Copies for {spec.name}, in {len(copies.boxes)} parts.",
            program=copies,
            type=type_,
            boxes=boxes,
            most=max(box.numel for _, box, _ in boxes),
            digits=digits,
            threads=recipe.choices["threads"],
            tensors=[(type_ if tensor.role == "output" else f"const {type_}", tensor.name) for tensor in used],
            arguments=", ".join(tensor.name for tensor in used),
            size_assertions=fixed_sizes(used),
            launch=launch_signature(spec, "cu", {*(tensor.name for tensor in used), "stream"}),
        )


def _width(program: CopyProgram, box: Box) -> int:
    """Return the number of adjacent elements of ``box`` that one instruction can copy."""
    last = box.axes[-1]
    if not box.tensor or program.triangle is not None or (last.out_stride, last.in_stride) != (1, 1):
        return 1
    steps = [step for axis in box.axes[:-1] for step in (axis.out_stride, axis.in_stride)]
    return gcd(16 // program.element_bytes, last.size, box.in_offset, box.out_offset, *steps)


def _widens(program: CopyProgram) -> bool:
    return any(_width(program, box) > 1 for box in program.boxes)


def _part(program: CopyProgram, box: Box, vector: bool, type_: str) -> tuple[str, Box, str]:
    """Return the type of a copied unit, ``box`` in these units, and the fill value as a C literal."""
    width = _width(program, box) if vector else 1
    if width == 1:
        return type_, box, fill(box.number, program.dtype, Cuda())
    *outer, last = box.axes
    axes = [Axis(axis.size, axis.out_stride // width, axis.in_stride // width) for axis in outer]
    axes.append(Axis(last.size // width, 1, 1))
    made = Box(box.tensor, box.number, box.in_offset // width, box.out_offset // width, tuple(axes))
    return _UNITS[width * program.element_bytes], made, ""


_VECTORS = Transformation(
    "vector_copies",
    "memory",
    "Copy up to 16 adjacent bytes per instruction, with fewer instructions and address computations for the same "
    "traffic.",
    {"vector": True},
    ("threads",),
    gain=1.3,
    helps="memory",
)
