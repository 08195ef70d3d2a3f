"""Matrix products in CUDA C++ as a template: a result per thread first, then tiles, pipelines and tensor cores."""

from __future__ import annotations

from engine.events import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.demands import demand
from engine.proposers.playbook.gemm import cuda_moves, cuda_plan
from engine.proposers.playbook.gemm.cuda_file import FAST_OPS, kernel_file
from engine.proposers.playbook.gemm.cuda_finish import finish, pointers
from engine.proposers.playbook.gemm.cuda_load import Source, strided
from engine.proposers.playbook.gemm.cuda_plan import Operand, Plan
from engine.proposers.playbook.gemm.cuda_tiles import Product
from engine.proposers.playbook.ir import Program
from engine.proposers.playbook.matmul.cpp import as_matmul
from engine.proposers.playbook.matmul.program import MatmulProgram, batch_text
from engine.proposers.playbook.matmul.program import Operand as Matrix
from engine.proposers.playbook.sizes import Size, factor, text
from engine.proposers.playbook.template import Choice, First, Move, Recipe, Template

_MOST_BLOCKS = 2**31 - 1


class CudaMatmul(Template):
    """The matmul family in CUDA C++: fp32, fp16 and bf16 operands, sums in fp32."""

    name = "matmul_cu"
    family = "matmul"
    language = "cu"

    def refusal(self, program: Program) -> str | None:
        product = as_matmul(program)
        if product.a.dtype != product.b.dtype:
            return f"its operands differ in type ({product.a.dtype}, {product.b.dtype})"
        if max(product.m, product.n, product.k) >= 2**31 or product.batch * product.m * product.n >= 256 * _MOST_BLOCKS:
            return "its matrices are too large for the templates' indices"
        return None

    def first(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[First]:
        text = (
            "A thread per result: it walks along a row of the left and a column of the right operand in global memory."
        )
        return [First("dots", text, Recipe(self.name, cuda_plan.plain(device)))]

    def moves(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Move]:
        product, now = as_matmul(program), recipe.choices
        plan = plan_of(product, recipe)
        found = cuda_moves.moves(plan, now, product.a.dtype, product.k, -(-product.m // plan.bm))
        if now["math"] != "fast" and any(product.chain.values[k].op in FAST_OPS for k in product.chain.order):
            found.append(cuda_moves.fast_epilogue())
        return found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        return cuda_moves.knobs(plan_of(as_matmul(program), recipe), int(recipe.choices["arch"]))

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        product = as_matmul(program)
        plan = plan_of(product, recipe)
        fast = recipe.choices["math"] == "fast"
        names = pointers([product.chain], product.a.tensor, product.b.tensor)
        return kernel_file(
            spec,
            _product(product),
            plan,
            names,
            [product.chain],
            finish(product.chain, product.n, fast),
            [*product.demands, *_aligned(product, plan)],
        )

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        changes = {"math": "precise"}
        if recipe.choices["structure"] == "tensor" and as_matmul(program).a.dtype == "float32":
            changes["structure"] = "tiles"
        exact = recipe.with_({**changes})
        return exact if exact.choices != recipe.choices else None


def plan_of(program: MatmulProgram, recipe: Recipe) -> Plan:
    a, b = _sources(program)
    return cuda_plan.resolve(recipe.choices, a.operand, b.operand, program.a.element_bytes)


def _product(program: MatmulProgram) -> Product:
    a, b = _sources(program)
    deliver = "finish(t, (b * M + m) * N + n, n, sum);"
    return Product(program.batch, program.m, program.n, program.k, program.a.dtype, a, b, (deliver,))


def _sources(program: MatmulProgram) -> tuple[Source, Source]:
    a, b = program.a, program.b
    left = _operand(a, a.row_stride, a.col_stride, program.m, program.k)
    right = _operand(b, b.col_stride, b.row_stride, program.n, program.k)
    return (
        strided(_base(a), "M", left, a.row_stride, a.col_stride),
        strided(_base(b), "N", right, b.col_stride, b.row_stride),
    )


def _base(matrix: Matrix) -> str:
    parts = [f"t.{matrix.tensor}", text(matrix.offset) if matrix.offset else "", batch_text(matrix.batch, "b")]
    return " + ".join(part for part in parts if part)


def _operand(matrix: Matrix, line_stride: int, k_stride: int, lines: int, depth: int) -> Operand:
    """Which way neighbours lie, and how many may be loaded at once: 16 bytes where all addresses allow them."""
    if 1 not in (k_stride, line_stride):
        return Operand("", 1)
    extent, other = _run(line_stride, k_stride, lines, depth)
    width = 16 // matrix.element_bytes
    while any(number % width for number in _addresses(matrix, extent, other)):
        width //= 2
    return Operand("k" if k_stride == 1 else "r", width)


def _addresses(matrix: Matrix, extent: int, other: int) -> tuple[int, ...]:
    """What must be a multiple of the elements that are loaded at once."""
    return (extent, other, matrix.offset, *(step for _, step in matrix.batch))


def _aligned(program: MatmulProgram, plan: Plan) -> list[str]:
    """Demands that vector loads, where the plan has them, are aligned at other sizes too."""
    lines = []
    for matrix, width, extent, other in (
        (program.a, plan.widths[0], *_run(program.a.row_stride, program.a.col_stride, program.m, program.k)),
        (program.b, plan.widths[1], *_run(program.b.col_stride, program.b.row_stride, program.n, program.k)),
    ):
        if plan.structure != "naive" and width > 1:
            numbers = [number for number in _addresses(matrix, extent, other) if isinstance(number, Size)]
            lines += [demand(f"{factor(n)} % {width} == 0", f"{text(n)} to be a multiple of {width}") for n in numbers]
    return list(dict.fromkeys(lines))


def _run(line_stride: int, k_stride: int, lines: int, depth: int) -> tuple[int, int]:
    """How many elements lie side by side, and the distance of the next such run."""
    return (depth, line_stride) if k_stride == 1 else (lines, k_stride)
