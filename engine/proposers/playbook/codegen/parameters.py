"""Prevent collisions between a problem's names and the names in the playbook's kernels.

The judge passes arguments to ``launch`` by position, so a kernel may choose the parameters' names. A problem may have
an input ``t`` or ``row``, although kernels use these names for variables. The header's constants keep the problem's
names. Kernels do not use the header's scalars, such as ``groups``. The playbook renames a kernel's constants and
functions that have the name of a scalar.
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
"""Names of variables, functions and constants that templates use where the parameters of ``launch`` are visible."""
_TAKEN = frozenset(_VARIABLES.split())
_WORD = re.compile(r"//[^\n]*|\"[^\"\n]*\"|(?:\.|->)\w+|\b[A-Za-z]\w*")
"""Regular expression for identifiers. It also matches whole comments, strings and members, so that a replacement skips
the names inside them.
"""
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


def with_header_constants(source: str, problem: ProblemSpec) -> str:
    """Return ``source`` with the header's names for constants: ``t_parameter_dim0`` becomes ``t_dim0``.

    ``source`` may itself declare the name of a scalar in the header, such as ``groups``. This name becomes ``groups_``.
    """
    source = _CONSTANT.sub(r"\1", source)
    names = {scalar.name for scalar in problem.scalars if _declares(source, scalar.name)}
    return _WORD.sub(lambda word: f"{word[0]}_" if word[0] in names else word[0], source) if names else source


def _declares(source: str, name: str) -> bool:
    """Return whether ``source`` declares ``name`` outside functions, on a line without indentation."""
    return re.search(rf"^(?![\s#/]).*\b{name}\s*[=\[({{]", source, re.MULTILINE) is not None
