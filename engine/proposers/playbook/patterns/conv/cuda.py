"""The CUDA template for convolutions.

On Hopper, the template starts with wgmma: blocks stream down rows of images, or compute tiles of pixels. On other
GPUs, it starts with a thread per pixel, then uses an implicit GEMM. Depthwise convolutions use a separate kernel.
"""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.size_assertions import fixed_sizes
from engine.proposers.playbook.patterns.conv import (
    cuda_channels,
    cuda_octets,
    cuda_octets_plan,
    cuda_octets_transformations,
    cuda_text,
)
from engine.proposers.playbook.patterns.conv.cpp import as_conv
from engine.proposers.playbook.patterns.conv.cuda_octets_plan import OctetPlan
from engine.proposers.playbook.patterns.conv.hopper import file as stream_file
from engine.proposers.playbook.patterns.conv.hopper import plan as stream_plan
from engine.proposers.playbook.patterns.conv.hopper import transformations as stream_transformations
from engine.proposers.playbook.patterns.conv.hopper.plan import StreamPlan
from engine.proposers.playbook.patterns.conv.program import FEW_FILTERS, ConvProgram
from engine.proposers.playbook.patterns.gemm.tiles import cuda_plan
from engine.proposers.playbook.patterns.gemm.tiles import cuda_transformations as tile_transformations
from engine.proposers.playbook.patterns.gemm.tiles.cuda_file import kernel_file, launch_lines
from engine.proposers.playbook.patterns.gemm.tiles.cuda_finish import finish, pointers
from engine.proposers.playbook.patterns.gemm.tiles.cuda_load import Source, strided
from engine.proposers.playbook.patterns.gemm.tiles.cuda_plan import Operand, Plan
from engine.proposers.playbook.patterns.gemm.tiles.cuda_tiles import Product

_POOL_THREADS = 256


class CudaConv(Template):
    """Convolutions in CUDA C++ for fp32, fp16 and bf16 operands. Sums use fp32."""

    name = "conv_cu"
    pattern = "conv"
    language = "cu"

    def refusal(self, program: Program) -> str | None:
        conv = as_conv(program)
        if max(conv.m, conv.n, conv.k) >= 2**30 or conv.chain.numel >= 2**38:
            return "the convolution's images are too large for the kernels' index types"
        return None

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        conv = as_conv(program)
        pooled = conv.pool is not None
        text = "Give each pixel of each filter a thread that sums the pixel's taps from global memory." + (
            " The results go to scratch memory, and a second kernel pools them." if pooled else ""
        )
        direct = Recipe(self.name, {**cuda_plan.plain(device), "fused": False})
        found = [Start("direct", text, direct)]
        wgmma = cuda_octets_transformations.start(conv, direct, device)
        if int(direct.choices["arch"]) == 90 and octets_of(conv, wgmma.recipe) is not None:
            found.insert(0, wgmma)
        stream = stream_transformations.start(conv, direct, device)
        if stream_of(conv, stream.recipe) is not None:
            found.insert(0, stream)
        if cuda_channels.reads_one_channel(conv):
            found.insert(0, cuda_channels.start(direct))
        return found

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        conv, now = as_conv(program), recipe.choices
        stream = stream_of(conv, recipe)
        if stream is not None:
            return stream_transformations.transformations(conv, stream, now)
        if octets_of(conv, recipe) is not None:
            return cuda_octets_transformations.transformations(conv, now)
        has_fast_epilogue = now["math"] != "fast" and cuda_octets_transformations.has_fast_form(conv)
        if _by_channels(conv, recipe):
            return [tile_transformations.fast_epilogue()] if has_fast_epilogue else []
        plan = plan_of(conv, recipe)
        found = []
        if conv.m >= FEW_FILTERS or plan.structure != "naive":
            found = tile_transformations.transformations(plan, now, conv.dtype, conv.k, -(-conv.m // plan.bm))
        if conv.pool is not None and not now["fused"] and plan.structure != "naive":
            found.append(
                Transformation(
                    "fuse_pooling",
                    "memory",
                    "The kernel writes all results of the convolution to global memory and reads them again for "
                    "pooling. Map each tile's columns to a patch of pixels plus the halo that its windows need. Keep "
                    "the patch in shared memory, and pool it there.",
                    {"fused": True},
                    ("bn", "bm"),
                    gain=1.3,
                    helps="memory",
                )
            )
        octets = cuda_octets_transformations.build_from_octets(conv, device)
        # On Hopper, the first kernel already builds octets.
        if (
            plan.structure == "tensor"
            and now["arch"] != 90
            and octets_of(conv, recipe.with_(octets.changes)) is not None
        ):
            found.append(octets)
        if cuda_channels.reads_one_channel(conv):
            found.append(cuda_channels.rows_per_thread())
        if has_fast_epilogue:
            found.append(tile_transformations.fast_epilogue())
        return found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        conv = as_conv(program)
        stream = stream_of(conv, recipe)
        if stream is not None:
            return stream_transformations.knobs(stream)
        octets = octets_of(conv, recipe)
        if octets is not None:
            return cuda_octets_transformations.knobs(conv, octets)
        if _by_channels(conv, recipe):
            return cuda_channels.knobs(conv)
        return tile_transformations.knobs(plan_of(conv, recipe), int(recipe.choices["arch"]))

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        conv, fast = as_conv(program), recipe.choices["math"] == "fast"
        stream = stream_of(conv, recipe)
        if stream is not None:
            return stream_file.stream_kernel(conv, stream, spec, fast)
        octets = octets_of(conv, recipe)
        if octets is not None:
            return cuda_octets.octets_kernel(conv, octets, spec, fast)
        if _by_channels(conv, recipe):
            return cuda_channels.channels_kernel(conv, recipe.choices, spec)
        plan = plan_of(conv, recipe)
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
            fixed_sizes(tensor for tensor in spec.tensors if tensor.name in names),
            shared_bytes=4 * plan.bm * plan.bn if patch is not None else 0,
            scratch_bytes=conv.workspace_bytes if two_passes else 0,
            after=tuple(pooling) if two_passes else (),
            more=cuda_text.pool_kernel(conv) if two_passes else "",
        )

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        now = recipe.choices
        changes: Choices = {"math": "precise"}
        if as_conv(program).dtype == "float32":
            by_octets = now["structure"] in (cuda_octets_plan.STRUCTURE, stream_plan.STRUCTURE)
            if by_octets and now["arithmetic"] == "fp16":
                changes["arithmetic"] = "bf16x3"
            elif by_octets or now["structure"] == "tensor":
                changes["structure"] = "tiles"
        exact = recipe.with_(changes)
        return exact if exact.choices != recipe.choices else None


def _by_channels(program: ConvProgram, recipe: Recipe) -> bool:
    return recipe.choices["structure"] == cuda_channels.STRUCTURE and cuda_channels.reads_one_channel(program)


def octets_of(program: ConvProgram, recipe: Recipe) -> OctetPlan | None:
    """Return the plan of a kernel that builds octets. Return None if the recipe, device or problem needs another
    structure.
    """
    if recipe.choices["structure"] != cuda_octets_plan.STRUCTURE:
        return None
    if cuda_octets_plan.refusal(program, int(recipe.choices["arch"])) is not None:
        return None
    return cuda_octets_plan.resolve(program, recipe.choices)


def stream_of(program: ConvProgram, recipe: Recipe) -> StreamPlan | None:
    """Return the plan of a kernel that streams down rows. Return None if the recipe, device or problem needs another
    structure.
    """
    if recipe.choices["structure"] != stream_plan.STRUCTURE:
        return None
    if stream_plan.refusal(program, int(recipe.choices["arch"])) is not None:
        return None
    return stream_plan.resolve(program, recipe.choices)


def plan_of(program: ConvProgram, recipe: Recipe) -> Plan:
    fused = bool(recipe.choices["fused"]) and program.pool is not None
    left, right = _sources(program)
    return cuda_plan.resolve(
        recipe.choices, left.operand, right.operand, program.element_bytes, reserved_per_result=4 if fused else 0
    )


def _patch(program: ConvProgram, recipe: Recipe, plan: Plan) -> cuda_text.Patch | None:
    """Return the patch of pixels that a tile computes, or None if pooling is a separate pass."""
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
