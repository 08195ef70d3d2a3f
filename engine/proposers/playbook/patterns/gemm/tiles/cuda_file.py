"""The whole kernel file for a matrix product in CUDA C++."""

from __future__ import annotations

from collections.abc import Sequence

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.codegen.text import fill, launch
from engine.proposers.playbook.ir.program import PointwiseProgram
from engine.proposers.playbook.patterns.gemm.tiles import cuda_sums, cuda_tiles
from engine.proposers.playbook.patterns.gemm.tiles.cuda_finish import conversions, dtypes_of, helpers, tensors_struct
from engine.proposers.playbook.patterns.gemm.tiles.cuda_plan import Plan
from engine.proposers.playbook.patterns.gemm.tiles.cuda_tiles import Product

_DEFAULT_SHARED = 48 * 1024

_FILE = """\
$includes
namespace playbook {

$constants
$conversions$helpers$tensors
$finish
$kernel
}  // namespace playbook

"""


def kernel_file(
    spec: ProblemSpec,
    product: Product,
    plan: Plan,
    names: Sequence[str],
    chains: Sequence[PointwiseProgram],
    functions: str,
    size_assertions: Sequence[str],
    shared_bytes: int = 0,
    scratch_bytes: int = 0,
    after: tuple[str, ...] = (),
    more: str = "",
) -> str:
    """Return the source.

    Args:
        functions: Source text before the kernel.
        size_assertions: Lines that stop the build at sizes that the kernel does not support.
        shared_bytes: The minimum shared memory that the kernel needs, in bytes.
        scratch_bytes: The size of the scratch memory (``t.results``), in bytes.
        after: Statements of ``launch`` after the kernel's launch.
        more: Source text after the kernel.
    """
    dtypes = dtypes_of(spec)
    if plan.structure == "naive":
        kernel = cuda_tiles.naive(product, plan)
    else:
        make = cuda_sums.sums_in_fragments if plan.structure == "tensor" else cuda_sums.sums_in_registers
        kernel = cuda_tiles.tiled(product, plan, make(plan, product.dtype))
    text = fill(
        _FILE,
        includes=cuda_tiles.includes(plan),
        constants=cuda_tiles.constants(product, plan) + "".join(f"{line}\n" for line in size_assertions),
        conversions=conversions({product.dtype, *(dtypes[name] for name in names), "float32"}),
        helpers=helpers(chains),
        tensors=tensors_struct(spec, names, scratch_bytes > 0),
        finish=functions,
        kernel=kernel + more,
    )
    shared = 0 if plan.structure == "naive" else max(plan.tile_bytes, shared_bytes)
    used, fields = [*names], [*names]
    if scratch_bytes:
        text += f'extern "C" size_t workspace_bytes(void) {{ return {scratch_bytes}; }}\n\n'
        used.append("workspace")
        fields.append("static_cast<float*>(workspace)")
    return text + launch(spec, used, [
        f"const playbook::Tensors t{{{', '.join(fields)}}};",
        *launch_lines("playbook::product", "playbook::blocks", plan.threads, shared, plan.patch_bytes),
        *after,
        "return int(cudaGetLastError());",
    ])  # fmt: skip


def launch_lines(kernel: str, grid: int | str, threads: int, shared: int, static: int = 0) -> list[str]:
    """Return statements that launch ``kernel`` on ``t`` and, if necessary, first raise the shared-memory limit of 48
    KiB.
    """
    lines = []
    if shared + static > _DEFAULT_SHARED:
        lines += [
            f"const cudaError_t allowed = cudaFuncSetAttribute({kernel},",
            f"    cudaFuncAttributeMaxDynamicSharedMemorySize, {shared});",
            "if (allowed != cudaSuccess) return int(allowed);",
        ]
    return [*lines, f"{kernel}<<<{grid}, {threads}, {shared}, stream>>>(t);"]
