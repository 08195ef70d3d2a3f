"""The C header that a kernel is compiled with, derived from the problem. Imports no torch.

The header is force-included (``-include``). It declares ``launch`` with C linkage, so that a definition with other
arguments is a compile error ("conflicting declaration of C function"), and gives every shape as ``constexpr``.
A definition without ``extern "C"`` and with other arguments is a legal C++ overload; linking with
``-Wl,--require-defined=launch`` turns that into a build error too.
"""

from __future__ import annotations

from engine.problem.spec import Form, ProblemSpec, ScalarSpec, TensorSpec

_CTYPES = {
    "float64": "double",
    "float32": "float",
    "int64": "int64_t",
    "int32": "int32_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "bool": "bool",
}
_HALF_CTYPES: dict[str, dict[str, str]] = {
    "cu": {"float16": "__half", "bfloat16": "__nv_bfloat16"},
    # g++ 12 has no arithmetic bfloat16 type: the kernel gets the bits.
    "cpp": {"float16": "_Float16", "bfloat16": "uint16_t"},
}
_CUDA_INCLUDES = {"float16": "cuda_fp16.h", "bfloat16": "cuda_bf16.h"}


class HeaderError(ValueError):
    """The problem has no C form, or the form asked for is not C. The message says why."""


def ctype(dtype: str, form: Form) -> str:
    """The C type of one element. Raises ``HeaderError`` for a dtype that has none."""
    known = _CTYPES | _HALF_CTYPES.get(form, {})
    if dtype not in known:
        raise HeaderError(f"dtype {dtype} has no C type in a .{form} kernel")
    return known[dtype]


def derive_header(spec: ProblemSpec, form: Form) -> str:
    """The header for ``form`` (``cpp`` or ``cu``).

    Constants for a tensor ``x`` of shape (m, n): ``x_dim0`` = m, ``x_dim1`` = n, ``x_numel`` = m n, all
    ``long long``; scalars keep their names. Raises ``HeaderError`` for a problem that has no C form.
    """
    if form == "py":
        raise HeaderError("a .py kernel defines ModelNew and has no C header")
    if spec.c_refusal is not None:
        raise HeaderError(f"{spec.id} has no C form: {spec.c_refusal}")
    lines = [f"// Derived from {spec.name}; the kernel defines launch as declared below.", "#pragma once"]
    lines += [f"#include <{name}>" for name in _includes(spec, form)]
    lines.append("")
    for tensor in spec.tensors:
        lines += _constants(tensor)
    lines += [_scalar(scalar) for scalar in spec.scalars]
    lines += ["", "// Returns 0 on success; tensors are contiguous and 256-byte aligned.", prototype(spec, form)]
    lines += [
        "// Optional: how many bytes of scratch memory `workspace` must have.",
        'extern "C" size_t workspace_bytes(void);',
        "",
    ]
    return "\n".join(lines)


def prototype(spec: ProblemSpec, form: Form) -> str:
    """The declaration of ``launch``: inputs, parameters and buffers, outputs, workspace, then the stream in CUDA."""
    arguments = [_argument(tensor, form) for tensor in (*spec.inputs, *spec.weights, *spec.outputs)]
    arguments.append("void* workspace")
    if form == "cu":
        arguments.append("cudaStream_t stream")
    return 'extern "C" int launch(' + ", ".join(arguments) + ");"


def _includes(spec: ProblemSpec, form: Form) -> list[str]:
    names = ["stddef.h", "stdint.h"]
    if form == "cu":
        dtypes = {tensor.dtype for tensor in spec.tensors}
        names += ["cuda_runtime.h", *(name for dtype, name in _CUDA_INCLUDES.items() if dtype in dtypes)]
    return names


def _argument(tensor: TensorSpec, form: Form) -> str:
    const = "" if tensor.role == "output" or tensor.mutated else "const "
    return f"{const}{ctype(tensor.dtype, form)}* {tensor.name}"


def _constants(tensor: TensorSpec) -> list[str]:
    note = ", in-out" if tensor.mutated else ""
    lines = [f"// {tensor.role} {tensor.name}: {tensor.dtype} {list(tensor.shape)}{note}"]
    lines += [f"constexpr long long {tensor.name}_dim{axis} = {size};" for axis, size in enumerate(tensor.shape)]
    lines.append(f"constexpr long long {tensor.name}_numel = {tensor.numel};")
    return lines


def _scalar(scalar: ScalarSpec) -> str:
    if scalar.ctype == "double":
        return f"constexpr double {scalar.name} = {float(scalar.value)!r};"
    if scalar.ctype == "bool":
        return f"constexpr bool {scalar.name} = {'true' if scalar.value else 'false'};"
    return f"constexpr long long {scalar.name} = {int(scalar.value)}LL;"
