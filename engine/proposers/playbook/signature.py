"""The opening line of ``launch``, as ``engine.problem.header`` declares it, with unused arguments unnamed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from engine.problem.spec import ProblemSpec, TensorSpec

C_TYPES = {
    "float64": "double",
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "int64": "long long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
}


def launch_signature(spec: ProblemSpec, language: Literal["cpp", "cu"], used: Collection[str]) -> str:
    """``extern "C" int launch(...)`` without a body. Tensors outside ``used`` stay unnamed (no warning).

    ``used`` may hold ``workspace`` and ``stream`` too.
    """
    ordered = (*spec.inputs, *spec.weights, *spec.outputs)
    arguments = [_argument(tensor, tensor.name in used) for tensor in ordered]
    arguments.append("void* workspace" if "workspace" in used else "void* /*workspace*/")
    if language == "cu":
        arguments.append("cudaStream_t stream" if "stream" in used else "cudaStream_t /*stream*/")
    line = f'extern "C" int launch({", ".join(arguments)})'
    return line if len(line) <= 110 else line.replace("launch(", "launch(\n    ").replace(", ", ",\n    ")


def _argument(tensor: TensorSpec, used: bool) -> str:
    const = "" if tensor.role == "output" or tensor.mutated else "const "
    name = tensor.name if used else f"/*{tensor.name}*/"
    return f"{const}{C_TYPES[tensor.dtype]}* {name}"
