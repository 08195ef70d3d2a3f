"""The sizes at which a reduction kernel is correct."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.codegen.size_assertions import number_assertions, whole
from engine.proposers.playbook.ir.reductions import ReductionProgram


def reduction_assertions(program: ReductionProgram, spec: ProblemSpec) -> list[str]:
    """Assert that every tensor has all elements that the kernel reads or writes."""
    tensors = {tensor.name: tensor for tensor in spec.tensors}
    lines: list[str] = []
    numbers: list[float] = []
    read = set()
    for value in program.values:
        if value.op == "load":
            lines += whole(tensors[value.tensor], value.access.count)
            read.add(value.tensor)
        elif value.op == "const" and not value.text:
            numbers.append(value.number)
    for store in program.stores:
        lines += whole(tensors[store.tensor], program.geometry.rows if store.per_row else program.geometry.numel)
    given = [tensor for tensor in spec.tensors if tensor.name in read]
    return list(dict.fromkeys([*lines, *number_assertions(numbers, given)]))
