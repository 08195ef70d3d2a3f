"""Derive the C header that the compiler includes before a kernel. This module does not import torch.

The builder force-includes the header (``-include``). The header declares ``launch`` with C linkage and defines every
shape as ``constexpr``. Compilation fails if a kernel defines ``launch`` with other arguments ("conflicting declaration
of C function").

Without ``extern "C"``, a definition with other arguments is a legal C++ overload. The linker flag
``-Wl,--require-defined=launch`` turns this overload into a build error.
"""

from __future__ import annotations

from engine.problem.spec import LANGUAGE_NAMES, MODULES, Language, ProblemSpec, ScalarSpec, TensorSpec

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
    # g++ 12 has no arithmetic bfloat16 type, so kernels receive the raw bits.
    "cpp": {"float16": "_Float16", "bfloat16": "uint16_t"},
}
_CUDA_INCLUDES = {"float16": "cuda_fp16.h", "bfloat16": "cuda_bf16.h"}


class HeaderError(ValueError):
    """The problem has no C interface, or the requested language does not use one. The message gives the reason."""


def ctype(dtype: str, language: Language) -> str:
    """Return the C type of a tensor's elements. Raises ``HeaderError`` for a dtype without a C type."""
    known = _CTYPES | _HALF_CTYPES.get(language, {})
    if dtype not in known:
        raise HeaderError(f"dtype {dtype} has no C type in a {LANGUAGE_NAMES[language]} kernel")
    return known[dtype]


def derive_header(spec: ProblemSpec, language: Language) -> str:
    """Return the header for kernels in ``language`` (``cpp`` or ``cu``).

    A tensor ``x`` of shape (m, n) gets the ``long long`` constants ``x_dim0`` = m, ``x_dim1`` = n and ``x_numel`` =
    m * n. Scalars become constants with the same names. Raises ``HeaderError`` for a problem without a C interface.
    """
    if language in MODULES:
        raise HeaderError("a Python or Triton kernel defines ModelNew and does not use a C header")
    if spec.c_refusal is not None:
        raise HeaderError(f"{spec.id} accepts Python kernels only: {spec.c_refusal}")
    lines = [f"// Derived from {spec.name}; the kernel defines launch as declared below.", "#pragma once"]
    lines += [f"#include <{name}>" for name in _includes(spec, language)]
    lines.append("")
    for tensor in spec.tensors:
        lines += size_constants(tensor)
    lines += [_scalar(scalar) for scalar in spec.scalars]
    lines += ["", "// Returns 0 on success; tensors are contiguous and 256-byte aligned.", prototype(spec, language)]
    lines += [
        "// Optional: the size in bytes of the scratch memory `workspace`.",
        'extern "C" size_t workspace_bytes(void);',
        "",
    ]
    return "\n".join(lines)


COMPILED: tuple[Language, ...] = ("cpp", "cu")
"""Languages whose kernels define ``launch``."""


def prototype(spec: ProblemSpec, language: Language) -> str:
    """Declare ``launch`` with its arguments: inputs, parameters and buffers, outputs, workspace, and for CUDA the
    stream.
    """
    arguments = [_argument(tensor, language) for tensor in (*spec.inputs, *spec.weights, *spec.outputs)]
    arguments.append("void* workspace")
    if language == "cu":
        arguments.append("cudaStream_t stream")
    return 'extern "C" int launch(' + ", ".join(arguments) + ");"


def _includes(spec: ProblemSpec, language: Language) -> list[str]:
    names = ["stddef.h", "stdint.h"]
    if language == "cu":
        dtypes = {tensor.dtype for tensor in spec.tensors}
        names += ["cuda_runtime.h", *(name for dtype, name in _CUDA_INCLUDES.items() if dtype in dtypes)]
    return names


def _argument(tensor: TensorSpec, language: Language) -> str:
    const = "" if tensor.role == "output" or tensor.mutated else "const "
    return f"{const}{ctype(tensor.dtype, language)}* {tensor.name}"


def size_constants(tensor: TensorSpec) -> list[str]:
    """Return the header lines that define the sizes of ``tensor``."""
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
