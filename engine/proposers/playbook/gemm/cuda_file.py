"""A whole kernel file around a product in CUDA C++."""

from __future__ import annotations

from collections.abc import Sequence

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.cuda_text import fill, launch
from engine.proposers.playbook.gemm import cuda_sums, cuda_tiles
from engine.proposers.playbook.gemm.cuda_finish import conversions, dtypes_of, helpers, tensors_struct
from engine.proposers.playbook.gemm.cuda_plan import Plan
from engine.proposers.playbook.gemm.cuda_tiles import Product
from engine.proposers.playbook.ir import PointwiseProgram

FAST_OPS = frozenset({"exp", "log", "reciprocal", "div", "sigmoid", "tanh"})
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
    demands: Sequence[str],
    shared_bytes: int = 0,
    scratch_bytes: int = 0,
    after: tuple[str, ...] = (),
    more: str = "",
) -> str:
    """The source. ``functions``: text before the kernel; ``more``: after it; ``demands``: lines that hold it to sizes
    at which it is right; ``shared_bytes``: that it needs at least;
    ``scratch_bytes``: of scratch memory (``t.results``); ``after``: statements of ``launch`` behind the kernel's."""
    dtypes = dtypes_of(spec)
    if plan.structure == "naive":
        kernel = cuda_tiles.naive(product, plan)
    else:
        make = cuda_sums.sums_in_fragments if plan.structure == "tensor" else cuda_sums.sums_in_registers
        kernel = cuda_tiles.tiled(product, plan, make(plan, product.dtype))
    text = fill(
        _FILE,
        includes=cuda_tiles.includes(plan),
        constants=cuda_tiles.constants(product, plan) + "".join(f"{line}\n" for line in demands),
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
    """Statements that launch ``kernel`` on ``t``, with the right to more than 48 KB of shared memory where needed."""
    lines = []
    if shared + static > _DEFAULT_SHARED:
        lines += [
            f"const cudaError_t allowed = cudaFuncSetAttribute({kernel},",
            f"    cudaFuncAttributeMaxDynamicSharedMemorySize, {shared});",
            "if (allowed != cudaSuccess) return int(allowed);",
        ]
    return [*lines, f"{kernel}<<<{grid}, {threads}, {shared}, stream>>>(t);"]
