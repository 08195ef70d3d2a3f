"""``load_c`` finds definitions, builds each source once, accepts tensors, and rejects wrong calls."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
import torch

from kernel_tui import BuildError, load_c
from kernel_tui.c_prototypes import functions_of

SOURCE = """
#include <cmath>
// extern "C" int commented(float* x) { return 0; }
static float helper(float v) { return std::sqrt(v); }
extern "C" int roots(const float* __restrict__ x, float* out, long long n) {
    for (long long i = 0; i < n; i++) out[i] = helper(x[i]);
    return 0;
}
extern "C" double dot(const double* a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}
extern "C" int fails(bool really) { return really ? 7 : 0; }
extern "C" void count(const bool* mask, int32_t* out, const uint16_t* halves) { *out = mask[0] + (halves != nullptr); }
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_functions_take_tensors_and_numbers() -> None:
    kernels = load_c(SOURCE, "cpp")
    x, out = torch.rand(100), torch.empty(100)

    assert kernels.roots(x, out, x.numel()) is None
    assert torch.allclose(out, x.sqrt())
    a, b = torch.rand(50, dtype=torch.float64), torch.rand(50, dtype=torch.float64)
    assert abs(kernels.dot(a, b, 50) - float(a @ b)) < 1e-12
    found = torch.zeros((), dtype=torch.int32)
    kernels.count(torch.tensor([True]), found, torch.zeros(2, dtype=torch.bfloat16))
    assert found == 2
    kernels.count(torch.tensor([True]), found, None)
    assert found == 1


def test_a_running_event_loop_may_build() -> None:
    """As a cell of a notebook does."""

    async def cell() -> float:
        one, two = torch.ones(4, dtype=torch.float64), torch.full((4,), 2.0, dtype=torch.float64)
        return float(load_c(SOURCE, "cpp").dot(one, two, 4))

    async def wrong_cell() -> None:
        load_c(SOURCE.replace("sqrt", "squareroot"), "cpp")

    assert asyncio.run(cell()) == 8.0
    with pytest.raises(BuildError, match="squareroot"):
        asyncio.run(wrong_cell())


def test_wrong_calls_say_what_is_wrong() -> None:
    kernels = load_c(SOURCE, "cpp")
    x = torch.rand(10, 10)

    with pytest.raises(TypeError, match=r"x points to float, .*dtype is float64"):
        kernels.roots(x.double(), x, 10)
    with pytest.raises(TypeError, match="not contiguous"):
        kernels.roots(x.t(), x, 10)
    with pytest.raises(TypeError, match=r"takes float\* x, float\* out, long long n; .* 2 arguments"):
        kernels.roots(x, x)
    with pytest.raises(TypeError, match="n must be long long, not a tensor"):
        kernels.roots(x, x, x)
    with pytest.raises(TypeError, match=r"roots takes float\* x.*argument 3"):
        kernels.roots(x, x, "ten")
    with pytest.raises(RuntimeError, match="fails returned 7"):
        kernels.fails(True)
    with pytest.raises(AttributeError, match="no function helper"):
        kernels.helper  # noqa: B018


def test_the_compilers_words_come_back() -> None:
    with pytest.raises(BuildError, match="here"):
        load_c('extern "C" int run(float* x) { return here; }', "cpp")
    with pytest.raises(ValueError, match="no function with C linkage"):
        load_c("int run(float* x) { return 0; }", "cpp")
    with pytest.raises(ValueError, match="'grid' has type 'dim3'"):
        load_c('extern "C" int run(dim3 grid) { return 0; }', "cpp")


def test_the_same_source_is_built_once() -> None:
    first, second = load_c(SOURCE, "cpp"), load_c(SOURCE, "cpp")

    assert first.path == second.path


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_cuda_has_its_name_and_its_suffix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_TUI_ARCH", "sm_90a")
    source = '__global__ void idle() {}\nextern "C" int two() { return 2; }'
    assert load_c(source, "cuda").path == load_c(source, "cu").path


def test_a_stream_at_the_end_is_seen() -> None:
    (function,) = functions_of('extern "C" int run(const __half* x, size_t n, cudaStream_t stream) {')

    assert function.parameters[-1].is_stream and function.parameters[0].kind == "__half"
    assert function.signature == "__half* x, size_t n, cudaStream_t stream"


@pytest.mark.parametrize(
    "before",
    [
        'extern "C" __global__ void scale(float4 by) {}',
        'extern "C" __device__ float twice(float x) { return 2 * x; }',
        'const char* address = "http://x";',
        'const char *start = "/*", *quoted = "\\"/*";',
        "const char quotes[] = {'\"', '\\''}; // \"\n",
        '// extern "C" int commented(float* x) { return 0; }\n',
        "// a comment's apostrophe\n",
    ],
)
def test_what_stands_before_a_function_does_not_hide_it(before: str) -> None:
    (function,) = functions_of(f'{before} extern "C" int run(int n) {{ return n; }} /* end */')
    assert function.name == "run"


def test_all_integer_types_are_accepted() -> None:
    limits = {"unsigned char": 2**8, "unsigned short": 2**16, "long long int": 2**63, "unsigned long int": 2**64}
    names = [f"n{index}" for index in range(len(limits))]
    parameters = ", ".join(f"{kind} {name}" for kind, name in zip(limits, names, strict=True))
    equal = " && ".join(f"{name} == {limit - 1}u" for name, limit in zip(names, limits.values(), strict=True))
    kernels = load_c(f'extern "C" int wrong({parameters}) noexcept {{ return !({equal}); }}', "cpp")
    assert kernels.wrong(*(limit - 1 for limit in limits.values())) is None


@pytest.mark.gpu
def test_cuda_code_runs_on_the_current_stream() -> None:
    source = """
    __global__ void add(const float* x, float* out, long long n, float by) {
        long long i = blockIdx.x * 256LL + threadIdx.x;
        if (i < n) out[i] = x[i] + by;
    }
    extern "C" int run(const float* x, float* out, long long n, float by, cudaStream_t stream) {
        add<<<(n + 255) / 256, 256, 0, stream>>>(x, out, n, by);
        return cudaGetLastError();
    }
    """
    kernels = load_c(source, "cu")
    x = torch.rand(1000, device="cuda")
    out = torch.empty_like(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        kernels.run(x, out, x.numel(), 2.0)
    torch.cuda.synchronize()

    assert torch.equal(out, x + 2)
