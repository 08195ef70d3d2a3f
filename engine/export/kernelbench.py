"""Write a kernel as a KernelBench solution file.

The file's ``ModelNew`` must pass KernelBench's unchanged evaluator and static checker. The following rules come from
``src/kernelbench/eval.py`` and ``kernel_static_checker.py``, as of 2026-03 (commit 423217d):

- The evaluator runs the file with ``exec`` in the reference's namespace. ``__file__`` does not exist, and the file must
not redefine any of the reference's names. ``from __future__`` fails, because the evaluator prepends lines.
- Weights match because the evaluator builds both models from the same seed, and ``ModelNew`` keeps the reference's
``__init__``.
- The checker rejects ``try:``, ``except`` and the word ``pass`` anywhere, even in most comments.
- The model must return one tensor of the reference's dtype and use the default stream.

The judged source and its derived header form a separate translation unit, so they build without PyTorch's headers. A
wrapper checks the arguments, allocates the output and the workspace, and calls ``launch``.
"""

from __future__ import annotations

import hashlib
import re

from engine.evaluation.build.compilers import exported_flags
from engine.export import ExportError
from engine.export.model_class import model_new
from engine.export.rejected_words import check_words, without_refused_words
from engine.problem.c_header import ctype, derive_header, prototype
from engine.problem.spec import MODULES, Language, ProblemSpec, TensorSpec

_ATEN_DTYPES = {
    "float64": "at::kDouble",
    "float32": "at::kFloat",
    "float16": "at::kHalf",
    "bfloat16": "at::kBFloat16",
    "int64": "at::kLong",
    "int32": "at::kInt",
    "int16": "at::kShort",
    "int8": "at::kChar",
    "uint8": "at::kByte",
    "bool": "at::kBool",
}

_COMPILE_CPP = """\
{name} = load_inline(
    name="{extension}",
    cpp_sources=[{name}_wrapper, {name}_source],
    functions=["run"],
    no_implicit_headers=True,
    extra_cflags={flags},
    extra_ldflags=["-fopenmp"],
)
"""

# PyTorch disables half-precision operators with -D flags; the later -U flags enable them again.
_COMPILE_CUDA = """\
{name}_flags = ["-std=c++17", "-O3", "-lineinfo", "-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__",
                "-U__CUDA_NO_HALF2_OPERATORS__", "-U__CUDA_NO_BFLOAT16_CONVERSIONS__"]
if torch.cuda.is_available():
    {name}_arch = "%d%d" % torch.cuda.get_device_capability()
    {name}_arch += "a" if int({name}_arch) >= 90 else ""
    {name}_flags.append("-gencode=arch=compute_%s,code=sm_%s" % ({name}_arch, {name}_arch))

{name} = load_inline(
    name="{extension}",
    cpp_sources=[{name}_wrapper],
    cuda_sources=[{name}_source],
    functions=["run"],
    no_implicit_headers=True,
    with_cuda=True,
    extra_cflags=["-O3"],
    extra_cuda_cflags={name}_flags,
)
"""


def solution(problem: ProblemSpec, language: Language, source: str, about: str = "") -> str:
    """Return the solution file for a kernel in ``language``. ``about``: lines about the kernel, for the file's header.

    A ``.cpp`` kernel runs on the CPU, which KernelBench's evaluator does not support. A ``.py`` kernel is already a
    solution. Raises ``ExportError``.
    """
    if language in MODULES:
        return source
    _refuse(problem)
    name = _free_name(problem.source)
    inputs = [tensor.source_name for tensor in problem.inputs]
    arguments = [*inputs, *(_weight(tensor) for tensor in problem.weights)]
    cleaned = without_refused_words(derive_header(problem, language).replace("#pragma once\n", "") + "\n" + source)
    wrapper = _wrapper(problem, language, source)
    extension = f"{name}_{hashlib.sha256((cleaned + wrapper).encode()).hexdigest()[:16]}"
    imports, support, model = model_new(problem, f"return {name}.run({', '.join(arguments)})", frozenset(inputs))
    compiling = (_COMPILE_CUDA if language == "cu" else _COMPILE_CPP).format(
        name=name, extension=extension, flags=_flags()
    )
    lines = [
        f"# {line}"
        for line in (f"A KernelBench solution for {problem.name}, exported by kernel-tui.", *about.splitlines())
        if line
    ]
    parts = [
        without_refused_words("\n".join(lines), comment="#"),
        "\n".join(dict.fromkeys(["import torch", *imports, "from torch.utils.cpp_extension import load_inline"])),
        f"{name}_source = {_literal(cleaned)}",
        f"{name}_wrapper = {_literal(wrapper)}",
        compiling.rstrip(),
        *support,
        model,
    ]
    text = "\n\n".join(parts) + "\n"
    check_words(text)
    return text


def _refuse(problem: ProblemSpec) -> None:
    if problem.c_refusal is not None:
        raise ExportError(f"{problem.id} accepts Python kernels only: {problem.c_refusal}")
    if len(problem.outputs) != 1:
        raise ExportError(
            f"{problem.id} returns {len(problem.outputs)} tensors, but KernelBench compares exactly one; export the "
            "kernel with --package NAME instead"
        )


def _free_name(source: str) -> str:
    """Choose a prefix for the solution's names. The solution runs in the reference's namespace, so the prefix must not
    occur in the reference.
    """
    name = "kernel_tui"
    while name in source:
        name += "_"
    return name


def _weight(tensor: TensorSpec) -> str:
    return f'self.get_{tensor.role}("{tensor.source_name}")'


def _wrapper(problem: ProblemSpec, language: Language, source: str) -> str:
    """Return the C++ wrapper between PyTorch and ``launch``."""
    tensors = [*problem.inputs, *problem.weights]
    output = problem.outputs[0]
    body = []
    for index, tensor in enumerate(tensors):
        given, held = f"given{index}", f"t{index}"
        if tensor.mutated:
            wanted = f"{given}.is_contiguous() && {given}.scalar_type() == {_ATEN_DTYPES[tensor.dtype]}"
            body.append(f'TORCH_CHECK({wanted}, "{tensor.name}: expected a contiguous {tensor.dtype} tensor");')
            body.append(f"const at::Tensor& {held} = {given};")
        else:
            body.append(f"const at::Tensor {held} = {given}.to({_ATEN_DTYPES[tensor.dtype]}).contiguous();")
        body.append(
            f'TORCH_CHECK({held}.numel() == {tensor.numel}, "{tensor.name}: expected {tensor.numel} elements");'
        )
    sizes = f"std::vector<int64_t>{{{', '.join(map(str, output.shape))}}}"
    device = "given0.device()" if tensors else "at::kCUDA" if language == "cu" else "at::kCPU"
    options = f"at::TensorOptions().device({device}).dtype"
    body.append(f"at::Tensor out = at::empty({sizes}, {options}({_ATEN_DTYPES[output.dtype]}));")
    pointers = [f"static_cast<{_pointer(tensor, language)}>(t{i}.data_ptr())" for i, tensor in enumerate(tensors)]
    pointers.append(f"static_cast<{_pointer(output, language)}>(out.data_ptr())")
    if _defines_workspace(source):
        body.append("const std::vector<int64_t> scratch_bytes{static_cast<int64_t>(workspace_bytes())};")
        body.append(f"at::Tensor scratch = at::empty(scratch_bytes, {options}(at::kByte));")
        pointers.append("scratch.data_ptr()")
    else:
        pointers.append("nullptr")
    if language == "cu":
        pointers.append("c10::cuda::getCurrentCUDAStream()")
    body.append(f"const int code = launch({', '.join(pointers)});")
    body.append('TORCH_CHECK(code == 0, "launch returned ", code);')
    if language == "cu":
        body.append("C10_CUDA_CHECK(cudaGetLastError());")
    body.append("return out;")
    # These headers suffice, and compile in a third of the time that torch/extension.h takes.
    includes = ["ATen/core/Tensor.h", "ATen/ops/empty.h", "torch/csrc/Exceptions.h", "torch/csrc/utils/pybind.h"]
    if language == "cu":
        includes += ["c10/cuda/CUDAException.h", "c10/cuda/CUDAStream.h", "cuda_bf16.h", "cuda_fp16.h"]
    parameters = ", ".join(f"at::Tensor given{index}" for index in range(len(tensors)))
    declared = [prototype(problem, language)]
    if _defines_workspace(source):
        declared.append('extern "C" size_t workspace_bytes(void);')
    lines = [*(f"#include <{one}>" for one in includes), "", *declared, "", f"at::Tensor run({parameters}) {{"]
    return "\n".join([*lines, *(f"    {line}" for line in body), "}"]) + "\n"


def _pointer(tensor: TensorSpec, language: Language) -> str:
    const = "" if tensor.role == "output" or tensor.mutated else "const "
    return f"{const}{ctype(tensor.dtype, language)}*"


def _defines_workspace(source: str) -> bool:
    return re.search(r"\bworkspace_bytes\s*\(", source) is not None


def _flags() -> str:
    """Format the flags of a C++ extension as a Python list. PyTorch itself adds the flags for a shared library."""
    flags = [f'"{flag}"' for flag in exported_flags() if flag not in ("-fPIC", "-shared", "-Wall")]
    return "\n".join(["[", *(f"        {flag}," for flag in flags), "    ]"])


def _literal(text: str) -> str:
    """Format C source as a readable Python string literal."""
    for quotes in ("'''", '"""'):
        if quotes not in text and not text.endswith(("\\", quotes[0])):
            return f"r{quotes}\n{text}{quotes}"
    return repr(text)
