"""The kernel file of a matmul with wgmma: the data that the template ``hopper/product.cu.j2`` needs."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from engine.problem.c_header import ctype
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analysis.epilogue import ACC, is_acc
from engine.proposers.playbook.base import Choices
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.codegen.size_assertions import size_assertion
from engine.proposers.playbook.ir.program import Store
from engine.proposers.playbook.ir.sizes import Size, factor, text
from engine.proposers.playbook.patterns.gemm.hopper import SLABS, Plan, mapped_distances, needs_packing, resolve
from engine.proposers.playbook.patterns.gemm.program import MatmulProgram, Operand
from engine.proposers.playbook.patterns.gemm.tiles import cuda_plan
from engine.proposers.playbook.patterns.gemm.tiles.cuda_finish import (
    conversions,
    dtypes_of,
    finish,
    helpers,
    pointers,
    tensors_struct,
)

_REGISTERS = (40, 232)
"""Registers per thread of the producer and of each of two consumers. Together, they need 63K of a block's 64K
registers. With a single consumer, the kernel does not redistribute registers.
"""
_MAP_TYPES = {
    "float32": "CU_TENSOR_MAP_DATA_TYPE_FLOAT32",
    "float16": "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
    "bfloat16": "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
}
_PARTS = "reinterpret_cast<float*>(static_cast<char*>(workspace) + packed_bytes)"
"""The C expression for the address of partial sums in the workspace."""
_WGMMA_TYPES = {"float16": "f16", "bfloat16": "bf16"}
_SHORT_OPS = frozenset({"load", "const", "add", "sub", "mul", "neg", "abs", "max", "min"})
_MOST_VALUES = 12
_HEADERS = {"float16": "cuda_fp16.h", "bfloat16": "cuda_bf16.h"}


class Packing(Struct, frozen=True):
    """C expressions that describe how the packing pass reads the lines of an operand."""

    type: str
    pointer: str
    length: str
    lines: str
    matrices: str
    line_stride: str
    element_stride: str
    vectors: str
    start: str


class Output(Struct, frozen=True):
    """A tensor that the kernel stores: the name in ``Tensors``, the epilogue, and the address in ``launch``."""

    tensor: str
    dtype: str
    finish: str
    pointer: str

    @property
    def type(self) -> str:
        return ctype(self.dtype, "cu")

    @property
    def map_type(self) -> str:
        return _MAP_TYPES[self.dtype]

    @property
    def short(self) -> bool:
        """Whether two elements fit in a register."""
        return self.dtype != "float32"


class View(Struct, frozen=True):
    """One operand of a matmul, in the form that the templates need.

    Attributes:
        name: ``a`` or ``b``. ``letter`` is the dimension of the operand's lines, ``m`` or ``n``.
        along_k: Whether the elements of a line along k are adjacent.
        shared: Whether the blocks of a cluster share the operand's tiles.
        matrix: The coordinates of the operand's matrix in the tensor map, each after a comma.
        inner: The distance in bytes between chunks of 64 lines, in a tile that is not contiguous along k.
        step: The distance in bytes between steps of 16 elements along k.
        sizes, strides, box, base: The tensor map.
        packing: How to pack the operand, or None if the tensor map describes the tensor itself.
    """

    name: str
    letter: str
    along_k: bool
    shared: bool
    matrix: str
    inner: int
    step: int
    sizes: list[str]
    strides: list[str]
    box: list[str]
    base: str
    packing: Packing | None


def kernel(program: MatmulProgram, choices: Choices, spec: ProblemSpec) -> str:
    """Return the kernel source."""
    plan = resolve(choices, program)
    chain, dtypes = program.chain, dtypes_of(spec)
    a = _view("a", program.a, program.a.row_stride, program.a.col_stride, program, plan, "0")
    start = f"{plan.planes} * a_plane" if a.packing else "0"
    b = _view("b", program.b, program.b.col_stride, program.b.row_stride, program, plan, start)
    packed = [operand.tensor for operand, view in ((program.a, a), (program.b, b)) if view.packing]
    names = pointers([chain], *packed)
    used = [*names, program.a.tensor, program.b.tensor, "stream", *(["workspace"] if packed or plan.splits > 1 else [])]
    present = {plan.element, "float32"} | {dtypes[name] for name in used if name in dtypes}
    functions = [
        finish(replace(chain, stores=(Store(ACC, store.value),)), program.n, choices["math"] == "fast", f"finish{k}")
        for k, store in enumerate(chain.stores)
    ]
    stores = [
        Output(store.tensor, dtypes[store.tensor], f"finish{k}", store.tensor) for k, store in enumerate(chain.stores)
    ]
    last = "b" if b.packing else "a"
    packed_bytes = f"({last}_first + {plan.planes} * {last}_plane) * sizeof(Element)" if packed else "0"
    producer, consumer = _REGISTERS
    return render(
        "hopper/product.cu.j2",
        a=a,
        b=b,
        packed=bool(packed),
        ranks=sorted({len(a.sizes), len(b.sizes), 3}),
        headers=sorted(_HEADERS[dtype] for dtype in present if dtype in _HEADERS),
        element=ctype(plan.element, "cu"),
        wgmma_type=_WGMMA_TYPES[plan.element],
        map_type=_MAP_TYPES[plan.element],
        m=text(program.m),
        n=text(program.n),
        k=text(program.k),
        batch=text(program.batch),
        size_assertions=list(dict.fromkeys([*program.size_assertions, *_aligned(program, a, b)])),
        bm=plan.bm,
        bn=plan.bn,
        stages=plan.stages,
        cluster=plan.cluster,
        consumers=plan.consumers,
        sms=plan.sms,
        slabs=SLABS,
        group=plan.group,
        products=plan.products,
        planes=plan.planes,
        producer_registers=producer,
        consumer_registers=consumer,
        shared_limit=cuda_plan.shared_limit(90),
        conversions=conversions(present),
        helpers=helpers([chain]),
        tensors=tensors_struct(spec, names, plan.splits > 1),
        finish="\n".join(functions),
        outputs=[Output("results", "float32", "keep_part", _PARTS)] if plan.splits > 1 else stores,
        stores=stores,
        through_rows=plan.splits == 1 and _many_instructions(program),
        packed_bytes=f"({packed_bytes} + 255) / 256 * 256",
        splits=plan.splits,
        arguments=", ".join([*names, *([_PARTS] if plan.splits > 1 else [])]),
        launch=launch_signature(spec, "cu", frozenset(used)),
    )


def _many_instructions(program: MatmulProgram) -> bool:
    """Return whether an epilogue is too long to repeat for every sum of a thread, or reads whole tensors."""
    chain = program.chain
    for value in (chain.values[k] for k in chain.order):
        if value.op not in _SHORT_OPS or (value.op == "load" and not is_acc(value) and value.access.count > program.n):
            return True
    return len(chain.order) > _MOST_VALUES


def _view(
    name: str, operand: Operand, line_stride: int, k_stride: int, program: MatmulProgram, plan: Plan, start: str
) -> View:
    """Return the view of an operand. ``start`` is the C index of a packed operand's first element in the workspace."""
    letter, lines = ("m", program.m) if name == "a" else ("n", program.n)
    along_k = k_stride == 1 or line_stride != 1
    length, others = (program.k, lines) if along_k else (lines, program.k)
    along, across = (k_stride, line_stride) if along_k else (line_stride, k_stride)
    packing = None
    if needs_packing(operand, line_stride, k_stride):
        packing = _packing(operand, length, others, along, across, start)
        matrix = "batch" if packing.matrices != "1" else "0"
        matrix = f", plane_{name} * {name}_matrices + {matrix}" if plan.planes > 1 else f", {matrix}"
        sizes = [f"{name}_length", f"{name}_lines", f"{plan.planes} * {name}_matrices"]
        strides = [f"{name}_pitch * 2", f"2ll * {name}_lines * {name}_pitch"]
        base = f"static_cast<const Element*>(workspace) + {name}_first"
    else:
        matrix, sizes, strides = "", [text(length), text(others)], [f"{factor(across)} * 2"]
        inner = 1
        for place, (size, step) in reversed(list(enumerate(operand.batch))):
            if step:
                index = "batch" if inner == 1 else f"batch / int({factor(inner)})"
                matrix += f", {index}" if place == 0 else f", {index} % int({factor(size)})"
                sizes.append(text(size))
                strides.append(f"{factor(step)} * 2")
            inner = inner * size
        base = f"{operand.tensor} + {text(operand.offset)}" if operand.offset else operand.tensor
    shared = name == "b" and plan.cluster > 1
    part = f"{name}_part" if shared else f"b{letter}" if along_k else "depth"
    return View(
        name=name,
        letter=letter,
        along_k=along_k,
        shared=shared,
        matrix=matrix,
        inner=16 if along_k else 8192,
        step=32 if along_k else 2048,
        sizes=[f"cuuint64_t({size})" for size in sizes],
        strides=[f"cuuint64_t({stride})" for stride in strides],
        box=["64", part, *("1" for _ in sizes[2:])],
        base=base,
        packing=packing,
    )


def _packing(operand: Operand, length: int, lines: int, along: int, across: int, start: str) -> Packing:
    batched = any(step for _, step in operand.batch)
    offset = f" + {text(operand.offset)}" if operand.offset else ""
    aligned = dict.fromkeys([across, *mapped_distances(operand, across)])
    vectors = [f"{factor(length)} % 8 == 0", *(f"{factor(number)} % 4 == 0" for number in aligned if number)]
    return Packing(
        type=ctype(operand.dtype, "cu"),
        pointer=operand.pointer if batched else f"t.{operand.tensor}{offset}",
        length=text(length),
        lines=text(lines),
        matrices="batches" if batched else "1",
        line_stride=factor(across),
        element_stride=factor(along),
        vectors=" && ".join(vectors) if operand.dtype == "float32" and along == 1 else "false",
        start=start,
    )


def _aligned(program: MatmulProgram, *views: View) -> list[str]:
    """Return assertions that tensor maps can describe the tensors at sizes other than the searched sizes."""
    lines = []
    for view, operand in zip(views, (program.a, program.b), strict=True):
        if view.packing is None:
            across = operand.row_stride if operand.col_stride == 1 else operand.col_stride
            lines += [
                size_assertion(f"{factor(n)} % 8 == 0", f"{text(n)} to be a multiple of 8")
                for n in mapped_distances(operand, across)
                if isinstance(n, Size)
            ]
    return lines
