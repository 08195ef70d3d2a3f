"""Generate assertions about the sizes in a kernel's header, so that a kernel compiles only at sizes that it supports.

A template writes sizes as the header's constants (``ir.sizes``) and handles tails of any length. A kernel asserts its
other assumptions: a relation between sizes, a broadcast dimension of size 1, or a row that must fit in a buffer. The
final check at other sizes recognizes the assertion's message and reports "not for this size".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from engine.problem.spec import ProblemSpec, TensorSpec
from engine.proposers.playbook.analysis.layouts import Layout
from engine.proposers.playbook.ir.program import PointwiseProgram, RowProgram
from engine.proposers.playbook.ir.sizes import Size, text
from engine.session.records.other_sizes import NOT_FOR_THIS_SIZE

_SMALLEST_TELLING = 8
"""The smallest size to compare with numbers in the reference. Smaller sizes often match by coincidence."""


def size_assertion(condition: str, needs: str) -> str:
    """Return a line that stops the build unless ``condition`` is true. ``needs`` completes the message: "rows
    of ...".
    """
    return f'static_assert({condition}, "{NOT_FOR_THIS_SIZE}: needs {needs}");'


def whole(tensor: TensorSpec, count: int) -> list[str]:
    """Assert that ``tensor`` has ``count`` elements, unless its shape already says so."""
    own = [f"{tensor.name}_dim{dim}" for dim, size in enumerate(tensor.shape)]
    if isinstance(count, Size) and sorted(count.over) == sorted(own) and not count.under and count.times == count.by:
        return []
    return [size_assertion(f"{tensor.name}_numel == {text(count)}", f"{tensor.name} to have {text(count)} elements")]


def number_assertions(numbers: Iterable[float], tensors: Iterable[TensorSpec]) -> list[str]:
    """Assert the size of each dimension that may determine a number in the reference, such as ``/ 3000`` or
    ``/ math.sqrt(64)``.

    The trace contains only the number, which might differ at other sizes.
    """
    found = {}
    given = [abs(number) for number in numbers]
    for tensor in tensors:
        for dim, size in enumerate(tensor.shape):
            if size < _SMALLEST_TELLING:
                continue
            forms = [float(size), size - 1.0, math.sqrt(size)]
            telling = [n for n in given for form in forms if n in (form, 1.0 / form) and form >= _SMALLEST_TELLING - 1]
            if telling:
                why = f"because the constant {telling[0]:g} in the reference may derive from that size"
                needs = f"{tensor.name}_dim{dim} to be {size}, {why}"
                found[needs] = size_assertion(f"{tensor.name}_dim{dim} == {size}", needs)
    return list(found.values())


def free(layouts: Iterable[Layout]) -> bool:
    """Return whether all operand sizes derive from the header, so that no operand depends on a fixed number."""
    return all(isinstance(size, Size) and not size.under and size.by == 1 for one in layouts for atoms in one.dims
               for size, _ in atoms)  # fmt: skip


def operand_assertions(tensors: Iterable[TensorSpec], layouts: Iterable[Layout]) -> list[str]:
    """Assert the size of each dimension that the addresses of ``layouts`` do not use."""
    seen = {name for one in layouts for atoms in one.dims for size, _ in atoms if isinstance(size, Size)
            for name in size.over}  # fmt: skip
    lost = [(tensor.name, dim, size) for tensor in tensors for dim, size in enumerate(tensor.shape)
            if f"{tensor.name}_dim{dim}" not in seen]  # fmt: skip
    return [size_assertion(f"{name}_dim{dim} == {size}", f"{name}_dim{dim} to be {size}") for name, dim, size in lost]


def product_assertions(spec: ProblemSpec, chain: PointwiseProgram, layouts: Sequence[Layout]) -> list[str]:
    """Assert the sizes at which a kernel with operands of ``layouts`` and the epilogue ``chain`` is correct."""
    operands = {layout.tensor for layout in layouts}
    if free(layouts):
        given = [tensor for tensor in spec.tensors if tensor.name in operands]
        return [*operand_assertions(given, layouts), *program_assertions(chain, chain.order, spec)]
    read = operands | {chain.values[k].tensor for k in chain.order if chain.values[k].op == "load"}
    return fixed_sizes(tensor for tensor in spec.tensors if tensor.name in read)


def fixed_sizes(tensors: Iterable[TensorSpec]) -> list[str]:
    """Assert the size of every dimension, for a kernel that supports only the traced sizes."""
    return [
        size_assertion(
            " && ".join(f"{tensor.name}_dim{dim} == {size}" for dim, size in enumerate(tensor.shape)),
            f"{tensor.name} of {' x '.join(map(str, tensor.shape))}",
        )
        for tensor in tensors
        if tensor.shape
    ]


def program_assertions(program: PointwiseProgram | RowProgram, used: Iterable[int], spec: ProblemSpec) -> list[str]:
    """Assert the sizes at which ``program`` computes the reference.

    Args:
        used: Positions of the values that the kernel needs.
    """
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
    return list(dict.fromkeys([*lines, *number_assertions(numbers, read)]))
