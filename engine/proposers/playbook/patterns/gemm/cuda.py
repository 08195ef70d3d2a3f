"""The CUDA template for matmuls.

On Hopper, the template starts with wgmma and tensor maps. On other GPUs, it starts with a thread per output, then uses
tiles, pipelines and tensor cores. Matrix-vector products use a separate kernel.
"""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cuda import FAST_OPS
from engine.proposers.playbook.codegen.size_assertions import size_assertion
from engine.proposers.playbook.ir.sizes import Size, factor, text
from engine.proposers.playbook.patterns.gemm import cuda_vector, hopper, hopper_file, hopper_transformations
from engine.proposers.playbook.patterns.gemm.cpp import as_matmul
from engine.proposers.playbook.patterns.gemm.program import MatmulProgram
from engine.proposers.playbook.patterns.gemm.program import Operand as Matrix
from engine.proposers.playbook.patterns.gemm.tiles import cuda_plan
from engine.proposers.playbook.patterns.gemm.tiles import cuda_transformations as tile_transformations
from engine.proposers.playbook.patterns.gemm.tiles.cuda_file import kernel_file
from engine.proposers.playbook.patterns.gemm.tiles.cuda_finish import finish, pointers
from engine.proposers.playbook.patterns.gemm.tiles.cuda_load import Source, strided
from engine.proposers.playbook.patterns.gemm.tiles.cuda_plan import Operand, Plan
from engine.proposers.playbook.patterns.gemm.tiles.cuda_tiles import Product

_MOST_BLOCKS = 2**31 - 1


class CudaMatmul(Template):
    """Matmuls in CUDA C++ for fp32, fp16 and bf16 operands. Sums use fp32."""

    name = "matmul_cu"
    pattern = "matmul"
    language = "cu"

    def refusal(self, program: Program) -> str | None:
        product = as_matmul(program)
        if product.a.dtype != product.b.dtype:
            return f"the matrix product's operands differ in data type ({product.a.dtype}, {product.b.dtype})"
        if max(product.m, product.n, product.k) >= 2**31 or product.batch * product.m * product.n >= 256 * _MOST_BLOCKS:
            return "the matrices are too large for the kernels' index types"
        return None

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        product = as_matmul(program)
        found = []
        if hopper.refusal(product, device.arch) is None:
            found.append(Start("wgmma", hopper_transformations.IDEA, hopper.recipe(self.name, product, device)))
        text = (
            "Give each result a thread that reads a row of the left operand and a column of the right operand from "
            "global memory."
        )
        dots = Recipe(self.name, cuda_plan.plain(device))
        by_vector = cuda_vector.start(product, dots, device)
        return [*([by_vector] if by_vector is not None else []), *found, Start("dots", text, dots)]

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        product, now = as_matmul(program), recipe.choices
        if now["structure"] == hopper.STRUCTURE:
            return hopper_transformations.transformations(product, now)
        has_fast_epilogue = now["math"] != "fast" and any(
            product.chain.values[k].op in FAST_OPS for k in product.chain.order
        )
        if now["structure"] == cuda_vector.STRUCTURE:
            return [tile_transformations.fast_epilogue()] if has_fast_epilogue else []
        plan = plan_of(product, recipe)
        found = tile_transformations.transformations(plan, now, product.a.dtype, product.k, -(-product.m // plan.bm))
        if has_fast_epilogue:
            found.append(tile_transformations.fast_epilogue())
        return found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        if recipe.choices["structure"] == hopper.STRUCTURE:
            return hopper_transformations.KNOBS
        if recipe.choices["structure"] == cuda_vector.STRUCTURE:
            return cuda_vector.knobs()
        return tile_transformations.knobs(plan_of(as_matmul(program), recipe), int(recipe.choices["arch"]))

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        product = as_matmul(program)
        if recipe.choices["structure"] == hopper.STRUCTURE:
            return hopper_file.kernel(product, recipe.choices, spec)
        if recipe.choices["structure"] == cuda_vector.STRUCTURE:
            return cuda_vector.vector_kernel(product, recipe.choices, spec)
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
            [*product.size_assertions, *_aligned(product, plan)],
        )

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        now = recipe.choices
        changes: Choices = {"math": "precise"}
        if as_matmul(program).a.dtype == "float32":
            if now["structure"] == hopper.STRUCTURE and now["arithmetic"] == "fp16":
                changes["arithmetic"] = "bf16x3"
            elif now["structure"] == hopper.STRUCTURE:
                changes |= hopper.WITHOUT_TENSOR_CORES
            elif now["structure"] == "tensor":
                changes["structure"] = "tiles"
        exact = recipe.with_(changes)
        return exact if exact.choices != now else None


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
        strided(a.pointer, "M", left, a.row_stride, a.col_stride),
        strided(b.pointer, "N", right, b.col_stride, b.row_stride),
    )


def _operand(matrix: Matrix, line_stride: int, k_stride: int, lines: int, depth: int) -> Operand:
    """Return an operand's contiguous direction and the number of elements per load. Loads are 16 bytes wide if all
    addresses allow it.
    """
    if 1 not in (k_stride, line_stride):
        return Operand("", 1)
    extent, other = _run(line_stride, k_stride, lines, depth)
    width = 16 // matrix.element_bytes
    while any(number % width for number in _addresses(matrix, extent, other)):
        width //= 2
    return Operand("k" if k_stride == 1 else "r", width)


def _addresses(matrix: Matrix, extent: int, other: int) -> tuple[int, ...]:
    """Return the sizes and distances that must be multiples of the number of elements per load."""
    return (extent, other, matrix.offset, *(step for _, step in matrix.batch))


def _aligned(program: MatmulProgram, plan: Plan) -> list[str]:
    """Return assertions that the plan's vector loads are aligned, for sizes other than the searched sizes."""
    lines = []
    for matrix, width, extent, other in (
        (program.a, plan.widths[0], *_run(program.a.row_stride, program.a.col_stride, program.m, program.k)),
        (program.b, plan.widths[1], *_run(program.b.col_stride, program.b.row_stride, program.n, program.k)),
    ):
        if plan.structure != "naive" and width > 1:
            numbers = [number for number in _addresses(matrix, extent, other) if isinstance(number, Size)]
            lines += [
                size_assertion(f"{factor(n)} % {width} == 0", f"{text(n)} to be a multiple of {width}") for n in numbers
            ]
    return list(dict.fromkeys(lines))


def _run(line_stride: int, k_stride: int, lines: int, depth: int) -> tuple[int, int]:
    """Return the length of an operand's runs of adjacent elements, and the distance between runs, in elements."""
    return (depth, line_stride) if k_stride == 1 else (lines, k_stride)
