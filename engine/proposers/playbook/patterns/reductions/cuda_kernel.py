"""The CUDA kernel file for a reduction program."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.codegen.cuda import Cuda, streams
from engine.proposers.playbook.codegen.dialect import Namer, position
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.ir.reductions import ReductionProgram
from engine.proposers.playbook.ir.sizes import text
from engine.proposers.playbook.patterns.reductions.cpp_kernel import FIELD, Fold
from engine.proposers.playbook.patterns.reductions.program import POSITIONS
from engine.proposers.playbook.patterns.reductions.sizes import reduction_assertions

_SHARED_BYTES = 40 << 10
"""Bytes of shared memory for the states of a block's threads. Every device allows 48 KiB, and alignment uses
part of this memory.
"""


class Body(Struct, frozen=True):
    """The loop over the elements of a row: the loaded packs, the per-row values, and the statements.

    ``folds`` are the reductions of a pass. ``results`` are the outputs (tensor, value) of the last loop.
    """

    number: int
    inputs: list[dict[str, str]]
    row_statements: list[str]
    row_values: list[dict[str, str]]
    statements: list[str]
    folds: list[Fold]
    results: list[tuple[str, str]]


def reduction_kernel(program: ReductionProgram, choices: Choices, spec: ProblemSpec) -> str:
    """Return the kernel source."""
    shape, values = program.geometry, program.values
    cuda = Cuda(fast=choices["math"] == "fast", packs=True)
    namer = Namer(
        [
            "t",
            "s",
            "p",
            "u",
            "j",
            "q",
            "row",
            "at",
            "found",
            "part",
            "parts",
            "slot",
            "width",
            "columns",
            "sum",
            "estimate",
            "moved",
            "left",
        ]
    )
    fields = [namer.name(FIELD[one.op]) for one in program.reductions]
    row_leaves = _row_leaves(program, fields)
    passes = []
    for number, group in enumerate(program.passes, 1):
        reductions = [program.reductions[k] for k in group]
        body, texts = _body(program, cuda, number, tuple(one.source for one in reductions), row_leaves)
        folds = [Fold(fields[k], one.op, texts[one.source]) for k, one in zip(group, reductions, strict=True)]
        passes.append(replace(body, folds=folds))
    apply = None
    if program.element_stores:
        body, texts = _body(program, cuda, 0, tuple(one.value for one in program.element_stores), row_leaves)
        results = [(one.tensor, texts[one.value]) for one in program.element_stores]
        apply = replace(body, results=results)
    row_statements, row_texts = cuda.statements(values, [one.value for one in program.row_stores], row_leaves)
    names = {value.tensor for value in values if value.op == "load"} | {store.tensor for store in program.stores}
    names |= set(program.counters)
    tensors = [tensor for tensor in spec.tensors if tensor.name in names]
    threads, parts = _fitting_threads(program, choices), int(choices["parts"])
    moments = program.moments if choices.get("sample", 1) != 1 else None
    estimate = None
    if moments is not None:
        at = next(n for n, group in enumerate(program.passes, 1) if moments.first in group)
        estimate = {"number": at, "total": fields[moments.first], "deviations": fields[moments.correction]}
        estimate |= {"squares": fields[moments.second], "share": choices["sample"]}
    return render(
        "reductions.cu.j2",
        outer=text(shape.outer),
        folded=text(shape.folded),
        inner=text(shape.inner),
        run=text(shape.run),
        adjacent=shape.adjacent,
        threads=threads,
        unroll=choices["unroll"],
        parts=parts,
        across=min(int(choices["across"]), threads),
        width=choices["width"],
        estimate=estimate,
        most_held=int(choices.get("held", 0)) if parts == 1 else 0,
        first_loads={one["load"]: one["field"] for one in passes[0].inputs},
        stream_loads=choices["read"] == "stream",
        stream_stores=choices["store"] == "stream",
        size_assertions=reduction_assertions(program, spec),
        ops={one.op for one in program.reductions},
        tensors=[
            {"name": one.name, "type": _pointer(one.dtype, one.role == "output" or one.mutated)} for one in tensors
        ],
        fields=[(name, one.op) for name, one in zip(fields, program.reductions, strict=True)],
        passes=passes,
        apply=apply,
        row_statements=row_statements,
        row_results=[(one.tensor, row_texts[one.value]) for one in program.row_stores],
        counters=program.counters,
        arguments=", ".join(tensor.name for tensor in tensors),
        launch=launch_signature(spec, "cu", {*names, "workspace", "stream"}),
    )


def _fitting_threads(program: ReductionProgram, choices: Choices) -> int:
    """Return the number of threads per block. The states of all threads must fit in shared memory."""
    columns = 1 if program.geometry.adjacent else int(choices["width"])
    sizes = [sum(12 if program.reductions[k].op in POSITIONS else 4 for k in group) for group in program.passes]
    bytes_per_column = sum(sizes) if choices.get("held", 0) else max(sizes)
    threads = int(choices["threads"])
    while threads > 32 and threads * columns * bytes_per_column > _SHARED_BYTES:
        threads //= 2
    return threads


def _pointer(dtype: str, is_written: bool) -> str:
    element = "int64_t" if dtype == "int64" else "float"
    return f"{element}*" if is_written else f"const {element}*"


def _body(
    program: ReductionProgram, cuda: Cuda, number: int, roots: tuple[int, ...], row_leaves: dict[int, str]
) -> tuple[Body, dict[int, str]]:
    values, shape = program.values, program.geometry
    wanted = program.row_values(roots)
    row_statements, row_texts = Cuda(fast=cuda.fast).statements(values, wanted, row_leaves)
    row = "row[0]" if shape.adjacent else "row[u]"
    leaves = {k: f"{row}.r{k}" for k in wanted}
    elements = program.elements(roots)
    inputs = streams(values, elements)
    fields = {(one.tensor, one.access): f"p.{one.field}.at[u]" for one in inputs}
    for k in elements:
        if values[k].op == "load":
            leaves[k] = fields[values[k].tensor, values[k].access]
    statements, texts = cuda.statements(values, roots, leaves)
    loads = [
        {"field": one.field, "load": cuda.load(f"t.{one.tensor}", one.access, "i", shape.numel, "elements")}
        for one in inputs
    ]
    row_values = [{"name": f"r{k}", "text": row_texts[k]} for k in wanted]
    return Body(number, loads, row_statements, row_values, statements, [], []), texts


def _row_leaves(program: ReductionProgram, fields: Iterable[str]) -> dict[int, str]:
    """Return the expressions of reductions and loads for row ``q``."""
    names, leaves = list(fields), {}
    for k, value in enumerate(program.values):
        if value.op == "reduced":
            leaves[k] = f"found->{names[value.reduction]}[q]"
        elif value.op == "load" and program.per_row[k]:
            access = value.access
            index = "0" if access.count == 1 else position("q", access.inner, access.count, program.geometry.rows)
            leaves[k] = f"t.{value.tensor}[{index}]"
    return leaves
