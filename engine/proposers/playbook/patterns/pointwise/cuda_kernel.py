"""The CUDA kernel file for a pointwise program. One pass reads each input once and writes each output once."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.codegen.cuda import Cuda, pointer_types, streams
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import program_assertions
from engine.proposers.playbook.ir.program import PointwiseProgram
from engine.proposers.playbook.ir.sizes import text


def pointwise_kernel(program: PointwiseProgram, choices: Choices, spec: ProblemSpec) -> str:
    """Return the kernel source: ``compute_pack`` for whole packs, ``compute_one`` for the remainder, and ``launch``."""
    packs = Cuda(fast=choices["math"] == "fast", packs=True)
    elements = Cuda(fast=packs.fast)
    values, numel = program.values, program.numel
    inputs = streams(values, program.order)
    fields = {(one.tensor, one.access): f"p.{one.field}.at[u]" for one in inputs}
    loads = [k for k in program.order if values[k].op == "load"]
    of_pack = {k: fields[values[k].tensor, values[k].access] for k in loads}
    of_element = {k: elements.load(f"t.{values[k].tensor}", values[k].access, "i", numel, "numel") for k in loads}
    tensors = tuple(dict.fromkeys((*(s.tensor for s in inputs), *(s.tensor for s in program.stores))))
    return render(
        "pointwise.cu.j2",
        elements=text(numel),
        width=choices["width"],
        threads=choices["threads"],
        unroll=choices["unroll"],
        most_blocks=int(choices["sms"]) * int(choices["blocks"]) if choices["persistent"] else 0,
        stream_loads=choices["read"] == "stream",
        stream_stores=choices["store"] == "stream",
        size_assertions=program_assertions(program, program.order, spec),
        tensors=pointer_types(tensors, spec),
        inputs=[
            {"field": s.field, "load": packs.load(f"t.{s.tensor}", s.access, "i", numel, "packs * width")}
            for s in inputs
        ],
        outputs=[store.tensor for store in program.stores],
        of_pack=_computed(program, packs, of_pack),
        of_element=_computed(program, elements, of_element),
        arguments=", ".join(tensors),
        launch=launch_signature(spec, "cu", frozenset((*tensors, "stream"))),
    )


def _computed(program: PointwiseProgram, cuda: Cuda, leaves: dict[int, str]) -> dict[str, list[str]]:
    """Return the ``statements`` that compute one element's outputs, and the outputs' expressions (``results``)."""
    roots = [store.value for store in program.stores]
    lines, texts = cuda.statements(program.values, roots, leaves)
    return {"statements": lines, "results": [texts[root] for root in roots]}
