"""Convolutions in CUDA C++ as a template: a pixel per thread first, then an implicit product of matrices."""

from __future__ import annotations

from engine.events import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.conv import cuda_text
from engine.proposers.playbook.conv.cpp import as_conv
from engine.proposers.playbook.conv.program import ConvProgram
from engine.proposers.playbook.demands import fixed
from engine.proposers.playbook.gemm import cuda_moves, cuda_plan
from engine.proposers.playbook.gemm.cuda_file import FAST_OPS, kernel_file, launch_lines
from engine.proposers.playbook.gemm.cuda_finish import finish, pointers
from engine.proposers.playbook.gemm.cuda_load import Source, strided
from engine.proposers.playbook.gemm.cuda_plan import Operand, Plan
from engine.proposers.playbook.gemm.cuda_tiles import Product
from engine.proposers.playbook.ir import Program
from engine.proposers.playbook.template import Choice, First, Move, Recipe, Template

_POOL_THREADS = 256


class CudaConv(Template):
    """The conv family in CUDA C++: fp32, fp16 and bf16 operands, sums in fp32."""

    name = "conv_cu"
    family = "conv"
    language = "cu"

    def refusal(self, program: Program) -> str | None:
        conv = as_conv(program)
        if max(conv.m, conv.n, conv.k) >= 2**30 or conv.chain.numel >= 2**38:
            return "its images are too large for the templates' indices"
        return None

    def first(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[First]:
        pooled = as_conv(program).pool is not None
        text = "A thread per pixel and filter: it walks over its taps in global memory." + (
            " Results go to scratch memory, and a second kernel pools them." if pooled else ""
        )
        return [First("direct", text, Recipe(self.name, {**cuda_plan.plain(device), "fused": False}))]

    def moves(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Move]:
        conv, now = as_conv(program), recipe.choices
        plan = plan_of(conv, recipe)
        found = cuda_moves.moves(plan, now, conv.dtype, conv.k, -(-conv.m // plan.bm))
        if conv.pool is not None and not now["fused"] and plan.structure != "naive":
            found.append(
                Move(
                    "fuse_pooling",
                    "memory",
                    "All results go to memory and come back to be pooled. Let the columns of a tile be a patch of "
                    "pixels with the rim that its windows need, keep the patch in shared memory, and pool it there.",
                    {"fused": True},
                    ("bn", "bm"),
                    gain=1.3,
                    helps="memory",
                )
            )
        chains = [conv.chain, *([conv.before] if conv.before is not None else [])]
        if now["math"] != "fast" and any(c.values[k].op in FAST_OPS for c in chains for k in c.order):
            found.append(cuda_moves.fast_epilogue())
        return found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        return cuda_moves.knobs(plan_of(as_conv(program), recipe), int(recipe.choices["arch"]))

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        conv = as_conv(program)
        plan, fast = plan_of(conv, recipe), recipe.choices["math"] == "fast"
        patch = _patch(conv, recipe, plan)
        two_passes = conv.pool is not None and patch is None
        functions = cuda_text.pixel_function(conv, patch)
        chains = [conv.chain]
        if conv.before is not None:
            chains.append(conv.before)
            functions += finish(conv.before, conv.n, fast, "before")
        functions += finish(conv.chain, conv.columns, fast)
        pooling = launch_lines("playbook::pool", -(-conv.chain.numel // _POOL_THREADS), _POOL_THREADS, 0)
        names = pointers(chains, conv.x, conv.w)
        return kernel_file(
            spec,
            _product(conv, patch, plan),
            plan,
            names,
            chains,
            functions,
            fixed(tensor for tensor in spec.tensors if tensor.name in names),
            shared_bytes=4 * plan.bm * plan.bn if patch is not None else 0,
            scratch_bytes=conv.workspace_bytes if two_passes else 0,
            after=tuple(pooling) if two_passes else (),
            more=cuda_text.pool_kernel(conv) if two_passes else "",
        )

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        exact = recipe.with_({"math": "precise"})
        if recipe.choices["structure"] == "tensor" and as_conv(program).dtype == "float32":
            exact = exact.with_({"structure": "tiles"})
        return exact if exact.choices != recipe.choices else None


def plan_of(program: ConvProgram, recipe: Recipe) -> Plan:
    fused = bool(recipe.choices["fused"]) and program.pool is not None
    left, right = _sources(program)
    return cuda_plan.resolve(
        recipe.choices, left.operand, right.operand, program.element_bytes, reserved_per_result=4 if fused else 0
    )


def _patch(program: ConvProgram, recipe: Recipe, plan: Plan) -> cuda_text.Patch | None:
    """The patch behind a tile, or None where pooling is a pass of its own."""
    fused = bool(recipe.choices["fused"]) and plan.structure != "naive"
    return cuda_text.patch_of(program, plan.bn) if fused else None


def _sources(program: ConvProgram) -> tuple[Source, Source]:
    width = 16 // program.element_bytes
    while program.k % width:
        width //= 2
    base = f"t.{program.w}" + (f" + (b % {program.groups}) * ((long long)M * K)" if program.groups > 1 else "")
    return strided(base, "M", Operand("k", width), program.k, 1), cuda_text.image_source(program)


def _product(program: ConvProgram, patch: cuda_text.Patch | None, plan: Plan) -> Product:
    weights, image = _sources(program)
    tiles_n, column_inside = 0, "n < N"
    pooled: tuple[str, ...] = ()
    if program.pool is None:
        deliver: tuple[str, ...] = ("finish(t, (b * M + m) * N + n, n, sum);",)
    elif patch is None:
        deliver = (
            "const long long i = (b * M + m) * N + n;",
            "t.results[i] = before(t, i, n, sum);",
        )
    else:
        tiles_n = patch.tiles[0] * patch.tiles[1]
        deliver = (
            "int y, x;",
            "const bool real = pixel(n, y, x) && m < M;",
            f"const int at = y * {program.size[1]} + x;",
            f"results[row * BN + col] = real ? before(t, (b * M + m) * N + at, at, sum) : {cuda_text.LOWEST};",
        )
        pooled = cuda_text.pool_patch(program, patch)
    return Product(
        batch=program.batch,
        m=program.m,
        n=program.n,
        k=program.k,
        dtype=program.dtype,
        a=weights,
        b=image,
        deliver=deliver,
        tiles_n=tiles_n,
        column_inside=column_inside,
        pooled=pooled,
    )
