"""Rename the parameters of ``launch`` that would collide with variables in the playbook's kernels.

``launch`` passes its arguments by position, so a kernel may name them as it likes. A problem may have an input ``t`` or
``row``, which kernels use for variables of their own. The header's constants keep the problem's names.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from engine.problem.spec import ProblemSpec

_VARIABLES = """
a at b base begin block blocks c carry col column count d e end f first found h high i identity inside j K k l last
line lines low M m map_a map_b N n o out_row outputs p part parts piece plane planes pool pooled Q q r results
results_space row rows scan scanned span step stop t tap task team tensors thread threads tile tiles total v value vec
ivec w width y z
"""
"""Variables, functions and constants of the templates that are visible beside the parameters of ``launch``."""
_TAKEN = frozenset(_VARIABLES.split())
_CONSTANT = re.compile(rf"\b({'|'.join(sorted(_TAKEN))})_parameter(?=_(?:dim\d+|numel)\b)")


def with_own_parameters(spec: ProblemSpec) -> ProblemSpec:
    """Return ``spec`` with new names for the tensors that would collide: ``t`` becomes ``t_parameter``."""
    names = {tensor.name: f"{tensor.name}_parameter" for tensor in spec.tensors if tensor.name in _TAKEN}
    if not names:
        return spec
    graph = spec.graph and tuple(
        replace(node, target=names.get(node.target, node.target)) if node.op == "placeholder" else node
        for node in spec.graph
    )
    tensors = tuple(replace(tensor, name=names.get(tensor.name, tensor.name)) for tensor in spec.tensors)
    return replace(spec, tensors=tensors, graph=graph)


def with_header_constants(source: str) -> str:
    """Return ``source`` with the header's own constants: ``t_parameter_dim0`` becomes ``t_dim0``."""
    return _CONSTANT.sub(r"\1", source)
