"""The CUDA kernel file of a convolution whose blocks stream down the rows of images."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from engine.problem.c_header import ctype
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analysis.epilogue import ACC, is_acc
from engine.proposers.playbook.codegen.cuda import Cuda, flat_index
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import fixed_sizes, number_assertions, size_assertion
from engine.proposers.playbook.ir.program import Access, PointwiseProgram, Store, Value
from engine.proposers.playbook.ir.sizes import Size, factor, text
from engine.proposers.playbook.patterns.conv.cuda_text import LOWEST
from engine.proposers.playbook.patterns.conv.hopper.plan import StreamPlan
from engine.proposers.playbook.patterns.conv.program import ConvProgram
from engine.proposers.playbook.patterns.gemm.tiles.cuda_finish import (
    conversions,
    dtypes_of,
    helpers,
    pointers,
    tensors_struct,
)
from engine.proposers.playbook.patterns.gemm.tiles.cuda_plan import shared_limit
from engine.session.records.other_sizes import NOT_FOR_THIS_SIZE

_HEADERS = {"float16": "cuda_fp16.h", "bfloat16": "cuda_bf16.h"}
_RISING = frozenset({"add", "max", "min"})
"""Operations whose result never falls when an operand rises."""
_MOST_STEPS = 4
"""Maximum number of steps whose results a thread holds at once."""


def stream_kernel(conv: ConvProgram, plan: StreamPlan, spec: ProblemSpec, fast: bool) -> str:
    """Return the kernel source."""
    chains = [conv.chain, *([conv.before] if conv.before is not None else [])]
    names = pointers(chains, conv.x, conv.w)
    dtypes = dtypes_of(spec)
    chain, output = conv.chain, conv.chain.stores[0]
    vector_stores = conv.pool is None and len(chain.stores) == 1 and dtypes[output.tensor] == "float32"
    if vector_stores:
        chain = PointwiseProgram(chain.numel, chain.values, (Store(ACC, output.value),))
    table: list[str] = []
    epilogues = [_epilogue(chain, conv.columns, conv.filters, fast, "finish", table)]
    if conv.before is not None:
        epilogues.append(_epilogue(conv.before, conv.n, conv.filters, fast, "before", table))
    element = "float16" if plan.type == "f16" else "bfloat16"
    present = {element, conv.dtype, *(dtypes[name] for name in names)}
    return render(
        "hopper/conv_rows.cu.j2",
        conv=conv,
        plan=plan,
        pool=conv.pool,
        images=text(conv.images),
        image=[text(size) for size in conv.image],
        strides=[f"({factor(stride)})" for stride in conv.strides],
        offset=text(conv.offset),
        channels=int(conv.channels) // conv.groups,
        element=ctype(conv.dtype, "cu"),
        headers=sorted(_HEADERS[dtype] for dtype in present if dtype in _HEADERS),
        size_assertions=_assertions(conv, chains, spec, names),
        unfit=NOT_FOR_THIS_SIZE,
        shared_limit=shared_limit(90),
        conversions=conversions({conv.dtype, *(dtypes[name] for name in names)}),
        helpers=helpers(chains, always=conv.pool is not None),
        tensors=tensors_struct(spec, names),
        epilogues=epilogues,
        table=table,
        pieces=_pieces(plan, 8 if vector_stores else 4),
        step_filters=8 if vector_stores else 4,
        most_steps=_MOST_STEPS,
        deferred=conv.before is not None and _rises(conv.before, conv.n, conv.filters),
        lowest=LOWEST,
        vector_stores=vector_stores,
        output=output.tensor,
        arguments=", ".join(names),
        launch=launch_signature(spec, "cu", frozenset((*names, "workspace", "stream"))),
    )


def _per_channel(access: Access, plane: int, filters: int) -> bool:
    return access.count == 1 or (access.inner, access.count) == (plane, filters)


def _rises(chain: PointwiseProgram, plane: int, filters: int) -> bool:
    """Return whether the value that ``chain`` stores depends only on the sum and the channel, and never falls when the
    sum rises.

    If so, the kernel can pool the sums first and apply ``chain`` to each maximum, with the same result.
    """
    depends: dict[int, bool] = {}
    for k in chain.order:
        value = chain.values[k]
        if value.op == "load":
            depends[k] = is_acc(value)
            if not depends[k] and not _per_channel(value.access, plane, filters):
                return False
            continue
        depends[k] = any(depends[arg] for arg in value.args)
        if depends[k] and value.op not in _RISING:
            return False
    return depends[chain.stores[0].value]


class Task(Struct, frozen=True):
    """Part of the work on a row's results. With ``put``, copy the results of filter group ``part`` to the staging
    buffer. Otherwise, write steps [``first``, ``last``) of that group to the output.
    """

    part: int
    put: bool = False
    first: int = 0
    last: int = 0


def _pieces(plan: StreamPlan, filters: int) -> list[list[Task]]:
    """Return a list of tasks per group of products. After each group, the kernel runs its tasks for the previous row.

    Args:
        filters: The number of filters that a team writes from the staging buffer per step.
    """
    passes, steps, many = plan.lines // plan.stage_filters, plan.stage_filters // filters, len(plan.products)
    found: list[list[Task]] = []
    for piece in range(many):
        tasks = []
        at, end = passes * steps * piece // many, passes * steps * (piece + 1) // many
        while at < end:
            number, step = divmod(at, steps)
            if step == 0 and plan.accumulators == 2:
                tasks.append(Task(number, put=True))
            last = min(steps, step + end - at, step + _MOST_STEPS)
            tasks.append(Task(number, first=step, last=last))
            at += last - step
        found.append(tasks)
    return found


def _epilogue(
    chain: PointwiseProgram, plane: int, filters: int, fast: bool, name: str, table: list[str]
) -> dict[str, object]:
    """Return the function ``name``: the epilogue of output ``i``, which is element ``n`` of the plane of filter ``f``.

    If ``chain`` stores to ``ACC``, the function returns the value instead. Add tensors with a value per filter to
    ``table``.
    """

    def leaf(value: Value) -> str:
        if is_acc(value):
            return "acc"
        if value.access.count != 1 and _per_channel(value.access, plane, filters):
            if value.tensor not in table:
                table.append(value.tensor)
            return f"table[{table.index(value.tensor)} * lines + f]"
        return f"to_float(__ldg(t.{value.tensor} + {index(value.access)}))"

    def index(access: Access) -> str:
        if access.count == 1:
            return "0"
        if (access.inner, access.count) == (1, chain.numel):
            return "i"
        return "n" if (access.inner, access.count) == (1, plane) else flat_index(access, "i", chain.numel)

    loads = [k for k in chain.order if chain.values[k].op == "load"]
    leaves = {k: leaf(chain.values[k]) for k in loads}
    lines, texts = Cuda(fast=fast).statements(chain.values, [store.value for store in chain.stores], leaves)
    stores: Sequence[str] = [
        f"return {texts[store.value]};" if store.tensor == ACC else f"put(t.{store.tensor} + i, {texts[store.value]});"
        for store in chain.stores
    ]
    result = "float" if any(store.tensor == ACC for store in chain.stores) else "void"
    return {"name": name, "result": result, "lines": [*lines, *stores]}


def _assertions(
    conv: ConvProgram, chains: Sequence[PointwiseProgram], spec: ProblemSpec, names: Sequence[str]
) -> list[str]:
    """Return assertions about the sizes that a kernel supports. Batch, height and width may differ from the searched
    sizes if the kernel can compute every address from them.
    """
    used = [tensor for tensor in spec.tensors if tensor.name in names]
    free = all(isinstance(size, Size) and not size.under for size in (conv.images, *conv.image) if size != 1)
    free = free and not conv.offset and all(isinstance(one, Size) or one <= 1 for one in conv.strides)
    fixed = []
    for chain in chains:
        plane = conv.columns if chain is conv.chain else conv.n
        for value in (chain.values[k] for k in chain.order):
            if value.op != "load" or is_acc(value):
                continue
            if _per_channel(value.access, plane, conv.filters):
                fixed.append(value.tensor)
            elif (value.access.inner, value.access.count) != (1, chain.numel):
                free = False
    if not free:
        return fixed_sizes(used)
    outputs = {tensor.name for tensor in spec.outputs}
    lines = fixed_sizes(tensor for tensor in used if tensor.name in {conv.w, *fixed})
    lines.append(size_assertion(f"{text(conv.channels)} == {int(conv.channels)}", f"{int(conv.channels)} channels"))
    whole = f"{conv.x}_numel == 1LL * images * channels * groups * image_y * image_x"
    lines.append(size_assertion(whole, f"{conv.x} to be one contiguous batch of images"))
    for name in dict.fromkeys(names):
        if name not in {conv.x, conv.w, *fixed}:
            whole = "results" if name in outputs or conv.pool is None else "pixels"
            needs = f"{name} to have one element per result"
            lines.append(size_assertion(f"{name}_numel == images * {int(conv.filters)}LL * {whole}", needs))
    numbers = [value.number for chain in chains for value in (chain.values[k] for k in chain.order)
               if value.op == "const" and not value.text]  # fmt: skip
    given = [tensor for tensor in used if tensor.name == conv.x]
    return list(dict.fromkeys([*lines, *number_assertions(numbers, given)]))
