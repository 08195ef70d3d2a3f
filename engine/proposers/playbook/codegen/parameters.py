"""Keep the names of a problem and of the playbook's kernels apart.

``launch`` passes its arguments by position, so a kernel may name them as it likes. A problem may have an input ``t`` or
``row``, which kernels use for variables of their own. The header's constants keep the problem's names. Kernels do not
use the header's scalars, such as ``groups``, so a kernel's own constant or function of that name gets another name.
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
_WORD = re.compile(r"//[^\n]*|\"[^\"\n]*\"|(?:\.|->)\w+|\b[A-Za-z]\w*")
"""An identifier. Comments, strings and members match as a whole, so that no name in them is replaced."""
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
    """Return ``source`` with the header's own constants: ``t_parameter_dim0`` becomes ``t_dim0``.

    If ``source`` declares the name of a scalar in the header, such as ``groups``, it becomes ``groups_``.
    """
    source = _CONSTANT.sub(r"\1", source)
    names = {scalar.name for scalar in problem.scalars if _declares(source, scalar.name)}
    return _WORD.sub(lambda word: f"{word[0]}_" if word[0] in names else word[0], source) if names else source


def _declares(source: str, name: str) -> bool:
    """Whether ``source`` declares ``name`` outside functions, where a line begins without a space."""
    return re.search(rf"^(?![\s#/]).*\b{name}\s*[=\[({{]", source, re.MULTILINE) is not None
