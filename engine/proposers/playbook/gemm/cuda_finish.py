"""The epilogue of a product in CUDA C++, and conversions between fp32 and the elements of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from engine.problem.header import ctype
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.cuda_text import HELPERS, flat_index, statements
from engine.proposers.playbook.epilogue import ACC, is_acc, tensors_of
from engine.proposers.playbook.ir import PointwiseProgram

_CONVERSIONS = {
    "float32": """\
__device__ __forceinline__ float to_float(float a) { return a; }
__device__ __forceinline__ void put(float* to, float a) { *to = a; }
""",
    "float16": """\
__device__ __forceinline__ float to_float(__half a) { return __half2float(a); }
__device__ __forceinline__ void put(__half* to, float a) { *to = __float2half(a); }
""",
    "bfloat16": """\
__device__ __forceinline__ float to_float(__nv_bfloat16 a) { return __bfloat162float(a); }
__device__ __forceinline__ void put(__nv_bfloat16* to, float a) { *to = __float2bfloat16(a); }
""",
}
_NEED_HELPERS = frozenset({"max", "min", "sign", "tanh"})


def dtypes_of(spec: ProblemSpec) -> Mapping[str, str]:
    """The dtype of each tensor."""
    return {tensor.name: tensor.dtype for tensor in spec.tensors}


def conversions(dtypes: Iterable[str]) -> str:
    """``to_float`` and ``put`` for elements of ``dtypes``."""
    wanted = set(dtypes)
    return "".join(text for dtype, text in _CONVERSIONS.items() if dtype in wanted)


def helpers(chains: Sequence[PointwiseProgram], always: bool = False) -> str:
    """Helpers of the arithmetic, if a chain needs one."""
    ops = {chain.values[k].op for chain in chains for k in chain.order}
    return HELPERS if always or ops & _NEED_HELPERS else ""


def tensors_struct(spec: ProblemSpec, names: Iterable[str], scratch: bool = False) -> str:
    """``Tensors``: every pointer that the kernel uses, under its own name, and ``results`` in scratch memory."""
    outputs, dtypes = {tensor.name for tensor in spec.outputs}, dtypes_of(spec)
    fields = [f"    {'' if n in outputs else 'const '}{ctype(dtypes[n], 'cu')}* {n};\n" for n in names]
    fields += ["    float* results;\n"] if scratch else []
    return "struct Tensors {\n" + "".join(fields) + "};\n"


def finish(chain: PointwiseProgram, cols: int, fast: bool, name: str = "finish") -> str:
    """``finish(t, i, n, acc)``: what becomes of result ``i``, in column ``n`` of rows of ``cols`` columns.

    A chain that stores to ``ACC`` returns the value instead of storing it.
    """

    def refer(position: int) -> str | None:
        value = chain.values[position]
        if value.op != "load":
            return None
        if is_acc(value):
            return "acc"
        access = value.access
        index = "0" if access.count == 1 else "n" if (access.inner, access.count) == (1, cols) else (
            flat_index(access, "i", chain.numel)
        )  # fmt: skip
        return f"to_float(t.{value.tensor}[{index}])"

    lines, text = statements(chain.values, chain.order, refer, fast)
    result = "void"
    for store in chain.stores:
        if store.tensor == ACC:
            result = "float"
            lines.append(f"return {text(store.value)};")
        else:
            lines.append(f"put(t.{store.tensor} + i, {text(store.value)});")
    body = "".join(f"    {line}\n" for line in lines)
    head = f"__device__ __forceinline__ {result} {name}(const Tensors& t, long long i, int n, float acc)"
    return f"// What becomes of result i, in column n.\n{head} {{\n{body}}}\n"


def pointers(chains: Sequence[PointwiseProgram], *more: str) -> list[str]:
    """Names of the tensors that ``Tensors`` holds."""
    return list(dict.fromkeys((*more, *(name for chain in chains for name in tensors_of(chain)))))
