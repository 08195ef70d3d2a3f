"""Write the opening line of ``launch`` as ``engine.problem.c_header`` declares it, with unused arguments unnamed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from engine.problem.c_header import ctype
from engine.problem.spec import ProblemSpec, TensorSpec


def launch_signature(spec: ProblemSpec, language: Literal["cpp", "cu"], used: Collection[str]) -> str:
    """Return the declaration ``extern "C" int launch(...)``, without a body. Arguments that are not in ``used`` stay
    unnamed, to avoid warnings.

    ``used`` contains tensor names and possibly ``workspace`` and ``stream``.
    """
    ordered = (*spec.inputs, *spec.weights, *spec.outputs)
    arguments = [_argument(tensor, language, tensor.name in used) for tensor in ordered]
    arguments.append("void* workspace" if "workspace" in used else "void* /*workspace*/")
    if language == "cu":
        arguments.append("cudaStream_t stream" if "stream" in used else "cudaStream_t /*stream*/")
    line = f'extern "C" int launch({", ".join(arguments)})'
    if len(line) <= 110:
        return line
    return 'extern "C" int launch(\n    ' + ",\n    ".join(arguments) + ")"


def _argument(tensor: TensorSpec, language: Literal["cpp", "cu"], used: bool) -> str:
    const = "" if tensor.role == "output" or tensor.mutated else "const "
    name = tensor.name if used else f"/*{tensor.name}*/"
    return f"{const}{ctype(tensor.dtype, language)}* {name}"
