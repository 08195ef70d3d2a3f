"""Derived headers: their declarations, and that compilers enforce them on kernels."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from engine.problem.c_header import HeaderError, derive_header, prototype
from engine.problem.spec import Language, ProblemSpec, ScalarSpec, TensorSpec
from tests.patience import PATIENCE_S

SPEC = ProblemSpec(
    id="case",
    name="case",
    path="case.py",
    source="",
    tensors=(
        TensorSpec("x", "input", "float32", (3, 5)),
        TensorSpec("i", "input", "int64", (3,)),
        TensorSpec("flag", "input", "bool", ()),
        TensorSpec("bn_weight", "parameter", "float32", (5,)),
        TensorSpec("bn_running_mean", "buffer", "float32", (5,), mutated=True),
        TensorSpec("out", "output", "float32", (3, 5)),
    ),
    scalars=(
        ScalarSpec("eps", "double", 1e-5),
        ScalarSpec("dim", "long long", -1),
        ScalarSpec("causal", "bool", True),
    ),
)
HALF = ProblemSpec(
    id="half",
    name="half",
    path="half.py",
    source="",
    tensors=(TensorSpec("a", "input", "float16", (8,)), TensorSpec("out", "output", "bfloat16", (8,))),
)
ARGUMENTS = (
    "const float* x, const int64_t* i, const bool* flag, const float* bn_weight, float* bn_running_mean, float* out, "
    "void* workspace"
)
USES = "static_assert(x_dim0 * x_dim1 == x_numel && flag_numel == 1 && dim == -1 && causal && eps > 0);\n"


def compiled(tmp_path: Path, spec: ProblemSpec, language: Language, kernel: str) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("nvcc" if language == "cu" else "g++")
    if compiler is None:
        pytest.skip(f"no compiler for .{language}")
    header = tmp_path / "problem.h"
    header.write_text(derive_header(spec, language))
    source = tmp_path / f"kernel.{language}"
    source.write_text(kernel)
    flags = ["-arch=sm_90", "-std=c++17", "-cubin"] if language == "cu" else ["-std=c++17", "-Wall", "-Werror", "-c"]
    command = [compiler, *flags, "-include", str(header), str(source), "-o", str(tmp_path / "kernel.o")]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_arguments_come_in_the_order_of_the_contract() -> None:
    assert prototype(SPEC, "cpp") == f'extern "C" int launch({ARGUMENTS});'
    assert prototype(SPEC, "cu") == f'extern "C" int launch({ARGUMENTS}, cudaStream_t stream);'


def test_half_precision_headers_are_included_only_where_needed() -> None:
    assert "fp16" not in derive_header(SPEC, "cu")
    assert "cuda_runtime" not in derive_header(SPEC, "cpp")
    assert "#include <cuda_fp16.h>\n#include <cuda_bf16.h>" in derive_header(HALF, "cu")


def test_a_right_cpp_kernel_compiles(tmp_path: Path) -> None:
    kernel = f'#include <math.h>\n{USES}extern "C" int launch({ARGUMENTS}) {{ out[0] = x[0]; return 0; }}\n'

    result = compiled(tmp_path, SPEC, "cpp", kernel)

    assert result.returncode == 0, result.stderr


def test_half_precision_compiles_in_cpp(tmp_path: Path) -> None:
    kernel = 'extern "C" int launch(const _Float16* a, uint16_t* out, void*) { out[0] = a[0] > 0; return 0; }\n'

    result = compiled(tmp_path, HALF, "cpp", kernel)

    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "definition",
    [
        'extern "C" int launch(float* x, float* out, void* workspace) { return 0; }',
        f'extern "C" void launch({ARGUMENTS}) {{}}',
        f'extern "C" int launch({ARGUMENTS.replace("const int64_t", "const int32_t")}) {{ return 0; }}',
        'extern "C" int workspace_bytes(void) { return 0; }',
    ],
)
def test_a_wrong_definition_is_a_compile_error(tmp_path: Path, definition: str) -> None:
    result = compiled(tmp_path, SPEC, "cpp", definition)

    assert result.returncode != 0
    assert "launch" in result.stderr or "workspace_bytes" in result.stderr


def test_a_right_cuda_kernel_uses_the_constants_on_the_device(tmp_path: Path) -> None:
    kernel = (
        f"{USES}__global__ void k(const float* x, float* out) {{ out[0] = x[x_numel - 1] * (float)eps; }}\n"
        f'extern "C" int launch({ARGUMENTS}, cudaStream_t stream) '
        "{ k<<<1, 1, 0, stream>>>(x, out); return cudaGetLastError(); }\n"
    )

    result = compiled(tmp_path, SPEC, "cu", kernel)

    assert result.returncode == 0, result.stderr


def test_a_wrong_cuda_definition_is_a_compile_error(tmp_path: Path) -> None:
    result = compiled(tmp_path, SPEC, "cu", f'extern "C" int launch({ARGUMENTS}) {{ return 0; }}')

    assert result.returncode != 0
    assert "launch" in result.stdout + result.stderr


def test_what_has_no_c_form_has_no_header() -> None:
    refused = ProblemSpec(
        id="p", name="p", path="p.py", source="", tensors=(), c_refusal="the model draws random numbers"
    )

    with pytest.raises(HeaderError, match="random"):
        derive_header(refused, "cu")
    with pytest.raises(HeaderError, match="ModelNew"):
        derive_header(SPEC, "py")
