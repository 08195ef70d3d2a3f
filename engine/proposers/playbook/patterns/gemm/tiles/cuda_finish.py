"""The epilogue of a matrix product in CUDA C++, and conversions between fp32 and the tensors' dtypes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from engine.problem.c_header import ctype
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.analysis.epilogue import ACC, is_acc, tensors_of
from engine.proposers.playbook.codegen.cuda import Cuda, flat_index
from engine.proposers.playbook.codegen.rendering import fixed_text
from engine.proposers.playbook.ir.program import Access, PointwiseProgram

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
    """Return each tensor's dtype."""
    return {tensor.name: tensor.dtype for tensor in spec.tensors}


def conversions(dtypes: Iterable[str]) -> str:
    """Return the functions ``to_float`` and ``put`` for elements of ``dtypes``."""
    wanted = set(dtypes)
    return "".join(text for dtype, text in _CONVERSIONS.items() if dtype in wanted)


def helpers(chains: Sequence[PointwiseProgram], always: bool = False) -> str:
    """Return the math helpers if any chain needs a helper."""
    ops = {chain.values[k].op for chain in chains for k in chain.order}
    return fixed_text("_math.cu.j2") if always or ops & _NEED_HELPERS else ""


def tensors_struct(spec: ProblemSpec, names: Iterable[str], scratch: bool = False) -> str:
    """Return the struct ``Tensors``, which contains every pointer that the kernel uses, under the tensor's name.

    With ``scratch``, the struct also contains ``results``, a pointer to scratch memory.
    """
    outputs, dtypes = {tensor.name for tensor in spec.outputs}, dtypes_of(spec)
    fields = [f"    {'' if n in outputs else 'const '}{ctype(dtypes[n], 'cu')}* {n};\n" for n in names]
    fields += ["    float* results;\n"] if scratch else []
    return "struct Tensors {\n" + "".join(fields) + "};\n"


def finish(chain: PointwiseProgram, cols: int, fast: bool, name: str = "finish") -> str:
    """Return the function ``finish(t, i, n, acc)``, the epilogue of output ``i`` in column ``n`` of ``cols``.

    If ``chain`` stores to ``ACC``, the function returns the value instead.
    """

    def load(access: Access) -> str:
        if access.count == 1:
            return "0"
        return "n" if (access.inner, access.count) == (1, cols) else flat_index(access, "i", chain.numel)

    loads = [k for k in chain.order if chain.values[k].op == "load"]
    leaves = {
        k: "acc" if is_acc(value) else f"to_float(t.{value.tensor}[{load(value.access)}])"
        for k, value in ((k, chain.values[k]) for k in loads)
    }
    leaves |= {k: f"float({load(chain.values[k].access)})" for k in chain.order if chain.values[k].op == "position"}
    lines, texts = Cuda(fast=fast).statements(chain.values, [store.value for store in chain.stores], leaves)
    result = "void"
    for store in chain.stores:
        if store.tensor == ACC:
            result = "float"
            lines.append(f"return {texts[store.value]};")
        else:
            lines.append(f"put(t.{store.tensor} + i, {texts[store.value]});")
    body = "".join(f"    {line}\n" for line in lines)
    head = f"__device__ __forceinline__ {result} {name}(const Tensors& t, long long i, int n, float acc)"
    return f"// The epilogue of result i, in column n.\n{head} {{\n{body}}}\n"


def pointers(chains: Sequence[PointwiseProgram], *more: str) -> list[str]:
    """Return the names of the tensors in ``Tensors``."""
    return list(dict.fromkeys((*more, *(name for chain in chains for name in tensors_of(chain)))))
