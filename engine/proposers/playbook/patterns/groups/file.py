"""Write the kernels of all groups into one file, with a ``launch`` function that launches the kernels in order."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.problem.c_header import ctype, size_constants
from engine.problem.spec import ProblemSpec, TensorSpec
from engine.proposers.playbook.base import Language
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import fixed_sizes
from engine.proposers.playbook.patterns.groups.plan import ALIGNMENT, Plan, Source, Step

_INCLUDE = re.compile(r"^#include .*$\n?", re.M)
_LAUNCH = re.compile(r'^extern "C" (int launch\(|size_t workspace_bytes\()', re.M)
_WORD = re.compile(r"[a-z]+\d+_(?:dim\d+|numel)\b")
_SCRATCH = "workspace_bytes("


def program_file(plan: Plan, sources: Sequence[str], spec: ProblemSpec, language: Language) -> str:
    """Return one file. ``sources`` are the kernel files of ``plan.kinds``."""
    includes: dict[str, None] = {}
    kinds = []
    for number, (kind, source) in enumerate(zip(plan.kinds, sources, strict=True)):
        includes |= dict.fromkeys(line.strip() for line in _INCLUDE.findall(source))
        body = _LAUNCH.sub(r"inline \1", _INCLUDE.sub("", source)).strip("\n")
        constants = _used(kind.spec, body)
        kinds.append({"number": number, "pattern": kind.pattern, "constants": constants, "body": body})
    used = {plan.bound[name] for step in plan.steps for name in _nodes(step) if name in plan.bound}
    scratch = [number for number, source in enumerate(sources) if _SCRATCH in source]
    names = {*used, *(["workspace"] if plan.offsets or scratch else []), *(["stream"] if language == "cu" else [])}
    return render(
        "groups.j2",
        title=f"{len(plan.steps)} groups with {len(kinds)} kernels for {spec.name}.",
        includes=list(includes),
        kinds=kinds,
        size_assertions=fixed_sizes(tensor for tensor in spec.tensors if tensor.name in used),
        steps=[_call(plan, step, language) for step in plan.steps],
        scratch=scratch,
        tensor_bytes=-(-plan.tensor_bytes // ALIGNMENT) * ALIGNMENT,
        has_workspace=bool(plan.offsets or scratch),
        launch=launch_signature(spec, language, names),
    )


def _used(spec: ProblemSpec, body: str) -> list[str]:
    """Return the header's constants that ``body`` mentions, because the compiler warns about unused constants."""
    words = set(_WORD.findall(body))
    lines = [line for tensor in spec.tensors for line in size_constants(tensor)]
    return [line for line in lines if not words.isdisjoint(_WORD.findall(line.partition("=")[0]))]


def _nodes(step: Step) -> list[str]:
    return [*(source.node for source in step.sources), *step.results]


def _call(plan: Plan, step: Step, language: Language) -> str:
    kind = plan.kinds[step.kind]
    tensors = (*kind.spec.inputs, *kind.spec.weights, *kind.spec.outputs)
    given = [*step.sources, *(Source(name) for name in step.results)]
    arguments = [_pointer(plan, source, tensor, language) for source, tensor in zip(given, tensors, strict=True)]
    arguments.append("scratch")
    if language == "cu":
        arguments.append("stream")
    return f"group_{step.kind}::launch({', '.join(arguments)})"


def _pointer(plan: Plan, source: Source, tensor: TensorSpec, language: Language) -> str:
    name = plan.bound.get(source.node)
    if name is None:
        type_ = ctype(tensor.dtype, language)
        name = f"reinterpret_cast<{type_}*>(memory + {plan.offsets[source.node]})"
    return f"{name} + {source.offset}" if source.offset else name
