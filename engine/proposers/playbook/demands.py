"""What a kernel asserts of the sizes in its header, so that it is right wherever it compiles.

A template writes sizes as constants of the header (``sizes``) and handles tails generally. What is left, a relation of
sizes that the program was recognised by, a dimension of 1 that was broadcast, a row that must fit a buffer, is
asserted in the kernel. The final check at other sizes finds the words and reports "not for this size".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from engine.problem.spec import ProblemSpec, TensorSpec
from engine.proposers.playbook.ir import PointwiseProgram, RowProgram
from engine.proposers.playbook.layouts import Layout
from engine.proposers.playbook.sizes import Size, text
from engine.verdict import NOT_FOR_THIS_SIZE

_SMALLEST_TELLING = 8
"""A number in the reference that equals a smaller size says nothing."""


def demand(condition: str, needs: str) -> str:
    """A line that keeps a kernel from being built at sizes that it is not for. ``needs``: "rows of ..."."""
    return f'static_assert({condition}, "{NOT_FOR_THIS_SIZE}: needs {needs}");'


def whole(tensor: TensorSpec, count: int) -> list[str]:
    """That ``tensor`` has ``count`` elements, as a demand where its shape does not say so by itself."""
    own = [f"{tensor.name}_dim{dim}" for dim, size in enumerate(tensor.shape)]
    if isinstance(count, Size) and sorted(count.over) == sorted(own) and not count.under and count.times == count.by:
        return []
    return [demand(f"{tensor.name}_numel == {text(count)}", f"{tensor.name} to have {text(count)} elements")]


def numbers_that_are_sizes(numbers: Iterable[float], tensors: Iterable[TensorSpec]) -> list[str]:
    """Demands that dimensions stay what they are where a number in the reference may stem from one: ``/ 3000``,
    ``/ math.sqrt(64)``. The trace has the number alone, and at other sizes it would be another."""
    found = {}
    given = [abs(number) for number in numbers]
    for tensor in tensors:
        for dim, size in enumerate(tensor.shape):
            if size < _SMALLEST_TELLING:
                continue
            forms = [float(size), size - 1.0, math.sqrt(size)]
            telling = [n for n in given for form in forms if n in (form, 1.0 / form) and form >= _SMALLEST_TELLING - 1]
            if telling:
                needs = (
                    f"{tensor.name}_dim{dim} to be {size}, which the number {telling[0]:g} in the reference may mean"
                )
                found[needs] = demand(f"{tensor.name}_dim{dim} == {size}", needs)
    return list(found.values())


def free(layouts: Iterable[Layout]) -> bool:
    """Whether the sizes of operands all follow from the header: none was cut, sliced or repeated by a number."""
    return all(isinstance(size, Size) and not size.under and size.by == 1 for one in layouts for atoms in one.dims
               for size, _ in atoms)  # fmt: skip


def of_operands(tensors: Iterable[TensorSpec], layouts: Iterable[Layout]) -> list[str]:
    """That dimensions which the addresses of ``layouts``, that are free, do not step along stay 1 as they are."""
    seen = {name for one in layouts for atoms in one.dims for size, _ in atoms if isinstance(size, Size)
            for name in size.over}  # fmt: skip
    lost = [(tensor.name, dim, size) for tensor in tensors for dim, size in enumerate(tensor.shape)
            if f"{tensor.name}_dim{dim}" not in seen]  # fmt: skip
    return [demand(f"{name}_dim{dim} == {size}", f"{name}_dim{dim} to be {size}") for name, dim, size in lost]


def of_product(spec: ProblemSpec, chain: PointwiseProgram, layouts: Sequence[Layout]) -> list[str]:
    """What holds a kernel of operands in ``layouts`` and the epilogue ``chain`` to sizes at which it is right."""
    operands = {layout.tensor for layout in layouts}
    if free(layouts):
        given = [tensor for tensor in spec.tensors if tensor.name in operands]
        return [*of_operands(given, layouts), *program_demands(chain, chain.order, spec)]
    read = operands | {chain.values[k].tensor for k in chain.order if chain.values[k].op == "load"}
    return fixed(tensor for tensor in spec.tensors if tensor.name in read)


def fixed(tensors: Iterable[TensorSpec]) -> list[str]:
    """Demands that no dimension changes, for a kernel that is written for its sizes throughout."""
    return [
        demand(
            " && ".join(f"{tensor.name}_dim{dim} == {size}" for dim, size in enumerate(tensor.shape)),
            f"{tensor.name} of {' x '.join(map(str, tensor.shape))}",
        )
        for tensor in tensors
        if tensor.shape
    ]


def program_demands(program: PointwiseProgram | RowProgram, used: Iterable[int], spec: ProblemSpec) -> list[str]:
    """Under which sizes ``program`` is the reference. ``used``: positions of the values that the kernel needs."""
    tensors = {tensor.name: tensor for tensor in spec.tensors}
    lines, names, numbers = [], set(), []
    for value in (program.values[k] for k in used):
        if value.op == "load" and value.tensor in tensors:
            lines += whole(tensors[value.tensor], value.access.count)
            names.add(value.tensor)
        elif value.op == "const" and not value.text:
            numbers.append(value.number)
    rows = program.rows if isinstance(program, RowProgram) else 1
    for store in program.stores:
        lines += whole(tensors[store.tensor], rows if store.per_row else program.numel)
    read = [tensor for tensor in spec.tensors if tensor.name in names]
    return list(dict.fromkeys([*lines, *numbers_that_are_sizes(numbers, read)]))
